"""The command line itself: which modules are loaded when, exit codes, error messages."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kalda.cli.commands import NOUNS, cli
from kalda.cli.common.failures import Failure
from kalda.cli.common.output import print_json, print_table

VARIABLE = "KALDA_BOOTSTRAP_SERVER"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="kalda")


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as held:  # bound, so that nobody else gets the port, and not listening
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_help_names_every_noun() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for noun, about in NOUNS.items():
        assert noun in result.output
        assert about.help in result.output


@pytest.mark.parametrize("noun", [noun for noun in NOUNS if noun != "server"])
def test_every_noun_has_help_with_an_example(noun: str) -> None:
    command = cli.get_command(None, noun)  # type: ignore[arg-type]
    assert command is not None
    result = run(noun, "--help")
    assert result.exit_code == 0
    leaves = getattr(command, "commands", {None: command})
    for name, leaf in leaves.items():
        assert "Example" in leaf.help, f"{noun} {name} has no example"
        assert run(*filter(None, (noun, name)), "--help").exit_code == 0


GIVEN = {"admin", "config", "resource", "options", "settings"}
"""What decorators of commands pass to them, beside the values of options."""


@pytest.mark.parametrize("noun", [noun for noun in NOUNS if noun != "server"])
def test_every_command_gets_what_it_takes(noun: str) -> None:
    command = cli.get_command(None, noun)  # type: ignore[arg-type]
    for name, leaf in getattr(command, "commands", {None: command}).items():
        values = {each.name for each in leaf.params if each.expose_value}
        wanted = {
            each.name
            for each in inspect.signature(inspect.unwrap(leaf.callback)).parameters.values()
            if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        }
        assert wanted <= values | GIVEN, f"{noun} {name}"


@pytest.mark.parametrize(
    "arguments",
    [
        "topics create logs --partitions 2147483648",
        "topics alter logs --partitions 99999999999",
        "topics list --request-timeout-ms 99999999999999999999",
        "features upgrade --feature metadata.version=32768",
    ],
)
def test_a_number_beyond_its_field_in_the_request_is_a_wrong_command_line(arguments: str) -> None:
    assert run(*arguments.split()).exit_code == 2


def test_closed_standard_streams_are_replaced_by_dev_null(tmp_path: Path) -> None:
    report = tmp_path / "report"
    program = (
        "import sys; from pathlib import Path; from kalda.cli.main import hold_standard_streams\n"
        "hold_standard_streams(); print('out'); print('err', file=sys.stderr, flush=True)\n"
        "import subprocess; subprocess.run(['sh', '-c', 'echo <&0 && echo >&2'], check=True)\n"
        f"Path({str(report)!r}).write_text(repr((sys.stdin.fileno(), sys.stdin.read(), sys.stdout.fileno())))"
    )
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program], check=True)
    assert report.read_text(encoding="utf-8") == "(0, '', 1)"


def test_help_loads_no_client_and_no_rich() -> None:
    """These modules would make the start slow."""
    program = (
        "import sys; from kalda.cli.main import main; sys.argv = ['kalda', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('rich', 'asyncio', 'pyarrow') or '.client' in m "
        "or 'messages' in m]\nprint(bad, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


def test_a_server_without_its_file_names_it_once() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kalda", "server", "nofile"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "ERROR cannot start with nofile: No such file or directory (kalda.server)\n" in result.stdout + result.stderr


def test_the_package_is_a_program() -> None:
    result = subprocess.run([sys.executable, "-m", "kalda", "--help"], capture_output=True, text=True, check=True)
    assert result.stdout == run("--help").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topics", "create", "a", "--config", "novalue"], "--config novalue: KEY=VALUE"),
        (["topics", "create", "a", "--replica-assignment", "x"], "--replica-assignment x"),
        (["topics", "create", "a", "-p", "2", "--replica-assignment", "1"], "leave out --partitions"),
        (["topics", "list", "--bootstrap-server", "host:port"], "'host:port'"),
        (["configs", "describe"], "0 are given"),
        (["configs", "describe", "--topic", "a", "--broker", "1"], "2 are given"),
        (["configs", "alter", "--topic", "a"], "nothing to alter"),
        (["groups", "reset-offsets", "g", "--topic", "t"], "--to-earliest"),
        (["groups", "reset-offsets", "g", "--to-latest"], "--all-topics"),
        (["features", "upgrade"], "nothing to change"),
        (["features", "upgrade", "-f", "share.version=x"], "share.version=x"),
        (["features", "upgrade", "-r", "9.9"], "9.9"),
        (["produce", "t", "--idempotent", "--acks", "1"], "--acks all"),
        (["sim", "run", "--duration", "nan"], "nan is not a number of seconds"),
        (["cluster", "down", "--timeout", "inf"], "inf is not a number of seconds"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())


def test_an_unreachable_cluster_exits_with_3_in_one_line(closed_port: int) -> None:
    result = run("topics", "list", "--bootstrap-server", f"127.0.0.1:{closed_port}", "--request-timeout-ms", "100")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert f"127.0.0.1:{closed_port}" in result.stderr
    assert "--bootstrap-server" in result.stderr


def test_the_environment_has_the_clusters_address(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"127.0.0.1:{closed_port}")
    result = run("cluster", "id", "--request-timeout-ms", "100")
    assert f"127.0.0.1:{closed_port}" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_KALDA_COMPLETE={shell}_complete" in result.output


def complete(words: str, position: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("_KALDA_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(position))
    return CliRunner().invoke(cli, prog_name="kalda").output.split()


def test_nouns_and_verbs_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("kalda to", 1, monkeypatch) == ["plain,topics", "plain,tokens"]
    assert complete("kalda topics d", 2, monkeypatch) == ["plain,delete", "plain,delete-records", "plain,describe"]


def test_topics_do_not_complete_without_a_cluster(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"127.0.0.1:{closed_port}")
    assert complete("kalda topics describe x", 3, monkeypatch) == []


def test_a_closed_pipe_ends_a_command_quietly_as_it_ends_cat(tmp_path: Path) -> None:
    """The reader of stdout has ended before the command writes. A shell shows the exit code 128 + SIGPIPE."""
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kalda", "dump-log", str(tmp_path)]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, "")


def test_a_table_on_a_narrow_terminal_folds_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folded name cannot be copied; the terminal wraps the line itself."""
    name, text = "a-very-long-name-of-a-topic-" * 6, io.StringIO()
    monkeypatch.setattr(text, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    with contextlib.redirect_stdout(text):
        print_table(("TOPIC", "OTHER"), [(name, name), ("a", "b")])
    assert text.getvalue().count(name) == 2


def test_tables_are_plain_without_a_terminal() -> None:
    @click.command()
    def show() -> None:
        print_table(("NAME", "COUNT"), [("a", 5), ("long-name", 12)])
        print_table(("EMPTY",), [])
        print_table(("LIST", "NONE", "FLAG"), [([1, 2], None, True)])

    assert CliRunner().invoke(show).output.splitlines() == [
        "NAME       COUNT",
        "a              5",
        "long-name     12",
        "EMPTY",
        "LIST  NONE  FLAG",
        "1,2   -     yes",
    ]


def test_names_of_clients_cannot_forge_rows_or_send_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    name = "group\nother  Stable\x1b[2J\x9b"
    print_table(("GROUP", "MEMBERS"), [(name, [name])])
    print_json([name])
    Failure(f"{name} cannot be deleted").show()
    printed = capsys.readouterr()
    shown = r"group\nother  Stable\x1b[2J\x9b"
    assert printed.out.splitlines()[1] == f"{shown}  {shown}"
    assert json.loads(printed.out.splitlines()[2]) == [name]
    assert all(line.isprintable() for line in printed.out.splitlines())
    assert printed.err == "kalda: group other Stable\\x1b[2J\\x9b cannot be deleted\n"
