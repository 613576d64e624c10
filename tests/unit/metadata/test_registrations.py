"""Registrations of brokers, and partitions under change records."""

from __future__ import annotations

import pytest

from kalda.base.ids import DIRECTORY_LOST, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, Uuid
from kalda.metadata.cluster import EMPTY, BrokerRegistration, ClusterDelta
from kalda.metadata.features import MetadataVersion
from kalda.metadata.image_records import ImageWriter, UnwritableMetadata
from kalda.metadata.topics import LeaderRecoveryState, PartitionRegistration
from kalda.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)

A, B, C = (Uuid(bytes([n]) * 16) for n in (1, 2, 3))
BROKER = BrokerRegistration.from_record(RegisterBrokerRecord(broker_id=1, broker_epoch=9, log_dirs=[B, A]))
PARTITION = PartitionRegistration((1, 2), (A, B), (1, 2), leader=1, leader_epoch=3, partition_epoch=7, elr=(2,))


def test_directories_of_a_broker() -> None:
    assert BROKER.directories == (A, B)
    assert [BROKER.has_online_dir(d) for d in (A, C, DIRECTORY_LOST)] == [True, False, False]
    assert BROKER.has_online_dir(DIRECTORY_MIGRATING)
    assert BROKER.has_online_dir(DIRECTORY_UNASSIGNED)
    older = BROKER._replace(directories=())
    assert older.has_online_dir(C)
    assert not older.has_online_dir(DIRECTORY_LOST)


def test_cordoned_directories() -> None:
    assert BROKER.has_uncordoned_dirs
    assert BROKER._replace(cordoned_directories=(A,)).has_uncordoned_dirs
    assert not BROKER._replace(cordoned_directories=(A, B)).has_uncordoned_dirs


def test_changes_of_a_registration_from_its_start_to_its_removal() -> None:
    delta = ClusterDelta(EMPTY)
    delta.register_broker(RegisterBrokerRecord(broker_id=1, broker_epoch=9, fenced=True))
    delta.unfence_broker(UnfenceBrokerRecord(id=1, epoch=9))
    delta.change_broker(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, in_controlled_shutdown=1))
    delta.change_broker(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, log_dirs=[C, A], cordoned_log_dirs=[C])
    )
    broker = delta.apply().brokers[1]
    assert (broker.fenced, broker.in_controlled_shutdown) == (False, True)
    assert (broker.directories, broker.cordoned_directories) == ((A, C), (C,))
    delta.fence_broker(FenceBrokerRecord(id=1, epoch=9))
    assert delta.apply().brokers[1].fenced
    delta.unregister_broker(UnregisterBrokerRecord(broker_id=1, broker_epoch=9))
    assert delta.apply().is_empty


def test_a_record_with_the_epoch_of_another_incarnation_raises() -> None:
    delta = ClusterDelta(EMPTY)
    with pytest.raises(ValueError, match="broker 1 is not registered"):
        delta.fence_broker(FenceBrokerRecord(id=1, epoch=9))
    delta.register_broker(RegisterBrokerRecord(broker_id=1, broker_epoch=9))
    with pytest.raises(ValueError, match="broker 1 has epoch 9, not 8"):
        delta.unregister_broker(UnregisterBrokerRecord(broker_id=1, broker_epoch=8))


def test_none_in_a_change_record_means_no_change() -> None:
    assert PARTITION.merge(PartitionChangeRecord()) == PARTITION._replace(partition_epoch=8)


def test_only_a_record_that_names_a_leader_bumps_the_leader_epoch() -> None:
    shrunk = PARTITION.merge(PartitionChangeRecord(isr=[1]))
    assert (shrunk.isr, shrunk.leader_epoch, shrunk.partition_epoch) == ((1,), 3, 8)
    again = PARTITION.merge(PartitionChangeRecord(leader=1))
    assert (again.leader, again.leader_epoch, again.partition_epoch) == (1, 4, 8)
    unclean = PARTITION.merge(PartitionChangeRecord(leader=2, leader_recovery_state=1, isr=[2], last_known_elr=[1]))
    assert unclean.leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert (unclean.elr, unclean.last_known_elr) == ((2,), (1,))


def test_replicas_keep_their_directories_where_the_record_has_none() -> None:
    moved = PARTITION.merge(PartitionChangeRecord(replicas=[2, 3]))
    assert moved.directories == (B, DIRECTORY_MIGRATING)
    named = PARTITION.merge(PartitionChangeRecord(replicas=[2, 3], directories=[A, C]))
    assert (named.directory(3), named.directory(1)) == (C, None)
    with pytest.raises(ValueError, match="2 replicas in 1 directories"):
        PARTITION.merge(PartitionChangeRecord(directories=[A]))
    old = PartitionRegistration.from_record(PartitionRecord(replicas=[1, 2], isr=[1], leader=1))
    assert old.directories == (DIRECTORY_MIGRATING, DIRECTORY_MIGRATING)


@pytest.mark.parametrize(
    ("version", "elr_enabled", "record_version", "directories", "elr"),
    [
        (MetadataVersion.IBP_4_3_IV0, True, 2, [A, B], [2]),
        (MetadataVersion.IBP_4_3_IV0, False, 2, [A, B], None),
        (MetadataVersion.IBP_3_9_IV0, True, 1, [A, B], None),
        (MetadataVersion.IBP_3_6_IV0, True, 0, [], None),
    ],
)
def test_a_partition_is_written_in_the_format_of_the_metadata_version(
    version: MetadataVersion, elr_enabled: bool, record_version: int, directories: list[Uuid], elr: list[int] | None
) -> None:
    losses: list[str] = []
    writer = ImageWriter(version, elr_enabled, on_loss=lambda _, loss: losses.append(loss))
    PARTITION.write(writer, C, 5)
    [(record, written)] = writer.records
    assert isinstance(record, PartitionRecord)
    assert (written, record.directories, record.eligible_leader_replicas) == (record_version, directories, elr)
    assert bool(losses) == (record_version == 0)


def test_a_loss_without_a_handler_raises() -> None:
    with pytest.raises(UnwritableMetadata, match=r"metadata\.version 3\.6-IV0: the online log directories"):
        BROKER.write(ImageWriter(MetadataVersion.IBP_3_6_IV0))
