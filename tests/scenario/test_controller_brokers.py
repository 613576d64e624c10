"""Brokers register, send heartbeats, are fenced, shut down and restart."""

from __future__ import annotations

import pytest
from controller_world import CLUSTER_ID, World, directories_of

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import DIRECTORY_MIGRATING, Uuid
from kalda.metadata.features import MetadataVersion, VersionRange, supported_ranges
from kalda.protocol.messages.brokers import AllocateProducerIdsRequest, BrokerHeartbeatRequest, UnregisterBrokerRequest
from kalda.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)


def test_a_broker_is_unfenced_once_it_has_read_its_own_registration() -> None:
    world = World()
    epoch = world.register(0)
    assert world.active.cluster.brokers[0].fenced
    lagging = world.heartbeat(0, current_metadata_offset=epoch - 1)
    assert (lagging.is_caught_up, lagging.is_fenced) == (False, True)
    waiting = world.heartbeat(0, current_metadata_offset=epoch, want_fence=True)
    assert (waiting.is_caught_up, waiting.is_fenced) == (True, True)
    ready = world.heartbeat(0, current_metadata_offset=epoch)
    assert (ready.is_caught_up, ready.is_fenced, ready.should_shut_down) == (True, False, False)
    assert not world.active.cluster.brokers[0].fenced
    assert world.written_by(lambda: world.heartbeat(0)) == []


def test_registrations_that_are_refused() -> None:
    world = World()
    world.start_brokers(0)

    def code(**fields: object) -> ErrorCode:
        with pytest.raises(ApiError) as raised:
            world.register(7, **fields)  # type: ignore[arg-type]
        return raised.value.code

    assert code(cluster_id=f"not {CLUSTER_ID}") == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert code(log_dirs=[]) == ErrorCode.INVALID_REGISTRATION
    assert code(log_dirs=[DIRECTORY_MIGRATING]) == ErrorCode.INVALID_REGISTRATION
    assert code(log_dirs=directories_of(7) * 2) == ErrorCode.INVALID_REGISTRATION
    assert code(log_dirs=directories_of(0)) == ErrorCode.INVALID_REGISTRATION
    old = {**supported_ranges(), "metadata.version": VersionRange(7, 20)}
    assert code(features=old) == ErrorCode.UNSUPPORTED_VERSION
    assert code(features={}) == ErrorCode.UNSUPPORTED_VERSION


def test_a_second_broker_with_the_same_id_is_refused_until_the_session_of_the_first_ends() -> None:
    world = World()
    world.start_brokers(0)
    with pytest.raises(ApiError) as raised:
        world.register(0, incarnation=2)
    assert raised.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.now_ms += 9_001
    assert world.register(0, incarnation=2) > 0


def test_a_controllers_own_broker_does_not_wait_for_the_process_that_it_replaces() -> None:
    world = World(incarnation_id=Uuid(bytes([2, 9]) * 8))
    world.start_brokers(1)
    with pytest.raises(ApiError) as raised:
        world.register(1, incarnation=8)
    assert raised.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert world.register(1, incarnation=9) > 0


def test_the_same_incarnation_registers_anew_without_losing_its_epoch() -> None:
    world = World()
    world.start_brokers(0)
    epoch = world.epochs[0]
    records = world.written_by(lambda: world.register(0))
    assert isinstance(records[0], RegisterBrokerRecord)
    assert world.epochs[0] == epoch
    assert not world.active.cluster.brokers[0].fenced


def test_requests_of_a_former_incarnation_are_refused() -> None:
    world = World()
    world.start_brokers(0)
    stale = AllocateProducerIdsRequest(broker_id=0, broker_epoch=world.epochs[0] - 1)
    assert world.failure("allocate_producer_ids", stale).code == ErrorCode.STALE_BROKER_EPOCH
    stranger = BrokerHeartbeatRequest(broker_id=5, broker_epoch=1)
    assert world.failure("broker_heartbeat", stranger).code == ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_come_in_blocks() -> None:
    world = World()
    world.start_brokers(0)
    request = AllocateProducerIdsRequest(broker_id=0, broker_epoch=world.epochs[0])
    first, second = (world.request("allocate_producer_ids", request) for _ in range(2))
    assert (first.producer_id_start, first.producer_id_len) == (0, 1000)
    assert second.producer_id_start == 1000


