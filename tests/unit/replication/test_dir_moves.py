"""Replicas that move between log directories: what is copied, in which order, and what ends a move."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from by_hand import HandJobs, HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, uuid_to_text
from kalda.base.stats import MetricConfig
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.replication import dir_moves
from kalda.replication.dir_moves import DirMoves
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.sim.disk import SimDisk, SimFile
from kalda.storage.checkpoints import write_meta_properties
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager, NewLog
from kalda.storage.log.deletion import Truncation, begin_anew_at, begin_truncation, delete_segments, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import ColdRead
from kalda.storage.values import FetchInfo

IDS = {"/d0": Uuid(b"a" * 16), "/d1": Uuid(b"b" * 16), "/d2": Uuid(b"c" * 16)}
TP = TopicPartition("t", 0)
TOPIC_ID = Uuid(b"t" * 16)


class _Assigned:
    def __init__(self, leader: int, epoch: int) -> None:
        self.leader, self.replicas, self.isr = leader, (1, 2), (1,)
        self.leader_epoch = self.partition_epoch = epoch
        self.adding_replicas: tuple[int, ...] = ()


class World(HandTime, HandJobs):
    """A broker's directories, one replica, and a controller that records directories when the test says so."""

    def __init__(self, config: LogConfig | None = None) -> None:
        HandTime.__init__(self, 1_000_000)
        HandJobs.__init__(self)
        self.config = config or LogConfig(segment_bytes=4_000, index_interval_bytes=200)
        self.disk = SimDisk(random.Random(3), now_ms=lambda: self.now_ms)
        for path, directory_id in IDS.items():
            self.disk.make_dirs(path)
            values = {"version": "1", "directory.id": uuid_to_text(directory_id)}
            write_meta_properties(self.disk, f"{path}/meta.properties", values, 0)
        self.reported: list[tuple[Uuid, Callable[[], None]]] = []
        self.placed: Uuid | None = IDS["/d0"]
        self.known = {"t"}
        self.start()

    def start(self) -> None:
        self.logs = LogManager(
            dict.fromkeys(IDS, self.disk),
            lambda topic: self.config,
            unique=lambda: f"{random.getrandbits(128):032x}",
            now_ms=lambda: self.now_ms,
            on_dir_failed=lambda directory, _: self.replicas.take_offline(list(directory.logs)),
            locks_dirs=False,
        )
        for job in self.logs.load_jobs():
            job.complete()
        self.logs.futures.settle(lambda tp, topic_id: self.placed)
        self.replicas = ReplicaManager(1, self, self, self.background(), 1 << 20, lambda name, *_: name in self.known)
        self.moves = DirMoves(self.replicas, self.logs, self, self, lambda: self.now_ms, self._report, at_a_time=2)
        self.logs.dirs[2].cordoned = True

    def _report(self, topic_id: Uuid, partition: int, directory: Uuid, recorded: Callable[[], None]) -> None:
        self.reported.append((directory, recorded))

    def record(self) -> None:
        self.placed, recorded = self.reported.pop()
        recorded()

    def work(self) -> None:
        for job in self.logs.maintenance.poll(self.now_ms):
            job.complete()

    def lead(self, epoch: int = 0, topic_partition: TopicPartition = TP) -> Partition:
        return self._apply(1, epoch, topic_partition)

    def follow(self, epoch: int) -> Partition:
        return self._apply(2, epoch, TP)

    def _apply(self, leader: int, epoch: int, topic_partition: TopicPartition) -> Partition:
        self.replicas.apply(
            topic_partition,
            TOPIC_ID,
            _Assigned(leader, epoch),
            lambda: self.logs.get_or_create_log(topic_partition, TOPIC_ID, self.config, self.placed),
        )
        partition = self.replicas.find(*topic_partition)
        assert partition is not None
        return partition

    @property
    def home(self) -> str:
        directory = self.logs.dir_of(TP)
        assert directory is not None
        return directory.path


def write(partition: Partition, count: int = 1, *, size: int = 100, **producer: Any) -> None:
    for _ in range(count):
        partition.append(build_batch([(1_000_000, b"k", bytes(size), ())], **producer), 1, 1_000_000)


