"""Lines about long work, on a terminal and elsewhere, and what Spark prints of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from kalda.cli.commands import cli
from kalda.cli.common import output
from kalda.cli.common.output import ProgressLine
from kalda.cli.common.quiet_spark import quiet_spark, without_noise


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    return clock


def test_without_a_terminal_there_is_a_line_every_few_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(lambda seconds: f"{seconds:.0f} s")
    for clock.now_s in (1.0, 4.9, 5.0, 6.0, 9.9, 10.1):
        line.step()
    line.clear()
    assert capsys.readouterr().err == "5 s\n10 s\n"


def test_on_a_terminal_the_line_is_overwritten(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    line = ProgressLine(lambda seconds: f"{seconds:.1f} s")
    for clock.now_s in (0.1, 0.3, 0.4, 0.6):
        line.step()
    line.clear()
    assert capsys.readouterr().err == "\r0.3 s\r0.6 s\r     \r"


@pytest.mark.parametrize(
    "name",
    ["dump_log", "groups", "pipeline", "records.perf", "records.produce", "reassignment.plans", "sim", "verify"],
)
def test_commands_that_work_long_show_how_far_they_are(name: str) -> None:
    assert import_module(f"kalda.cli.{name}").ProgressLine is ProgressLine  # and ruff refuses it where it is not used


def test_a_line_is_shown_while_seeds_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LINE_S", 0.0)
    monkeypatch.setattr(output, "_PROGRESS_S", 0.001)
    shown = CliRunner().invoke(cli, ["sim", "quorum", "--seeds", "3", "--jobs", "1", "--json"])
    assert json.loads(shown.stdout) == {"first": 0, "seeds": 3, "failed": []}
    assert "of 3 seeds, 0 failed" in shown.stderr


def test_it_ticks_by_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from threading import Event

    monkeypatch.setattr(output, "_LINE_S", 0.0)
    monkeypatch.setattr(output, "_PROGRESS_S", 0.001)
    described = Event()

    def describe(seconds: float) -> str:
        assert seconds > 0
        described.set()
        return "working"

    with ProgressLine(describe).ticking():
        assert described.wait(60)
    assert capsys.readouterr().err.startswith("working\n")


CLOSED = """\
Traceback (most recent call last):
  File "daemon.py", line 1, in manager
    write(1)
BrokenPipeError: [Errno 32] Broken pipe
"""
TWICE = CLOSED + "\nDuring handling of the above exception, another exception occurred:\n\n" + CLOSED
REAL = CLOSED.replace("BrokenPipeError: [Errno 32] Broken pipe", "ValueError: of the user")


def test_of_what_spark_prints_the_banner_and_closed_pipes_are_left_out() -> None:
    banner = 'WARNING: Using incubator modules: jdk.incubator.vector\nSetting default log level to "WARN".\n'
    shown = "".join(
        without_noise((banner + CLOSED + "one\n" + REAL + "two\n" + TWICE + "three\n").splitlines(keepends=True))
    )
    assert shown == "one\n" + REAL + "two\nthree\n"


def test_the_processes_of_a_session_write_into_the_pipe_and_this_one_does_not() -> None:
    script = (
        "import subprocess, sys\n"
        "from kalda.cli.common.quiet_spark import quiet_spark\n"
        "with quiet_spark() as restore:\n"
        "    jvm = subprocess.Popen([sys.executable, '-c',"
        ' \'import sys; sys.stdin.read(); print("Setting default log level to WARN", file=sys.stderr);'
        ' print("lost", file=sys.stderr)\'], stdin=subprocess.PIPE)\n'
        "    restore()\n"
        "    print('Setting default log level to mine', file=sys.stderr)\n"
        "    jvm.communicate(b'')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert sorted(done.stderr.splitlines()) == ["Setting default log level to mine", "lost"]


def run_session(body: str) -> subprocess.CompletedProcess[str]:
    """A process in a session whose `jvm(code)` starts a process that runs this Python."""
    script = (
        "import os, signal, subprocess, sys, threading\n"
        "from kalda.cli.common.quiet_spark import quiet_spark\n"
        "def jvm(code):\n"
        "    return subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE)\n"
        f"with quiet_spark() as restore:\n{textwrap.indent(body, '    ')}"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_what_this_process_writes_while_the_session_is_made_is_shown() -> None:
    done = run_session(
        "jvm('import sys; print(\":: resolving\", file=sys.stderr)').wait()\nprint('5 s', file=sys.stderr)"
    )
    assert done.stderr == "5 s\n"


START_OF_A_SOURCE = "import sys; sys.stdin.read(); open('/nonexistent')"


@pytest.mark.parametrize("handler", ["signal.default_int_handler", "lambda *_: seen.set()"])
def test_what_the_processes_of_a_session_write_after_a_signal_is_not_shown(handler: str) -> None:
    done = run_session(
        "seen = threading.Event()\n"
        f"signal.signal(signal.SIGINT, {handler})\n"
        f"starting = jvm({START_OF_A_SOURCE!r})\n"
        "restore()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    seen.wait(60)\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
        "starting.communicate(b'')\n"
        "print('Interrupted', file=sys.stderr)\n"
    )
    assert (done.returncode, done.stderr) == (0, "Interrupted\n")


def test_what_the_processes_of_a_session_write_without_a_signal_is_shown() -> None:
    done = run_session(f"starting = jvm({START_OF_A_SOURCE!r})\nrestore()\nstarting.communicate(b'')\n")
    assert "FileNotFoundError" in done.stderr


def test_stderr_is_restored_where_no_session_is_made() -> None:
    with pytest.raises(OSError, match="no Java"), quiet_spark():
        raise OSError("no Java")
    print("still there", file=sys.stderr)


def test_where_no_session_is_made_the_error_names_the_file_of_what_was_written() -> None:
    def start() -> None:
        subprocess.run([sys.executable, "-c", "import sys; print(':: resolving', file=sys.stderr)"], check=True)
        raise OSError("no Java")

    with pytest.raises(OSError, match="no Java") as caught, quiet_spark():
        start()
    (note,) = caught.value.__notes__
    file = Path(note.removeprefix("What Spark has written is in "))
    assert file.read_text() == ":: resolving\n"
    file.unlink()
