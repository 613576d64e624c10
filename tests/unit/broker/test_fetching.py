"""The tasks that run a broker's fetchers, and what they do where a request or a fetcher fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.replicas.peers import ReplicaFetcherManager
from kalda.network.client.client import Reach
from kalda.protocol.messages.partitions import FetchRequest

NODE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "c:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/data",
}


class Clock:
    """A clock that stands still."""

    def wall_ms(self) -> int:
        return 0

    def mono_ms(self) -> int:
        return 0


class Fetcher:
    """Makes requests until one fails, and keeps the failure."""

    leader_id = 2
    failure: ApiError | None = None

    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.wake = self.on_added = lambda: None

    def next_request(self, now_ms: int) -> FetchRequest | None:
        return FetchRequest() if self.failure is None else None

    def deadline_ms(self, now_ms: int) -> int | None:
        return None

    def on_failure(self, error: ApiError, now_ms: int) -> None:
        self.failure = error
        self.failed.set()

    def on_response(self, response: Any, now_ms: int) -> None:
        raise AssertionError("an answer to a fetch that was not sent")

    def cold_logs(self, response: Any) -> list[Any]:
        return []


class Leader:
    """Returns the outcome, or raises it."""

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome

    async def request(self, *_: object, **__: object) -> object:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def close(self) -> None:
        """There is no connection."""


def _manager(monkeypatch: pytest.MonkeyPatch, outcome: object) -> tuple[ReplicaFetcherManager, asyncio.Queue[str]]:
    fatal = asyncio.Queue[str]()
    manager = ReplicaFetcherManager(
        ServerConfig(NODE),
        "cluster",
        MetadataCache(HandTime()),
        lambda: 1,
        Clock(),
        None,  # type: ignore[arg-type]
        Reach(lambda: 0.5),
        fatal.put_nowait,
    )
    monkeypatch.setattr(manager, "_address_of", lambda _: ("leader", 9092))
    monkeypatch.setattr(manager, "_client", lambda _: Leader(outcome))
    return manager, fatal


def test_an_exception_in_a_fetcher_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions would not be fetched any more, and nothing else would notice."""

    async def run() -> str:
        manager, fatal = _manager(monkeypatch, object())
        manager._start(Fetcher())  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            return await fatal.get()

    assert "an answer to a fetch that was not sent" in asyncio.run(run())


def test_a_request_that_the_leaders_version_cannot_carry_fails_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[ApiError | None, bool]:
        manager, fatal = _manager(
            monkeypatch, ApiError(ErrorCode.UNSUPPORTED_VERSION, "replica_state cannot be said in version 12")
        )
        fetcher = Fetcher()
        manager._start(fetcher)  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await fetcher.failed.wait()
        await manager.close()
        return fetcher.failure, fatal.empty()

    failure, silent = asyncio.run(run())
    assert failure is not None
    assert failure.code is ErrorCode.UNSUPPORTED_VERSION
    assert silent
