"""Whole random logs, compacted: by compiled runs, batch by batch, and by a model that decodes every record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import pytest
from compacted_node import TP, CompactedNode, clean_all

from kalda.records.batch import BatchHeader, TimestampType, check_crc, iter_batches, read_header
from kalda.records.builder import Record, build_batch, read_records, rebuild_batch
from kalda.records.compaction import BatchFilter
from kalda.records.compression import Compression
from kalda.records.control import ControlType, read_control_type, transaction_marker_batch
from kalda.storage.compaction import passes
from kalda.storage.compaction.passes import LastRecord
from kalda.storage.log.log import Log
from kalda.storage.values import AppendOrigin

RETENTION_MS = 5_000
SEEDS = range(60)


class Batch(NamedTuple):
    header: BatchHeader
    records: list[Record]
    data: bytes


def batches(log: Log) -> Iterator[Batch]:
    offset = log.log_start_offset
    while (info := log.read(offset, 1 << 20, log.log_end_offset, True)).size_bytes:
        data = bytes(info.records)
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            whole = data[position : position + header.size_bytes]
            yield Batch(header, read_records(whole), whole)
        offset = info.next_offset


class Writer:
    """Appends random batches to the log of a node."""

    def __init__(self, node: CompactedNode, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self.keys = [b"", *(b"%d" % number * (1 + number % 9) for number in range(rng.choice((3, 20, 200))))]
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.open: set[int] = set()
        """Producers with an open transaction."""

    def rows(self) -> list[Any]:
        rng = self.rng
        many, long = rng.choice((1, 1, 1, 10, 60)), rng.choice((1, 60, 60, 60, 3_000))
        return [
            (
                self.node.now_ms + rng.randrange(-500, 500),
                rng.choice(self.keys),
                rng.choice((None, *(rng.randbytes(rng.randrange(long)) for _ in range(4)))),
                [("h" * rng.randrange(3), b"x") for _ in range(rng.randrange(2))],
            )
            for _ in range(rng.randrange(1, many + 1))
        ]

    def append(self) -> None:
        rng, node = self.rng, self.node
        node.now_ms += rng.randrange(200)
        if self.open and rng.random() < 0.3:
            self.end(rng.choice(sorted(self.open)))
            return
        rows = self.rows()
        codec = rng.choice((Compression.NONE, Compression.NONE, Compression.NONE, *Compression))
        kind = rng.choice((TimestampType.CREATE, TimestampType.CREATE, TimestampType.LOG_APPEND))
        if rng.random() < 0.5:  # as a follower would append it: with gaps, or the time of the append
            base = node.log.log_end_offset + rng.choice((0, 0, 5))
            time_ms = node.now_ms if kind is TimestampType.LOG_APPEND else -1
            batch = build_batch(
                rows, base_offset=base, leader_epoch=0, compression=codec, timestamp_type=kind, append_time_ms=time_ms
            )
            if rng.random() < 0.3 and len(rows) > 1:
                kept = [record for record in read_records(batch) if rng.random() < 0.5] or read_records(batch)[:1]
                batch = rebuild_batch(read_header(batch), kept)
            node.log.append_as_follower(batch, 0)
        else:
            producer_id = rng.choice((-1, *self.sequences))
            is_transactional = producer_id >= 0 and (producer_id in self.open or rng.random() < 0.4)
            self.produce(rows, codec, producer_id, is_transactional)
        node.log.update_high_watermark(node.log.log_end_offset)

    def produce(self, rows: list[Any], codec: Compression, producer_id: int, is_transactional: bool) -> None:
        log, sequence, guard = self.node.log, -1, None
        if producer_id >= 0:
            sequence = self.sequences[producer_id]
            self.sequences[producer_id] += len(rows)
        if is_transactional:
            guard = log.start_verification(producer_id, sequence, 0, self.node.now_ms)
            self.open.add(producer_id)
        batch = build_batch(
            rows,
            compression=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        log.append_as_leader(batch, 0, self.node.now_ms, verification=guard)

    def end(self, producer_id: int) -> None:
        """Commit or abort the transaction of a producer."""
        log, now_ms = self.node.log, self.node.now_ms
        marker = transaction_marker_batch(
            producer_id=producer_id,
            producer_epoch=0,
            commit=self.rng.random() < 0.5,
            coordinator_epoch=0,
            timestamp_ms=now_ms,
        )
        log.append_as_leader(marker, 0, now_ms, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)
        self.open.remove(producer_id)


class Model:
    """What one compaction with a map of enough room leaves of a log."""

    def __init__(self, node: CompactedNode) -> None:
        log = node.log
        self.now_ms = node.now_ms
        self.start = node.logs.dirs[0].cleaner_offsets.get(TP, log.log_start_offset)
        limit = min(log.last_stable_offset, log.segments.active.base_offset, log.checkpoint_recovery_point)
        bases = [segment.base_offset for segment in log.segments]
        self.end = max(base for base in bases if base <= limit)
        self.last = {s.producer_id: LastRecord(s.last_data_offset, s.epoch) for s in log.producer_states}
        self.before = list(batches(log))
        self.aborted = self._aborted()
        self.newest = {
            record.key: record.offset
            for batch in self.before
            if not batch.header.is_control and batch.header.base_offset not in self.aborted
            for record in batch.records
            if record.key is not None and self.start <= record.offset and batch.header.base_offset < self.end
        }

    def _aborted(self) -> set[int]:
        """Base offsets of the batches of aborted transactions."""
        found: set[int] = set()
        pending: dict[int, list[int]] = {}
        for header, records, _ in self.before:
            if header.is_control and records:
                written = pending.pop(header.producer_id, [])
                if read_control_type(records[0].key) is ControlType.ABORT:
                    found.update(written)
            elif header.is_transactional and not header.is_control:
                pending.setdefault(header.producer_id, []).append(header.base_offset)
        return found

    def left(self) -> Iterator[Batch]:
        met: set[int] = set()
        for batch in self.before:
            header = batch.header
            if header.base_offset >= self.end:
                yield batch
                continue
            if header.is_control:
                if batch.records:
                    is_needed = header.producer_id in met
                    met.discard(header.producer_id)
                else:
                    is_needed = False
                kept, horizon = self._marker(batch, is_needed)
            else:
                if header.is_transactional:
                    met.add(header.producer_id)
                kept, horizon = self._records(batch)
            if kept or self._keeps_header(header):
                yield self._rebuilt(batch, kept, horizon)

    def _keeps_header(self, header: BatchHeader) -> bool:
        last = self.last.get(header.producer_id)
        if header.next_offset == self.end:
            return True
        if last is None or header.producer_id < 0:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _marker(self, batch: Batch, is_needed: bool) -> tuple[list[Record], int | None]:
        horizon = batch.header.delete_horizon_ms
        if is_needed or not batch.records:
            return batch.records, horizon
        if horizon is None:
            return batch.records, self.now_ms + RETENTION_MS
        return ([] if horizon <= self.now_ms else batch.records), horizon

    def _records(self, batch: Batch) -> tuple[list[Record], int | None]:
        horizon = batch.header.delete_horizon_ms
        if batch.header.base_offset in self.aborted:
            return [], horizon
        kept = [
            record
            for record in batch.records
            if record.key is not None
            and record.offset >= self.newest.get(record.key, -1)
            and (record.value is not None or horizon is None or self.now_ms < horizon)
        ]
        if horizon is None and any(record.value is None for record in kept):
            horizon = self.now_ms + RETENTION_MS
        return kept, horizon

    def _rebuilt(self, batch: Batch, kept: list[Record], horizon: int | None) -> Batch:
        header = batch.header
        if kept and kept == batch.records and horizon == header.delete_horizon_ms:
            return batch
        if not kept:
            header, horizon = header._replace(attributes=header.attributes & ~0x47), None
        data = bytes(rebuild_batch(header, kept, delete_horizon_ms=horizon))
        return Batch(read_header(data), read_records(data), data)


def logged(seed: int) -> tuple[CompactedNode, list[str]]:
    """A log after several rounds of appends and compactions, each compared with the model."""
    rng = random.Random(seed)
    node = CompactedNode(
        seed,
        delete_retention_ms=str(RETENTION_MS),
        internal_segment_bytes=str(rng.choice((200_000, 1_000_000))),
        index_interval_bytes=str(rng.choice((1, 300, 4_096))),
    )
    writer = Writer(node, rng)
    layouts: list[str] = []
    for _ in range(rng.randrange(1, 6)):
        for _ in range(rng.randrange(1, 60)):
            writer.append()
            if rng.random() < 0.1:
                node.log.roll(node.now_ms)
        node.now_ms += rng.choice((0, RETENTION_MS + 1))
        node.log.roll(node.now_ms)
        node.log.flush()
        model = Model(node)
        # Where too little is dirty, nothing is compacted.
        expected = list(model.left()) if clean_all(node.cleaner, node.now_ms) else model.before
        for left, right in zip_longest(batches(node.log), expected):
            assert same(left) == same(right)
        layouts.append("|".join(f"{segment.base_offset}:{segment.size}" for segment in node.log.segments))
    return node, layouts


def same(batch: Batch | None) -> tuple[object, ...]:
    """What must be equal: the bytes, or of a compressed batch what is in them."""
    if batch is None:
        return ()
    header = batch.header._replace(partition_leader_epoch=0)
    if header.compression is Compression.NONE:
        return header, batch.data[16:]
    return header._replace(batch_length=0, crc=0), batch.records


@pytest.mark.parametrize("seed", SEEDS)
def test_a_compacted_log_is_what_the_model_leaves(seed: int) -> None:
    logged(seed)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_runs_of_batches_leave_what_single_batches_leave(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte by byte, in the same segments, with the same indexes."""
    by_runs, layouts = logged(seed)
    monkeypatch.setattr(passes, "map_run", lambda offsets, chunk, at, stop, start: at)

    class NoRuns:
        """Filters each batch alone."""

        is_full = False
        written = 0

        def __init__(self, *rules: Any) -> None:
            self.filter_batch = BatchFilter(*rules).filter_batch

        def run(self, chunk: object, at: int, stop: int) -> int:
            return at

        def take(self) -> tuple[bytes, list[object]]:
            return b"", []

        def skip(self, size: int) -> None: ...

        def clear(self) -> None: ...

    monkeypatch.setattr(passes, "BatchFilter", NoRuns)
    single, others = logged(seed)
    assert layouts == others
    for node in (by_runs, single):
        node.logs.close()
    for segment in single.log.segments:
        for suffix in ("log", "index", "timeindex", "txnindex"):
            path = f"/d/t-0/{segment.base_offset:020}.{suffix}"
            assert by_runs.disk.peek(path) == single.disk.peek(path), path


@pytest.mark.parametrize("seed", SEEDS[::5])
def test_a_small_buffer_and_small_slices_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, layouts = logged(seed)
    monkeypatch.setattr(passes, "BatchFilter", lambda *rules: BatchFilter(*rules, 2_000))
    monkeypatch.setattr(passes, "_WRITE_BYTES", 700)
    monkeypatch.setattr(passes, "_READ_BYTES", 500)
    monkeypatch.setattr(passes, "_LEAST_READ_BYTES", 300)
    monkeypatch.setattr("kalda.storage.compaction.cleaner.SLICE_BYTES", 300)
    parts, others = logged(seed)
    assert layouts == others
    assert [batch.data for batch in batches(whole.log)] == [batch.data for batch in batches(parts.log)]
