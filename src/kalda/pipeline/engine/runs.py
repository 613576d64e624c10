"""A run of a project: the state of its flows, in a file that `status` reads without Spark, and whether a flow that has
failed starts again, and when.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from random import random
from typing import Any, Final

from kalda.clientcore.connections.errors import Backoff
from kalda.pipeline.engine.query import moment_ms
from kalda.pipeline.files import Place, read_state, replace_text
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError, Unavailable, first_line

log = logging.getLogger(__name__)
_EVERY_S: Final = 1.0
_CHANGES: Final = 50
"""How many of the last changes of tables' columns are kept."""
_ENDS: Final = 10_000
_INTERVAL: Final = re.compile(r"\s*(\d+)\s*(ms|millisecond|second|minute|hour|day)s?\s*", re.IGNORECASE)
_UNITS_S: Final = {"ms": 0.001, "millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def interval_s(text: str, key: str) -> float:
    """Seconds of a text such as `5 seconds`. Raises `PipelineError`."""
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise PipelineError(f"{key} is {text!r}; an interval such as '5 seconds' is expected")
    return int(found[1]) * _UNITS_S[found[2].lower()]


class FlowState(StrEnum):
    """Of a flow in a run."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTARTING = "restarting"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        return self in (FlowState.DONE, FlowState.FAILED, FlowState.SKIPPED, FlowState.STOPPED)


@dataclass(slots=True)
class FlowReport:
    """One flow in a run. Times in milliseconds since 1970."""

    flow: str
    target: str
    kind: str
    state: FlowState = FlowState.WAITING
    rows: int = 0
    batches: int = 0
    last_batch_ms: int = 0
    seconds: float = 0.0
    """Of the last batch."""
    durations_ms: dict[str, int] = field(default_factory=dict)
    """Of the last batch, by Spark's phases: latestOffset, addBatch, walCommit and so on."""
    rows_per_second: float = 0.0
    """Of the last batch."""
    lag: int | None = None
    """Records of topics that were not read when the last batch was planned; None before its report."""
    lag_seconds: float = 0.0
    """For how long, at least, the oldest of them had been there."""
    state_rows: int = 0
    state_bytes: int = 0
    """Of stateful operators."""
    watermark_ms: int = 0
    """0: the flow has none."""
    restarts: int = 0
    error: str | None = None
    failing: dict[str, int] = field(default_factory=dict)
    """By expectation: rows of this run where it does not hold."""

    def take(self, progress: Mapping[str, Any]) -> None:
        """Take figures from Spark's last report of the query."""
        if progress.get("numInputRows"):
            self.durations_ms = {phase: int(ms) for phase, ms in (progress.get("durationMs") or {}).items()}
            self.rows_per_second = round(float(progress.get("processedRowsPerSecond") or 0), 1)
        operators = progress.get("stateOperators") or ()
        self.state_rows = sum(int(each.get("numRowsTotal") or 0) for each in operators)
        self.state_bytes = sum(int(each.get("memoryUsedBytes") or 0) for each in operators)
        self.watermark_ms = moment_ms((progress.get("eventTime") or {}).get("watermark"))


@dataclass(slots=True)
class TableUpkeep:
    """What was done for a table, over all runs. Times in milliseconds since 1970."""

    merged_version: int = -1
    """The table's after the last merge of small files; -1 where there was none."""
    merged_ms: int = 0
    merges: int = 0
    files_merged: int = 0
    """Small files that were put into larger ones."""
    vacuumed_ms: int = 0
    """When files were last removed, or when the upkeep has begun."""
    vacuums: int = 0
    rows_deleted: int = 0
    """By the table's retention."""
    error: str | None = None
    """Of the last try."""


class RunReport:
    """The file `run.json` of a project, written once a second while something changes."""

    def __init__(self, specification: Specification, mode: str, now: Callable[[], float] = time.time) -> None:
        self._path = run_file(specification)
        self._now = now
        self._written = ""
        self._written_s = 0.0
        self._failures = 0
        self.flows: dict[str, FlowReport] = {}
        self.project = specification.name
        self.configuration = specification.configuration
        before = read_run(specification) or {}
        self.changes: list[dict[str, Any]] = list(before.get("changes", ()))
        """Of tables' columns, by this run and those before."""
        self.upkeep = upkeep_of(before)
        self._head = {"project": specification.name, "mode": mode, "pid": os.getpid(), "started_ms": int(now() * 1000)}

    def add_change(self, table: str, change: str) -> None:
        self.changes = [*self.changes, {"table": table, "change": change, "ms": int(self._now() * 1000)}][-_CHANGES:]

    def save(self, *, at_once: bool = False) -> None:
        if not at_once and self._now() - self._written_s < _EVERY_S:
            return
        flows = [asdict(each) for each in self.flows.values()]
        kept = {name: asdict(each) for name, each in sorted(dict(self.upkeep).items())}
        text = json.dumps({**self._head, "flows": flows, "changes": self.changes, "upkeep": kept}, indent=1)
        if text == self._written:
            return
        self._written_s = self._now()
        try:
            replace_text(self._path, text)
        except (Unavailable, OSError) as error:  # the flows go on, and the file is written a second later
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:
                log.warning("the status is not written, %d times now: %s", self._failures, error)
        else:
            self._written, self._failures = text, 0


def upkeep_of(run: Mapping[str, Any]) -> dict[str, TableUpkeep]:
    """By table, from the file of a run."""
    names = {each.name for each in fields(TableUpkeep)}
    found = run.get("upkeep", {})
    return {table: TableUpkeep(**{k: v for k, v in each.items() if k in names}) for table, each in found.items()}


def run_file(specification: Specification) -> Place:
    return specification.state / "run.json"


def read_run(specification: Specification) -> Mapping[str, Any] | None:
    """The report of the last run; None where there was none. Raises `PipelineError` for a damaged file."""
    return read_state(run_file(specification), {"project": str, "flows": list, "changes": list, "started_ms": int})


class LagClock:
    """How long records of a flow have waited, from its reports alone: each has how many records were read, and how many
    there were when the batch was planned."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=_ENDS)
        """When the topics had how many records, oldest first."""

    def seconds(self, planned_s: float, read: int, available: int) -> float:
        """The time since the first report in which there was more than is read by now."""
        if not self._ends or available > self._ends[-1][1]:
            self._ends.append((planned_s, available))
        while self._ends and self._ends[0][1] <= read:
            self._ends.popleft()
        return max(0.0, planned_s - self._ends[0][0]) if self._ends and available > read else 0.0


# -- restarts

_ATTEMPTS: Final = "kalda.restart.attempts"
_ATTEMPTS_ONCE: Final = 5
_PAUSE: Final = "kalda.restart.backoff.ms"
_LONGEST_PAUSE: Final = "kalda.restart.backoff.max.ms"
_PERMANENT: Final = (
    "AnalysisException", "ParseException", "StreamDataLoss", "OptionError", "PipelineError", "ExpectationFailed",
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE",
)  # fmt: skip
"""In the text of a failure: it would be the same at the next start."""


def is_permanent(error: BaseException) -> bool:
    """Whether what has failed would fail in the same way at the next start."""
    return isinstance(error, PipelineError) or any(each in f"{type(error).__name__} {error}" for each in _PERMANENT)


@dataclass(slots=True)
class Restarts:
    """When a flow that has failed starts again: after pauses that grow, until a batch has ended."""

    backoff: Backoff
    attempts: int | None = None
    """How many starts in a row may fail; None: any number."""
    _failures: int = 0
    _batches: int = -1

    @classmethod
    def of(cls, number: Callable[[str, int], int], *, follow: bool) -> Restarts:
        """As a flow is configured: `number(key, default)` is a setting of it. `follow`: whether the run has no end."""
        pauses = Backoff(number(_PAUSE, 1_000), number(_LONGEST_PAUSE, 60_000), random)
        return cls(pauses, number(_ATTEMPTS, 0 if follow else _ATTEMPTS_ONCE) or None)

    def pause_s(self, error: BaseException, batches: int) -> float | None:
        """After a failure, with so many batches done since the run began. None: the flow does not start again."""
        if is_permanent(error):
            return None
        if batches > self._batches:
            self._failures = 0
        self._batches = batches
        self._failures += 1
        if self.attempts is not None and self._failures >= self.attempts:
            return None
        return self.backoff.pause_ms(self._failures) / 1000

    def failed(self, error: BaseException, report: FlowReport) -> float | None:
        """Note a failure in the report. Returns after how many seconds the flow starts again; None: it does not."""
        report.error = first_line(error)
        pause_s = self.pause_s(error, report.batches)
        report.state = FlowState.FAILED if pause_s is None else FlowState.RESTARTING
        report.restarts += pause_s is not None
        return pause_s