def test_a_broker_without_heartbeats_is_fenced_and_its_leaderships_move() -> None:
    world = World()
    world.start_brokers(0, 1, 2)
    world.create_topic("t", {0: [0, 1, 2], 1: [1, 2, 0]})
    for _ in range(20):
        world.now_ms += 500
        for broker_id in (1, 2):
            world.heartbeat(broker_id)
        world.poll_until(world.now_ms + 1)
    assert world.active.cluster.brokers[0].fenced
    assert not world.active.cluster.brokers[1].fenced
    partition = world.partition("t", 0)
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1, 2), 1)
    other = world.partition("t", 1)
    assert (other.leader, other.isr, other.leader_epoch, other.partition_epoch) == (1, (1, 2), 0, 1)


def test_stale_brokers_are_fenced_one_at_a_time() -> None:
    world = World(levels={"eligible.leader.replicas.version": 0})
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]})
    world.poll_until(30_000)
    partition = world.partition("t")
    assert (partition.leader, len(partition.isr)) == (-1, 1)
    changes = [r for r in world.records if isinstance(r, PartitionChangeRecord)]
    assert [change.leader for change in changes] == [1, -1]


def test_without_eligible_replicas_the_last_of_an_isr_stays_in_it() -> None:
    world = World(levels={})
    world.start_brokers(0)
    world.create_topic("t", {0: [0]})
    world.heartbeat(0, want_fence=True)
    assert (world.partition("t").isr, world.partition("t").leader) == ((0,), -1)
    world.heartbeat(0)
    assert (world.partition("t").isr, world.partition("t").leader) == ((0,), 0)


def test_with_eligible_replicas_an_empty_isr_is_refilled_from_them() -> None:
    world = World()
    world.start_brokers(0, 1, 2)
    world.create_topic("t", {0: [0, 1, 2]}, configs={"min.insync.replicas": "2"})
    for broker_id in (2, 1, 0):
        world.heartbeat(broker_id, want_fence=True)
    partition = world.partition("t")
    assert (partition.isr, partition.leader, partition.elr, partition.last_known_elr) == ((), -1, (1, 0), (0,))
    world.heartbeat(2)  # it left the ISR while that was large enough: it may lack acknowledged records
    assert world.partition("t").leader == -1
    world.heartbeat(1)
    partition = world.partition("t")
    assert (partition.isr, partition.leader, partition.elr, partition.last_known_elr) == ((1,), 1, (0,), ())
    elected = world.active.partitions
    assert (elected.unclean_elections, elected.elections_of_eligible) == (0, 1)


def test_after_an_unclean_restart_a_replica_is_not_eligible() -> None:
    world = World()
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]}, configs={"min.insync.replicas": "2"})
    world.heartbeat(1, want_fence=True)
    assert world.partition("t").elr == (1,)
    clean = world.epochs[1]
    world.now_ms += 10_000
    world.heartbeat(0)
    world.register(1, incarnation=2, previous_epoch=clean)
    assert world.partition("t").elr == (1,)
    world.now_ms += 10_000
    world.heartbeat(0)
    world.register(1, incarnation=3, previous_epoch=-1)
    assert world.partition("t").elr == ()


def test_a_replica_whose_directory_is_missing_after_a_restart_is_not_eligible() -> None:
    """A failed disk was removed from the configuration: the log is created anew in another directory, empty."""
    world = World()
    world.start_brokers(0, 1, directories=2)
    world.create_topic("t", {0: [0, 1], 1: [0, 1], 2: [0, 1]}, configs={"min.insync.replicas": "2"})
    topic_id = world.active.partitions.topic_ids["t"]
    good, bad = directories_of(1, 2)
    _assign(world, 1, topic_id, {good: [0], bad: [1, 2]})
    world.alter_partition("t", 2, [0])
    assert [world.partition("t", at).elr for at in range(3)] == [(), (), (1,)]
    world.now_ms += 10_000
    world.heartbeat(0)
    world.register(1, incarnation=2, previous_epoch=world.epochs[1], log_dirs=[good])
    assert [world.partition("t", at).elr for at in range(3)] == [(1,), (), ()]


