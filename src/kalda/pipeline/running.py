"""One streaming query from its start to its end, with its progress.

Ctrl-C and SIGTERM stop the query between two batches; the checkpoint has where it stopped.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kalda.base.ids import TopicPartition
from kalda.pipeline.session import PipelineError, first_line

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2
_RATE_BATCHES: Final = 5


@dataclass(slots=True)
class QueryProgress:
    """What a query has done since its start."""

    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    """Over the last batches."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets after the last batch."""
    latest: dict[TopicPartition, int] = field(default_factory=dict)
    """The ends of the logs when the last batch was planned; empty where the source does not report them."""
    stopped_by: int | None = None
    """The signal that ended the query; None where it has ended by itself."""
    _last: int = -1
    """The number of the last batch that was counted."""
    _recent: list[tuple[int, float]] = field(default_factory=list)

    @property
    def lag(self) -> int:
        """Records of the topics that the query has not read; 0 where the ends are not known."""
        return sum(max(0, end - self.ends.get(partition, 0)) for partition, end in self.latest.items())

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
        self._recent.append((rows, float(report.get("batchDuration") or 0) / 1000))
        self._recent = self._recent[-_RATE_BATCHES:]
        took = sum(seconds for _, seconds in self._recent)
        self.rows_per_second = sum(count for count, _ in self._recent) / took if took else 0.0
        self._take_offsets(report)

    def _take_offsets(self, report: Mapping[str, Any]) -> None:
        from kalda.pipeline.checkpoints import offsets_of

        for source in report.get("sources", ()):
            self.ends.update(offsets_of(source.get("endOffset")))
            self.latest.update(offsets_of(source.get("latestOffset")))


def run(
    query: StreamingQuery,
    on_progress: Callable[[QueryProgress], None] = lambda _: None,
    is_done: Callable[[QueryProgress], bool] = lambda _: False,
    progress: QueryProgress | None = None,
) -> QueryProgress:
    """Wait for the query's end; `is_done` may end it sooner. `progress` is that of a query before, which this one
    continues. Raises `PipelineError` where it fails."""
    progress = QueryProgress() if progress is None else progress
    began = time.monotonic() - progress.seconds
    with stop_signals() as stopped:
        while True:
            ended = _await(query)
            for report in query.recentProgress:
                progress.add(as_dict(report))
            progress.seconds = time.monotonic() - began
            on_progress(progress)
            if ended:
                progress.stopped_by = stopped.signal
                return progress
            if stopped.is_set() or is_done(progress):
                query.stop()


def _await(query: StreamingQuery) -> bool:
    try:
        return bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]
    except Exception as error:
        raise PipelineError(f"the query has failed: {first_line(error)}") from error


def as_dict(report: Any) -> Mapping[str, Any]:
    import json

    found: Mapping[str, Any] = report if isinstance(report, dict) else json.loads(report.json)
    return found


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
