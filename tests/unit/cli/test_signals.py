"""How the processes that go on until they are told otherwise take being told."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from kalda.cli import server
from kalda.cli.consume import _stop_politely


@pytest.fixture(autouse=True)
def hangups() -> Iterator[None]:
    """SIGHUP is not ignored, also where the tests run under nohup; and all is as before in the end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_hangup_that_comes_twice_skips_no_handover(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Where a terminal is closed its shell sends one, and the system another; who means it says so in another way."""
    skipped: list[str] = []

    class Node:
        failed = False

        def __init__(self, _: object) -> None:
            self._told = asyncio.Event()

        async def start(self) -> None:
            signal.raise_signal(signal.SIGHUP)
            await asyncio.Event().wait()

        def skip_handover(self) -> None:
            skipped.append(caplog.messages[-1])
            self._told.set()

        async def stop(self) -> None:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            await self._told.wait()

    monkeypatch.setattr("kalda.broker.node.Node", Node)
    monkeypatch.setattr(server, "_read_config", lambda _: None)
    with caplog.at_level(logging.INFO, "kalda.server"):
        assert asyncio.run(asyncio.wait_for(server._serve(None), 60)) == 0  # type: ignore[arg-type]
    assert skipped == ["Terminating process due to signal SIGTERM"]


def test_a_hangup_that_comes_twice_does_not_end_what_a_consumer_does_last() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGHUP)
    with _stop_politely():
        try:
            signal.raise_signal(signal.SIGHUP)
            done.append("read on")
        finally:
            signal.raise_signal(signal.SIGHUP)
            done.append("left the group")
    assert done == ["left the group"]
    assert signal.getsignal(signal.SIGHUP) is before
