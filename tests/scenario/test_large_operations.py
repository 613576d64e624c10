"""The controller's operations on very many things: they are decided in steps, between which others are served, and
written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from by_hand import inline_background, one_step_a_turn
from controller_world import World, creatable, state
from paper_connection import PaperConnection, read_answer

from kalda.base.background import ITEMS_A_STEP
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Clock, Pending
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.controller import ControllerHandlers
from kalda.broker.requests.api_versions import Features
from kalda.network.server.connection import Connection
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    OpData,
)
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
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
    """The controller's listener over a world, in turns that the test takes; of one step each, or of all steps."""

    def __init__(self, *, topics: int = 0, in_steps: bool = True) -> None:
        self.turns: list[Callable[[], None]] = []
        background = one_step_a_turn(self.turns.append) if in_steps else inline_background()
        self.world = World(background=background)
        self.world.start_brokers(0, 1)
        for name in TOPICS[:topics]:
            self.world.create_topic(name, {0: [0, 1]})
        self.world.create_topic("large", {at: [0, 1] for at in range(COUNT)})
        clock = cast(Clock, SimpleNamespace(mono_ms=lambda: self.world.now_ms))
        configs = ConfigHandlers(1, Mock(), Mock())
        handlers = ControllerHandlers(Mock(), self.world.active, Mock(), clock, "cluster", configs, self.world.commit)
        self.pipeline = handlers.pipeline(lambda: Features({}, {}, 0), background)
        self.batches: list[int] = []
        """The records that each turn has written, where it has written any."""

    def send(self, request: Request, version: int) -> Any:
        paper = PaperConnection(listener_name="CONTROLLER")
        frame = paper.frame(request, version)
        return self._counted(lambda: self.pipeline.on_frame(cast(Connection, paper), frame))

    def answer(self, request: Request, version: int, before_turn: Callable[[int], None] = lambda _: None) -> Any:
        return self.answer_of(self.send(request, version), request, version, before_turn)

    def answer_of(
        self, answer: Any, request: Request, version: int, before_turn: Callable[[int], None] = lambda _: None
    ) -> Any:
        self.turns_taken = 0
        while isinstance(answer, Pending) and not answer.done:
            before_turn(self.turns_taken)
            self._counted(self.turns.pop(0))
            self.turns_taken += 1
        return read_answer(answer, request, version)

    def _counted(self, turn: Callable[[], Any]) -> Any:
        before = self.world.log.log_end_offset
        result = turn()
        if self.world.log.log_end_offset > before:
            self.batches.append(self.world.log.log_end_offset - before)
        self.world.commit()
        return result


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


def prepared(name: str, topics: int, *, in_steps: bool = True) -> Listener:
    listener = Listener(topics=topics, in_steps=in_steps)
    if name.startswith("ElectLeaders"):
        world = listener.world
        world.heartbeat(0, want_fence=True)  # so that broker 1 leads all
        world.heartbeat(0)
        for at in range(COUNT):
            world.alter_partition("large", at, [1, 0])
    return listener


@pytest.mark.parametrize("name", REQUESTS)
def test_it_is_decided_in_steps_and_written_whole(name: str) -> None:
    topics, version, request = REQUESTS[name]
    listener = prepared(name, topics)
    answer = listener.answer(request, version)
    assert listener.turns_taken > COUNT // ITEMS_A_STEP
    assert len(listener.batches) == (0 if name == "validation" else 1)
    assert sum(listener.batches) in (0, *range(COUNT - 3, 3_000))
    at_once = prepared(name, topics, in_steps=False)
    expected = at_once.answer(request, version)
    assert at_once.turns_taken == 0
    assert repr(answer) == repr(expected)
    assert state(listener.world.active) == state(at_once.world.active)


def test_what_is_named_twice_is_not_created() -> None:
    listener = Listener()
    _, version, request = REQUESTS["CreateTopics"]
    answer = listener.answer(request, version)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert {codes["t3"], codes[TOPICS[-1]]} == {ErrorCode.INVALID_REQUEST}
    assert "t3" not in listener.world.active.partitions.topic_ids
    assert list(codes.values()).count(0) == COUNT - 2


