"""The I/O of a blocking producer: turns that its own thread runs, or a thread of the application that waits.

A thread that waits for a record runs the turns itself where no other thread does, so that its round trips need no
other thread. The producer's thread then pauses for `_GRACE_S` behind each such wait: a batch that is sent meanwhile, by
a thread that does not wait for it, leaves that much later at most. Where several threads wait, the producer's thread
runs all turns.

`_baton` is held by the thread that runs turns. What a turn raises on a thread of the application ends the producer: all
records fail, as where the producer's own thread fails. An exception of a signal handler (Ctrl-C) that comes while the
thread waits for sockets does not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from kalda.base.errors import ApiError
from kalda.client.channels import Driven, monotonic_ms
from kalda.client.io_thread import Awaited, IoThread

if TYPE_CHECKING:
    from kalda.network.client_security import ClientSecurity

_GRACE_S = 0.002
_USUAL_WAIT_S = 0.001
"""Within this time most requests are answered: the first turn of a wait does not compute how long it may wait."""


class ProducerIo(IoThread):
    """The turns of one producer, and the thread that runs them while the application's threads do not."""

    def __init__(
        self, name: str, driven: Driven, security: ClientSecurity | None, send_bytes: int, receive_bytes: int
    ) -> None:
        super().__init__(name, driven, security, send_bytes, receive_bytes)
        self._baton = threading.Lock()
        self._resume = threading.Lock()
        """Released to end the pause of the producer's thread. A semaphore's acquisition costs ten times as much."""
        self._resume.acquire()
        self._driver = 0
        """The thread that runs turns now; 0: none."""
        self._entry = threading.Lock()
        """Held by the thread of the application that runs turns, or is about to."""
        self._count_lock = threading.Lock()
        self._has_ended = False
        self._is_driven = False
        """A thread of the application runs turns."""
        self._driven_at_s = 0.0
        """When one last did."""
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
                self._resume.acquire(timeout=_GRACE_S)
                continue
            with self._baton:
                if not self._is_driven and not driven.is_over():
                    self._driver = threading.get_ident()
                    self._turn()
                    self._driver = 0

    def _end(self, failure: ApiError | None) -> None:
        with self._baton:
            super()._end(failure)
            self._has_ended = True

    def run_until(self, awaited: Awaited, timeout_s: float | None) -> bool:
        """Run turns on the calling thread until it is done, or the time is over. False: other threads wait too, and the
        producer's thread runs the turns."""
        if self._waiting or self._failure is not None or self.is_current or not self.is_alive():  # not in a fork
            return False
        if not self._entry.acquire(blocking=False):
            return False
        limit_ms = None if timeout_s is None else monotonic_ms() + int(timeout_s * 1000)
        self._is_driven = True
        try:
            if not self._baton.acquire(blocking=False):
                self.wake()  # the producer's thread may wait for sockets
                self._baton.acquire()
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
        return awaited.is_done or not self._driven.is_over()

    def _drive(self, awaited: Awaited, limit_ms: int | None) -> None:
        self._driver = threading.get_ident()
        try:
            longest_wait_s: float | None = _USUAL_WAIT_S
            while not awaited.is_done and not self._has_ended and not self._driven.is_over():
                self._turn(awaited, limit_ms, longest_wait_s)
                longest_wait_s = None
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
