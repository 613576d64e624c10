"""A compacted log on a simulated disk, with a cleaner, for the tests of compaction."""

from __future__ import annotations

import random
from typing import Any

from kalda.base.ids import TopicPartition
from kalda.records.batch import iter_batches
from kalda.records.builder import Record, build_batch, read_records
from kalda.records.compression import Compression
from kalda.records.control import transaction_marker_batch
from kalda.sim.disk import SimDisk
from kalda.storage.compaction.cleaner import CleanerConfig, LogCleaner
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.log import Log
from kalda.storage.values import AppendOrigin

TP = TopicPartition("t", 0)
NOW = 1_700_000_000_000
DAY = 86_400_000
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": str(10 * DAY),
}


class CompactedNode:
    """A node whose topic `t` is compacted. Its clock stands still until a test moves it."""

    producer_expiration_ms = DAY

    def __init__(self, seed: int = 3, **config: str) -> None:
        self.now_ms = NOW
        self.config = LogConfig.from_dict(COMPACT | {key.replace("_", "."): value for key, value in config.items()})
        self.disk = SimDisk(random.Random(seed), now_ms=lambda: self.now_ms)
        self.disk.make_dirs("/d")
        self.disk.sync_dir("/")
        self.start()
        self.log = self.logs.get_or_create_log(TP, None, self.config, None)

    def start(self) -> None:
        self.logs = LogManager(
            {"/d": self.disk},
            lambda _: self.config,
            config=LogManagerConfig(producer_expiration_ms=self.producer_expiration_ms),
            unique=lambda: "0" * 32,
            now_ms=lambda: self.now_ms,
        )
        for job in self.logs.load_jobs():
            job.complete()
        self.cleaner = self.new_cleaner()
        found = self.logs.get(TP)
        if found is not None:
            self.log = found
            found.update_high_watermark(found.log_end_offset)

    def new_cleaner(self, **config: Any) -> LogCleaner:
        return LogCleaner(self.logs, CleanerConfig(**config), lambda: bytes(16))

    def put(self, *rows: tuple[str, str | None], compression: Compression = Compression.NONE) -> None:
        encoded = [(self.now_ms, key.encode(), value.encode() if value else None, ()) for key, value in rows]
        self.log.append_as_leader(build_batch(encoded, compression=compression), 0, self.now_ms)
        self.log.update_high_watermark(self.log.log_end_offset)

    def transact(self, pid: int, sequence: int, *keys: str, commit: bool) -> None:
        rows = [(self.now_ms, key.encode(), b"in a transaction", ()) for key in keys]
        guard = self.log.start_verification(pid, sequence, 0, self.now_ms)
        batch = build_batch(rows, producer_id=pid, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        self.log.append_as_leader(batch, 0, self.now_ms, verification=guard)
        marker = transaction_marker_batch(
            producer_id=pid, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp_ms=self.now_ms
        )
        self.log.append_as_leader(marker, 0, self.now_ms, origin=AppendOrigin.COORDINATOR)
        self.log.update_high_watermark(self.log.log_end_offset)

    def clean(self) -> int:
        """Roll, so that everything so far may be cleaned, and clean."""
        if self.log.segments.active.size:
            self.log.roll(self.now_ms)
        self.log.flush()
        return clean_all(self.cleaner, self.now_ms)


def clean_all(cleaner: LogCleaner, now_ms: int) -> int:
    """Everything that there is to clean, here and now; the number of cleanings."""
    count = 0
    while (cleaning := cleaner.choose(now_ms)) is not None:
        try:
            while (job := cleaning.next_job()) is not None:
                job.complete()
        except Exception as error:
            discarding = cleaner.failed(cleaning, error, now_ms)
            if discarding is not None:
                discarding.complete()
            continue
        checkpoint = cleaner.finished(cleaning, now_ms)
        if checkpoint is None:
            break
        checkpoint.complete()
        count += 1
    return count


def batches(log: Log) -> list[list[Record]]:
    found = []
    offset = log.log_start_offset
    while (info := log.read(offset, 1 << 20, log.log_end_offset, True)).size_bytes:
        found += [read_records(bytes(info.records), position) for position, _ in iter_batches(info.records)]
        offset = info.next_offset
    return found


def contents(log: Log) -> list[tuple[int, str, str | None]]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for records in batches(log)
        for record in records
        if record.key is not None and not record.key.startswith(b"\0\0")  # markers
    ]
