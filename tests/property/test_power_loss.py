"""The power fails while records are appended: with `flush.messages=1` nothing that was acknowledged is lost or doubled.

The broker's storage path on a simulated disk: the log manager with its jobs, a leading partition, an idempotent
producer that sends again what was not acknowledged. Threads are a list of jobs: the order of their halves is random, so
the power may fail between any two of them, and what was not synced is lost, torn or shuffled; or only the process is
killed, and what it wrote stays in the page cache, unsynced. The metadata log is
tried the same way: what a flush has promised stays, and so does the vote.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from typing import Any

import pytest
from power_world import IN_FLIGHT, TOPIC_ID, TP, Producer, Threads

from kalda.base.errors import ApiError
from kalda.protocol.messages.metadata_records import NoOpRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.metadata_log import MetadataLog, MetadataLogConfig
from kalda.raft.quorum_state import ElectionState
from kalda.raft.snapshots import encode_batch
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records
from kalda.replication.partition import Partition
from kalda.sim.disk import SimDisk, _DirNode
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.job import Job
from kalda.storage.log.deletion import delete_old_segments

RETENTION_MS = 100_000
CONFIG = LogConfig(
    segment_bytes=2_000, index_interval_bytes=200, flush_messages=1, file_delete_delay_ms=0, retention_ms=RETENTION_MS
)
"""`STEPS` are fewer than `RETENTION_MS`: records expire only where a test lets that time pass."""
STEPS = 300


class Broker:
    """One life of the storage path, between two losses of power."""

    def __init__(self, disk: SimDisk, rng: random.Random, epoch: int, now_ms: int) -> None:
        self.threads = Threads(rng)
        self.now_ms = now_ms
        self.may_fail = False
        self.has_failed = False
        self.manager = LogManager(
            {"/d": disk},
            lambda topic: CONFIG,
            config=LogManagerConfig(
                recovery_point_interval_ms=3, high_watermark_interval_ms=2, log_start_interval_ms=7, initial_delay_ms=0
            ),
            unique=lambda: f"{rng.getrandbits(128):032x}",
            now_ms=lambda: self.now_ms,
            on_dir_failed=self._on_dir_failed,
            locks_dirs=False,
        )
        for job in self.manager.load_jobs():
            job.complete()
        log = self.manager.get_or_create_log(TP, TOPIC_ID, CONFIG, None)
        self.partition = Partition(TP, TOPIC_ID, 1, log, self.threads)
        self.partition.become_leader(epoch, epoch, (1,), (1,))

    def _on_dir_failed(self, directory: LogDir, error: OSError) -> None:
        assert self.may_fail, f"{directory.path} failed: {error}"
        self.has_failed = True

    def fail_a_sync(self, rng: random.Random, disk: SimDisk) -> bool:
        """Let syncs fail until the node notices. False where nothing is synced in that time."""
        path = rng.choice(("/d", "/d/t-0", f"/d/t-0/{self.partition.log.segments.active.base_offset:020}.log"))
        self.may_fail = disk.forgets_failed_writes = True
        disk.fail(path, errno.EIO, frozenset(("sync",)))
        for _ in range(30):
            if not self.has_failed:
                self.threads.step()
        disk.mend(path)
        self.may_fail = False
        return self.has_failed

    def maintenance(self) -> None:
        self.now_ms += 1
        for job in self.manager.maintenance.poll(self.now_ms):
            self.threads.run(job.run, lambda _, __, job=job: job.finish())

    def values(self) -> list[int]:
        """Everything that the log holds."""
        log, offset, found = self.partition.log, self.partition.log.log_start_offset, []
        while (info := log.read(offset, 1 << 20, log.log_end_offset, True)).size_bytes:
            for position, _ in iter_batches(info.records):
                found += [int(record.value or b"") for record in read_records(info.records, position)]
            offset = info.next_offset
        return found


@pytest.mark.parametrize("seed", range(60))
def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(seed: int) -> None:
    produce_through_losses_of_power(seed)


@pytest.mark.parametrize("seed", range(60))
def test_nothing_acknowledged_is_lost_where_syncs_fail(seed: int) -> None:
    """The system counts bytes as synced after a sync that failed: a node that starts again must not."""
    produce_through_losses_of_power(seed, syncs_fail=True)


def _trusts_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kalda.storage.dirs.log_dirs.mark_failed", lambda *_: None)


def test_a_page_cache_that_is_trusted_after_a_failed_sync_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _trusts_the_page_cache(monkeypatch)
    for seed in range(400):
        try:
            produce_through_losses_of_power(seed, syncs_fail=True)
        except AssertionError:
            return
    pytest.fail("no seed notices")


def _unsynced_acks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_local_end", lambda self: self.log.log_end_offset)


def _trusts_what_it_reads_back(patch: pytest.MonkeyPatch) -> None:
    become_leader = Partition.become_leader

    def lead(self: Partition, *news: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Partition, "_flush", lambda *_: None)
            become_leader(self, *news)

    patch.setattr(Partition, "become_leader", lead)


@pytest.mark.parametrize("ablate", [_unsynced_acks, _trusts_what_it_reads_back])
def test_without_a_safeguard_it_is_noticed(
    ablate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ablate(monkeypatch)
    for seed in range(400):
        try:
            produce_through_losses_of_power(seed)
        except AssertionError:
            return
    pytest.fail("no seed notices")


def produce_through_losses_of_power(seed: int, *, syncs_fail: bool = False) -> None:
    """`syncs_fail`: now and then one does, which ends the node."""
    rng = random.Random(seed)
    disk = SimDisk(random.Random(seed + 1_000))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    producer, epoch = Producer(), 0
    broker = Broker(disk, rng, epoch, 1_000)
    for _ in range(STEPS):
        events = ("send", "thread", "acknowledge", "maintenance", "power", "kill", "sync")
        match rng.choices(events, (4, 8, 3, 2, 0.3, 0.3, 0.3 if syncs_fail else 0))[0]:
            case "send" if len(producer.under_way) < IN_FLIGHT:
                producer.send(broker, producer.sent)
                producer.sent += 1
            case "thread":
                broker.threads.step()
            case "acknowledge":
                producer.take_acknowledgements(broker)
            case "maintenance":
                broker.maintenance()
            case "power" | "kill" | "sync" as how:
                if how == "sync" and not broker.fail_a_sync(rng, disk):
                    continue
                producer.take_acknowledgements(broker)
                if how == "power":
                    disk.crash()  # a killed process leaves all it wrote, but not synced
                disk.let_go()
                epoch += 1
                broker = Broker(disk, rng, epoch, broker.now_ms)
                values = broker.values()
                assert values == list(range(len(values))), "a record is missing, doubled or out of order"
                assert producer.acknowledged <= len(values) <= producer.sent
                producer.begin_anew(broker)
    broker.threads.all()
    producer.take_acknowledgements(broker)
    assert producer.acknowledged == producer.sent
    assert broker.values() == list(range(producer.sent))


def expire_through_losses_of_power(seed: int) -> None:
    """All records are over age again and again, so that the log goes on in a new segment alone."""
    rng = random.Random(seed)
    disk = SimDisk(random.Random(seed + 3_000))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    producer, epoch = Producer(), 0
    broker = Broker(disk, rng, epoch, 1_000)
    for _ in range(STEPS):
        match rng.choices(("send", "thread", "acknowledge", "maintenance", "expire", "power"), (4, 8, 3, 2, 1, 0.5))[0]:
            case "send" if len(producer.under_way) < IN_FLIGHT:
                producer.send(broker, producer.sent)
                producer.sent += 1
            case "thread":
                broker.threads.step()
            case "acknowledge":
                producer.take_acknowledgements(broker)
            case "maintenance":
                broker.maintenance()
            case "expire":
                broker.now_ms += RETENTION_MS + 1
                delete_old_segments(broker.partition.log, broker.now_ms)
            case "power":
                producer.take_acknowledgements(broker)
                disk.crash()
                disk.let_go()
                epoch += 1
                broker = Broker(disk, rng, epoch, broker.now_ms)
                log, values = broker.partition.log, broker.values()
                assert log.log_end_offset >= producer.acknowledged, "offsets of acknowledged records are used again"
                assert values == list(range(log.log_start_offset, log.log_end_offset)), "an offset has another record"
                producer.begin_anew(broker)


@pytest.mark.parametrize("seed", range(60))
def test_no_offset_is_used_again_where_all_records_have_expired(seed: int) -> None:
    expire_through_losses_of_power(seed)


def test_a_deletion_that_outlives_the_new_segment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment's name comes before the renames: on a disk that keeps later changes of a directory without earlier
    ones, no file would be left that has the log's end in its name."""

    def keep_any(self: _DirNode, rng: random.Random) -> None:
        self.pending = [changes for changes in self.pending if rng.random() < 0.5]
        crash(self, rng)

    crash = _DirNode.crash
    monkeypatch.setattr(_DirNode, "crash", keep_any)
    for seed in range(100):
        try:
            expire_through_losses_of_power(seed)
        except AssertionError as error:
            if "are used again" in str(error):
                return
    pytest.fail("no seed notices")


