"""Transactions in a log against a list of what was appended: the last stable offset and the aborted transactions.

A leader's log, and a follower's that gets its batches in pieces. Producers begin, continue, commit and abort
transactions in any interleaving; high watermarks advance, logs are cut back, closed, lost with their cache, and start
later. After each step both logs are compared with what the list says.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import begin_truncation
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import collect_aborted
from kalda.storage.log.state import StandaloneHooks
from kalda.storage.log.txn_index import AbortedTxn
from kalda.storage.values import AppendOrigin

TP = TopicPartition("events", 3)
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1, file_delete_delay_ms=0)
NOW = 1_000_000
PRODUCERS = 4

NAMES = ["produce"] * 6 + ["commit"] * 2 + ["abort"] * 2 + ["plain", "replicate", "replicate", "advance", "advance"]
NAMES += ["cut", "reopen", "crash", "start", "bump"]
OPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 10_000)), max_size=60)


class Entry(NamedTuple):
    """One batch."""

    base: int
    end: int
    producer_id: int
    commits: bool | None
    """Of a marker; None for records."""
    is_transactional: bool
    data: bytes


class Txn(NamedTuple):
    producer_id: int
    first: int
    marker: int | None
    is_aborted: bool


def transactions(entries: list[Entry]) -> list[Txn]:
    """All transactions, by what the list says."""
    found: list[Txn] = []
    begun: dict[int, int] = {}
    for entry in entries:
        if not entry.is_transactional:
            continue
        if entry.commits is None:
            begun.setdefault(entry.producer_id, entry.base)
        elif entry.producer_id in begun:
            first = begun.pop(entry.producer_id)
            found.append(Txn(entry.producer_id, first, entry.base, not entry.commits))
    return found + [Txn(producer_id, first, None, False) for producer_id, first in begun.items()]


class Replica:
    """A log under test beside the batches that it has."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.entries: list[Entry] = []
        self.high_watermark = 0
        self.start = 0
        self.loaded_from = 0
        """Where the log started when its producers were last read from its batches. Of a transaction that began before
        it, only what came after it may be known, as in Kafka."""
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> Log:
        return Log.open(
            Unopened(
                self.disk,
                "/data/events-3",
                CONFIG,
                topic_partition=TP,
                topic_id=bytes(15) + b"\x07",  # type: ignore[arg-type]
                now_ms=NOW,
                clean=clean,
                log_start_offset=self.start,
                high_watermark=self.high_watermark,
            ),
            hooks=StandaloneHooks(self.disk),
        )

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else self.start

    def reopen(self, *, clean: bool) -> None:
        if clean:
            self.log.close()
        else:
            self.log.flush(self.high_watermark)
            self.disk.crash()
        self.log = self.open(clean=clean)
        self.keep_below(self.log.log_end_offset)
        self.loaded_from = self.start
        self.log.update_high_watermark(self.high_watermark)

    def cut(self, offset: int) -> None:
        """Consumers may read between its steps: they must not be shown records that are undecided."""
        truncation = begin_truncation(self.log, offset)
        if truncation is None:
            return
        wait = truncation.advance()
        self.keep_below(self.log.log_end_offset)
        self.loaded_from = self.start
        while wait is not None:
            self.log.update_high_watermark(self.high_watermark)
            assert self.log.last_stable_offset <= self.stable(self.left)
            wait()
            wait = truncation.advance()

    def keep_below(self, end: int) -> None:
        self.entries = [entry for entry in self.entries if entry.end <= end]
        assert self.end == end or not self.entries
        self.high_watermark = min(self.high_watermark, end)

    def advance(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.end))
        self.log.update_high_watermark(self.high_watermark)

    def check(self) -> None:
        log = self.log
        assert log.log_end_offset == self.end
        assert log.high_watermark == self.high_watermark
        known, left = transactions(self.entries), self.left
        assert self.stable(known) <= log.last_stable_offset <= self.stable(left)
        if not self.start:
            assert log.producer_states.has_open_transactions == any(txn.marker is None for txn in known)
        self.check_aborted(known, left)

    @property
    def left(self) -> list[Txn]:
        """Transactions of which something came after the log's start when its producers were read."""
        return transactions([entry for entry in self.entries if entry.base >= self.loaded_from])

    def stable(self, found: list[Txn]) -> int:
        """The last stable offset of a log with these transactions."""
        start, replicated = self.log.log_start_offset, self.high_watermark
        unstable = [max(txn.first, start) for txn in found if txn.marker is None or txn.marker >= replicated]
        return min([self.high_watermark, *unstable])

    def check_aborted(self, known: list[Txn], left: list[Txn]) -> None:
        """Every read_committed consumer is given what it has to skip, in order."""
        start, stable = self.log.log_start_offset, self.log.last_stable_offset
        for offset in {start, (start + stable) // 2, stable - 1}:
            if not start <= offset < stable:
                continue
            given = [_key(txn) for txn in collect_aborted(self.log.segments, offset, stable)]
            assert given == sorted(given, key=lambda txn: txn[1])
            if not self.loaded_from:
                assert sorted(given) == _aborted(known, offset, stable)
            else:
                markers = [marker for _, _, marker in given]
                assert len(set(markers)) == len(markers)
                assert {marker for _, _, marker in _aborted(left, offset, stable)} <= set(markers)
                assert set(markers) <= {marker for _, _, marker in _aborted(known, offset, stable)}


def _aborted(found: list[Txn], offset: int, upto: int) -> list[tuple[int, int, int]]:
    """Those of which a consumer at `offset` may meet a record below `upto`."""
    return sorted(
        (txn.producer_id, txn.first, txn.marker)
        for txn in found
        if txn.is_aborted and txn.marker is not None and txn.marker >= offset and txn.first < upto
    )


def _key(txn: AbortedTxn) -> tuple[int, int, int]:
    return txn.producer_id, txn.first_offset, txn.last_offset


class Model:
    """Producers, a leader, and a follower."""

    def __init__(self, seed: int) -> None:
        self.leader = Replica(seed)
        self.follower = Replica(seed + 1)
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.sequences = dict.fromkeys(range(PRODUCERS), 0)

    def step(self, name: str, number: int) -> None:
        getattr(self, name)(number)
        self.leader.check()
        self.follower.check()

    # -- the leader appends

    def produce(self, number: int) -> None:
        self._produce(number % PRODUCERS, number, transactional=True)

    def plain(self, number: int) -> None:
        self._produce(PRODUCERS + 1, number, transactional=False)

    def _produce(self, producer_id: int, number: int, *, transactional: bool) -> None:
        count = number % 3 + 1
        rows = [(NOW, b"k", bytes(number % 60), ())] * count
        more = {}
        if transactional:
            more = {
                "producer_id": producer_id,
                "producer_epoch": self.epochs[producer_id],
                "base_sequence": self.sequences[producer_id],
            }
        batch = build_batch(rows, is_transactional=transactional, **more)  # type: ignore[arg-type]
        log = self.leader.log
        guard = None
        if transactional:
            guard = log.start_verification(producer_id, self.sequences[producer_id], self.epochs[producer_id], NOW)
        info = log.append_as_leader(batch, 0, NOW, verification=guard)
        self.leader.entries.append(
            Entry(info.first_offset, info.last_offset + 1, producer_id, None, transactional, bytes(batch))
        )
        if transactional:
            self.sequences[producer_id] += count

    def commit(self, number: int) -> None:
        self._end(number, commits=True)

    def abort(self, number: int) -> None:
        self._end(number, commits=False)

    def _end(self, number: int, *, commits: bool) -> None:
        """By a coordinator of transaction version 2, which raises the epoch, or of an earlier one. It may also end a
        transaction that is not open here."""
        producer_id = number % PRODUCERS
        version = number // PRODUCERS % 3
        if version == 2:
            self.bump(producer_id)
        batch = transaction_marker_batch(
            producer_id=producer_id,
            producer_epoch=self.epochs[producer_id],
            commit=commits,
            coordinator_epoch=0,
            timestamp_ms=NOW,
        )
        log = self.leader.log
        with suppress(ApiError):
            info = log.append_as_leader(batch, 0, NOW, AppendOrigin.COORDINATOR, transaction_version=version)
            self.leader.entries.append(
                Entry(info.first_offset, info.last_offset + 1, producer_id, commits, True, bytes(batch))
            )

    def bump(self, number: int) -> None:
        """A producer begins anew in a higher epoch; its transaction stays open until its coordinator ends it."""
        producer_id = number % PRODUCERS
        self.epochs[producer_id] += 1
        self.sequences[producer_id] = 0

    # -- replication

    def replicate(self, number: int) -> None:
        follower = self.follower
        missing = [entry for entry in self.leader.entries if entry.base >= follower.end][: number % 5 + 1]
        if missing:
            follower.log.append_as_follower(b"".join(entry.data for entry in missing), 0, NOW)
            follower.entries += missing
        follower.advance(self.leader.high_watermark)

    def advance(self, number: int) -> None:
        """As soon as the follower has it; it learns of the high watermark with its next fetch."""
        self.leader.advance(min(self.follower.end, self.leader.high_watermark + number % 6))

    # -- what happens to logs

    def cut(self, number: int) -> None:
        """The follower becomes the leader of a log that lacks some of the old leader's batches."""
        replica = self.leader if number % 2 else self.follower
        floor = self.leader.high_watermark
        above = [entry.base for entry in replica.entries if entry.base >= floor]
        if above and replica is self.follower:
            replica.cut(above[number // 2 % len(above)])
        elif above:
            offset = max(above[number // 2 % len(above)], self.follower.end)
            replica.cut(offset)
            self._follow_the_log()

    def reopen(self, number: int) -> None:
        (self.leader if number % 2 else self.follower).reopen(clean=True)

    def crash(self, number: int) -> None:
        replica = self.leader if number % 2 else self.follower
        replica.reopen(clean=False)
        if replica is self.leader:
            self.follower.cut(replica.end)
            self._follow_the_log()

    def start(self, number: int) -> None:
        """DeleteRecords, up to a batch below the high watermark."""
        for replica in (self.leader, self.follower):
            replica.start = max(replica.start, min(number % 50, replica.high_watermark))
            replica.log.advance_log_start_offset(replica.start)

    def _follow_the_log(self) -> None:
        """Producers learn what of their batches has been lost: they go on in a new epoch."""
        for producer_id in self.epochs:
            self.bump(producer_id)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1000), OPS)
def test_a_log_says_which_records_are_decided(seed: int, ops: list[tuple[str, int]]) -> None:
    model = Model(seed)
    for name, number in ops:
        model.step(name, number)


@pytest.mark.parametrize("seed", range(25))
def test_long_runs(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(seed)
    for _ in range(200):
        model.step(rng.choice(NAMES), rng.randrange(10_000))