def content(log: Log) -> bytes:
    found, offset = b"", log.log_start_offset
    while (info := log.read(offset, 1 << 20, log.log_end_offset, True)).size_bytes:
        found += bytes(info.records)
        offset = info.next_offset
    return found


@pytest.fixture
def world() -> World:
    return World()


def test_a_replica_moves(world: World) -> None:
    partition = world.lead()
    write(partition, 50)
    before, old = content(partition.log), partition.log
    world.moves.alter(TP, "/d1")
    assert world.home == "/d0", "the controller has not recorded the new directory"
    assert [directory for directory, _ in world.reported] == [IDS["/d1"]]
    assert world.moves.max_lag == 0
    write(partition, 3)
    assert world.moves.max_lag == 3
    world.record()
    assert world.moves.max_lag == 0
    assert world.home == "/d1"
    assert partition.log is not old
    assert partition.log.directory == "/d1/t-0"
    assert content(partition.log).startswith(before)
    assert partition.log.log_end_offset == 53
    assert len(partition.log.segments) > 1
    write(partition)
    assert not world.moves
    assert [name for name in world.disk.list_dir("/d0") if name.endswith("-delete")]
    world.now_ms += 100_000
    world.work()
    assert not [name for name in world.disk.list_dir("/d0") if name.startswith("t-")]
    world.logs.close()
    world.start()
    assert world.lead(1).log.log_end_offset == 54


def test_jobs_that_finish_at_once_do_not_pile_up_on_the_stack(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dir_moves, "_BATCH_BYTES", 1)
    partition = world.lead()
    write(partition, 400)
    world.moves.alter(TP, "/d1")
    world.record()
    assert (world.home, partition.log.log_end_offset) == ("/d1", 400)


@pytest.mark.parametrize("after_ms", [0, 100_000])
@pytest.mark.parametrize(("failing", "other"), [("/d0", "/d1"), ("/d1", "/d0")])
def test_either_directory_may_fail_after_a_move(world: World, failing: str, other: str, after_ms: int) -> None:
    write(world.lead(), 5)
    world.moves.alter(TP, "/d1")
    world.record()
    if after_ms:
        world.work()
    world.disk.fail(failing)
    world.now_ms += after_ms
    world.work()
    online = {directory.path for directory in world.logs.dirs if directory.online}
    assert online >= {other, "/d2"}