def fail_the_sync(disk: SimDisk, log: MetadataLog, flush: tuple[Job[None], int] | None) -> None:
    """Of a flush that is not finished, of a new one, or of one that the next opening makes, or tries to."""
    disk.forgets_failed_writes = True
    disk.fail("/d/__cluster_metadata-0", errno.EIO, frozenset(("sync",)))
    if flush is None:
        with contextlib.suppress(ApiError):  # where there is anything to sync
            log.flush_job(log.log.log_end_offset).complete()
    else:
        disk.let_go()
        with pytest.raises(OSError, match="EIO"):
            MetadataLog.open(disk, log.directory, log.config, now_ms=1_000)
    disk.mend("/d/__cluster_metadata-0")


def _batch(offset: int, epoch: int, count: int) -> bytearray:
    return bytearray(encode_batch([VersionedRecord(NoOpRecord(), 0)] * count, offset, epoch, 1_000))


@pytest.mark.parametrize("syncs_fail", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_the_metadata_log_keeps_what_was_flushed_and_the_vote(seed: int, syncs_fail: bool) -> None:
    rng = random.Random(seed)
    disk = SimDisk(random.Random(seed + 2_000))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    config = MetadataLogConfig(segment_bytes=500)
    log = MetadataLog.open(disk, "/d/__cluster_metadata-0", config, now_ms=1_000)
    disk.sync_dir("/d")
    promised, voted = 0, ElectionState()
    flush: tuple[Job[None], int] | None = None
    for _ in range(120):
        events = ("append", "flush", "flushed", "vote", "power", "kill", "sync")
        match rng.choices(events, (6, 3, 3, 1, 0.7, 0.7, 0.7 if syncs_fail else 0))[0]:
            case "append":
                end = log.log.log_end_offset
                log.append(_batch(end, voted.epoch, rng.randint(1, 4)), voted.epoch)
            case "flush" if flush is None:
                end = log.log.log_end_offset
                flush = log.flush_job(end), end
                if rng.random() < 0.8:
                    flush[0].run()
                else:
                    flush = None  # the power fails before a thread runs the job, or the job is never finished
            case "flushed" if flush is not None:
                flush[0].finish()
                promised, flush = max(promised, flush[1]), None
            case "vote":
                voted = ElectionState(voted.epoch + 1, rng.choice((None, 1, 2)), None)
                log.write_election(voted, (1, 2, 3), 0)
            case "power" | "kill" | "sync" as how:
                if how == "power":
                    disk.crash()
                if how == "sync":
                    fail_the_sync(disk, log, flush)
                disk.let_go()
                flush = None
                log = MetadataLog.open(disk, "/d/__cluster_metadata-0", config, now_ms=1_000)
                assert log.log.log_end_offset >= promised
                assert log.read_election() == voted
                assert log.log.recovery_point == log.log.log_end_offset, "a vote promises that all of it is durable"
                promised = log.log.log_end_offset
                read = [batch.base_offset for batch in log.read_batches(0, promised)]
                assert read == sorted(set(read))
