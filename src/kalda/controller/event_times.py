"""How long the events of the active controller take.

All events run one after the other, on one thread. So one slow event delays every request behind it: it is logged when
it happens, and a periodic message names the slowest one of the last period.
"""

from __future__ import annotations

import logging

from kalda.base.durations import Durations

log = logging.getLogger(__name__)


class EventTimes:
    """The events since the last periodic message."""

    def __init__(self, period_ms: int, always_log_threshold_ms: int) -> None:
        """`controller.performance.sample.period.ms` and `controller.performance.always.log.threshold.ms`."""
        self._period_ms = period_ms
        self._threshold_ms = always_log_threshold_ms
        self._count = 0
        self._total_ms = 0
        self.started = 0
        """Events that have begun, since the start."""
        self.timed_out = 0
        """Requests whose time was over before they could be handled, since the start."""
        self.durations = Durations()
        """Of all events so far."""
        self.queued = Durations()
        """For how long events that were due at a time have waited for the thread."""
        self._slowest: tuple[str, int] | None = None
        """Name and duration in ms; None before the first event."""

    def observe(self, name: str, duration_ms: int) -> None:
        """An event has ended. It is logged where it took as long as the threshold."""
        self.started += 1
        self._count += 1
        self._total_ms += duration_ms
        self.durations.add_us(duration_ms * 1000)
        if self._slowest is None or self._slowest[1] < duration_ms:
            self._slowest = (name, duration_ms)
        if duration_ms >= self._threshold_ms:
            log.error("Exceptionally slow controller event %s took %d ms.", name, duration_ms)

    def log_period(self) -> None:
        """Log the periodic message, and begin a new period."""
        log.info("%s", self.message())
        self._count = self._total_ms = 0
        self._slowest = None

    def message(self) -> str:
        """The periodic message, in Kafka's words. Durations are measured in whole milliseconds, so the average is exact
        for many events only."""
        begin = f"In the last {self._period_ms} ms period, "
        if self._slowest is None:
            return begin + "there were no controller events completed."
        name, duration_ms = self._slowest
        return (
            f"{begin}{self._count} controller events were completed, which took an average of "
            f"{self._total_ms / self._count:.2f} ms each. The slowest event was {name}, which took "
            f"{duration_ms:.2f} ms."
        )