def test_controlled_shutdown() -> None:
    world = World()
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]})
    behind = world.log.log_end_offset - 1
    world.heartbeat(1, current_metadata_offset=behind)
    draining = world.heartbeat(0, want_shut_down=True)
    assert (draining.is_fenced, draining.should_shut_down) == (False, False)
    assert world.partition("t").leader == 1
    assert world.active.cluster.brokers[0].in_controlled_shutdown
    # Broker 1 has not read yet that it leads.
    assert not world.heartbeat(0, want_shut_down=True).should_shut_down
    world.heartbeat(1)
    done = world.heartbeat(0, want_shut_down=True)
    assert (done.is_fenced, done.should_shut_down) == (True, True)
    assert world.active.cluster.brokers[0].fenced


def test_a_broker_gets_no_new_replica_while_it_shuts_down_and_does_when_it_has_stopped() -> None:
    """As in a rolling restart: topics with as many replicas as brokers can be created while one of them is away."""
    world = World()
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]})
    world.heartbeat(1, current_metadata_offset=world.log.log_end_offset - 1)
    world.heartbeat(0, want_shut_down=True)
    assert world.create_topic("u", partitions=1, factor=2).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    world.heartbeat(1)
    assert world.heartbeat(0, want_shut_down=True).should_shut_down
    assert world.create_topic("u", partitions=1, factor=2).error_code == ErrorCode.NONE
    assert sorted(world.partition("u").replicas) == [0, 1]
    assert world.partition("u").isr == (1,)


def test_a_broker_that_leads_no_partition_may_shut_down_at_once() -> None:
    world = World()
    world.start_brokers(0)
    assert world.heartbeat(0, want_shut_down=True).should_shut_down
    world.register(1)
    assert world.heartbeat(1, want_shut_down=True).should_shut_down


def test_replicas_in_a_failed_directory_leave_the_isr() -> None:
    world = World()
    world.start_brokers(0, 1, directories=2)
    world.create_topic("t", {0: [0, 1], 1: [0, 1]})
    partitions = world.active.partitions
    topic_id = partitions.topic_ids["t"]
    good, bad = directories_of(0, 2)
    _assign(world, 0, topic_id, {good: [0], bad: [1]})
    assert world.partition("t", 1).directory(0) == bad
    world.heartbeat(0, offline_log_dirs=[bad])
    assert world.active.cluster.brokers[0].directories == (good,)
    assert (world.partition("t", 0).leader, world.partition("t", 1).leader) == (0, 1)
    assert world.written_by(lambda: world.heartbeat(0, offline_log_dirs=[bad])) == []


def test_a_broker_that_reports_a_failed_directory_leads_nothing_in_it_when_it_is_unfenced() -> None:
    world = World()
    world.start_brokers(0, 1, directories=2)
    world.create_topic("t", {0: [1, 0]}, configs={"min.insync.replicas": "2"})
    topic_id = world.active.partitions.topic_ids["t"]
    bad = directories_of(1, 2)[1]
    _assign(world, 1, topic_id, {bad: [0]})
    for broker_id in (0, 1):
        world.heartbeat(broker_id, want_fence=True)
    assert world.heartbeat(1, offline_log_dirs=[bad]).is_fenced
    assert not world.heartbeat(1, offline_log_dirs=[bad]).is_fenced
    assert world.partition("t").leader == -1
    world.heartbeat(0)
    assert world.partition("t").leader == 0


