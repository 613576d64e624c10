"""The handlers of Produce and Fetch over a world of partitions, with a connection that records what it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from data_path_world import World

from kalda.base.scheduling import Clock
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.requests.context import RequestContext


class FakeConnection:
    """Records which methods a handler calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def answer_alone(self) -> None:
        self.calls.append("alone")

    def begin_answer(self, begin: Callable[[], Any]) -> Any:
        return begin()

    def send_to_follower(self) -> None:
        self.calls.append("follower")

    def close(self) -> None:
        self.calls.append("close")


def handler(world: World, client_id: str = "a-client") -> tuple[DataHandlers, RequestContext, FakeConnection]:
    connection = FakeConnection()
    clock = cast(Clock, SimpleNamespace(wall_ms=lambda: world.now_ms, mono_ms=lambda: world.now_ms))
    context = SimpleNamespace(
        connection=connection, api_version=9, listener_name="PLAINTEXT", client_id=client_id, authorizer=None
    )
    handlers = DataHandlers(world.replicas, cast(MetadataCache, None), world.sessions, clock, world.verifier)
    return handlers, cast(RequestContext, context), connection
