"""Files and small values: `quorum-state`, snapshot names, voters, bounds of logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalda.base.errors import CorruptRecord
from kalda.base.ids import uuid_from_text
from kalda.broker.process.disk import RealDisk
from kalda.protocol.messages.metadata_records import ConfigRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft import rpc, wire
from kalda.raft.log_state import Diverging, RaftLogState, SnapshotRequired, Valid
from kalda.raft.quorum_state import ElectionState, decode_quorum_state, encode_quorum_state
from kalda.raft.roles import Ballot
from kalda.raft.snapshots import MAX_BATCH_BYTES, SnapshotReader, parse_snapshot_name, snapshot_name, write_snapshot
from kalda.raft.voters import OffsetAndEpoch, ReplicaKey, VoterHistory, VoterSet

GOLDEN = Path(__file__).parents[2] / "golden" / "raft"


def test_quorum_state_is_byte_for_byte_apache_kafkas() -> None:
    data = (GOLDEN / "node" / "__cluster_metadata-0" / "quorum-state").read_bytes()
    state = decode_quorum_state(data)
    assert state == ElectionState(2, 1, None)
    assert encode_quorum_state(state, (1,), 1) == data


def test_a_vote_survives_in_both_versions() -> None:
    directory = uuid_from_text("07R5amHmR32VDA6jHkGbTA")
    state = ElectionState(7, None, ReplicaKey(3, directory))
    assert decode_quorum_state(encode_quorum_state(state, (1, 2, 3), 1)) == state
    old = decode_quorum_state(encode_quorum_state(state, (1, 2, 3), 0))
    assert old == ElectionState(7, None, ReplicaKey(3)), "version 0 has no directories"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"data_version":2}',
        '{"leaderId":"x","leaderEpoch":1,"votedId":-1,"data_version":1}',
        '{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":"short","data_version":1}',
        '{"leaderId":1,"leaderEpoch":99999999999,"votedId":1,"data_version":0}',
    ],
)
def test_a_broken_quorum_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_quorum_state(text.encode())


def test_snapshot_names() -> None:
    snapshot = OffsetAndEpoch(113, 1)
    assert snapshot_name(snapshot) == "00000000000000000113-0000000001.checkpoint"
    assert parse_snapshot_name(snapshot_name(snapshot, ".checkpoint.part")) == (snapshot, ".checkpoint.part")
    for name in ("00000000000000000113.log", "113-1.checkpoint", "0000000000000000011x-0000000001.checkpoint", ""):
        assert parse_snapshot_name(name) is None


def test_a_chunk_too_large_for_a_batch_becomes_several(tmp_path: Path) -> None:
    records = [
        VersionedRecord(ConfigRecord(resource_type=2, resource_name=f"t{at}", name="n", value="x" * 20_000), 0)
        for at in range(1000)
    ]
    disk, snapshot = RealDisk(), OffsetAndEpoch(5000, 3)
    size = write_snapshot(
        disk,
        str(tmp_path),
        snapshot,
        records,
        last_contained_timestamp_ms=4,
        kraft_version=0,
        voters=VoterSet(),
        now_ms=9,
    )
    assert size > 2 * MAX_BATCH_BYTES
    reader = SnapshotReader(disk, str(tmp_path), snapshot)
    assert [record for batch in reader for record in batch.records] == records
    assert reader.last_contained_timestamp_ms() == 4


@pytest.mark.parametrize(("content", "why"), [(b"", "does not end"), (bytes(200), "is damaged behind byte 0")])
def test_a_snapshot_that_a_loss_of_power_left_empty_or_as_zeros_is_named(
    content: bytes, why: str, tmp_path: Path
) -> None:
    snapshot = OffsetAndEpoch(5000, 3)
    path = tmp_path / snapshot_name(snapshot)
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match=f"{path} {why}"):
        SnapshotReader(RealDisk(), str(tmp_path), snapshot).verify()


def test_voters_of_the_configuration() -> None:
    voters = VoterSet.static("CONTROLLER", [(2, "::1", 9092), (1, "localhost", 9093)])
    assert voters.ids == (1, 2)
    assert voters.destination(2, "CONTROLLER") == (2, "::1", 9092)
    assert voters.destination(2, "OTHER") is None


def test_a_truncation_restores_the_voters_before_it() -> None:
    history = VoterHistory(VoterSet())
    one, two = VoterSet.static("C", [(1, "a", 1)]), VoterSet.static("C", [(1, "a", 1), (2, "b", 2)])
    history.set_voters(-1, one)
    history.set_kraft_version(-1, 1)
    history.set_voters(7, two)
    assert (history.voters, history.voters_at(6)) == (two, one)
    history.truncate_to(7)
    assert (history.voters, history.voters_offset) == (one, -1)


def log_of(
    *epochs: tuple[int, int], end: int, start: int = 0, snapshots: tuple[tuple[int, int], ...] = ()
) -> RaftLogState:
    ids = [OffsetAndEpoch(*snapshot) for snapshot in snapshots]
    return RaftLogState(start_offset=start, end_offset=end, epochs=list(epochs), snapshots=ids)


def test_a_fetch_from_a_diverging_log_gets_the_end_of_its_epoch() -> None:
    leader = log_of((1, 0), (3, 10), (4, 20), end=30)
    assert leader.validate_fetch(OffsetAndEpoch(0, 0)) == Valid()
    assert leader.validate_fetch(OffsetAndEpoch(10, 1)) == Valid()
    assert leader.validate_fetch(OffsetAndEpoch(30, 4)) == Valid()
    assert leader.validate_fetch(OffsetAndEpoch(12, 1)) == Diverging(OffsetAndEpoch(10, 1))
    assert leader.validate_fetch(OffsetAndEpoch(12, 2)) == Diverging(OffsetAndEpoch(10, 1))
    assert leader.validate_fetch(OffsetAndEpoch(25, 3)) == Diverging(OffsetAndEpoch(20, 3))
    assert leader.validate_fetch(OffsetAndEpoch(40, 4)) == Diverging(OffsetAndEpoch(30, 4))


def test_a_fetch_from_before_the_log_start_requires_a_snapshot() -> None:
    leader = log_of((3, 20), end=30, start=20, snapshots=((20, 3), (25, 3)))
    assert leader.validate_fetch(OffsetAndEpoch(0, 0)) == SnapshotRequired(OffsetAndEpoch(25, 3))
    assert leader.validate_fetch(OffsetAndEpoch(19, 3)) == SnapshotRequired(OffsetAndEpoch(25, 3))
    assert leader.validate_fetch(OffsetAndEpoch(20, 2)) == SnapshotRequired(OffsetAndEpoch(25, 3))
    assert leader.validate_fetch(OffsetAndEpoch(20, 3)) == Valid()
    assert leader.validate_fetch(OffsetAndEpoch(30, 3)) == Valid()


def test_how_far_a_follower_truncates() -> None:
    follower = log_of((1, 0), (2, 10), end=15)
    assert follower.truncation_point(OffsetAndEpoch(12, 2)) == 12
    assert follower.truncation_point(OffsetAndEpoch(8, 1)) == 8
    assert follower.truncation_point(OffsetAndEpoch(20, 1)) == 10
    assert log_of((2, 0), end=5).truncation_point(OffsetAndEpoch(3, 1)) == 0


def test_the_bytes_of_a_fetch_are_limited_to_a_batch() -> None:
    call = rpc.FetchCall("cluster", 3, ReplicaKey(2), OffsetAndEpoch(7, 3), 500, 1 << 20, 5)
    assert wire.call_of(wire.request_of(call)) == call
    greedy = wire.call_of(wire.request_of(call._replace(max_bytes=(1 << 31) - 1)))
    assert greedy == call._replace(max_bytes=MAX_BATCH_BYTES)


def test_ballots() -> None:
    ballot = Ballot((1, 2, 3))
    assert (ballot.won, ballot.lost) == (False, False)
    ballot.record(1, True)
    ballot.record(1, False)
    ballot.record(9, True)
    assert ballot.granting == (1,), "a granted vote stays granted, and only voters vote"
    ballot.record(2, True)
    assert ballot.won
    losing = Ballot((1, 2, 3))
    losing.record(1, False)
    losing.record(2, False)
    assert losing.lost
    assert losing.unrecorded == (3,)
