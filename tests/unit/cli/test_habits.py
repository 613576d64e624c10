"""What users of Kafka's tools, kcat and rpk type, and the form that all commands have."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import kalda.cli
from kalda.cli.commands import cli
from kalda.cli.common.nouns import KAFKA_TOOLS, OTHER_NAMES, in_kaldas_words
from kalda.cli.common.output import counted

WITHOUT_JSON = {
    "server": "prints the lines of a node; --log-format json",
    "cluster logs": "prints lines of nodes",
    "demo": "shows a screen",
    "tls make": "prints what to put into properties files",
    "completion": "prints a script",
    "storage properties": "prints a properties file",
    "pipeline serve": "runs until it is stopped; its state is JSON over HTTP",
    "sim replay": "prints a trace",
}
"""Commands without tables and documents, and why."""
ASKING = (
    "delete", "delete-records", "delete-offsets", "remove", "unregister", "remove-controller", "expire", "abort",
    "force-terminate",
)  # fmt: skip
"""Last words of commands that ask, or take --yes: what they take away does not come back by itself."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    ctx = click.Context(command, parent=click.Context(cli, **cli.context_settings))
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        yield from leaves(found, (*path, name))


ALL = dict(leaves(cli))


def options_of(command: click.Command) -> set[str]:
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


def said(*arguments: str, code: int = 2) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result.stderr


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    with socket.socket() as held:  # bound, so that nobody else gets the port, and not listening
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("name", ALL)
def test_each_command_has_an_example_and_prints_json(name: str) -> None:
    assert f"kalda {name}" in (ALL[name].help or "").partition("Example")[2], "no example of this command"
    shown = [each for each in ALL[name].params if isinstance(each, click.Option) and not each.hidden]
    assert [each.opts for each in shown if not each.help] == []
    assert ("--json" in options_of(ALL[name])) != (name in WITHOUT_JSON), "without --json, or with it now"


def test_no_help_is_cut() -> None:
    nouns = ["", *sorted({name.split()[0] for name in ALL if " " in name})]
    for noun in nouns:
        shown = CliRunner().invoke(cli, [*filter(None, [noun]), "--help"], terminal_width=60).output
        assert "..." not in shown.partition("Commands:")[2], noun


def test_a_thing_has_one_spelling() -> None:
    for name, command in ALL.items():
        assert not options_of(command) & {"--validate-only", "--force", "--client-ids", "--brokerid"}, name
        short = [option.opts for option in command.params if "-f" in option.opts]
        assert all("--format" in names for names in short), name
        if isinstance(command, click.Command) and name.split()[-1] in ASKING:
            assert "--yes" in options_of(command), name


@pytest.mark.parametrize(
    ("line", "here"), [("consume -C -t orders", "consume TOPIC"), ("produce -P orders", "produce TOPIC")]
)
def test_a_mode_of_kcat_behind_a_command_is_named(line: str, here: str) -> None:
    assert f"is an option of kcat; here it is: kalda {here}" in said(*line.split())


@pytest.mark.parametrize("line", ["-b localhost:9092", "topics --bootstrap-server localhost:9092"])
def test_servers_without_a_command_are_said_to_need_one(line: str) -> None:
    assert "stands behind a command: kalda topics list" in said(*line.split())


def test_scripts_of_kafka_and_other_words_stand_for_nouns_that_exist() -> None:
    ctx = click.Context(cli, **cli.context_settings)
    for word in (*KAFKA_TOOLS, *(f"{tool}.sh" for tool in KAFKA_TOOLS), *OTHER_NAMES, "topic", "group", "profile"):
        assert cli.get_command(ctx, word) is not None, word


@pytest.mark.parametrize(
    "line",
    [
        "topic list -b {}",
        "-b {} topic list",
        "topics -b {} list",
        "--bootstrap-server={} topics describe orders",
        "topics --list --bootstrap-server {}",
        "kafka-topics.sh --bootstrap-server {} --describe --topic orders",
        "topics --create --topic orders --partitions 3 -b {}",
        "group describe -g billing --brokers {}",
        "groups --describe --group billing --bootstrap-servers {}",
        "consume --topic orders --from-beginning -b {}",
        "consume -t orders -o beginning -e -c 5 -J -b {}",
        "kafka-console-consumer --topic orders --property print.key=true --bootstrap-server {}",
        "kafka-console-share-consumer.sh --topic orders --group workers --bootstrap-server {}",
        "kafka-console-share-consumer --bootstrap-server {} --topic orders",
        "kafka-share-groups.sh --describe --group workers --offsets --bootstrap-server {}",
        "kafka-streams-groups --bootstrap-server {} --describe --group counts --members --verbose",
        "kafka-streams-groups --reset-offsets --group counts --input-topic orders --to-earliest --bootstrap-server {}",
        "kafka-groups --list --bootstrap-server {}",
        "topics delete --topic orders -y -b {}",
        "topics create orders --validate-only -b {}",
        "kafka-configs.sh -b {} --alter --entity-type topics --entity-name orders --add-config retention.ms=1",
        "kafka-reassign-partitions --execute --reassignment-json-file {plan} --bootstrap-server {}",
        "kafka-consumer-groups --reset-offsets --group g --topic t --to-earliest --execute --bootstrap-server {}",
        "acls remove --topic orders --force -b {}",
        "topics create orders --set retention.ms=1 -b {}",
        "configs alter --topic orders --set retention.ms=1 --delete segment.ms -b {}",
        "explain throttle --client app -b {}",
    ],
)
def test_habits_reach_the_cluster(line: str, nowhere: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    assert "cannot connect to the cluster" in said(*line.format(nowhere, plan=plan).split(), code=3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("topcs", "Did you mean topics?"),
        ("topics lst", "Did you mean list?"),
        ("topics produce orders", "kalda produce"),
        ("topics xyzzy", "There are alter, create,"),
        ("-C -t orders", "kalda consume TOPIC"),
        ("-L", "kalda cluster describe"),
        ("topics create orders --partition 3", "--partitions"),
    ],
)
def test_a_wrong_word_is_answered_with_what_may_be_meant(line: str, words: str) -> None:
    assert words in said(*line.split())


