"""Measures how late the event loop is, and logs which request was handled before it was late.

A timer is due every `PERIOD_MS`. Where a callback holds the loop, the timer is late, and every client of the node has
waited as long. The pipelines note the request that they are handling; the last one before a late timer is most likely
the one that held the loop: requests that arrive meanwhile are read after the timer. Without a request, it was another
callback.

On virtual time a timer is never late, so the simulator has no false alarms.
"""

from __future__ import annotations

import logging
from typing import Protocol

from kalda.base.clock import Clock
from kalda.base.scheduling import Timer, Timers
from kalda.base.sensors import Sensors
from kalda.broker.context import RequestContext
from kalda.protocol.apis import API

log = logging.getLogger("kalda.watchdog")

PERIOD_MS = 100
LATE_MS = 100
"""The delay from which on it is logged and counted."""
_LOG_EVERY_MS = 1_000
GROUP = "kalda.server:type=EventLoop"


class Handling(Protocol):
    """A request pipeline."""

    handling: RequestContext | None
    """The last request that was passed to it."""


class Watchdog:
    """The delay of one event loop."""

    def __init__(self, timers: Timers, clock: Clock, sensors: Sensors) -> None:
        self._timers = timers
        self._clock = clock
        self._longest = sensors.gauge(GROUP, "MaxDelayMs")
        """The longest delay since the start."""
        self._late = sensors.counter(GROUP, "DelaysOver100Ms")
        self._pipelines: list[Handling] = []
        self._due_ms = 0
        self._timer: Timer | None = None
        """None while it does not run."""
        self._quiet_until_ms = 0
        """Nothing is logged before."""
        self._unlogged = 0
        """Delays since the last line."""

    def watch(self, pipeline: Handling) -> None:
        """Name the requests of this pipeline."""
        self._pipelines.append(pipeline)

    def start(self) -> None:
        """Measure from now on."""
        self._arm()

    def stop(self) -> None:
        """Measure no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due_ms = self._clock.mono_ms() + PERIOD_MS
        self._timer = self._timers.call_later_ms(PERIOD_MS, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self._clock.mono_ms()
        late_ms = now_ms - self._due_ms
        if late_ms > self._longest.value:
            self._longest.value = late_ms
        if late_ms > LATE_MS:
            self._late.value += 1
            self._report(late_ms, now_ms)
        for pipeline in self._pipelines:
            pipeline.handling = None  # it holds the memory of its frame
        self._arm()

    def _report(self, late_ms: int, now_ms: int) -> None:
        if now_ms < self._quiet_until_ms:
            self._unlogged += 1
            return
        self._quiet_until_ms = now_ms + _LOG_EVERY_MS
        requests = [pipeline.handling for pipeline in self._pipelines if pipeline.handling is not None]
        log.warning(
            "the event loop was late by %d ms: no client was served meanwhile. Handled before: %s%s",
            late_ms,
            "; ".join(map(_described, requests)) or "no request, so another callback",
            f" ({self._unlogged} more delays since the last such line)" if self._unlogged else "",
        )
        self._unlogged = 0


def _described(context: RequestContext) -> str:
    header = context.header
    return (
        f"{API[header.api_key].name} v{header.api_version} of {len(context.frame)} bytes from client"
        f" {context.client_id!r} at {context.connection}"
    )