@pytest.mark.parametrize("what", ["topics", "partitions", "records", "growth"])
def test_what_is_too_much_for_one_operation_changes_nothing(what: str) -> None:
    listener = Listener(topics=120 if what == "growth" else 0)
    version = 7
    request: Request
    if what == "growth":
        version = 3
        grown = [CreatePartitionsTopic(name=name, count=101, assignments=None) for name in TOPICS[:120]]
        request = CreatePartitionsRequest(topics=grown, timeout_ms=1000)
    elif what == "topics":
        asked = [creatable(f"t{number}", partitions=-1, factor=1) for number in range(10_001)]
        request = CreateTopicsRequest(topics=asked, timeout_ms=1000)
    else:
        partitions = 101 if what == "partitions" else 99
        configs = {"retention.ms": "5", "retention.bytes": "5"}
        new = [creatable(name, partitions=partitions, factor=1, configs=configs) for name in TOPICS[:100]]
        request = CreateTopicsRequest(topics=new, timeout_ms=1000)
    answer = listener.answer(request, version)
    results = answer.results if what == "growth" else answer.topics
    assert {each.error_code for each in results} == {ErrorCode.POLICY_VIOLATION}
    assert listener.batches == []
    if what == "topics":
        assert listener.turns_taken < 10_000 // ITEMS_A_STEP, "that is known before anything is decided"


def test_where_the_leadership_is_lost_nothing_is_changed() -> None:
    listener = Listener()
    _, version, request = REQUESTS["CreateTopics"]

    def lose(turn: int) -> None:
        if turn == 6:
            listener.world.active.on_leader_change(None, 2)

    answer = listener.answer(request, version, lose)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.NOT_CONTROLLER}
    assert listener.batches == []


def test_what_has_not_begun_within_its_timeout_is_not_changed() -> None:
    listener = Listener()
    world = listener.world
    _, version, first = REQUESTS["CreateTopics"]
    second = CreateTopicsRequest(topics=[creatable("late", partitions=1, factor=1)], timeout_ms=1000)
    third = CreateTopicsRequest(topics=[creatable("in-time", partitions=1, factor=1)], timeout_ms=10_000)
    answers = [listener.send(request, version) for request in (first, second, third)]

    def let_time_pass(turn: int) -> None:
        if turn == 5:
            world.elapsed_ms += 1_001

    created = listener.answer_of(answers[0], first, version, let_time_pass)
    assert [topic.error_code for topic in created.topics].count(0) == COUNT - 2, "it had begun"
    late = listener.answer_of(answers[1], second, version)
    in_time = listener.answer_of(answers[2], third, version)
    assert [late.topics[0].error_code, in_time.topics[0].error_code] == [ErrorCode.REQUEST_TIMED_OUT, 0]
    assert "late" not in world.active.partitions.topic_ids
    assert world.active.event_times.timed_out == 1


def test_where_the_log_refuses_the_records_the_request_fails_as_a_whole() -> None:
    listener = Listener()
    listener.world.log.refuse = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    _, version, request = REQUESTS["CreateTopics"]
    answer = listener.answer(request, version)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.REQUEST_TIMED_OUT}
    assert len(listener.world.active.partitions.topic_ids) == 1


def test_what_brokers_report_is_decided_in_steps() -> None:
    listener = Listener()
    world = listener.world
    topic_id = world.active.partitions.topic_ids["large"]
    isr = [AlterPartitionRequestBrokerState(broker_id=0, broker_epoch=world.epochs[0])]
    proposals = [
        AlterPartitionRequestPartitionData(partition_index=at, new_isr_with_epochs=isr, leader_epoch=0)
        for at in range(COUNT)
    ]
    topic = AlterPartitionRequestTopicData(topic_id=topic_id, partitions=proposals)
    alter = AlterPartitionRequest(broker_id=0, broker_epoch=world.epochs[0], topics=[topic])
    answer = listener.answer(alter, 3)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}
    assert listener.turns_taken > COUNT // ITEMS_A_STEP
    assert listener.batches == [COUNT]
    assert world.partition("large", COUNT - 1).isr == (0,)

    placed = AssignReplicasToDirsRequestTopicData(
        topic_id=topic_id,
        partitions=[AssignReplicasToDirsRequestPartitionData(partition_index=at) for at in range(COUNT)],
    )
    directory = AssignReplicasToDirsRequestDirectoryData(id=Uuid(b"d" * 16), topics=[placed])
    assign = AssignReplicasToDirsRequest(broker_id=1, broker_epoch=world.epochs[1], directories=[directory])
    answer = listener.answer(assign, 0)
    assert {each.error_code for each in answer.directories[0].topics[0].partitions} == {0}
    assert listener.turns_taken > COUNT // ITEMS_A_STEP
    assert len(listener.batches) == 2
