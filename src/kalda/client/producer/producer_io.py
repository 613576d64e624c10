"""The I/O of a blocking producer: turns that its own thread runs, or a thread of the application that waits.

A thread that waits for a record runs the turns itself where no other thread does, so that its round trips need no
other thread. The producer's thread pauses meanwhile, and for `_GRACE_S` behind each such wait: a batch that is sent
then, by a thread that does not wait for it, leaves that much later at most. Any other wait ends the pause: for a topic,
memory, a transaction or the end. Where several threads wait, the producer's thread runs all turns.

`_baton` is held by the thread that runs turns. What a turn raises on a thread of the application ends the producer: all
records fail, as where the producer's own thread fails. Signal handlers (Ctrl-C) run, and may raise, while the thread
waits for sockets, and else behind its turn (`held_signals`).

Not obvious:

- The blocking producer's turns run on its own thread or on one that waits for a record, and callbacks with them:
  compare with `is_current`, never with the thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from kalda.base.errors import ApiError
from kalda.client.transport.channels import monotonic_ms
from kalda.client.transport.driven import Driven
from kalda.client.transport.io_thread import Awaited, IoThread

if TYPE_CHECKING:
    pass

_GRACE_S = 0.002
_LONGEST_PAUSE_S = 1.0
"""A signal handler's exception (Ctrl-C) may prevent that a pause is ended."""
_USUAL_WAIT_MS = 1
"""Within this time most requests are answered: the first turn of a wait does not compute how long it may wait."""
_SIGNALS_EVERY_S = 0.05
"""So long a signal may be held while a thread waits for the turn of another one."""


class ProducerIo(IoThread):
    """The turns of one producer, and the thread that runs them while the application's threads do not."""

    def __init__(self, name: str, driven: Driven) -> None:
        super().__init__(name, driven)
        self._baton = threading.Lock()
        self._resume = threading.Lock()
        """Released to end the pause of the producer's thread. A semaphore's acquisition costs ten times as much."""
        self._resume.acquire()
        # `_driver` is the producer's own thread too, while that runs turns.
        self._entry = threading.Lock()
        """Held by the thread of the application that runs turns, or is about to."""
        self._count_lock = threading.Lock()
        self.was_forked = False
        """The thread is one of the process from which this one was forked."""
        self.has_ended = False
        """The thread has ended, or `was_forked`."""
        self._is_driven = False
        """A thread of the application runs turns."""
        self._driven_at_s = 0.0
        """When one last did."""
        self._pauses_until_driven = False
        """The producer's thread pauses until the thread of the application has run its turns, which ends the pause."""
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
            if self._is_driven or time.monotonic() - self._driven_at_s < _GRACE_S:
                self._pause()
                continue
            with self._baton:
                if not self._is_driven and not driven.is_over():
                    self._driver = threading.get_ident()
                    self._turn()
                    self._driver = 0

    def _pause(self) -> None:
        """Pause for `_GRACE_S`, or, where one wait of a thread of the application lasts longer, until that ends: short
        pauses would cost CPU for as long as a broker does not answer."""
        before_s = self._driven_at_s
        if self._resume.acquire(timeout=_GRACE_S) or self._driven_at_s != before_s:
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
                self.has_ended = True

    def run_until(self, awaited: Awaited, timeout_s: float | None) -> bool:
        """Run turns on the calling thread until it is done, or the time is over. False: other threads wait too, and the
        producer's thread runs the turns."""
        limit_ms = None if timeout_s is None else monotonic_ms() + int(timeout_s * 1000)
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
            if self._baton.acquire(False) or self._acquire_baton():
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

    def _acquire_baton(self) -> bool:
        """Wait for the turn of another thread to end. False: a signal has come first."""
        self.wake()  # the producer's thread may wait for sockets
        while not self._baton.acquire(timeout=_SIGNALS_EVERY_S):
            if self.signals.is_any:
                return False
        return True

    def _drive(self, awaited: Awaited, limit_ms: int | None) -> None:
        self._driver = threading.get_ident()
        try:
            may_wait = limit_ms is None or limit_ms > monotonic_ms() + _USUAL_WAIT_MS
            longest_wait_ms = _USUAL_WAIT_MS if may_wait else None
            while not (awaited.is_done or self.signals.is_any or self.has_ended or self._driven.is_over()):
                self._turn(awaited, limit_ms, longest_wait_ms)
                longest_wait_ms = None
                if limit_ms is not None and monotonic_ms() >= limit_ms:
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