def test_what_is_not_in_the_records_moves_too(world: World) -> None:
    partition = world.lead(3)
    for sequence in range(5):
        write(partition, producer_id=9, producer_epoch=1, base_sequence=sequence)
    guard = partition.log.start_verification(8, 0, 0, 1_000_000)
    batch = build_batch(
        [(1_000_000, b"k", b"v", ())], producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    partition.log.append_as_leader(batch, 3, 1_000_000, verification=guard)
    partition = world.lead(5)  # an epoch without a record
    unstable = partition.log.last_stable_offset
    world.moves.alter(TP, "/d1")
    world.record()
    log = partition.log
    assert world.home == "/d1"
    assert log.leader_epochs.entries == [(3, 0), (5, 6)]
    assert log.last_stable_offset == unstable == 5
    assert log.high_watermark == 6
    write(partition, producer_id=9, producer_epoch=1, base_sequence=5)
    assert partition.append(
        build_batch([(1_000_000, b"k", bytes(100), ())], producer_id=9, producer_epoch=1, base_sequence=5), 1, 1_000_000
    ).duplicate


def test_a_batch_that_begins_below_the_log_start_moves_whole(world: World) -> None:
    partition = world.lead()
    partition.append(build_batch([(1_000_000, b"k", b"v", ())] * 10), 1, 1_000_000)
    partition.log.advance_log_start_offset(4)
    world.moves.alter(TP, "/d1")
    world.record()
    assert (world.home, partition.log.log_start_offset, partition.log.log_end_offset) == ("/d1", 4, 10)
    assert [header.base_offset for _, header in iter_batches(content(partition.log))] == [0]


def test_a_follower_that_truncates_truncates_its_copy(world: World) -> None:
    partition = world.lead()
    write(partition, 10)
    world.moves.alter(TP, "/d1")
    future = world.logs.futures.get(TP)
    assert future is not None
    assert future.log_end_offset == 10
    world.follow(1)
    truncate_to(partition.log, 6)
    leader = Log.open(Unopened(world.disk, "/leader", world.config, topic_partition=TP, now_ms=0, clean=True))
    leader.append_as_follower(content(partition.log), 0)
    leader.assign_leader_epoch(1, 6)
    for _ in range(7):
        leader.append_as_leader(build_batch([(1_000_000, b"other", bytes(100), ())]), 1, 1_000_000)
    leader.update_high_watermark(13)
    partition.append_as_follower(leader.read(6, 1 << 20, 13).records, 1, 13, 0)
    world.record()
    assert world.home == "/d1"
    assert content(partition.log) == content(leader)
    assert partition.log.leader_epochs.entries == [(0, 0), (1, 6)]


def cut_back(world: World) -> Log:
    """A copy of ten records, of which the log has truncated four; the job that truncates the copy waits."""
    partition = world.lead()
    write(partition, 60)
    world.moves.alter(TP, "/d1")
    future = world.logs.futures.get(TP)
    assert future is not None
    assert len(future.segments) > 2
    world.follow(1)
    truncate_to(partition.log, 6)
    world.hold_jobs = True
    world.record()
    assert len(world.waiting) == 1
    return future


def test_a_copy_is_truncated_by_jobs(world: World) -> None:
    syncs: list[str] = []
    future = cut_back(world)
    sync, sync_dir = SimFile.sync, SimDisk.sync_dir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimFile, "sync", lambda file: (syncs.append(file.path), sync(file)))
        patch.setattr(SimDisk, "sync_dir", lambda disk, path: (syncs.append(path), sync_dir(disk, path)))
        for _ in range(4):
            world.waiting.pop(0)()
    assert syncs[0].startswith("/d1/recovery-point-offset-checkpoint")
    directory, segment = (syncs.index(f"{future.directory}{each}") for each in ("", "/00000000000000000000.log"))
    assert 0 < directory < segment, "names first"
    assert future.log_end_offset == 6
    assert future.leader_epochs.entries == [(0, 0)]
    world.hold_jobs = False
    world.let_jobs_run()
    world.advance(100)
    assert world.home == "/d1"
    assert len(future.segments) == 1
    assert future.log_end_offset == 6


def test_a_copy_that_is_dropped_while_it_is_truncated_takes_no_disk_offline(world: World) -> None:
    cut_back(world)
    world.logs.delete_log(TP)
    world.replicas.remove(TP)
    world.hold_jobs = False
    world.let_jobs_run()
    world.advance(100)
    assert all(directory.online for directory in world.logs.dirs)
    assert not world.moves


def test_a_piece_that_was_read_while_the_log_was_cut_and_written_anew_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read found the old batch at 6 and the new one behind it, each whole, with epochs that look as the log's."""
    partition = world.lead()
    write(partition, 10)
    read_snapshot = ColdRead.read

    def read_while_the_log_changes(read: ColdRead, found_before: bool = False) -> FetchInfo:
        monkeypatch.setattr(ColdRead, "read", read_snapshot)
        before = content(partition.log)
        world.follow(1)
        truncate_to(partition.log, 6)
        partition.log.assign_leader_epoch(1, 6)
        for _ in range(4):
            partition.log.append_as_leader(build_batch([(1_000_000, b"k", bytes(100), ())]), 1, 1_000_000)
        size = len(before) // 10 * 7
        return FetchInfo(0, 10, before[:size] + content(partition.log)[size:])

    monkeypatch.setattr(ColdRead, "read", read_while_the_log_changes)
    world.moves.alter(TP, "/d1")
    future = world.logs.futures.get(TP)
    assert future is not None
    assert content(future) == content(partition.log)


