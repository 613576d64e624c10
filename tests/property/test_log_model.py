"""The log against a list: after any operations it holds a prefix of what was appended, and all that was synced."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalda.base.disk import Disk
from kalda.base.ids import TopicPartition
from kalda.base.sensors import Counter
from kalda.records.batch import iter_batches, read_header
from kalda.records.builder import build_batch
from kalda.sim.disk import SimDisk, SimFile
from kalda.storage.config import LogConfig
from kalda.storage.log import deletion, loader
from kalda.storage.log.deletion import delete_old_segments, truncate_fully_and_start_at, truncate_to
from kalda.storage.log.loader import Loading, Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import ColdRead
from kalda.storage.log.state import Unsynced
from kalda.storage.values import AppendInfo

TP = TopicPartition("events", 3)
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150, retention_ms=-1, file_delete_delay_ms=0)


@dataclass
class Op:
    name: str
    number: int


NAMES = ["append"] * 4 + ["idempotent", "flush", "flush_some", "crash", "reopen", "truncate", "lead", "read", "start"]
NAMES += ["retain", "restart_at"]
OPS = st.lists(
    st.builds(
        Op,
        st.sampled_from(NAMES),
        st.integers(0, 10_000),
    ),
    max_size=40,
)


class Model:
    """The log under test beside a list of its batches' bytes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.conversions = Counter()
        self.disk = SimDisk(random.Random(seed + 1))
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.batches: list[tuple[int, int, bytes]] = []  # base offset, next offset, bytes
        self.recovery_point = 0  # in the checkpoint
        self.log_start = 0
        self.epoch = 0
        self.sequence = 0
        self.log = self.open(clean=False)

    def open(self, clean: bool) -> Log:
        return Log.open(
            Unopened(
                self.disk,
                "/data/events-3",
                CONFIG,
                topic_partition=TP,
                topic_id=bytes(15) + b"\x07",  # type: ignore[arg-type]
                now_ms=1_000_000,
                clean=clean,
                recovery_point=self.recovery_point,
                log_start_offset=self.log_start,
            ),
            hooks=self,
        )

    # hooks

    def on_io_error(self, log: Log, error: OSError) -> None:
        raise AssertionError(error)

    def on_rolled(self, log: Log) -> None:
        pass

    def on_recovery_point_lowered(self, log: Log) -> None:
        self.recovery_point = min(self.recovery_point, log.checkpoint_recovery_point)

    def on_log_start_lowered(self, log: Log) -> None:
        pass

    def delete_later(self, log: Log, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        remove(self.disk)

    # steps

    def step(self, op: Op) -> None:
        getattr(self, op.name)(op.number)

    def append(self, number: int, producer: bool = False) -> None:
        count = number % 7 + 1
        rows = [(1_000_000 + number + i, b"k", bytes(number % 90), ()) for i in range(count)]
        if producer:
            batch = build_batch(rows, producer_id=9, producer_epoch=0, base_sequence=self.sequence)
            self.sequence += count
        else:
            batch = build_batch(rows)
        info: AppendInfo = self.log.append_as_leader(batch, self.epoch, 1_000_000)
        assert info.last_offset - info.first_offset + 1 == count
        self.batches.append((info.first_offset, info.last_offset + 1, bytes(batch)))
        self.log.update_high_watermark(self.log.log_end_offset)

    def idempotent(self, number: int) -> None:
        self.append(number, producer=True)

    def lead(self, number: int) -> None:
        self.epoch += number % 2

    def flush(self, number: int) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.log.log_end_offset
        self.recovery_point = self.log.checkpoint_recovery_point

    def flush_some(self, number: int) -> None:
        job = self.log.flush_job(number % (self.log.log_end_offset + 1))
        if number % 2:
            self.append(number)
        job.complete()
        self.recovery_point = self.log.checkpoint_recovery_point

    def crash(self, number: int) -> None:
        synced = self.log.recovery_point
        self.disk.crash()
        self.recovery_point = min(self.recovery_point, number) if number % 3 == 0 else self.recovery_point
        self.log = self.open(clean=False)
        assert synced <= self.log.log_end_offset
        self.keep_below(self.log.log_end_offset)
        self.log.update_high_watermark(self.log.log_end_offset)

    def reopen(self, number: int) -> None:
        end = self.log.log_end_offset
        self.log.close()
        self.recovery_point = end
        self.log = self.open(clean=True)
        assert self.log.log_end_offset == end or not self.batches
        assert self.log.recovery_point == self.log.log_end_offset
        self.log.update_high_watermark(self.log.log_end_offset)

    def truncate(self, number: int) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + number % (end - start + 1)
        bases = [base for base, after, _ in self.batches if base <= offset < after]
        truncate_to(self.log, bases[0] if bases else offset)
        self.log_start = self.log.log_start_offset
        self.keep_below(self.log.log_end_offset)

    def restart_at(self, number: int) -> None:
        if number % 10:
            return
        truncate_fully_and_start_at(self.log, self.log.log_end_offset + number)
        self.batches.clear()
        self.log_start = self.log.log_start_offset
        self.log.update_high_watermark(self.log.log_end_offset)

    def start(self, number: int) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.advance_log_start_offset(start + number % (end - start + 1))
        self.log_start = self.log.log_start_offset

    def retain(self, number: int) -> None:
        delete_old_segments(self.log, 1_000_000)

    def read(self, number: int) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + number % (end - start + 1)
        max_bytes = number % 700
        hot = self.log.read_nowait(offset, max_bytes, end, True)
        cold = self.log.read_later(offset, max_bytes, end, True)
        info = cold.complete()
        assert isinstance(hot, ColdRead) or bytes(hot.records) == bytes(info.records)
        expected = [data for _, after, data in self.batches if after > offset]
        assert bytes(b"".join(expected)).startswith(bytes(info.records))
        assert info.size_bytes > 0 or not expected
        assert info.size_bytes <= max(max_bytes, len(expected[0]) if expected else 0)

    def keep_below(self, offset: int) -> None:
        self.batches = [entry for entry in self.batches if entry[1] <= offset]
        idempotent = [read_header(data) for _, _, data in self.batches]
        last = [header.last_sequence for header in idempotent if header.producer_id == 9]
        state = self.log.producer_states.get(9)
        if last and state is not None:
            assert state.last_sequence == last[-1]
        self.sequence = last[-1] + 1 if last else 0

    # invariants

    def check(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        assert log.recovery_point <= log.log_end_offset
        found = b""
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            info = log.read(offset, 400, log.log_end_offset, True)
            if not info.size_bytes:
                break
            for _, header in iter_batches(info.records):
                assert header.next_offset > offset
            found += bytes(info.records)
            offset = info.next_offset
        assert found == b"".join(data for _, after, data in self.batches if after > log.log_start_offset)
        epochs = log.leader_epochs.entries
        assert epochs == sorted(epochs)
        bases = [segment.base_offset for segment in log.segments]
        assert bases == sorted(set(bases))
        for segment, upto in zip(log.segments, [*bases[1:], log.log_end_offset], strict=True):
            inside = [data for base, _, data in self.batches if segment.base_offset <= base < upto]
            newest = max((read_header(data).max_timestamp for data in inside), default=-1)
            assert segment.max_timestamp[0] == newest


@settings(max_examples=150, deadline=None)
@given(OPS, st.integers(0, 1 << 30))
def test_the_log_is_a_list(ops: list[Op], seed: int) -> None:
    model = Model(seed)
    for op in ops:
        model.step(op)
        model.check()


def run_seed(seed: int) -> None:
    rng = random.Random(seed)
    ops = [Op(rng.choice(NAMES), rng.randrange(10_000)) for _ in range(60)]
    model = Model(seed)
    for op in ops:
        model.step(op)
        model.check()


def run_seeds(seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        run_seed(seed)


SEEDS = (0, 3, 4, 8, 20, 50, 54, 114, 196)


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_that_once_failed(seed: int) -> None:
    run_seed(seed)


ABLATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "segments must meet": lambda patch: patch.setattr(Loading, "_lacks_end", lambda *_: False),
    "recovery is synced": lambda patch: patch.setattr(Loading, "_sync", lambda *_: None),
    "names are synced": lambda patch: patch.setattr(Unsynced, "_sync_dirs", lambda _: None),
    "files are synced": lambda patch: patch.setattr(SimFile, "sync", lambda _: None),
    "batches are checked": lambda patch: patch.setattr(loader, "check_crc", lambda *_: None),
    "the recovery point is lowered": lambda patch: patch.setattr(deletion, "lower_recovery_point", lambda *_: None),
}


@pytest.mark.parametrize("safeguard", ABLATIONS)
def test_without_a_safeguard_the_model_notices(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ABLATIONS[safeguard](monkeypatch)
    with pytest.raises((AssertionError, OSError)):
        run_seeds(SEEDS)
