"""Compaction of a log with transactions: what a read_committed consumer makes of it stays the same.

Producers write keys in interleaved transactions, which stay open for a while, are committed, or aborted. The log is
compacted again and again as time passes, opened anew, and lost with its cache. After each step, reading it from its
start gives the last committed value of every key, and each producer may go on with its next sequence number.
"""

from __future__ import annotations

import random

import pytest
from compacted_node import DAY, CompactedNode

from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch, read_records
from kalda.records.control import ControlType, read_control_type, transaction_marker_batch
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import collect_aborted
from kalda.storage.values import AppendOrigin

PRODUCERS = 3
KEYS = 6


class Model(CompactedNode):
    """A compacted log, and what its transactions amount to."""

    producer_expiration_ms = 1_000 * DAY

    def __init__(self, seed: int) -> None:
        super().__init__(seed, delete_retention_ms=str(2 * DAY))
        self.rng = random.Random(seed)
        self.open: dict[int, dict[int, tuple[str, str | None]]] = {}
        """Records of open transactions, by producer, then by offset."""
        self.committed: dict[int, tuple[str, str | None]] = {}
        """Records of committed ones, and those outside of transactions, by offset."""
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.sequences = dict.fromkeys(range(PRODUCERS), 0)
        self.written = 0

    def row(self) -> tuple[str, str | None]:
        self.written += 1
        value = None if self.rng.random() < 0.15 else f"value {self.written}"
        return f"key {self.rng.randrange(KEYS)}", value

    def append(self, producer_id: int) -> None:
        rows = [self.row() for _ in range(self.rng.randrange(1, 4))]
        encoded = [(self.now_ms, key.encode(), value.encode() if value else None, ()) for key, value in rows]
        epoch, sequence = self.epochs[producer_id], self.sequences[producer_id]
        guard = self.log.start_verification(producer_id, sequence, epoch, self.now_ms)
        batch = build_batch(
            encoded, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
        )
        info = self.log.append_as_leader(batch, 0, self.now_ms, verification=guard)
        self.sequences[producer_id] += len(rows)
        self.open.setdefault(producer_id, {}).update(enumerate(rows, info.first_offset))

    def end(self, producer_id: int) -> None:
        commits = self.rng.random() < 0.6
        bumps = self.rng.random() < 0.5
        if bumps:
            self.epochs[producer_id] += 1
            self.sequences[producer_id] = 0
        marker = transaction_marker_batch(
            producer_id=producer_id,
            producer_epoch=self.epochs[producer_id],
            commit=commits,
            coordinator_epoch=0,
            timestamp_ms=self.now_ms,
        )
        self.log.append_as_leader(
            marker, 0, self.now_ms, AppendOrigin.COORDINATOR, transaction_version=2 if bumps else 0
        )
        rows = self.open.pop(producer_id, {})
        if commits:
            self.committed.update(rows)

    def plain(self) -> None:
        row = self.row()
        end = self.log.log_end_offset
        self.put(row)
        self.committed[end] = row

    def restart(self, *, crashes: bool) -> None:
        if crashes:
            self.log.flush()
            self.disk.crash()
        else:
            for job in self.logs.close_jobs():
                job.complete()
            for job in self.logs.marker_jobs(1):
                job.complete()
        self.start()

    def step(self) -> None:
        chosen = self.rng.random()
        producer_id = self.rng.randrange(PRODUCERS)
        if chosen < 0.5:
            self.append(producer_id)
        elif chosen < 0.75:
            self.end(producer_id)
        elif chosen < 0.82:
            self.plain()
        elif chosen < 0.92:
            self.now_ms += self.rng.randrange(2 * DAY)
            self.clean()
        else:
            self.restart(crashes=self.rng.random() < 0.5)
        self.log.update_high_watermark(self.log.log_end_offset)
        self.check()

    def check(self) -> None:
        stable = self.log.last_stable_offset
        firsts = [min(rows) for rows in self.open.values()]
        assert stable == min([self.log.log_end_offset, *firsts])
        expected: dict[str, str] = {}
        for offset, (key, value) in sorted(self.committed.items()):
            if offset < stable:
                apply(expected, key, value)
        assert consumed(self.log) == expected


def apply(state: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value


def consumed(log: Log) -> dict[str, str]:
    """The last values of all keys, as a read_committed consumer gets them: it skips the batches of a producer from the
    first offset of an aborted transaction to its marker."""
    state: dict[str, str] = {}
    stable, offset = log.last_stable_offset, log.log_start_offset
    waiting = collect_aborted(log.segments, offset, stable) if offset < stable else []
    assert [txn.first_offset for txn in waiting] == sorted(txn.first_offset for txn in waiting)
    aborted: set[int] = set()
    while (info := log.read(offset, 1 << 20, stable, True)).size_bytes:
        for position, header in iter_batches(info.records):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            records = read_records(bytes(info.records), position)
            if header.is_control:
                if records and read_control_type(records[0].key) is ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in records:
                    assert record.key is not None
                    value = None if record.value is None else bytes(record.value).decode()
                    apply(state, bytes(record.key).decode(), value)
        offset = info.next_offset
    return state


AN_OLD_HIGH_WATERMARK = 50_110
"""A crash brings back a high watermark above which compaction has removed markers since: a recovery that reads the
producers from a snapshot below it would find a transaction that has ended open, for ever."""


@pytest.mark.parametrize("seed", [*range(30), AN_OLD_HIGH_WATERMARK])
def test_compaction_keeps_what_is_committed(seed: int) -> None:
    model = Model(seed)
    for _ in range(150):
        model.step()  # which asserts it for each state