@pytest.mark.parametrize("begin", [begin_anew_at, begin_truncation])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_copy_takes_no_step_while_the_log_is_truncated(
    world: World, begin: Callable[[Log, int], Truncation | None], steps: int
) -> None:
    """Neither before the log ends elsewhere nor after it: the copy would be compared with what the log was."""
    partition = world.lead()
    write(partition, 60)
    world.moves.alter(TP, "/d1")
    world.hold_jobs = True
    world.record()
    assert len(world.waiting) == 1, "the copy is made as durable as the log"
    world.follow(1)
    end = 64 if begin is begin_anew_at else 6
    truncation = begin(partition.log, end)
    assert truncation is not None
    for _ in range(steps):
        truncation.advance()
    world.hold_jobs = False
    world.let_jobs_run()
    world.advance(1_000)
    assert (world.home, partition.log.truncation) == ("/d0", truncation)
    truncation.complete()
    world.advance(100)
    assert (world.home, partition.log.log_end_offset) == ("/d1", end)
    assert partition.may_fetch


def test_deleted_records_are_not_copied(world: World) -> None:
    partition = world.lead()
    write(partition, 60)
    partition.log.advance_log_start_offset(45)
    world.moves.alter(TP, "/d1")
    world.record()
    assert (partition.log.log_start_offset, partition.log.segments.first.base_offset) == (45, 45)


@pytest.mark.parametrize("kept", [0, 5])
def test_a_log_whose_last_records_were_compacted_away(kept: int) -> None:
    world = World(LogConfig(segment_bytes=4_000, index_interval_bytes=200, cleanup_policy=frozenset(("compact",))))
    partition = world.lead()
    write(partition, kept)
    partition.log.roll(1_000_000)
    write(partition, 7)
    emptied = partition.log.segments.active
    partition.log.roll(1_000_000)
    delete_segments(partition.log, [emptied])
    world.moves.alter(TP, "/d1")
    if kept:
        assert not world.reported, "the copy cannot reach the end of the log"
        write(partition)
        world.advance(100)
    world.record()
    assert world.home == "/d1"
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (0, kept + 7 + bool(kept))


def test_a_damaged_batch_is_not_taken_for_a_compacted_one(world: World) -> None:
    """A length of its offsets beyond the log's end hides it from reads, and all that is behind it: the move waits."""
    partition = world.lead()
    write(partition, 3)
    path = partition.log.segments.active.path(".log")
    for bit in range(23 * 8, 24 * 8 - 1):  # of lastOffsetDelta, without its sign
        world.disk.flip_bit(path, bit)
    partition.log.reads.positions.clear()
    world.moves.alter(TP, "/d1")
    world.advance(60_000)
    assert not world.reported
    assert world.home == "/d0"


