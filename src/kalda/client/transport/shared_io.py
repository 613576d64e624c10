"""The I/O of a blocking producer or consumer: turns that a thread of the application runs while it waits, else the
client's own thread.

The thread that waits, for a record or in `poll`, runs the turns itself where no other thread does, so that its round
trips need no other thread: one in the background would have to take turns with it for the interpreter's lock, several
times for each response. The client's thread pauses meanwhile, and for `grace_s` behind each such wait: what becomes due
then, without a thread that waits for it, is done that much later at most. `begin_waiting` ends the pause. Where several
threads wait, the client's thread runs all turns, as soon as a thread of the application has run those of its own wait.

`_baton` is held by the thread that runs turns. What a turn raises on a thread of the application ends the client, as
where the client's own thread fails. Signal handlers (Ctrl-C) run, and may raise, while the thread waits for sockets,
and else behind its turn (`held_signals`).

Not obvious:

- The turns run on the client's thread or on one that waits, and callbacks with them: compare with `is_current`, never
  with the thread.
"""

from __future__ import annotations

import contextlib
import threading
import time

from kalda.base.errors import ApiError
from kalda.client.transport.channels import monotonic_ms
from kalda.client.transport.driven import Driven
from kalda.client.transport.io_thread import Awaited, IoThread

_LONGEST_PAUSE_S = 1.0
"""A signal handler's exception (Ctrl-C) may prevent that a pause is ended."""
_USUAL_WAIT_MS = 1
"""Within this time most requests are answered: the first turn of a wait does not compute how long it may wait."""
_CHECK_EVERY_S = 0.005
"""So long a thread that waits for the turn of another one may miss a signal, the end of its time, or what it waits
for."""


class SharedIo(IoThread):
    """The turns of one client, and the thread that runs them while the application's threads do not."""

    def __init__(self, name: str, driven: Driven, grace_s: float) -> None:
        super().__init__(name, driven)
        self._grace_s = grace_s
        self._baton = threading.Lock()
        self._resume = threading.Lock()
        """Released to end the pause of the client's thread. A semaphore's acquisition costs ten times as much."""
        self._resume.acquire()
        # `_driver` is the client's own thread too, while that runs turns.
        self._entry = threading.Lock()
        """Held by the thread of the application that runs turns, or is about to."""
        self._count_lock = threading.Lock()
        self._is_driven = False
        """A thread of the application runs turns."""
        self._driven_at_s = 0.0
        """When one last did."""
        self._pauses_until_driven = False
        """The client's thread pauses until the thread of the application has run its turns, which ends the pause."""
        self._waiting = 0
        """Threads of the application that wait for another thread's turns."""
        self._failure: BaseException | None = None
        """What a turn has raised on a thread of the application."""

    @property
    def is_current(self) -> bool:
        """Whether the calling thread runs the turns now: it is in a callback."""
        return self._driver == threading.get_ident()

    def _work(self) -> None:
        driven = self._driven
        while not driven.is_over():
            if self._failure is not None:
                raise self._failure
            if self._is_driven or time.monotonic() - self._driven_at_s < self._grace_s:
                self._pause()
                continue
            with self._baton:
                if not self._is_driven and not driven.is_over():
                    self._driver = threading.get_ident()
                    self._turn()
                    self._driver = 0

    def _pause(self) -> None:
        """Pause for `grace_s`, or, where one wait of a thread of the application lasts longer, until that ends: short
        pauses would cost CPU for as long as a broker does not answer."""
        before_s = self._driven_at_s
        if self._resume.acquire(timeout=self._grace_s) or self._driven_at_s != before_s:
            return
        self._pauses_until_driven = True  # before `_is_driven` is read: `run_until` clears that one, then reads this
        if self._is_driven:
            self._resume.acquire(timeout=_LONGEST_PAUSE_S)
        self._pauses_until_driven = False

    def _end(self, failure: ApiError | None) -> None:
        with self._baton:
            self._driver = threading.get_ident()  # callbacks are called
            try:
                super()._end(failure)
            finally:
                self._driver = 0

    def run_until(self, awaited: Awaited, limit_ms: int | None) -> bool:
        """Run turns on the calling thread until it is done, or the time is over: one turn at least. False: other
        threads wait too, and the client's thread runs the turns, or it has ended."""
        while not (self._waiting or self._failure is not None or self.has_ended or self.is_current):
            is_holding = self.signals.hold()
            try:
                if not self._entry.acquire(False):
                    return False
                self._run_turns(awaited, limit_ms)
                was_interrupted = self.signals.is_any
            finally:
                if is_holding:
                    self.signals.release()
            if awaited.is_done or not was_interrupted or (limit_ms is not None and monotonic_ms() >= limit_ms):
                return awaited.is_done or not self._driven.is_over()
        return False

    def _run_turns(self, awaited: Awaited, limit_ms: int | None) -> None:
        """With `_entry`, which is released."""
        self._is_driven = True
        try:
            if self._baton.acquire(False) or self._acquire_baton(awaited, limit_ms):
                try:
                    self._drive(awaited, limit_ms)
                finally:
                    self._baton.release()
        finally:
            self._is_driven = False
            self._driven_at_s = time.monotonic()
            self._entry.release()
            if self._waiting or self._failure is not None or self._driven.is_over():
                self._driven_at_s = 0.0
                self._end_pause()
            elif self._pauses_until_driven:
                self._end_pause()

    def _acquire_baton(self, awaited: Awaited, limit_ms: int | None) -> bool:
        """Wait for the turn of another thread to end. False: it is done, the time is over or a signal has come
        before."""
        self.wake()  # the client's thread may wait for sockets
        while not (awaited.is_done or self.signals.is_any or (limit_ms is not None and monotonic_ms() >= limit_ms)):
            if self._baton.acquire(timeout=_CHECK_EVERY_S):
                return True
        return False

    def _drive(self, awaited: Awaited, limit_ms: int | None) -> None:
        self._driver = threading.get_ident()
        try:
            longest_wait_ms: int | None = _USUAL_WAIT_MS
            if limit_ms is not None:
                longest_wait_ms = max(0, min(_USUAL_WAIT_MS, limit_ms - monotonic_ms()))
            while not (self.has_ended or self._driven.is_over()):
                self._turn(awaited, limit_ms, longest_wait_ms)
                longest_wait_ms = None
                if awaited.is_done or self.signals.is_any or (limit_ms is not None and monotonic_ms() >= limit_ms):
                    break
        except BaseException as error:
            if not self._is_selecting:
                self._failure = error
            self._is_selecting = False
            raise
        finally:
            self._driver = 0

    def _end_pause(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has been released, and the thread has not paused since
            self._resume.release()

    def begin_waiting(self) -> None:
        """The calling thread waits for turns of another one."""
        with self._count_lock:
            self._waiting += 1
        if not self._is_driven and self._driven_at_s:
            self._driven_at_s = 0.0
            self._end_pause()

    def end_waiting(self) -> None:
        """The counterpart of `begin_waiting`."""
        with self._count_lock:
            self._waiting -= 1

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end, which no pause delays."""
        self.begin_waiting()
        try:
            super().join(timeout)
        finally:
            self.end_waiting()
