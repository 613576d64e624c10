"""The next leader, ISR and eligible replicas of one partition."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.ids import DIRECTORY_UNASSIGNED, Uuid
from kalda.controller.partition_change import ChangeRules, Election, PartitionChange
from kalda.metadata.features import MetadataVersion
from kalda.metadata.topics import LeaderRecoveryState, PartitionRegistration
from kalda.protocol.messages.metadata_records import PartitionChangeRecord

TOPIC = Uuid(b"\1" * 16)
DIRS = [Uuid(bytes([at]) * 16) for at in range(10, 20)]
FIELDS = (
    "isr",
    "leader",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "leader_recovery_state",
    "eligible_leader_replicas",
    "last_known_elr",
    "directories",
)


def partition(
    replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] = (1, 2, 3), leader: int = 1, **fields: Any
) -> PartitionRegistration:
    directories = tuple(DIRS[replica] for replica in replicas)
    return PartitionRegistration(replicas, directories, isr, leader, 5, 7, **fields)


def change(
    registration: PartitionRegistration,
    *,
    alive: tuple[int, ...] = (1, 2, 3, 4),
    elr: bool = True,
    minimum: int = 2,
    version: MetadataVersion = MetadataVersion.IBP_4_3_IV0,
) -> PartitionChange:
    rules = ChangeRules(version, elr, minimum, lambda _, replica: replica in alive, lambda _: DIRECTORY_UNASSIGNED)
    return PartitionChange(TOPIC, 0, registration, rules)


def built(pending: PartitionChange) -> dict[str, Any] | None:
    """The fields of the record that differ from their defaults."""
    versioned = pending.build()
    if versioned is None:
        return None
    blank = PartitionChangeRecord()
    values = {name: getattr(versioned.record, name) for name in FIELDS}
    return {name: value for name, value in values.items() if value != getattr(blank, name)}


def test_without_a_change_there_is_no_record() -> None:
    assert built(change(partition())) is None


def test_the_leader_does_not_change_while_it_is_in_the_isr() -> None:
    pending = change(partition(leader=2))
    pending.isr = (2, 3)
    assert built(pending) == {"isr": [2, 3]}


def test_the_first_active_member_of_the_isr_leads() -> None:
    pending = change(partition(), alive=(3,))
    pending.isr = (2, 3)
    assert built(pending) == {"isr": [2, 3], "leader": 3}


def test_a_preferred_election_moves_the_leader_only_into_the_isr() -> None:
    pending = change(partition(leader=2))
    pending.election = Election.PREFERRED
    assert built(pending) == {"leader": 1}
    pending = change(partition(isr=(2, 3), leader=2))
    pending.election = Election.PREFERRED
    assert built(pending) is None


def test_replicas_below_the_minimum_stay_eligible() -> None:
    pending = change(partition(isr=(1, 2)))
    pending.isr = (1,)
    assert built(pending) == {"isr": [1], "eligible_leader_replicas": [2]}


def test_no_replica_is_eligible_when_the_isr_is_large_enough() -> None:
    pending = change(partition(isr=(1,), elr=(2,)))
    pending.isr = (1, 3)
    assert built(pending) == {"isr": [1, 3], "eligible_leader_replicas": []}


def test_an_eligible_replica_leads_only_where_the_isr_is_empty() -> None:
    """If 1 joined 2 in the ISR, both could commit records that 3 lacks, although 3 is eligible."""
    pending = change(partition(isr=(2,), leader=2, elr=(1, 3)))
    pending.election = Election.PREFERRED
    assert built(pending) is None
    alone = change(partition(isr=(2,), leader=2, elr=(1, 3)), alive=(1, 3))
    alone.isr = ()
    assert built(alone) == {"isr": [1], "leader": 1, "eligible_leader_replicas": [3, 2]}


def test_a_replica_that_stopped_uncleanly_is_not_eligible() -> None:
    pending = change(partition(isr=(1, 2)), alive=(1, 3))
    pending.isr = (1,)
    pending.unclean_shutdown_replicas = (2,)
    assert built(pending) == {"isr": [1]}


def test_the_last_leader_is_written_when_the_isr_is_empty_and_cleared_with_a_new_leader() -> None:
    pending = change(partition(isr=(1,)), alive=())
    pending.isr = ()
    assert built(pending) == {"isr": [], "leader": -1, "eligible_leader_replicas": [1], "last_known_elr": [1]}
    back = change(partition(isr=(), leader=-1, elr=(1,), last_known_elr=(1,)))
    assert built(back) == {"isr": [1], "leader": 1, "eligible_leader_replicas": [], "last_known_elr": []}


def test_without_a_leader_the_last_member_of_the_isr_is_written_as_last_known() -> None:
    """For example its directory failed, so that it did not lead any more, and then its process died."""
    pending = change(partition(isr=(2,), leader=-1), alive=(1, 3))
    pending.isr = ()
    pending.unclean_shutdown_replicas = (2,)
    assert built(pending) == {"isr": [], "last_known_elr": [2]}
    again = change(partition(isr=(), leader=-1, elr=(2,), last_known_elr=(2,)), alive=(1, 3))
    again.unclean_shutdown_replicas = (2,)
    assert built(again) == {"eligible_leader_replicas": []}


def test_the_last_known_leader_is_the_last_resort() -> None:
    lost = change(partition(isr=(), leader=-1, last_known_elr=(2,)))
    assert built(lost) == {"isr": [2], "leader": 2, "leader_recovery_state": 1, "last_known_elr": []}
    away = change(partition(isr=(), leader=-1, last_known_elr=(2,)), alive=(1, 3))
    assert built(away) is None


def test_an_unclean_election_removes_all_others_from_the_isr() -> None:
    pending = change(partition(isr=(1,)), alive=(3,), elr=False)
    pending.election = Election.UNCLEAN
    pending.isr = ()
    assert built(pending) == {"isr": [3], "leader": 3, "leader_recovery_state": 1}


def test_without_eligible_replicas_an_isr_is_never_empty() -> None:
    pending = change(partition(isr=(1,)), alive=(), elr=False)
    pending.isr = ()
    assert built(pending) == {"leader": -1}


def test_recovery_ends_when_the_leader_reports_it() -> None:
    recovering = partition(isr=(1,), leader_recovery_state=LeaderRecoveryState.RECOVERING)
    pending = change(recovering, elr=False)
    pending.leader_recovery_state = LeaderRecoveryState.RECOVERED
    pending.isr = (1, 2)
    assert built(pending) == {"isr": [1, 2], "leader_recovery_state": 0}


@pytest.mark.parametrize(
    ("version", "bumps"), [(MetadataVersion.IBP_3_5_IV2, True), (MetadataVersion.IBP_3_6_IV0, False)]
)
def test_old_releases_bump_the_leader_epoch_on_a_smaller_isr(version: MetadataVersion, bumps: bool) -> None:
    pending = change(partition(), elr=False, version=version)
    pending.isr = (1, 2)
    assert built(pending) == ({"isr": [1, 2], "leader": 1} if bumps else {"isr": [1, 2]})


def test_a_reassignment_from_start_to_end() -> None:
    start = change(partition())
    start.replicas, start.adding, start.removing = (4, 2, 3, 1), (4,), (1,)
    assert built(start) == {
        "replicas": [4, 2, 3, 1],
        "adding_replicas": [4],
        "removing_replicas": [1],
        "directories": [DIRECTORY_UNASSIGNED, DIRS[2], DIRS[3], DIRS[1]],
    }
    running = partition((4, 2, 3, 1), adding_replicas=(4,), removing_replicas=(1,))
    half = change(running)
    half.isr = (1, 2)
    assert built(half) == {"isr": [1, 2]}
    done = change(running)
    done.isr = (1, 2, 4)
    assert built(done) == {
        "isr": [2, 4],
        "leader": 4,
        "replicas": [4, 2, 3],
        "adding_replicas": [],
        "removing_replicas": [],
        "directories": [DIRS[4], DIRS[2], DIRS[3]],
    }


def test_the_leader_epoch_grows_when_a_replica_is_removed() -> None:
    pending = change(partition())
    pending.replicas, pending.removing = (1, 2, 3), (3,)
    assert built(pending) == {"isr": [1, 2], "leader": 1, "replicas": [1, 2], "directories": [DIRS[1], DIRS[2]]}


def test_a_replica_moves_between_directories() -> None:
    pending = change(partition())
    pending.move_to_directory(2, DIRS[9])
    assert built(pending) == {"directories": [DIRS[1], DIRS[9], DIRS[3]]}
    pending = change(partition(), version=MetadataVersion.IBP_3_6_IV2)
    pending.move_to_directory(2, DIRS[9])
    assert built(pending) is None
