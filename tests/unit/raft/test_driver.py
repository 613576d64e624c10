"""The driver of a quorum of one, with its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_world import Recorder, Replica, World, append, static_voter, topic

from kalda.base.errors import ApiError
from kalda.base.ids import METADATA_TOPIC_NAME, Uuid, uuid_from_text
from kalda.broker.process.disk import RealDisk
from kalda.broker.quorum.raft_listeners import MAX_BATCHES_PER_PASS
from kalda.protocol.messages.partitions import FetchResponse
from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from kalda.raft import rpc, wire
from kalda.raft.metadata_log import MetadataLogConfig
from kalda.raft.snapshots import SnapshotReader, write_snapshot
from kalda.raft.voters import OffsetAndEpoch, ReplicaKey

GOLDEN = Path(__file__).parents[2] / "golden" / "raft"


def test_it_leads_commits_and_delivers(tmp_path: Path) -> None:
    world = World()
    replica = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    replica.start()
    assert replica.listener.leaders == [(None, 1), (1, 1)]
    assert replica.driver.leader_and_epoch() == (1, 1)
    assert append(replica.driver, 1, [topic("a"), topic("b")]) == 2
    assert append(replica.driver, 1, [topic("c")]) == 3
    assert replica.driver.log_end_offset == 4
    assert replica.listener.records == []
    world.run()
    assert replica.driver.high_watermark == 4
    assert [record.record.name for record in replica.listener.records] == ["a", "b", "c"]  # type: ignore[attr-defined]
    state = json.loads((tmp_path / "m" / "quorum-state").read_text())
    assert state == {
        "clusterId": "",
        "leaderId": 1,
        "leaderEpoch": 1,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": 1}],
        "data_version": 0,
    }
    assert (tmp_path / "m" / "leader-epoch-checkpoint").read_text() == "0\n1\n1 0\n"


def test_nothing_is_committed_before_it_is_synced(tmp_path: Path) -> None:
    world = World()
    replica = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    replica.start()
    world.hold_jobs = True
    for name in "abc":
        append(replica.driver, 1, [topic(name)])
        world.run(1)
    assert replica.driver.high_watermark == 1
    assert len(world.jobs) == 1, "one sync at a time"
    world.hold_jobs = False
    world.run()
    assert replica.driver.high_watermark == 4


def test_only_the_leader_of_that_epoch_appends(tmp_path: Path) -> None:
    replica = Replica(World(), f"{tmp_path}/m", static_voters=static_voter())
    replica.start()
    with pytest.raises(ApiError, match="does not lead epoch 7"):
        append(replica.driver, 7, [topic("a")])


def test_after_a_restart_it_has_all_records_and_leads_the_next_epoch(tmp_path: Path) -> None:
    world = World()
    first = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    first.start()
    append(first.driver, 1, [topic("a")])
    world.run()
    first.driver.shutdown()
    world.run()
    first.driver.close()
    second = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    second.start()
    assert second.listener.leaders[-1] == (1, 2)
    assert second.listener.records == [topic("a")]
    append(second.driver, 2, [topic("b")])
    world.run()
    assert second.listener.records == [topic("a"), topic("b")]


def test_a_snapshot_replaces_the_log_before_it(tmp_path: Path) -> None:
    world = World()
    config = MetadataLogConfig(segment_bytes=300, retention_bytes=1)
    first = Replica(world, f"{tmp_path}/m", static_voters=static_voter(), config=config)
    first.start()
    for at in range(20):
        append(first.driver, 1, [topic(f"t{at}")])
        world.run()
    assert first.listener.batches[-1].last_offset == 20
    done = first.driver.create_snapshot(11, 1, (topic(f"t{at}") for at in range(10)), 5)
    world.run()
    assert done.value is True
    assert first.driver.create_snapshot(11, 1, [], 5).value is False
    with pytest.raises(ValueError, match="not committed"):
        first.driver.create_snapshot(30, 1, [], 5)
    first.driver.create_snapshot(16, 1, [topic(f"t{at}") for at in range(15)], 6)
    world.run(60_000)
    assert not first.failures
    assert first.driver.machine.log.start_offset == 16
    assert not (tmp_path / "m" / "00000000000000000011-0000000001.checkpoint").exists()
    first.driver.close()
    second = Replica(world, f"{tmp_path}/m", static_voters=static_voter(), config=config)
    second.start()
    assert second.listener.snapshots == [(16, 1)]
    assert [*second.listener.loaded, *second.listener.records] == [topic(f"t{at}") for at in range(20)]
    assert second.driver.log.reader(second.driver.log.snapshots[0]).last_contained_timestamp_ms() == 6


def test_a_fetched_snapshot_that_the_log_does_not_continue_replaces_the_log_at_the_start(tmp_path: Path) -> None:
    """Power was lost after the snapshot was renamed, and before the log began anew."""
    world = World()
    first = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    first.start()
    append(first.driver, 1, [topic(f"lost{at}") for at in range(20)])
    world.run()
    first.driver.close()
    write_snapshot(
        RealDisk(),
        f"{tmp_path}/m",
        OffsetAndEpoch(15, 3),
        [topic("kept")],
        last_contained_timestamp_ms=1,
        kraft_version=0,
        voters=static_voter(),
        now_ms=1,
    )
    second = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    log = second.driver.machine.log
    assert (log.start_offset, log.end) == (15, OffsetAndEpoch(15, 3)), (
        "otherwise the leader would make it truncate below 15"
    )
    second.start()
    assert (second.listener.loaded, second.listener.records) == ([topic("kept")], [])


def test_fetches_from_records_without_an_epoch_get_the_snapshot_after_a_restart(tmp_path: Path) -> None:
    """Retention has deleted them, but they are in the first segment, which is still there; their epochs are not."""
    world = World()
    config = MetadataLogConfig(retention_bytes=1)
    for epoch in (1, 2, 3):
        replica = Replica(world, f"{tmp_path}/m", static_voters=static_voter(), config=config)
        replica.start()
        for at in range(5):
            append(replica.driver, epoch, [topic(f"t{at}")])
        world.run()
        end = replica.driver.log_end_offset
        replica.driver.create_snapshot(end, epoch, [topic(f"t{at}") for at in range(5)], 5)
        world.run(60_000 if epoch == 3 else 1)
        replica.driver.close()
    leader = Replica(world, f"{tmp_path}/m", static_voters=static_voter(), config=config)
    leader.start()
    newest = leader.driver.log.snapshots[-1]
    assert newest.epoch == 3
    for behind in (OffsetAndEpoch(3, 1), OffsetAndEpoch(9, 2), OffsetAndEpoch(12, 2), OffsetAndEpoch(17, 3)):
        call = rpc.FetchCall("cluster", 4, ReplicaKey(5), behind, 0, 1_000_000, 0)
        response = leader.driver.handle(wire.request_of(call), 17)
        assert isinstance(response, FetchResponse)
        partition = response.responses[0].partitions[0]
        assert partition.diverging_epoch.epoch == -1, "a follower would truncate what is committed"
        assert (partition.snapshot_id.end_offset, partition.snapshot_id.epoch) == newest


def test_a_snapshot_is_loaded_one_step_a_pass(tmp_path: Path) -> None:
    class Slow(Recorder):
        steps = 0

        def on_load_snapshot(self, reader: SnapshotReader) -> Iterator[None]:
            for _ in range(3):
                yield
                self.steps += 1
            super().on_load_snapshot(reader)

    world = World()
    first = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    first.start()
    for at in range(9):
        append(first.driver, 1, [topic(f"t{at}")])
    world.run()
    first.driver.create_snapshot(6, 1, [topic(f"t{at}") for at in range(5)], 5)
    world.run()
    first.driver.close()
    second = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    slow = Slow()
    second.driver.listeners.register(slow)
    second.driver.start()
    append(second.driver, 2, [topic("new")])
    assert (slow.steps, slow.batches, slow.leaders) == (1, [], []), "no batch and no leader before the last step"
    world.run(1)
    assert not second.failures
    assert (slow.steps, slow.snapshots, slow.leaders[-1]) == (3, [(6, 1)], (1, 2))
    assert [*slow.loaded, *slow.records] == [topic(f"t{at}") for at in range(9)] + [topic("new")]


@pytest.mark.parametrize("next_offset", [7, None])
def test_a_listener_that_lags_far_behind_is_suspended_until_it_is_resumed(
    tmp_path: Path, next_offset: int | None
) -> None:
    world = World()
    first = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    first.start()
    for at in range(9):
        append(first.driver, 1, [topic(f"t{at}")])
    world.run()
    first.driver.close()
    second = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    behind = Recorder()
    registration = second.driver.listeners.register(behind, suspend_beyond_lag=lambda: 5)
    second.start()
    assert second.driver.leader_high_watermark == 11
    assert len(second.listener.records) == 9, "other listeners receive everything"
    assert registration.is_suspended
    assert (behind.batches, behind.leaders) == ([], [(None, 2)]), "nor does it receive that this replica leads"
    second.driver.listeners.resume(registration, next_offset)
    world.run(1)
    assert behind.batches[0].base_offset == (next_offset or 0)
    assert behind.batches[-1].last_offset == 10
    assert behind.leaders[-1] == (1, 2)
    for at in range(9):
        append(second.driver, 2, [topic(f"u{at}")])
    world.run()
    assert not registration.is_suspended, "a leader's listener is not suspended"
    assert behind.batches[-1].last_offset == 19


def test_a_leader_change_that_a_listener_causes_reaches_the_listeners_before_it(tmp_path: Path) -> None:
    """The pass over the listeners is repeated, without another event of the machine."""

    class Resigning(Recorder):
        def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
            super().on_leader_change(leader_id, epoch)
            if leader_id is not None:
                replica.driver.resign(epoch)

    world = World()
    replica = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    replica.driver.listeners.register(Resigning())
    replica.start()
    assert replica.listener.leaders == [(None, 1), (1, 1), (None, 1)]
    assert replica.driver.leader_and_epoch() == (None, 1)


def test_a_listener_that_lags_receives_one_bounded_part_a_turn(tmp_path: Path) -> None:
    """However many events the machine has meanwhile, one timer continues the delivery."""
    world = World()
    first = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    first.start()
    for at in range(4 * MAX_BATCHES_PER_PASS):
        append(first.driver, 1, [topic(f"t{at}")])
    world.run()
    first.driver.close()
    second = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    second.start()
    late = Recorder()
    second.driver.listeners.register(late)
    for _ in range(3):
        second.driver.listeners.register(Recorder())
    assert len([timer for timer in world.calls if timer[0] <= world.now]) == 1
    world.run()
    assert late.records == second.listener.records


def test_a_listener_that_fails_stops_the_replica(tmp_path: Path) -> None:
    world = World()
    replica = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    replica.start()

    def broken(batches: object) -> None:
        raise RuntimeError("broken")

    replica.listener.on_commit = broken  # type: ignore[method-assign]
    append(replica.driver, 1, [topic("a")])
    world.run()
    assert [str(error) for error in replica.failures] == ["broken"]


def test_describe_quorum(tmp_path: Path) -> None:
    world = World()
    replica = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    replica.start()
    partitions = [DescribeQuorumRequestPartitionData()]
    topics = [DescribeQuorumRequestTopicData(topic_name=METADATA_TOPIC_NAME, partitions=partitions)]
    response = replica.driver.handle(DescribeQuorumRequest(topics=topics), 2)
    assert isinstance(response, DescribeQuorumResponse)
    partition = response.topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 1, 1)
    voter = partition.current_voters[0]
    assert (voter.replica_id, voter.log_end_offset, voter.last_fetch_timestamp) == (1, 1, world.wall_ms())
    assert response.nodes[0].listeners[0].port == 9001
    other = DescribeQuorumRequest(topics=[DescribeQuorumRequestTopicData(topic_name="t", partitions=partitions)])
    refused = replica.driver.handle(other, 2)
    assert isinstance(refused, DescribeQuorumResponse)
    assert refused.topics[0].partitions[0].error_code == 3


def golden_directory_id() -> Uuid:
    return uuid_from_text("MNPHyT7ST3aczZRbLi0kuQ")


def test_it_continues_a_log_of_apache_kafka(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "node" / "__cluster_metadata-0", tmp_path / "m")
    world = World()
    replica = Replica(world, f"{tmp_path}/m", directory_id=golden_directory_id())
    listener = replica.listener
    replica.start()
    assert replica.driver.machine.voters.ids == (1,)
    assert listener.snapshots == [(323, 2)]
    assert len(listener.loaded) == 157
    assert listener.leaders[-1] == (1, 3)
    assert listener.batches[-1].base_offset == 324
    assert json.loads((tmp_path / "m" / "quorum-state").read_text()) == {
        "leaderId": 1,
        "leaderEpoch": 3,
        "votedId": -1,
        "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA",
        "data_version": 1,
    }
    append(replica.driver, 3, [topic("more")])
    world.run()
    assert listener.records[-1] == topic("more")
    assert (tmp_path / "m" / "leader-epoch-checkpoint").read_text() == "0\n3\n1 0\n2 225\n3 324\n"


def test_it_reads_a_whole_log_of_apache_kafka(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "node" / "__cluster_metadata-0", tmp_path / "m")
    for snapshot in (tmp_path / "m").glob("*.checkpoint"):
        if not snapshot.name.startswith("0" * 20):
            snapshot.unlink()
    replica = Replica(World(), f"{tmp_path}/m", directory_id=golden_directory_id())
    replica.start()
    assert replica.listener.snapshots == []
    batches = replica.listener.batches
    assert (batches[0].base_offset, batches[-1].last_offset) == (0, 324)
    assert [type(c.message).__name__ for c in batches[0].control_records] == [
        "LeaderChangeMessage",
        "KRaftVersionRecord",
        "VotersRecord",
    ]


def test_what_was_fetched_of_a_snapshot_is_removed_when_it_is_given_up(tmp_path: Path) -> None:
    world = World()
    replica = Replica(world, f"{tmp_path}/m", static_voters=static_voter())
    replica.start()
    replica.driver.log.save_chunk(OffsetAndEpoch(9, 1), 0, b"abc")
    assert list((tmp_path / "m").glob("*.part"))
    append(replica.driver, 1, [topic("a")])
    world.run()
    assert not list((tmp_path / "m").glob("*.part"))
