"""One streaming query from its start to its end: its progress, and its checkpoint.

Ctrl-C and SIGTERM stop the query between two batches; the checkpoint has where it stopped: the offsets of its batches,
and which are committed. It is read without Spark.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from kalda.base.ids import TopicPartition
from kalda.pipeline.files import Place, times_in

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2


@dataclass(slots=True)
class QueryProgress:
    """What a query has done since its start."""

    rows: int = 0
    batches: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets after the last batch."""
    latest: dict[TopicPartition, int] = field(default_factory=dict)
    """The ends of the logs when the last batch was planned; empty where the source does not report them."""
    planned_s: float = 0.0
    """When the last batch was planned, in seconds since 1970; 0 where there was none."""
    _last: int = -1
    """The number of the last batch that was counted."""
    last: Mapping[str, Any] = field(default_factory=dict)
    """The last report."""

    @property
    def lag(self) -> int | None:
        """Records of the topics that the query has not read; None where the ends are not known."""
        if not self.latest:
            return None
        return sum(max(0, end - self.ends.get(partition, 0)) for partition, end in self.latest.items())

    def records_up_to(self, offsets: Sequence[Any]) -> int | None:
        """How many records of topics there are between the last report and these offsets, one for each source. None
        where that is not known: before the first report, and with sources that are no topics."""

        ends = [offsets_of(each) for each in offsets]
        if not self.ends or not all(ends):
            return None
        return sum(end - self.ends.get(partition, 0) for each in ends for partition, end in each.items())

    @property
    def available(self) -> int:
        """The sum of the ends of the logs."""
        return sum(self.latest.values())

    @property
    def read(self) -> int:
        """How much of it the query has read."""
        return sum(min(end, self.ends.get(partition, 0)) for partition, end in self.latest.items())

    def follow(self, query: StreamingQuery) -> bool:
        """Count the reports that are new. Returns whether there were any. Spark keeps the last 100, and makes JSON of
        each that is asked for: so the latest first, up to the one that is known."""
        reports = cast(Any, query)._jsq.recentProgress()
        new: list[Mapping[str, Any]] = []
        for at in reversed(range(len(reports))):
            report = json.loads(reports[at].json())
            if report == self.last:
                break
            new.append(report)
        for report in reversed(new):
            self.add(report)
        self.last = new[0] if new else self.last
        return bool(new)

    def add(self, report: Mapping[str, Any]) -> None:
        """Count a report of Spark's; a report of a batch that was counted changes nothing."""
        number = int(report.get("batchId", -1))
        rows = sum(int(each.get("numInputRows") or 0) for each in report.get("sources", ()))
        if number <= self._last:
            return
        if not rows:
            self._take_offsets(report)
            return
        self._last = number
        self.rows += rows
        self.batches += 1
        self._take_offsets(report)

    def _take_offsets(self, report: Mapping[str, Any]) -> None:

        self.planned_s = moment_ms(report.get("timestamp")) / 1000
        for source in report.get("sources", ()):
            self.ends.update(offsets_of(source.get("endOffset")))
            self.latest.update(offsets_of(source.get("latestOffset")))


def moment_ms(text: object) -> int:
    """A time of a report, in milliseconds since 1970; 0 where it is none."""
    try:
        return max(0, int(datetime.fromisoformat(str(text)).timestamp() * 1000))
    except ValueError:
        return 0


class StopEvent(threading.Event):
    """Set by a signal, whose number it has."""

    signal: int | None = None

    def set_by(self, number: int, _: object) -> None:
        self.signal = number
        self.set()


@contextmanager
def stop_signals() -> Iterator[StopEvent]:
    """An event that Ctrl-C and SIGTERM set, while the block runs; only in the main thread."""
    stopped = StopEvent()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {each: signal.signal(each, stopped.set_by) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# -- checkpoints

_READS: Final = 16
"""How many files are read at once."""
_END_OF_TIMES_MS: Final = 253_402_300_800_000
"""The year 10000."""


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """One batch: when it was planned, and where each of the query's sources ends in it."""

    number: int
    planned_ms: int
    committed_ms: int | None
    """By the file's time; None where the batch has not ended."""
    ends: tuple[Mapping[TopicPartition, int], ...]
    """For each source, the offsets after its last records; empty for a source that is no topic."""


class Checkpoint:
    """A checkpoint's directory, which a running query may be writing. In a store, all methods raise `Unavailable`."""

    def __init__(self, path: Place) -> None:
        self.path = path

    @property
    def query_id(self) -> str | None:
        try:
            found: str = json.loads((self.path / "metadata").read_text(encoding="utf-8"))["id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found

    def batches(self, last: int = 20) -> list[CheckpointBatch]:
        """The last batches, oldest first."""
        written = times_in(self.path / "commits")
        with ThreadPoolExecutor(_READS) as threads:  # a store answers many questions as fast as one
            found = threads.map(lambda number: self._batch(number, written), self._numbers("offsets")[-last:])
            return [batch for batch in found if batch is not None]

    def committed(self) -> dict[TopicPartition, int]:
        """Up to which offset each partition has been processed."""
        numbers = self._numbers("commits")
        batch = self._batch(numbers[-1], {}) if numbers else None
        found: dict[TopicPartition, int] = {}
        for ends in batch.ends if batch is not None else ():
            found.update(ends)
        return found

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(name) for name in times_in(self.path / folder) if _is_number(name))

    def _batch(self, number: int, written: Mapping[str, float]) -> CheckpointBatch | None:
        file = self.path / "offsets" / str(number)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return None
        # v1, or v2 and the names of sources, then the metadata, then a line a source
        parsed = [_json(line) for line in lines[1:]]
        described = next((each for each in parsed if isinstance(each, dict) and "batchTimestampMs" in each), {})
        ends = tuple(
            _offsets(each) for each in parsed if each is not described and (isinstance(each, dict) or each is None)
        )
        committed = int(written[str(number)] * 1000) if str(number) in written else None
        return CheckpointBatch(number, milliseconds(described.get("batchTimestampMs")), committed, ends)


def _is_number(text: str) -> bool:
    """Of a batch or a partition."""
    return text.isascii() and text.isdecimal() and len(text) < 19


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def milliseconds(value: object) -> int:
    """A time of a batch; 0 where it is none that a calendar has."""
    return value if isinstance(value, int) and 0 <= value < _END_OF_TIMES_MS else 0


def _offsets(line: Any) -> dict[TopicPartition, int]:
    """Kafka's own form: {"topic": {"0": 12}}."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in line.items() if isinstance(line, dict) else ():
        for number, offset in partitions.items() if isinstance(partitions, dict) else ():
            if _is_number(number) and isinstance(offset, int):
                found[TopicPartition(topic, int(number))] = offset
    return found


def offsets_of(text: object) -> dict[TopicPartition, int]:
    """The offsets in a report of a query's progress, which has them as JSON."""
    return _offsets(_json(text) if isinstance(text, str) else text)
