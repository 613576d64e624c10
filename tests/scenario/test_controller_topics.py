"""Requests about topics and partitions: creation, growth, deletion, elections, reassignments, changes of the ISR."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import Rights, World, creatable, directories_of, result

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.access import Caller
from kalda.protocol.messages import topics as t
from kalda.protocol.messages.brokers import AlterPartitionRequestBrokerState
from kalda.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord, PartitionRecord, TopicRecord
from kalda.protocol.messages.security import AclOperation, AclResourceType


@pytest.fixture
def world() -> World:
    world = World()
    world.start_brokers(0, 1, 2)
    return world


def test_a_topic_is_created(world: World) -> None:
    results: list[Any] = []
    configs = {"retention.ms": "1000", "min.insync.replicas": "2"}
    records = world.written_by(lambda: results.append(world.create_topic("t", partitions=2, factor=3, configs=configs)))
    kinds = [type(record) for record in records]
    assert kinds == [TopicRecord, ConfigRecord, ConfigRecord, ClearElrRecord, PartitionRecord, PartitionRecord]
    (answer,) = results
    assert result(answer) == (ErrorCode.NONE, None)
    assert (answer.num_partitions, answer.replication_factor) == (2, 3)
    shown = {config.name: (config.value, config.config_source) for config in answer.configs}
    assert shown["retention.ms"] == ("1000", 1)
    assert shown["cleanup.policy"] == ("delete", 5)
    first, second = (world.partition("t", at) for at in (0, 1))
    assert sorted(first.replicas) == [0, 1, 2]
    assert first.replicas[0] != second.replicas[0]
    assert first.isr == first.replicas
    assert first.leader == first.replicas[0]


def test_the_answer_has_the_internal_configs_that_a_topic_sets(world: World) -> None:
    """As Apache Kafka's, in the order of the names."""
    plain = [config.name for config in world.create_topic("plain").configs]
    set_ = {"internal.segment.bytes": "2000000", "retention.ms": "1000"}
    answer = world.create_topic("t", configs=set_)
    assert [config.name for config in answer.configs] == sorted([*plain, "internal.segment.bytes"])
    shown = {config.name: (config.value, config.config_source) for config in answer.configs}
    assert {name: shown[name] for name in set_} == {name: (value, 1) for name, value in set_.items()}
    assert "internal.segment.bytes" not in plain


def test_only_active_replicas_are_in_the_isr(world: World) -> None:
    world.register(3)
    world.create_topic("t", {0: [3, 1]})
    partition = world.partition("t")
    assert (partition.isr, partition.leader) == ((1,), 1)
    assert partition.directories == (*directories_of(3), *directories_of(1))


