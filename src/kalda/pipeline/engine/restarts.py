"""Whether a flow that has failed starts again, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import random
from typing import Final

from kalda.clientcore.connections.backoff import Backoff
from kalda.pipeline.engine.runs import FlowReport, FlowState
from kalda.pipeline.session import PipelineError, first_line

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
