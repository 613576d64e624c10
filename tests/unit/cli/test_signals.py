"""Signals to `kalda server` and `kalda consume`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kalda.cli import server
from kalda.cli.consume import _ending_normally


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

        def __init__(self, _: object) -> None:
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

    monkeypatch.setattr("kalda.broker.node.Node", Node)
    monkeypatch.setattr(server, "_read_config", lambda _: None)
    with caplog.at_level(logging.INFO, "kalda.server"):
        assert asyncio.run(asyncio.wait_for(server._serve(server.Options(["any.properties"])), 60)) == 0
    assert skipped == ["Terminating process due to signal SIGTERM"]


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