def test_an_option_that_a_command_has_is_never_rewritten() -> None:
    words = ["--topic", "a", "-o=1", "--", "--topic", "b"]
    assert in_kaldas_words(words, {"--topic", "-o"}, {"TOPIC"}) == words
    assert in_kaldas_words(words, {"--from"}, {"TOPIC"}) == ["a", "-o=1", "--", "--topic", "b"]
    assert in_kaldas_words(["--group=g", "--offset=5"], {"--from"}, {"GROUP"}) == ["g", "--from=5"]


@pytest.mark.parametrize(
    "line",
    [
        "topics delete o",
        "groups delete billing",
        "users remove al",
        "acls remove --topic t",
        "client-metrics alter --name a --delete",
    ],
)
def test_nothing_is_deleted_without_an_answer(line: str, nowhere: str) -> None:
    assert "--yes answers it" in said(*line.split(), "-b", nowhere, code=1)


def test_what_is_counted_is_in_the_singular_where_there_is_one() -> None:
    assert [counted(number, "record") for number in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
    assert counted(2_000, "batch", "batches", form=",") == "2,000 batches"
    nouns = "records|rows|batches|topics|partitions|replicas|groups|members|keys|nodes|brokers|windows|files|seeds"
    uncounted = re.compile(rf"\}} (?:{nouns})(?![/\w-])")
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(str(kalda.cli.__file__)).parent.rglob("*.py")
        for line in path.read_text().splitlines()
        if uncounted.search(line) and "1 record" not in line
    ]
    assert [line for line in found if not line.startswith(ALWAYS_MANY)] == []


ALWAYS_MANY = ("host.py", "layout.py", "story.py", "dump_log.py")
"""Files with texts that count what is never one."""


def completions(*words: str, incomplete: str = "") -> set[str]:
    completer = ShellComplete(cli, {}, "kalda", "_KALDA_COMPLETE")
    return {item.value for item in completer.get_completions(list(words), incomplete)}


def test_config_keys_profiles_and_options_of_the_server_complete(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "retention.ms=" in completions("configs", "alter", "--add-config", incomplete="reten")
    assert "log.retention.hours=" in completions("server", "--override", incomplete="log.ret")
    assert {"--dir", "--port"} <= completions("server", incomplete="--")
    assert completions("server", "--log-level", incomplete="W") == {"WARNING"}
    assert "linger.ms=" in completions("produce", "-X", incomplete="lin")
    path = tmp_path_factory.mktemp("profiles") / "profiles.toml"
    path.write_text('[production]\n"bootstrap.servers" = "a:1"\n')
    monkeypatch.setenv("KALDA_PROFILES", str(path))
    assert completions("topics", "list", "--profile", incomplete="p") == {"production"}


def test_the_version_is_a_command_too() -> None:
    shown = CliRunner().invoke(cli, ["version"]).output
    assert shown.startswith("kalda ")
    assert "python" in shown


@pytest.mark.parametrize(
    ("words", "here"),
    [
        ("cluster health", "kalda doctor"),
        ("topic alter-config orders --set retention.ms=5", "kalda configs alter --topic TOPIC --add-config KEY=VALUE"),
        ("topic consume orders", "kalda consume TOPIC"),
    ],
)
def test_a_command_of_rpk_that_is_elsewhere_is_answered_with_where(words: str, here: str) -> None:
    assert here in " ".join(said(*words.split()).split())


@pytest.mark.parametrize("name", ["consumer-groups", "consumer-groups.sh", "console-consumer", "metadata-quorum"])
def test_a_script_of_kafka_is_found_without_its_first_word(name: str) -> None:
    assert f"Usage: cli {name} " in CliRunner().invoke(cli, [name, "--help"]).output
