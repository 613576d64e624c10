"""Measures how late the event loop is, and logs what holds it.

The loop reports a turn every `TURN_MS` (`shell.py`). Where a callback holds it, the turn is late, and every client of
the node has waited as long. The pipelines note the request that they are handling; the last one before a late turn is
most likely the one that held the loop: requests that arrive meanwhile are read after the turn. Where a step of the
background took long, it is named as well. Without either, it was another callback.

A loop that is held for long logs nothing itself. So a thread watches it: after `_HELD_MS` without a turn it logs the
request, and the stack of the loop's thread. It logs again when the loop has been held for twice as long, and at last
every minute. Code in C that does not release the interpreter's lock, such as a regular expression, holds that thread
too. In a process that is the node's alone, Python's `faulthandler` writes the stacks of all threads to the standard
error then: once, after `_LOCKED_S`.

A process that was stopped by a signal is not held: the thread stood still as well. On virtual time there is no thread,
and a turn is late only where the process was paused.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import sys
import threading
import traceback
from typing import Protocol

from kalda.base.background import Background, name_of
from kalda.base.scheduling import LoopClock
from kalda.base.sensors import Sensors
from kalda.broker.requests.context import RequestContext

log = logging.getLogger("kalda.watchdog")

LATE_MS = 100
"""The delay from which on it is logged and counted."""
_LONG_STEP_MS = 20
"""A step that takes so long may be what made a turn late."""
_LOG_EVERY_MS = 1_000
_CHECK_S = 0.5
_HELD_MS = 1_000
_LONGEST_SILENCE_MS = 60_000
_LOCKED_S = 5
_FRAMES = 25
"""So many of a stack are logged, the innermost ones."""
GROUP = "kalda.server:type=EventLoop"


class Handling(Protocol):
    """A request pipeline."""

    handling: RequestContext | None
    """The last request that was passed to it."""


class Watchdog:
    """The delay of one event loop."""

    def __init__(self, clock: LoopClock, sensors: Sensors) -> None:
        self._clock = clock
        self._longest = sensors.gauge(GROUP, "MaxDelayMs")
        """The longest delay since the start."""
        self._late = sensors.counter(GROUP, "DelaysOver100Ms")
        self._pipelines: list[Handling] = []
        self._background: Background | None = None
        self._quiet_until_ms = 0
        """Nothing is logged before, for a turn that is late."""
        self._unlogged = 0
        """Delays since the last line."""
        self._turned_ms = clock.machine_ms()
        """When the loop has turned last."""
        self._checked_ms = self._turned_ms
        """When the thread has run last."""
        self._logs_from_ms = _HELD_MS
        """The thread logs a loop that is held for so long."""
        self._loop_thread = 0
        self._thread: threading.Thread | None = None
        """None while no thread watches."""
        self._stopped = threading.Event()

    def watch(self, pipeline: Handling) -> None:
        """Name the requests of this pipeline."""
        self._pipelines.append(pipeline)

    def watch_background(self, background: Background) -> None:
        """Name whose steps take long."""
        self._background = background

    def start(self, *, owns_process: bool) -> None:
        """Watch the loop that this is called on from a thread. `owns_process`: no other node is in this process, and
        nothing else of it uses `faulthandler`."""
        self._loop_thread = threading.get_ident()
        self._turned_ms = self._checked_ms = self._clock.machine_ms()
        thread = threading.Thread(target=self._run, args=(owns_process,), name="kalda-watchdog", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # On the loop

    def on_turn(self, late_ms: int) -> None:
        """The loop turns, so much later than it should."""
        now_ms = self._turned_ms = self._clock.machine_ms()
        self._logs_from_ms = _HELD_MS
        if late_ms > self._longest.value:
            self._longest.value = late_ms
        if late_ms > LATE_MS:
            self._late.value += 1
            self._report(late_ms, now_ms)
        for pipeline in self._pipelines:
            pipeline.handling = None  # it holds the memory of its frame
        if self._background is not None:
            self._background.longest = (0, "")

    def _report(self, late_ms: int, now_ms: int) -> None:
        if now_ms < self._quiet_until_ms:
            self._unlogged += 1
            return
        self._quiet_until_ms = now_ms + _LOG_EVERY_MS
        log.warning(
            "the event loop was late by %d ms: no client was served meanwhile. Handled before: %s%s",
            late_ms,
            self._handled(self._longest_step()) or "no request, so another callback",
            f" ({self._unlogged} more delays since the last such line)" if self._unlogged else "",
        )
        self._unlogged = 0

    def _handled(self, step: str) -> str:
        handled = [str(pipeline.handling) for pipeline in self._pipelines if pipeline.handling is not None]
        return "; ".join([*handled, step] if step else handled)

    def _longest_step(self) -> str:
        took_ns, name = (0, "") if self._background is None else self._background.longest
        took_ms = took_ns // 1_000_000
        return f"a step of {took_ms} ms of {name}" if took_ms >= _LONG_STEP_MS else ""

    def _running_step(self) -> str:
        owner = None if self._background is None else self._background.running
        return "" if owner is None else f"a step of {name_of(owner)}, which is under way"

    # On the thread

    def _run(self, owns_process: bool) -> None:
        while not self._stopped.wait(_CHECK_S):
            if owns_process and sys.__stderr__ is not None:
                with contextlib.suppress(RuntimeError):  # each call starts a thread, for which there may be no room
                    faulthandler.dump_traceback_later(_LOCKED_S, file=sys.__stderr__)
            self.check()
        if owns_process:
            faulthandler.cancel_dump_traceback_later()

    def check(self) -> None:
        """Log what holds the loop, where it is held."""
        now_ms = self._clock.machine_ms()
        since_check_ms, self._checked_ms = now_ms - self._checked_ms, now_ms
        held_ms = now_ms - self._turned_ms
        if held_ms < self._logs_from_ms or since_check_ms > 2_000 * _CHECK_S:
            return
        self._logs_from_ms = held_ms + min(held_ms, _LONGEST_SILENCE_MS)
        log.warning(
            "the event loop has been held for %d ms, and no client is served meanwhile. Handled before: %s. The loop is"
            " at:\n%s",
            held_ms,
            self._handled(self._running_step()) or "no request",
            self._stack(),
        )

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return "  (its thread has ended)"
        return "".join(traceback.format_list(traceback.extract_stack(frame)[-_FRAMES:])).rstrip()
