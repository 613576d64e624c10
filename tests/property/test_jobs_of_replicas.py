"""One replica against a list of its batches, while jobs around it run and finish in any order: moves between
directories, truncations, flushes, compaction, retention, searches and reads. Whatever a job meets when it ends (a log
that was cut, emptied, moved, or deleted and made anew meanwhile), the replica has the batches of the list, and no
directory fails."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, uuid_to_text
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.replication import dir_moves
from kalda.replication.dir_moves import DirMoves
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import write_meta_properties
from kalda.storage.compaction.cleaner import CleanerConfig, Cleaning, LogCleaner
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.job import Job
from kalda.storage.log.deletion import begin_anew_at, begin_truncation, start_truncations
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import TimeSearch, open_logs, run_snapshot
from kalda.storage.values import FetchInfo

TP = TopicPartition("t", 0)
IDS = {"/d0": Uuid(b"a" * 16), "/d1": Uuid(b"b" * 16), "/d2": Uuid(b"c" * 16)}
STEPS = (
    ["write"] * 5 + ["write_many"] * 2 + ["elect"] * 2 + ["truncate"] * 2 + ["empty", "delete_records", "make_anew"]
    + ["roll", "move", "record", "clean", "clean_on", "search", "close_files", "open_files"] + ["keep_up"] * 2
    + ["read"] * 2 + ["wait"] * 3 + ["run_jobs"] * 10
)  # fmt: skip
_PASSING = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.KAFKA_STORAGE_ERROR)

Batch = tuple[int, int, int]
"""First offset, last offset, leader epoch."""


class _Assigned:
    def __init__(self, leader: int, epoch: int) -> None:
        self.leader, self.replicas = leader, (1, 2)
        self.isr = (1,) if leader == 1 else (1, 2)
        self.leader_epoch = self.partition_epoch = epoch
        self.adding_replicas: tuple[int, ...] = ()


class World(HandTime):
    """A broker with three directories and one replica. A job's two halves are steps of their own."""

    def __init__(self, seed: int) -> None:
        super().__init__(1_000_000)
        self.rng = rng = random.Random(seed)
        self.config = LogConfig.from_dict(
            {
                "internal.segment.bytes": str(rng.choice((800, 1_500, 4_000))),
                "index.interval.bytes": str(rng.choice((1, 200))),
                "cleanup.policy": rng.choice(("delete", "compact,delete")),
                "min.cleanable.dirty.ratio": "0.01",
                "flush.messages": rng.choice(("1", "1000000")),
                "file.delete.delay.ms": rng.choice(("0", "50")),
            }
        )
        self.disk = disk = SimDisk(random.Random(seed + 1), now_ms=lambda: self.now_ms)
        for path, directory_id in IDS.items():
            disk.make_dirs(path)
            values = {"version": "1", "directory.id": uuid_to_text(directory_id)}
            write_meta_properties(disk, f"{path}/meta.properties", values, 0)
        self.topic_id = Uuid(b"t" * 16)
        self.batches: list[Batch] = []
        self.start = self.end = self.epoch = self.records = 0
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.ran: list[Callable[[], None]] = []
        """The other halves of jobs that have run."""
        self.reported: list[tuple[Uuid, Callable[[], None]]] = []
        self.cleaning: Cleaning | None = None
        self.is_cleaning = False
        """A step of it is a job that has not finished."""
        self.logs = LogManager(
            dict.fromkeys(IDS, disk),
            lambda topic: self.config,
            unique=lambda: f"{rng.getrandbits(128):032x}",
            now_ms=lambda: self.now_ms,
            on_dir_failed=lambda directory, _: self.replicas.take_offline(list(directory.logs)),
            locks_dirs=False,
        )
        for job in self.logs.load_jobs():
            job.complete()
        self.replicas = ReplicaManager(1, self, self, self.background(), 1 << 20, lambda name, *_: True)
        self.moves = DirMoves(self.replicas, self.logs, self, self, lambda: self.now_ms, self._report, at_a_time=2)
        self.cleaner = LogCleaner(self.logs, CleanerConfig(), lambda: bytes(16))
        self._apply(1)

    def _report(self, topic_id: Uuid, partition: int, directory: Uuid, recorded: Callable[[], None]) -> None:
        self.reported.append((directory, recorded))

    def _apply(self, leader: int) -> None:
        self.replicas.apply(
            TP,
            self.topic_id,
            _Assigned(leader, self.epoch),
            lambda: self.logs.get_or_create_log(TP, self.topic_id, self.config, IDS["/d0"]),
        )

    @property
    def partition(self) -> Partition:
        found = self.replicas.find(*TP)
        assert found is not None
        return found

    @property
    def log(self) -> Log:
        return self.partition.log

    # Jobs

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, finish))

    def step(self) -> None:
        """One half of one job."""
        at = self.rng.randrange(len(self.jobs) + len(self.ran))
        if at < len(self.ran):
            self.ran.pop(at)()
            return
        job, finish = self.jobs.pop(at - len(self.ran))
        try:
            value, error = job(), None
        except Exception as failure:
            value, error = None, failure
        self.ran.append(lambda: finish(value, error))

    def begin(self, job: Job[Any]) -> None:
        self.run(job.run, lambda *_: job.finish())

    def run_jobs(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            if self.jobs or self.ran:
                self.step()

    # What the replica gets

    def write(self) -> None:
        count, partition = self.rng.choice((1, 1, 3)), self.partition
        size = self.rng.choice((10, 60, 150))
        rows = [(1_000_000 + self.records + at, b"key%d" % (self.records + at), bytes(size), ()) for at in range(count)]
        if partition.is_leader:
            info = partition.append(build_batch(rows), 1, self.now_ms)
            assert info.first_offset == self.end
        elif partition.may_fetch and self.log.truncation is None:
            batch = build_batch(rows, base_offset=self.end, leader_epoch=self.epoch)
            committed = self.rng.randint(self.start, self.end + count)
            partition.append_as_follower(batch, self.epoch, committed, self.start)
        else:
            return
        self.batches.append((self.end, self.end + count - 1, self.epoch))
        self.end += count
        self.records += count

    def write_many(self) -> None:
        for _ in range(8):
            self.write()

    def elect(self) -> None:
        self.epoch += 1
        self._apply(self.rng.choice((1, 2)))

    def truncate(self) -> None:
        ends = [first for first, _, _ in self.batches if first >= self.start]
        if self.partition.is_leader or self.log.truncation is not None or not ends:
            return
        self._follow_in_a_new_epoch()
        self.end = self.rng.choice(ends[-10:])
        self.batches = [batch for batch in self.batches if batch[1] < self.end]
        truncation = begin_truncation(self.log, self.end)
        assert truncation is not None
        start_truncations(self, [truncation], lambda: None)

    def empty(self) -> None:
        if not self.partition.is_leader and self.log.truncation is None and self.rng.random() < 0.4:
            self._follow_in_a_new_epoch()
            self.start = self.end = self.end + self.rng.choice((0, 1, 5))
            self.batches = []
            start_truncations(self, [begin_anew_at(self.log, self.end)], lambda: None)

    def _follow_in_a_new_epoch(self) -> None:
        """Of another leader, from whose log this one differs."""
        self.epoch += 1
        self._apply(2)

    def delete_records(self) -> None:
        if self.partition.is_leader:
            self.start = max(self.start, self.rng.randint(self.log.log_start_offset, self.log.high_watermark))
            self.partition.delete_records(self.start)

    def make_anew(self) -> None:
        """The topic is deleted, and made again under its name."""
        if self.rng.random() < 0.3:
            self.replicas.remove(TP)
            self.logs.delete_log(TP)
            self.topic_id = Uuid(self.rng.randbytes(16))
            self.batches = []
            self.start = self.end = self.epoch = 0
            self._apply(1)

    # What is done with it

    def move(self) -> None:
        self.moves.alter(TP, self.rng.choice(tuple(IDS)))

    def record(self) -> None:
        """The controller records what was reported first."""
        if self.reported:
            self.reported.pop(0)[1]()

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def keep_up(self) -> None:
        for job in self.logs.maintenance.poll(self.now_ms):
            self.begin(job)

    def clean(self) -> None:
        if self.cleaning is None:
            if self.log.truncation is None:
                with suppress(OSError):
                    self.log.flush()
            self.cleaning = self.cleaner.choose(self.now_ms)
        elif not self.is_cleaning:
            self._clean_on(self.cleaning)

    def _clean_on(self, cleaning: Cleaning) -> None:
        try:
            job = cleaning.next_job(300)
        except (ApiError, OSError) as error:
            self._give_up(cleaning, error)
            return
        if job is None:
            self.cleaning = None
            if (checkpoint := self.cleaner.finished(cleaning, self.now_ms)) is not None:
                self.begin(checkpoint)
            return

        def finish(*_: object) -> None:
            self.is_cleaning = False
            try:
                job.finish()
            except (ApiError, OSError) as error:
                self._give_up(cleaning, error)

        self.is_cleaning = True
        self.run(job.run, finish)

    def _give_up(self, cleaning: Cleaning, error: Exception) -> None:
        self.cleaning = None
        if (discarding := self.cleaner.failed(cleaning, error, self.now_ms)) is not None:
            self.begin(discarding)

    def clean_on(self) -> None:
        for _ in range(5):
            self.clean()

    def wait(self) -> None:
        self.advance(self.rng.choice((1, 25, 100, 1_000)))

    def close_files(self) -> None:
        self.logs.open_files.release()

    def open_files(self) -> None:
        open_logs(self, [self.log])

    def search(self) -> None:
        if self.log.truncation is None:
            timestamp = self.rng.choice((None, 1_000_000 + self.rng.randint(0, self.records)))
            # Of a log that was cut meanwhile it may fail: the client asks again.
            run_snapshot(self, TimeSearch(self.log, timestamp))

    def read(self) -> None:
        log, start = self.log, self.log.log_start_offset
        if log.log_end_offset == start or log.truncation is not None:
            return
        offset = self.rng.randrange(start, log.log_end_offset)
        read = log.read_later(offset, self.rng.choice((1, 300, 5_000)), log.log_end_offset, True)

        def done(found: FetchInfo | None, error: ApiError | None) -> None:
            if found is None:
                assert log.offline or (error is not None and error.code in _PASSING)
            elif not (log.offline or read.is_outdated) and log.truncation is None:
                batches = _batches(found)
                assert batches == [each for each in self.batches if each[1] >= offset][: len(batches)]

        run_snapshot(self, read).then(done)

    # The end

    def settle(self) -> None:
        """Let all jobs end, and all moves."""
        for _ in range(3_000):
            if self.jobs or self.ran:
                self.step()
            elif self.reported:
                self.record()
            elif len(self.moves) or self.log.truncation is not None:
                self.advance(25)
            else:
                return
        raise AssertionError("something goes on for ever")

    def check_epochs(self) -> None:
        """By the epochs other replicas find what they must not keep."""
        log = self.log
        if log.truncation is None:
            for first, last, epoch in self.batches:
                if last >= self.start:
                    assert log.leader_epochs.epoch_for_offset(max(first, self.start)) == epoch

    def check(self) -> None:
        log = self.log
        assert all(directory.online for directory in self.logs.dirs)
        assert not self.cleaner.uncleanable
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert self.start <= log.high_watermark <= self.end
        assert log.recovery_point <= self.end
        found, offset = [], self.start
        while (info := log.read(offset, 1 << 20, self.end, True)).size_bytes:
            found += _batches(info)
            offset = info.next_offset
        assert found == [batch for batch in self.batches if batch[1] >= self.start]


def _batches(info: FetchInfo) -> list[Batch]:
    return [
        (header.base_offset, header.last_offset, header.partition_leader_epoch)
        for _, header in iter_batches(info.records)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_jobs_that_end_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dir_moves, "_BATCH_BYTES", 700)
    monkeypatch.setattr(dir_moves, "_TAIL_BYTES", 400)
    world = World(seed)
    for _ in range(150):
        getattr(world, world.rng.choice(STEPS))()
        world.check_epochs()
    world.settle()
    world.check()


@pytest.mark.parametrize("operations", [("sync",), ("write",), ("read",), ("name",), ("sync", "write", "read", "name")])
@pytest.mark.parametrize("seed", range(6))
def test_a_directory_fails_among_them(seed: int, operations: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but errors of that directory follows: the others stay online, and so does the replica in one of them."""
    monkeypatch.setattr(dir_moves, "_BATCH_BYTES", 700)
    monkeypatch.setattr(dir_moves, "_TAIL_BYTES", 400)
    world = World(seed)
    for _ in range(world.rng.randrange(30, 140)):
        getattr(world, world.rng.choice(STEPS))()
    failing = world.rng.choice(("/d0", "/d1"))
    world.disk.fail(failing, errno.EIO, frozenset(operations))
    steps = iter(world.rng.choices(STEPS, k=60))
    while world.replicas.find(*TP) is not None and (name := next(steps, None)) is not None:
        with suppress(ApiError):
            getattr(world, name)()
    for _ in range(2_000):
        if world.jobs or world.ran:
            with suppress(ApiError):
                world.step()
    assert not (world.jobs)
    assert not (world.ran)
    assert {directory.path for directory in world.logs.dirs if not directory.online} <= {failing}
    home = world.logs.dir_of(TP)
    if home is not None and home.path != failing:
        assert not world.log.offline
        world.check_epochs()
