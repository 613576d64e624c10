"""One streaming query from its start to its end, with its progress.

Ctrl-C and SIGTERM stop the query between two batches; the checkpoint has where it stopped.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from kalda.base.ids import TopicPartition

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
        from kalda.pipeline.engine.checkpoints import offsets_of

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
        from kalda.pipeline.engine.checkpoints import offsets_of

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