def test_moves_that_are_refused(world: World) -> None:
    world.lead()
    world.known.add("elsewhere")
    for topic, path, code in [
        ("t", "/nope", ErrorCode.LOG_DIR_NOT_FOUND),
        ("t", "/d2", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("unknown", "/d1", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("elsewhere", "/d1", ErrorCode.REPLICA_NOT_AVAILABLE),
        ("x" * 240, "/d1", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]:
        with pytest.raises(ApiError) as refused:
            world.moves.alter(TopicPartition(topic, 0), path)
        assert refused.value.code is code, (topic, path)
    world.moves.alter(TP, "/d0")
    assert not world.moves
    world.logs.dirs.fail(world.logs.dirs[2], OSError(5, "broken"))
    with pytest.raises(ApiError) as refused:
        world.moves.alter(TP, "/d2")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError) as refused:
        world.moves.alter(TP, "/d1")  # no second log while the first may come back
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_replica_that_does_not_exist_yet_is_made_in_the_requested_directory(world: World) -> None:
    for path in ("/d0", "/d1"):
        with pytest.raises(ApiError):
            world.moves.alter(TP, path)
    world.placed = IDS["/d0"]
    world.lead()
    assert world.home == "/d1"


def test_a_move_back_to_the_current_directory_cancels_the_move(world: World) -> None:
    partition = world.lead()
    write(partition, 20)
    world.moves.alter(TP, "/d1")
    world.moves.alter(TP, "/d1")  # is under way
    assert len(world.reported) == 1
    world.moves.alter(TP, "/d0")
    assert not world.moves
    assert world.logs.futures.get(TP) is None
    assert [directory for directory, _ in world.reported] == [IDS["/d1"], IDS["/d0"]], (
        "the old directory is reported again"
    )
    for _, recorded in world.reported:
        recorded()
    assert world.home == "/d0"
    assert all(name.endswith("-delete") for name in world.disk.list_dir("/d1") if name.startswith("t-"))


@pytest.mark.parametrize("failing", ["/d0", "/d1"])
def test_a_disk_that_fails_ends_the_move(world: World, failing: str) -> None:
    partition = world.lead()
    write(partition, 20)
    world.moves.alter(TP, "/d1")
    world.disk.fail(failing)
    world.record()
    world.advance(100)
    world.reported = [each for each in world.reported if each[0] != IDS["/d1"]]
    assert not world.moves
    assert [directory for directory, _ in world.reported] == [IDS["/d0"]]
    if failing == "/d0":
        assert world.replicas.find(*TP) is None
    else:
        assert world.home == "/d0"
        write(partition)


def test_deleting_the_topic_deletes_the_copy(world: World) -> None:
    partition = world.lead()
    write(partition)
    world.moves.alter(TP, "/d1")
    world.replicas.remove(TP)
    world.logs.delete_log(TP)
    world.record()
    world.advance(100)
    assert not world.moves
    assert not len(world.logs.futures)
    names = [name for path in IDS for name in world.disk.list_dir(path) if name.startswith("t-")]
    assert names
    assert all(name.endswith("-delete") for name in names)


@pytest.mark.parametrize("seconds", [1, 5])
def test_moves_keep_to_their_rate(world: World, seconds: int) -> None:
    """Over windows of the configured length: that much may be copied at once."""
    world.moves.rate.config = MetricConfig(seconds * 1_000, 11)
    world.moves.bytes_per_second = bound = 300_000
    partition = world.lead()
    write(partition, 2_500, size=1_600)
    began = world.now_ms
    world.moves.alter(TP, "/d1")
    while not world.reported:
        world.advance(10)
    at_once = max(1 << 20, bound * seconds)
    size = partition.log.size_bytes
    assert world.now_ms - began >= (size - at_once) / bound * 1_000
    assert size > 3 << 20
    assert world.now_ms - began <= size / bound * 1_000 + 100


@pytest.mark.parametrize("limit", [None, 1 << 30])
def test_a_limit_that_is_raised_or_removed_ends_the_wait(world: World, limit: int | None) -> None:
    """At one byte a second the wait for the first piece is some twelve days."""
    world.moves.bytes_per_second = 1
    partition = world.lead()
    write(partition, 2_000, size=1_600)
    world.moves.alter(TP, "/d1")
    world.advance(3_600_000)
    assert not world.reported
    world.moves.bytes_per_second = limit
    world.advance(100)
    assert world.reported


def test_a_lower_limit_holds_for_moves_under_way(world: World) -> None:
    partition = world.lead()
    write(partition, 2_000, size=1_600)
    world.moves.bytes_per_second = 2 << 20
    world.moves.alter(TP, "/d1")
    world.advance(20)
    world.moves.bytes_per_second = 1
    world.advance(60_000)
    assert not world.reported


def test_a_disk_that_fails_ends_a_move_that_waits_for_its_rate(world: World) -> None:
    world.moves.bytes_per_second = 1
    write(world.lead(), 2_000, size=1_600)
    world.moves.alter(TP, "/d1")
    world.advance(20)
    assert len(world.moves) == 1
    world.logs.dirs.fail(world.logs.dirs[1], OSError(5, "broken"))
    world.advance(200)
    assert not world.moves


def test_flushed_topics_are_committed_after_the_move_only_when_synced() -> None:
    world = World(LogConfig(segment_bytes=4_000, flush_messages=1))
    partition = world.lead()
    write(partition, 5)
    assert partition.log.recovery_point == 5
    world.moves.alter(TP, "/d1")
    world.hold_jobs = True
    world.record()
    assert world.waiting, "the copy is synced by a job"
    write(partition)
    assert not partition.is_committed(6)
    world.let_jobs_run()
    world.advance(100)
    world.let_jobs_run()
    assert world.home == "/d1"
    assert partition.log.recovery_point == 6
    assert partition.is_committed(6)


def test_nothing_is_flushed_to_the_new_log_before_the_old_ones_name_is_removed_for_good() -> None:
    """Otherwise a loss of power brings the old log back without the flushed records: only the new one has them."""
    world = World(LogConfig(segment_bytes=4_000, flush_messages=1))

    def durable() -> set[str]:
        return set(world.disk._find("/d0").durable)  # type: ignore[union-attr]

    partition = world.lead()
    write(partition, 5)
    world.disk.sync_dir("/d0")
    world.moves.alter(TP, "/d1")
    world.hold_jobs = True
    world.record()
    while world.home == "/d0":
        world.waiting.pop(0)()
        world.advance(100)
    write(partition)
    assert "t-0" in durable(), "the new name of the old log was synced already"
    assert not partition.is_committed(6)
    world.let_jobs_run()
    assert partition.is_committed(6)
    assert "t-0" not in durable()


def test_a_move_goes_on_after_a_restart(world: World) -> None:
    partition = world.lead()
    write(partition, 30)
    world.moves.alter(TP, "/d1")
    write(partition, 5)
    world.start()  # killed; the page cache stays
    world.reported.clear()
    assert world.home == "/d0"
    assert len(world.logs.futures) == 1
    partition = world.lead(1)
    world.moves.resume()
    world.record()
    assert world.home == "/d1"
    assert partition.log.log_end_offset == 35
    assert not len(world.logs.futures)


def test_moves_into_a_directory_that_fails_end(world: World) -> None:
    both = (TP, TopicPartition("t", 1))
    for each in both:
        write(world.lead(0, each), 30)
        world.moves.alter(each, "/d1")
    world.start()  # killed; the page cache stays
    assert len(world.logs.futures) == 2
    for each in both:
        write(world.lead(1, each), 5)
    world.disk.fail("/d1")
    world.moves.resume()
    assert (len(world.moves), len(world.logs.futures)) == (0, 0)
    assert [each.online for each in world.logs.dirs] == [True, False, True]


def test_a_copy_is_no_replica_while_the_log_may_be_in_an_offline_directory(world: World) -> None:
    """The controller has recorded the new directory, and the log has had appends since."""
    partition = world.lead()
    write(partition, 30)
    world.moves.alter(TP, "/d1")
    world.placed = IDS["/d1"]
    write(partition, 5)
    world.disk.fail("/d0")
    world.start()  # killed, and the directory fails
    world.logs.make_logs_job([NewLog(TP, TOPIC_ID, world.config, world.placed)]).complete()
    with pytest.raises(ApiError) as refused:
        world.logs.get_or_create_log(TP, TOPIC_ID, world.config, world.placed)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    world.disk.mend("/d0")
    world.start()
    partition = world.lead(1)
    assert (world.home, partition.log.log_end_offset) == ("/d0", 35)
    world.moves.resume()
    world.record()
    assert (world.home, partition.log.log_end_offset) == ("/d1", 35)


def test_a_copy_alone_takes_the_place_of_the_log(world: World) -> None:
    partition = world.lead()
    write(partition, 30)
    world.moves.alter(TP, "/d1")
    future = world.logs.futures.get(TP)
    assert future is not None
    future.flush()
    partition.log.rename_dir(f"/d0/t-0.{'1' * 32}-delete")  # killed in the middle of the swap
    world.placed = IDS["/d1"]
    world.start()
    assert world.home == "/d1"
    assert world.lead(1).log.log_end_offset == 30


def test_of_two_logs_the_one_that_the_metadata_names_stays(world: World) -> None:
    partition = world.lead()
    write(partition, 30)
    world.moves.alter(TP, "/d1")
    future = world.logs.futures.get(TP)
    assert future is not None
    future.flush()
    future.rename_dir("/d1/t-0")
    world.placed = IDS["/d1"]
    world.start()
    assert world.home == "/d1"
    assert any(name.endswith("-stray") for name in world.disk.list_dir("/d0"))


def test_a_copy_without_a_replica_is_set_aside(world: World) -> None:
    partition = world.lead()
    write(partition, 30)
    world.moves.alter(TP, "/d1")
    future = world.logs.futures.get(TP)
    assert future is not None
    future.flush()
    world.placed = None
    world.start()
    assert not len(world.logs.futures)
    assert any(name.endswith("-stray") for name in world.disk.list_dir("/d1"))
