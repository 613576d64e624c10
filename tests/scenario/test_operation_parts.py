"""The controller's operations on very many things: what a turn does is bounded, and the answers are those of the
request as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from by_hand import one_step_a_turn
from controller_world import World, creatable, state
from paper_connection import PaperConnection, read_answer

from kalda.base.clock import Clock
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker import operation_parts
from kalda.broker.api_versions import Features
from kalda.broker.controller_handlers import ControllerHandlers
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.network.connection import Connection
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from kalda.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ReassignablePartition,
    ReassignableTopic,
)
from kalda.protocol.notation import Request

COUNT = 1_500
TOPICS = [f"t{number}" for number in range(COUNT)]


class Listener:
    """The controller's listener over a world, in turns that the test takes."""

    def __init__(self, *, topics: int = 0) -> None:
        self.world = World()
        self.world.start_brokers(0, 1)
        for name in TOPICS[:topics]:
            self.world.create_topic(name, {0: [0, 1]})
        self.world.create_topic("large", {at: [0, 1] for at in range(COUNT)})
        clock = cast(Clock, SimpleNamespace(mono_ms=lambda: self.world.now_ms))
        configs = ConfigHandlers(1, Mock(), Mock())
        handlers = ControllerHandlers(Mock(), self.world.active, Mock(), clock, "cluster", configs, self.world.commit)
        self.turns: list[Callable[[], None]] = []
        self.pipeline = handlers.pipeline(lambda: Features({}, {}, 0), one_step_a_turn(self.turns.append))
        self.records_a_turn: list[int] = []

    def answer(self, request: Request, version: int, before_turn: Callable[[int], None] = lambda _: None) -> Any:
        paper = PaperConnection(listener_name="CONTROLLER")
        connection = cast(Connection, paper)
        frame = paper.frame(request, version)
        log = self.world.log

        def counted(turn: Callable[[], Any]) -> Any:
            before = log.log_end_offset
            result = turn()
            self.records_a_turn.append(log.log_end_offset - before)
            return result

        answer = counted(lambda: self.pipeline.on_frame(connection, frame))
        for number in itertools.count():
            if not isinstance(answer, Pending) or answer.done:
                break
            before_turn(number)
            counted(self.turns.pop(0))
        return read_answer(answer, request, version)


def incremental(name: str, value: str) -> IncrementalAlterConfigsRequestAlterConfigsResource:
    change = IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=0, value=value)
    return IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name=name, configs=[change])


def replaced(name: str) -> AlterConfigsRequestAlterConfigsResource:
    change = AlterConfigsRequestAlterableConfig(name="retention.ms", value="7")
    return AlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name=name, configs=[change])


def quota(user: str) -> AlterClientQuotasRequestEntryData:
    entity = [AlterClientQuotasRequestEntityData(entity_type="user", entity_name=user)]
    return AlterClientQuotasRequestEntryData(entity=entity, ops=[OpData(key="consumer_byte_rate", value=5.0)])


def upsertion(user: str) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name=user, mechanism=1, iterations=4096, salt=b"s", salted_password=b"p" * 32)


REPEATED = ["t3", TOPICS[-1], "t3"]
"""Named twice or more in all, far from each other."""
REQUESTS: dict[str, tuple[int, int, Request]] = {
    "CreateTopics": (
        0,
        7,
        CreateTopicsRequest(
            topics=[creatable(name, partitions=1, factor=1) for name in [*TOPICS, "a b", *REPEATED]], timeout_ms=1000
        ),
    ),
    "CreateTopics with partitions": (
        0,
        7,
        CreateTopicsRequest(
            topics=[creatable(name, partitions=90, factor=2, configs={"retention.ms": "5"}) for name in TOPICS[:30]],
            timeout_ms=1000,
        ),
    ),
    "validation": (
        0,
        7,
        CreateTopicsRequest(
            topics=[creatable(name, partitions=2, factor=1) for name in TOPICS], timeout_ms=1000, validate_only=True
        ),
    ),
    "CreatePartitions": (
        COUNT,
        3,
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=3, assignments=None) for name in [*TOPICS, *REPEATED]],
            timeout_ms=1000,
        ),
    ),
    "DeleteTopics": (
        COUNT,
        6,
        DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in [*TOPICS, "nope", *REPEATED]], timeout_ms=1000
        ),
    ),
    "DeleteTopics by names": (COUNT, 5, DeleteTopicsRequest(topic_names=[*TOPICS, *REPEATED], timeout_ms=1000)),
    "IncrementalAlterConfigs": (
        COUNT,
        1,
        IncrementalAlterConfigsRequest(
            resources=[
                *(incremental(name, str(at)) for at, name in enumerate(TOPICS)),
                incremental("nope", "1"),
                *(incremental(name, "7") for name in REPEATED),
            ]
        ),
    ),
    "AlterConfigs": (COUNT, 2, AlterConfigsRequest(resources=[replaced(name) for name in [*TOPICS, *REPEATED]])),
    "AlterClientQuotas": (0, 1, AlterClientQuotasRequest(entries=[quota(name) for name in [*TOPICS, *REPEATED]])),
    "AlterUserScramCredentials": (
        0,
        0,
        AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=name, mechanism=1) for name in ("t9", "nobody")],
            upsertions=[upsertion(name) for name in [*TOPICS, *REPEATED]],
        ),
    ),
    "ElectLeaders": (
        0,
        2,
        ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequestTopicPartitions(topic="large", partitions=list(range(COUNT + 1)))],
            timeout_ms=1000,
        ),
    ),
    "ElectLeaders of all": (0, 2, ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)),
    "AlterPartitionReassignments": (
        0,
        1,
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="large",
                    partitions=[ReassignablePartition(partition_index=at, replicas=[1, 0]) for at in range(COUNT + 1)],
                )
            ],
            timeout_ms=1000,
        ),
    ),
}


