"""Signals to `kalda server` and `kalda consume`."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kalda.broker.process.node import StartError
from kalda.cli import cluster, main, server
from kalda.cli.common.failures import interruptible
from kalda.cli.local.nodes import Stopped
from kalda.cli.records.consume import _ending_normally


@pytest.fixture(autouse=True)
def hangups() -> Iterator[None]:
    """Makes SIGHUP not ignored, also where the tests run under nohup, and restores afterwards what a node sets."""
    interval_s = sys.getswitchinterval()
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.setswitchinterval(interval_s)


def test_a_second_sighup_does_not_end_a_nodes_controlled_shutdown(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """When a terminal is closed, its shell and the system send one each. A second SIGTERM does end it."""
    skipped: list[str] = []

    class Node:
        failed = False

        def __init__(self, *_: object) -> None:
            self._skipped = asyncio.Event()

        async def start(self) -> None:
            assert sys.getswitchinterval() == 0.001, "a thread's Python does not hold up the loop for longer"
            signal.raise_signal(signal.SIGHUP)
            await asyncio.Event().wait()

        def skip_handover(self) -> None:
            skipped.append(caplog.messages[-1])
            self._skipped.set()

        async def stop(self) -> None:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            await self._skipped.wait()

    monkeypatch.setattr("kalda.broker.process.node.Node", Node)
    monkeypatch.setattr(server, "_read_config", lambda _: None)
    with caplog.at_level(logging.INFO, "kalda.server"):
        assert asyncio.run(asyncio.wait_for(server._serve(server.ServerOptions(["any.properties"])), 60)) == 0
    assert skipped == ["Terminating process due to signal SIGTERM"]


def test_a_signal_behind_a_nodes_stop_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kalda cluster down` sends a second SIGTERM to the last nodes, which may have stopped before it comes."""

    class Node:
        failed = False

        def __init__(self, *_: object) -> None:
            pass

        async def start(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()

        async def stop(self) -> None:
            pass

    monkeypatch.setattr("kalda.broker.process.node.Node", Node)
    monkeypatch.setattr(server, "_read_config", lambda _: None)
    assert asyncio.run(asyncio.wait_for(server._serve(server.ServerOptions(["any.properties"])), 60)) == 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.raise_signal(number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_during_the_start_ends_it(
    number: signal.Signals, code: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the start fails while it is ended. Ctrl-C of a node that serves is an orderly stop, with 0."""
    stopped: list[str] = []

    class Node:
        failed = False

        def __init__(self, *_: object) -> None:
            pass

        async def start(self) -> None:
            signal.raise_signal(number)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if fails:
                    raise StartError("a port is in use") from None
                raise

        async def stop(self) -> None:
            stopped.append("stopped")

    monkeypatch.setattr("kalda.broker.process.node.Node", Node)
    monkeypatch.setattr(server, "_read_config", lambda _: None)
    assert asyncio.run(asyncio.wait_for(server._serve(server.ServerOptions(["any.properties"])), 60)) == code
    assert stopped == ["stopped"]


def test_ctrl_c_before_a_node_handles_signals_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["kalda", "server"])
    assert main.main() == 130


def test_ctrl_c_while_modules_are_loaded_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(main.__file__).parents[2])])}
    done = subprocess.run(
        [sys.executable, "-m", "kalda", "topics"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


def test_a_second_sighup_does_not_interrupt_a_consumers_leaving() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGHUP)
    with _ending_normally():
        try:
            signal.raise_signal(signal.SIGHUP)
            done.append("read on")
        finally:
            signal.raise_signal(signal.SIGHUP)
            done.append("left the group")
    assert done == ["left the group"]
    assert signal.getsignal(signal.SIGHUP) is before


class Ended:
    """The process of a node, and its log."""

    log = None

    def pid(self) -> int:
        return 1


@pytest.mark.parametrize("how", ["SIGHUP", "SIGTERM", "a closed terminal"])
def test_nodes_in_the_foreground_are_stopped_when_the_terminal_is_closed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several SIGHUPs come then, and nothing can be printed any more."""
    stopped: list[int] = []

    class Follower:
        def __init__(self, _: object) -> None:
            pass

        def poll(self) -> list[str]:
            if how.startswith("SIG"):
                signal.raise_signal(signal.Signals[how])
            return ["a line"]

    def stop(_: object, places: list[Any], __: float, report: Any) -> None:
        if how == "SIGHUP":
            signal.raise_signal(signal.SIGHUP)
        report(Stopped(places[0].node_id, killed=False))
        stopped.append(places[0].node_id)

    def closed(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the terminal is closed")

    monkeypatch.setattr("kalda.cli.local.log_lines.LogFollower", Follower)
    monkeypatch.setattr("kalda.cli.local.nodes.process_of", lambda *_: Ended())
    monkeypatch.setattr("kalda.cli.local.nodes.stop", stop)
    monkeypatch.setattr(cluster, "line_printer", lambda _: closed)
    monkeypatch.setattr("click.echo", closed)
    layout: Any = SimpleNamespace(nodes=[SimpleNamespace(node_id=7)])
    with pytest.raises((SystemExit, OSError)), interruptible():
        cluster._follow_logs(layout, layout.nodes)
    assert stopped == [7]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_sighup_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by nohup
    with interruptible():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
