"""Becoming the active controller, ceasing to be it, and the responses that wait for a commit meanwhile."""

from __future__ import annotations

import pytest
from controller_world import World, creatable, state

from kalda.base.errors import ApiError, ErrorCode
from kalda.metadata.features import MetadataVersion
from kalda.metadata.formatter import BootstrapMetadata
from kalda.protocol.access import Caller
from kalda.protocol.messages.brokers import BrokerHeartbeatRequest
from kalda.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    TopicRecord,
)
from kalda.protocol.messages.topics import CreateTopicsRequest, ListPartitionReassignmentsRequest
from kalda.protocol.record_framing import VersionedRecord

CREATE = CreateTopicsRequest(topics=[creatable("t", {0: [0]})])


def test_a_standby_refuses_requests() -> None:
    world = World(2)
    standby = world.controllers[2]
    pending = standby.handle_create_topics(CREATE, Caller(), 0)
    assert pending.error is not None
    assert pending.error.code == ErrorCode.NOT_CONTROLLER
    read = standby.handle_list_partition_reassignments(ListPartitionReassignmentsRequest(), Caller(), 0)
    assert read.error is not None
    assert read.error.code == ErrorCode.NOT_CONTROLLER
    assert standby.poll(0) is None
    assert (standby.leader_id, world.controllers[1].leader_id) == (1, 1)


def test_the_response_waits_for_the_commit() -> None:
    world = World(2)
    world.start_brokers(0)
    world.auto_commit = False
    pending = world.send("create_topics", CREATE)
    assert not pending.done
    assert "t" in world.active.partitions.topic_ids
    assert "t" not in world.controllers[2].partitions.topic_ids
    again = world.send("create_topics", CREATE)
    assert not again.done, "the first topic may still be reverted"
    world.commit()
    assert pending.value.topics[0].error_code == ErrorCode.NONE
    assert again.value.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert state(world.controllers[1]) == state(world.controllers[2])


def test_uncommitted_records_are_reverted() -> None:
    world = World(2)
    world.start_brokers(0)
    before = state(world.active)
    world.auto_commit = False
    pending = world.send("create_topics", CREATE)
    former = world.active
    world.elect(2)
    world.commit()
    assert pending.error is not None
    assert pending.error.code == ErrorCode.NOT_CONTROLLER
    assert state(former) == before
    assert state(world.active) == before
    world.auto_commit = True
    assert world.create_topic("t", {0: [0]}).error_code == ErrorCode.NONE
    assert state(former) == state(world.active)


def test_a_new_controller_gives_every_broker_a_whole_session() -> None:
    world = World(2)
    world.start_brokers(0)
    world.now_ms += 8_000
    world.elect(2)
    world.poll_until(world.now_ms + 8_500)
    assert not world.active.cluster.brokers[0].fenced
    world.poll_until(world.now_ms + 3_000)
    assert world.active.cluster.brokers[0].fenced


def test_the_same_node_may_lead_twice() -> None:
    world = World()
    world.start_brokers(0)
    world.elect(1)
    assert world.heartbeat(0).is_caught_up
    assert [type(r) for r in world.records].count(FeatureLevelRecord) == 6


def test_resigning() -> None:
    world = World()
    world.active.resign()
    assert world.log.resigned == [1]
    assert not world.controllers[1].is_active


def test_a_refused_append_fails_its_request_only() -> None:
    world = World()
    world.start_brokers(0)
    world.log.refuse = ApiError(ErrorCode.NOT_CONTROLLER)
    assert world.failure("create_topics", CREATE).code == ErrorCode.NOT_CONTROLLER
    world.log.refuse = None
    assert "t" not in world.active.partitions.topic_ids
    assert world.create_topic("t", {0: [0]}).error_code == ErrorCode.NONE


def test_the_bootstrap_is_written_once() -> None:
    world = World()
    first = world.records
    assert isinstance(first[0], BeginTransactionRecord)
    assert isinstance(first[-1], EndTransactionRecord)
    world.elect(1)
    assert world.records == first


def test_an_unfinished_bootstrap_is_aborted_and_written_again() -> None:
    metadata = BootstrapMetadata.from_levels(MetadataVersion.IBP_4_3_IV0, {}, "the test")
    world = World(lead=False, bootstrap=metadata.records)
    world.log.append(0, [VersionedRecord(BeginTransactionRecord(), 0), *metadata.records])
    world.commit()
    world.elect(1)
    kinds = [type(record) for record in world.records]
    assert kinds[2:] == [AbortTransactionRecord, BeginTransactionRecord, FeatureLevelRecord, EndTransactionRecord]
    assert world.active.features.metadata_version == MetadataVersion.IBP_4_3_IV0


def test_an_unfinished_transaction_is_aborted() -> None:
    world = World()
    world.start_brokers(0)
    topic = TopicRecord(name="half", topic_id=b"\1" * 16)  # type: ignore[arg-type]
    world.log.append(1, [VersionedRecord(BeginTransactionRecord(), 0), VersionedRecord(topic, 0)])
    world.controllers[1].on_leader_change(None, 1)
    world.commit()
    assert "half" in world.controllers[1].partitions.topic_ids
    world.elect(1)
    assert isinstance(world.records[-1], AbortTransactionRecord)
    assert "half" not in world.active.partitions.topic_ids
    assert state(world.replayed()) == state(world.active)


def test_bootstrap_records_without_metadata_version_are_refused() -> None:
    with pytest.raises(ValueError, match=r"metadata\.version"):
        World(bootstrap=())


def test_a_metadata_version_of_a_later_release_cannot_be_replayed() -> None:
    world = World()
    future = FeatureLevelRecord(name="metadata.version", feature_level=99)
    with pytest.raises(ValueError, match="does not support"):
        world.controllers[1].runtime._replay(VersionedRecord(future, 0), 99)


def test_a_standby_refuses_heartbeats() -> None:
    world = World(2)
    world.start_brokers(0)
    pending = world.controllers[2].handle_broker_heartbeat(
        BrokerHeartbeatRequest(broker_id=0, broker_epoch=world.epochs[0]), Caller(), 0
    )
    assert pending.error is not None