def _assign(world: World, broker_id: int, topic_id: bytes, directories: dict[bytes, list[int]]) -> object:
    from kalda.protocol.messages import brokers as b

    return world.request(
        "assign_replicas_to_dirs",
        b.AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=world.epochs[broker_id],
            directories=[
                b.AssignReplicasToDirsRequestDirectoryData(
                    id=directory,
                    topics=[
                        b.AssignReplicasToDirsRequestTopicData(
                            topic_id=topic_id,
                            partitions=[b.AssignReplicasToDirsRequestPartitionData(partition_index=at) for at in ats],
                        )
                    ],
                )
                for directory, ats in directories.items()
            ],
        ),
    )


def test_a_replica_put_into_an_offline_directory_leaves_the_isr() -> None:
    world = World()
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]})
    answer = _assign(world, 0, world.active.partitions.topic_ids["t"], {directories_of(9)[0]: [0, 5]})
    codes = [p.error_code for p in answer.directories[0].topics[0].partitions]  # type: ignore[attr-defined]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (world.partition("t").leader, world.partition("t").isr) == (1, (1,))


def test_cordoned_brokers_get_no_new_replicas() -> None:
    world = World()
    world.start_brokers(0, 1)
    world.heartbeat(1, cordoned_log_dirs=directories_of(1))
    world.create_topic("t", partitions=4, factor=1)
    assert {world.partition("t", at).replicas for at in range(4)} == {(0,)}
    error = world.create_topic("u", partitions=1, factor=2)
    assert error.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_unregistering() -> None:
    world = World()
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]})
    world.request("unregister_broker", UnregisterBrokerRequest(broker_id=0))
    assert list(world.active.cluster.brokers) == [1]
    assert (world.partition("t").leader, world.partition("t").isr) == (1, (1,))
    missing = world.failure("unregister_broker", UnregisterBrokerRequest(broker_id=0))
    assert missing.code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_records_of_an_old_release() -> None:
    world = World(version=MetadataVersion.IBP_3_3_IV3)
    world.start_brokers(0)
    world.create_topic("t", {0: [0]})
    versions = {type(v.record).__name__: v.version for batch in world.log.batches for v in batch.records}
    assert versions["RegisterBrokerRecord"] == 1
    assert versions["PartitionRecord"] == 0
    assert "BeginTransactionRecord" not in versions


def test_no_op_records_are_written_while_the_cluster_is_idle() -> None:
    world = World(metadata_max_idle_interval_ms=500)
    world.active.poll(world.now_ms)
    records = world.written_by(lambda: world.poll_until(world.now_ms + 2_000))
    assert [type(record) for record in records] == [NoOpRecord] * 4


def test_leaders_go_back_to_preferred_replicas() -> None:
    world = World(leader_imbalance_check_interval_ms=5_000)
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]})
    world.heartbeat(0, want_fence=True)
    world.heartbeat(0)
    world.alter_partition("t", 0, [1, 0])
    assert world.partition("t").leader == 1
    world.poll_until(world.now_ms + 5_500, step_ms=5_500)
    assert world.partition("t").leader == 0


def test_unclean_elections_happen_where_they_are_allowed() -> None:
    world = World(unclean_leader_election_interval_ms=5_000, levels={})
    world.start_brokers(0, 1)
    for name, allowed in (("safe", "false"), ("lossy", "true")):
        world.create_topic(name, {0: [0, 1]}, configs={"unclean.leader.election.enable": allowed})
    world.heartbeat(1, want_fence=True)
    world.heartbeat(0, want_fence=True)
    world.heartbeat(1)
    world.poll_until(world.now_ms + 5_500, step_ms=5_500)
    assert world.partition("safe").leader == -1
    lossy = world.partition("lossy")
    assert (lossy.leader, lossy.isr, lossy.leader_recovery_state) == (1, (1,), 1)
    elected = world.active.partitions
    assert (elected.unclean_elections, elected.elections_of_eligible) == (1, 0)


def test_a_change_is_written_at_the_lowest_version_that_has_its_fields() -> None:
    world = World()
    world.start_brokers(0)
    world.heartbeat(0, cordoned_log_dirs=[])
    versions = [
        v.version
        for batch in world.log.batches
        for v in batch.records
        if isinstance(v.record, BrokerRegistrationChangeRecord)
    ]
    assert versions == [0, 3]
