"""Topics that are created by the first request that names them: how they are made, and when they are tried again."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.auto_topics import RETRY_MS, AutoTopics, TopicPlan, plan_of_others
from kalda.protocol.messages.topics import CreatableTopic, CreatableTopicResult, CreateTopicsResponse

INTERNAL = "__consumer_offsets"
PLAN = TopicPlan(50, 3, {"cleanup.policy": "compact"})


class World:
    """A controller that answers at once."""

    def __init__(self, ordinary: TopicPlan = PLAN) -> None:
        self.time = HandTime()
        self.sent: list[CreatableTopic] = []
        self.code: ErrorCode | None = ErrorCode.INVALID_REPLICATION_FACTOR
        """None: the request itself fails."""
        self.topics = AutoTopics(
            self,  # type: ignore[arg-type]
            True,
            lambda name: PLAN if name == INTERNAL else None,
            30_000,
            timers=self.time,
            ordinary=ordinary,
        )

    def send(self, request: Any, timeout_ms: int) -> Pending[Any]:
        self.sent += request.topics
        answer: Pending[Any] = Pending()
        if self.code is None:
            answer.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
        else:
            results = [CreatableTopicResult(name=each.name, error_code=self.code) for each in request.topics]
            answer.complete(CreateTopicsResponse(topics=results))
        return answer


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REPLICATION_FACTOR, None])
def test_a_topic_that_could_not_be_created_is_tried_again_after_a_while(
    code: ErrorCode | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.code = code
    for _ in range(100):
        world.topics.create([INTERNAL])
    assert len(world.sent) == len(caplog.records) == 1
    world.topics.create(["another"])
    assert len(world.sent) == 2, "others do not wait for it"
    world.time.advance(RETRY_MS - 1)
    world.topics.create([INTERNAL])
    assert len(world.sent) == 2
    world.time.advance(1)
    world.topics.create([INTERNAL])
    assert len(world.sent) == 3


def test_a_topic_that_was_created_and_deleted_is_created_again_at_once() -> None:
    world = World()
    world.code = ErrorCode.NONE
    world.topics.create(["t"])
    world.topics.create(["t"])
    assert len(world.sent) == 2


def test_refused_names_are_bounded() -> None:
    world = World()
    for at in range(3_000):
        world.topics.create([f"t{at}"])
    assert world.time.timers == 1_000
    assert len(world.sent) == 3_000


@pytest.mark.parametrize(
    ("properties", "made"),
    [
        ({}, (-1, -1)),
        ({"num.partitions": "5"}, (5, -1)),
        ({"num.partitions": "1", "default.replication.factor": "3"}, (1, 3)),
    ],
)
def test_topics_are_made_by_what_the_broker_sets_else_by_what_the_controller_has(
    properties: dict[str, str], made: tuple[int, int]
) -> None:
    node = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "/d",
    }
    config = ServerConfig(node | properties)
    world = World(plan_of_others(config))
    world.topics.create(["t", INTERNAL])
    assert [(each.num_partitions, each.replication_factor) for each in world.sent] == [made, (50, 3)]