BAD_TOPICS: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "taken"}, ErrorCode.TOPIC_ALREADY_EXISTS),
    ({"name": "col.lides"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ({"name": "__cluster_metadata"}, ErrorCode.INVALID_REQUEST),
    ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
    ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
    ({"factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ({"factor": 5}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ({"partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
    ({"assignment": {0: [1]}, "partitions": 1}, ErrorCode.INVALID_REQUEST),
    ({"assignment": {0: [1]}, "factor": 1}, ErrorCode.INVALID_REQUEST),
    ({"assignment": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ({"assignment": {0: [1, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ({"assignment": {0: [9]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ({"assignment": {1: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ({"assignment": {0: [1], 1: [1, 2]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ({"assignment": {0: [3]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ({"configs": {"no.such.key": "1"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"retention.ms": "long"}}, ErrorCode.INVALID_CONFIG),
    ({"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
]


@pytest.mark.parametrize(("fields", "code"), BAD_TOPICS, ids=lambda value: str(value)[:40])
def test_topics_that_are_refused(world: World, fields: dict[str, Any], code: ErrorCode) -> None:
    world.register(3)
    for name in ("taken", "col_lides"):
        world.create_topic(name)
    answers: list[Any] = []
    written = world.written_by(lambda: answers.append(world.create_topic(**{"name": "t", **fields})))
    assert (answers[0].error_code, written) == (code, [])
    assert answers[0].error_message


def test_a_refused_topic_does_not_affect_the_others(world: World) -> None:
    request = t.CreateTopicsRequest(
        topics=[creatable("twice"), creatable("good"), creatable("bad name"), creatable("twice")]
    )
    answers = {one.name: ErrorCode(one.error_code) for one in world.request("create_topics", request).topics}
    assert answers == {
        "good": ErrorCode.NONE,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert list(world.active.partitions.topic_ids) == ["good"]


def test_validate_only_writes_nothing(world: World) -> None:
    written = world.written_by(lambda: world.create_topic("t", validate_only=True))
    assert written == []
    assert "t" not in world.active.partitions.topic_ids


def test_rights_quotas_and_policies() -> None:
    def allows(operation: AclOperation, kind: AclResourceType, name: str) -> bool:
        return (
            kind is AclResourceType.TOPIC and name == "mine" and operation in (AclOperation.CREATE, AclOperation.DELETE)
        )

    world = World()
    world.start_brokers(0)
    caller = Caller(authorizer=Rights(allows))
    assert world.create_topic("yours", caller=caller).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    mine = world.create_topic("mine", caller=caller)
    assert (mine.error_code, mine.topic_config_error_code) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert (mine.num_partitions, mine.configs) == (-1, [])

    def throttle(_caller: Caller, _partitions: int) -> None:
        raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    throttled = world.create_topic("much", caller=Caller(charge=throttle))
    assert throttled.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    elect = t.ElectLeadersRequest(topic_partitions=None)
    assert world.failure("elect_leaders", elect, caller=caller).code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def no_single(topic: Any) -> None:
        if topic.replication_factor == 1:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "one replica is too few")

    world.active.topics._policy = no_single
    assert result(world.create_topic("risky")) == (ErrorCode.POLICY_VIOLATION, "one replica is too few")


def grow(world: World, count: int, assignments: list[list[int]] | None = None, name: str = "t") -> Any:
    given = None if assignments is None else [t.CreatePartitionsAssignment(broker_ids=one) for one in assignments]
    topic = t.CreatePartitionsTopic(name=name, count=count, assignments=given)
    return result(world.request("create_partitions", t.CreatePartitionsRequest(topics=[topic])).results[0])


def test_growing(world: World) -> None:
    world.create_topic("t", {0: [0, 1]})
    assert grow(world, 3) == (ErrorCode.NONE, None)
    assert [len(world.partition("t", at).replicas) for at in range(3)] == [2, 2, 2]
    assert grow(world, 4, [[2, 0]]) == (ErrorCode.NONE, None)
    assert world.partition("t", 3).replicas == (2, 0)
    assert grow(world, 4) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 4 partition(s).")
    assert grow(world, 2)[0] == ErrorCode.INVALID_PARTITIONS
    assert grow(world, 5, name="nope")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for assignment in ([[2]], [[2, 0], [1, 0]], [[2, 9]], [[2, 2]], [[]]):
        assert grow(world, 5, assignment)[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def delete(world: World, *topics: t.DeleteTopicState, caller: Caller | None = None) -> list[Any]:
    answer = world.request("delete_topics", t.DeleteTopicsRequest(topics=list(topics)), caller=caller)
    return [(one.name, ErrorCode(one.error_code)) for one in answer.responses]


def test_deleting(world: World) -> None:
    for name in ("a", "b", "c.d"):
        world.create_topic(name, configs={"retention.ms": "5"})
    ids = dict(world.active.partitions.topic_ids.items())
    by_id = t.DeleteTopicState(topic_id=ids["b"])
    assert delete(world, t.DeleteTopicState(name="a"), by_id) == [("b", ErrorCode.NONE), ("a", ErrorCode.NONE)]
    assert list(world.active.partitions.topic_ids) == ["c.d"]
    assert len(world.active.configs.values) == 2  # those of the other topic, and the cluster's
    assert delete(world, t.DeleteTopicState(name="a")) == [("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert delete(world, by_id) == [(None, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert delete(world, t.DeleteTopicState()) == [(None, ErrorCode.INVALID_REQUEST)]
    both = t.DeleteTopicState(name="c.d", topic_id=ids["c.d"])
    assert delete(world, both) == [("c.d", ErrorCode.INVALID_REQUEST)]
    same = (t.DeleteTopicState(name="c.d"), t.DeleteTopicState(topic_id=ids["c.d"]))
    assert delete(world, *same) == [("c.d", ErrorCode.INVALID_REQUEST)]
    assert delete(world, t.DeleteTopicState(name="c.d"), t.DeleteTopicState(name="c.d")) == [
        ("c.d", ErrorCode.INVALID_REQUEST)
    ]
    assert delete(world, t.DeleteTopicState(name="c.d")) == [("c.d", ErrorCode.NONE)]
    assert world.create_topic("c_d").error_code == ErrorCode.NONE


def test_deletion_by_id_hides_the_name_from_callers_that_may_not_describe_the_topic(world: World) -> None:
    world.create_topic("secret")
    blind = Caller(authorizer=Rights(lambda *_: False))
    by_id = t.DeleteTopicState(topic_id=world.active.partitions.topic_ids["secret"])
    assert delete(world, by_id, caller=blind) == [(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]


def test_deletion_may_be_switched_off() -> None:
    world = World(delete_topic_enable=False)
    world.start_brokers(0)
    world.create_topic("t")
    request = t.DeleteTopicsRequest(topics=[t.DeleteTopicState(name="t")])
    assert world.failure("delete_topics", request, caller=Caller(api_version=6)).code == (
        ErrorCode.TOPIC_DELETION_DISABLED
    )
    assert world.failure("delete_topics", request, caller=Caller(api_version=2)).code == (ErrorCode.INVALID_REQUEST)


def test_the_leader_alters_its_isr(world: World) -> None:
    world.create_topic("t", {0: [0, 1, 2]})
    shrunk = world.alter_partition("t", 0, [0, 1])
    assert (shrunk.error_code, shrunk.isr, shrunk.partition_epoch, shrunk.leader_epoch) == (0, [0, 1], 1, 0)
    same = world.written_by(lambda: world.alter_partition("t", 0, [0, 1]))
    assert same == []


def test_isr_proposals_that_are_refused(world: World) -> None:
    world.create_topic("t", {0: [0, 1, 2]})
    world.register(3)

    def code(isr: list[int], **fields: Any) -> ErrorCode:
        return ErrorCode(world.alter_partition("t", 0, isr, **fields).error_code)

    assert code([0, 1], leader_epoch=1) == ErrorCode.NOT_CONTROLLER
    assert code([0, 1], partition_epoch=1) == ErrorCode.NOT_CONTROLLER
    assert code([0, 1], broker_id=1) == ErrorCode.INVALID_REQUEST
    assert code([0, 3]) == ErrorCode.INVALID_REQUEST
    assert code([1, 2]) == ErrorCode.INVALID_REQUEST
    assert code([]) == ErrorCode.INVALID_REQUEST
    assert code([0, 1, 1]) == ErrorCode.INVALID_REQUEST
    assert code([0], leader_recovery_state=1) == ErrorCode.INVALID_REQUEST
    assert code([0], leader_recovery_state=9) == ErrorCode.INVALID_REQUEST
    stale = [
        AlterPartitionRequestBrokerState(broker_id=0, broker_epoch=-1),
        AlterPartitionRequestBrokerState(broker_id=1, broker_epoch=1),
    ]
    assert code([], new_isr_with_epochs=stale) == ErrorCode.INELIGIBLE_REPLICA
    assert code([], new_isr_with_epochs=[], new_isr=[0, 1]) == ErrorCode.NONE  # version 2 of the request
    assert code([0, 1, 2], partition_epoch=0) == ErrorCode.INVALID_UPDATE_VERSION
    world.heartbeat(2, want_fence=True)
    assert code([0, 1, 2]) == ErrorCode.INELIGIBLE_REPLICA
    world.heartbeat(0, want_fence=True)
    assert code([1], broker_id=1, leader_epoch=0) == ErrorCode.FENCED_LEADER_EPOCH


def elect(world: World, kind: int, *partitions: int, name: str = "t") -> list[Any]:
    requested = [t.ElectLeadersRequestTopicPartitions(topic=name, partitions=list(partitions))]
    request = t.ElectLeadersRequest(election_type=kind, topic_partitions=requested)
    answer = world.request("elect_leaders", request)
    return [ErrorCode(one.error_code) for one in answer.replica_election_results[0].partition_result]


def test_elections(world: World) -> None:
    world.create_topic("t", {0: [0, 1], 1: [1, 0]}, configs={"min.insync.replicas": "1"})
    assert elect(world, 0, 0, 7) == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert elect(world, 0, 0, name="nope") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    world.heartbeat(0, want_fence=True)
    assert elect(world, 0, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    world.heartbeat(0)
    world.alter_partition("t", 0, [1, 0])
    everything = world.request("elect_leaders", t.ElectLeadersRequest(election_type=0, topic_partitions=None))
    answers = everything.replica_election_results[0].partition_result
    assert [(one.partition_id, one.error_code) for one in answers] == [(0, ErrorCode.NONE)]
    assert world.partition("t").leader == 0
    assert elect(world, 1, 1) == [ErrorCode.ELECTION_NOT_NEEDED]
    for broker_id in (0, 1):
        world.heartbeat(broker_id, want_fence=True)
    assert elect(world, 1, 1) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    unknown = t.ElectLeadersRequest(election_type=5, topic_partitions=None)
    assert world.failure("elect_leaders", unknown).code == ErrorCode.INVALID_REQUEST


def reassign(world: World, target: list[int] | None, *, allow_factor_change: bool = True, partition: int = 0) -> Any:
    request = t.AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allow_factor_change,
        topics=[
            t.ReassignableTopic(
                name="t", partitions=[t.ReassignablePartition(partition_index=partition, replicas=target)]
            )
        ],
    )
    answer = world.request("alter_partition_reassignments", request)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


def ongoing(world: World) -> list[Any]:
    answer = world.request("list_partition_reassignments", t.ListPartitionReassignmentsRequest(topics=None))
    return [
        (topic.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    ]


def test_a_reassignment_ends_when_all_added_replicas_have_caught_up(world: World) -> None:
    world.create_topic("t", {0: [0, 1]})
    assert reassign(world, [2, 1]) == ErrorCode.NONE
    assert ongoing(world) == [("t", 0, [2, 1, 0], [2], [0])]
    epoch = world.partition("t").leader_epoch
    assert world.alter_partition("t", 0, [0, 1, 2]).error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = world.partition("t")
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 1), (1, 2), 2)
    assert partition.leader_epoch == epoch + 1
    assert ongoing(world) == []


def test_a_reassignment_is_cancelled(world: World) -> None:
    world.create_topic("t", {0: [0, 1]})
    assert reassign(world, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    reassign(world, [2, 1])
    assert reassign(world, None) == ErrorCode.NONE
    partition = world.partition("t")
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ((1, 0), (), ())


def test_a_reassignment_that_replaces_an_unfinished_one_ends(world: World) -> None:
    """Replicas that only the first one added are not waited for; those that only the first one removed are kept."""
    world.create_topic("t", {0: [0, 1]})
    reassign(world, [2, 1])
    assert reassign(world, [0, 1]) == ErrorCode.NONE
    assert ongoing(world) == []
    partition = world.partition("t")
    assert (partition.replicas, partition.isr) == ((0, 1), (0, 1))


def test_a_reassignment_to_fewer_replicas_ends_at_once(world: World) -> None:
    world.create_topic("t", {0: [0, 1, 2]})
    assert reassign(world, [1, 2], allow_factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(world, [1, 2]) == ErrorCode.NONE
    partition = world.partition("t")
    assert (partition.replicas, partition.isr, partition.leader, partition.leader_epoch) == ((1, 2), (1, 2), 1, 1)


def test_reassignments_that_are_refused(world: World) -> None:
    world.create_topic("t", {0: [0, 1]})
    assert reassign(world, [0, 9]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(world, []) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(world, [0], partition=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_cancellation_without_original_replicas_in_sync_is_an_unclean_election(world: World) -> None:
    world.create_topic("t", {0: [0]})
    reassign(world, [1, 2])
    world.alter_partition("t", 0, [0, 1])
    world.heartbeat(0, want_fence=True)
    assert world.partition("t").isr == (1,)
    assert reassign(world, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_topic_ids_are_unique(world: World) -> None:
    ids = [Uuid(b"\1" * 16), Uuid(b"\1" * 16), Uuid(b"\2" * 16)]
    world.active.topics._new_id = lambda: ids.pop(0)
    world.create_topic("a")
    world.create_topic("b")
    assert world.active.partitions.topic_ids["b"] == b"\2" * 16