def prepared(name: str, topics: int) -> Listener:
    listener = Listener(topics=topics)
    if name.startswith("ElectLeaders"):
        world = listener.world
        world.heartbeat(0, want_fence=True)  # so that broker 1 leads all
        world.heartbeat(0)
        for at in range(COUNT):
            world.alter_partition("large", at, [1, 0])
    return listener


@pytest.mark.parametrize("name", REQUESTS)
def test_the_work_of_a_turn_is_bounded_and_the_answer_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topics, version, request = REQUESTS[name]
    cut = prepared(name, topics)
    answer = cut.answer(request, version)
    assert max(cut.records_a_turn) <= operation_parts.PART_WEIGHT
    monkeypatch.setattr(operation_parts, "PART_WEIGHT", 10**9)
    whole = prepared(name, topics)
    expected = whole.answer(request, version)
    if name != "validation":
        assert sum(cut.records_a_turn) == sum(whole.records_a_turn) >= COUNT - 3
    for each in (answer, expected):
        for field in ("topics", "responses", "results", "entries"):
            if hasattr(each, field):
                getattr(each, field).sort(key=repr)
    assert repr(without_ids(answer)) == repr(without_ids(expected))
    if "ElectLeaders" in name or "Create" not in name:
        assert state(cut.world.active) == state(whole.world.active)


def without_ids(answer: Any) -> Any:
    for topic in getattr(answer, "topics", ()):
        topic.topic_id = None
    return answer


def test_what_is_named_twice_is_created_by_no_part() -> None:
    listener = Listener()
    _, version, request = REQUESTS["CreateTopics"]
    answer = listener.answer(request, version)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert {codes["t3"], codes[TOPICS[-1]]} == {ErrorCode.INVALID_REQUEST}
    assert "t3" not in listener.world.active.partitions.topic_ids
    assert list(codes.values()).count(0) == COUNT - 2


@pytest.mark.parametrize("what", ["partitions", "records", "growth"])
def test_what_is_too_much_for_one_operation_changes_nothing(what: str) -> None:
    listener = Listener(topics=120 if what == "growth" else 0)
    version = 7
    request: Request
    if what == "growth":
        version = 3
        grown = [CreatePartitionsTopic(name=name, count=101, assignments=None) for name in TOPICS[:120]]
        request = CreatePartitionsRequest(topics=grown, timeout_ms=1000)
    else:
        partitions = 101 if what == "partitions" else 99
        configs = {"retention.ms": "5", "retention.bytes": "5"}
        new = [creatable(name, partitions=partitions, factor=1, configs=configs) for name in TOPICS[:100]]
        request = CreateTopicsRequest(topics=new, timeout_ms=1000)
    answer = listener.answer(request, version)
    results = answer.results if what == "growth" else answer.topics
    assert {each.error_code for each in results} == {ErrorCode.POLICY_VIOLATION}
    assert sum(listener.records_a_turn) == 0


def test_where_the_leadership_is_lost_the_rest_fails() -> None:
    listener = Listener()
    _, version, request = REQUESTS["CreateTopics"]

    def lose(turn: int) -> None:
        if turn == 6:
            listener.world.active.on_leader_change(None, 2)

    answer = listener.answer(request, version, lose)
    codes = [topic.error_code for topic in answer.topics]
    assert 200 < codes.count(0) < COUNT - 200
    assert codes.count(ErrorCode.NOT_CONTROLLER) + codes.count(0) + 2 == len(codes)  # two are named twice


def test_what_is_not_reached_within_the_timeout_is_not_changed() -> None:
    listener = Listener()
    _, version, request = REQUESTS["CreateTopics"]

    def let_time_pass(turn: int) -> None:
        if turn == 5:
            listener.world.now_ms += 1_001

    answer = listener.answer(request, version, let_time_pass)
    codes = [topic.error_code for topic in answer.topics]
    assert 200 < codes.count(0) < COUNT - 200
    assert codes.count(ErrorCode.REQUEST_TIMED_OUT) + codes.count(0) + 2 == len(codes)
    times = listener.world.active.event_times
    assert times.started > 0 < times.timed_out
    created = [topic.name for topic in answer.topics if not topic.error_code]
    assert set(created) == set(listener.world.active.partitions.topic_ids) - {"large"}


def test_where_nothing_was_changed_the_request_fails_as_a_whole() -> None:
    listener = Listener()
    listener.world.log.refuse = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    _, version, request = REQUESTS["CreateTopics"]
    answer = listener.answer(request, version)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.REQUEST_TIMED_OUT}
