"""Internal topics of streams groups: each is requested once at a time, and a failure is kept for a while."""

from __future__ import annotations

from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.handlers.streams_groups import StreamsTopics
from kalda.coordinator.groups.streams.topology import InternalTopic
from kalda.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse


class World:
    def __init__(self) -> None:
        self.now = 0
        self.requests: list[tuple[Any, Pending[Any]]] = []
        self.topics = StreamsTopics(self.send, 30_000, lambda: self.now)

    def send(self, context: Any, request: Any) -> Pending[Any]:
        self.requests.append((request, answer := Pending[Any]()))
        return answer

    def create(self, *names: str) -> dict[str, str]:
        context: Any = None
        wanted = {name: InternalTopic(name, 3, -1, {"cleanup.policy": "compact"}) for name in names}
        return self.topics.create(context, wanted, 10_000)

    def answer(self, **codes: ErrorCode) -> None:
        _, pending = self.requests[-1]
        results = [
            CreatableTopicResult(name=name, error_code=code, error_message="no room" if code else None)
            for name, code in codes.items()
        ]
        pending.complete(CreateTopicsResponse(topics=results))


def test_a_topic_is_requested_once_at_a_time() -> None:
    world = World()
    assert world.create("a", "b") == {}
    assert world.create("a", "b") == {}
    ((request, _),) = world.requests
    (first, _) = request.topics
    assert (first.name, first.num_partitions, first.replication_factor) == ("a", 3, -1)
    assert [(each.name, each.value) for each in first.configs] == [("cleanup.policy", "compact")]
    world.answer(a=ErrorCode.NONE, b=ErrorCode.TOPIC_ALREADY_EXISTS)
    assert world.create("b") == {}
    assert len(world.requests) == 2, "it may be missing again"


def test_a_failure_is_told_and_not_tried_again_for_a_while() -> None:
    world = World()
    world.create("a", "b")
    world.answer(a=ErrorCode.INVALID_REPLICATION_FACTOR, b=ErrorCode.NONE)
    assert world.create("a") == {"a": "no room"}
    assert len(world.requests) == 1
    world.now = 10_001
    assert world.create("a") == {}
    world.requests[-1][1].fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert world.create("a") == {"a": "REQUEST_TIMED_OUT"}
