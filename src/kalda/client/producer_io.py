"""The I/O of a blocking producer: turns that its own thread runs, or a thread of the application that waits.

A thread that waits for a record runs the turns itself where no other thread does, so that its round trips need no
other thread. The producer's thread pauses meanwhile, and for `_GRACE_S` behind each such wait: a batch that is sent
then, by a thread that does not wait for it, leaves that much later at most. Where several threads wait, the producer's
thread runs all turns. Soon after a full turn, the first one of a wait is short: it sends, and waits for the answer.

While the producer's thread pauses, a record that finds nothing queued or in flight is written by `send` itself
(`send_at_once`, by `core/express`). The thread that waits for it receives the answer without a turn. A turn of any
thread comes first, and takes the batch over.

`_baton` is held by the thread that runs turns. What a turn raises on a thread of the application ends the producer: all
records fail, as where the producer's own thread fails. Signal handlers (Ctrl-C) run, and may raise, while the thread
waits for sockets, and else behind its turn (`held_signals`).
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from typing import TYPE_CHECKING

from kalda.base.errors import ApiError
from kalda.client.channels import Driven, monotonic_ms
from kalda.client.io_thread import NEVER_MS, Awaited, IoThread

if TYPE_CHECKING:
    from kalda.client.core.express import Express
    from kalda.client.core.outgoing import OnDelivery
    from kalda.client.core.producing import ProducerCore
    from kalda.network.client_security import ClientSecurity
    from kalda.records.appending import Ticket

_GRACE_S = 0.002
_LONGEST_PAUSE_S = 1.0
"""A signal handler's exception (Ctrl-C) may prevent that a pause is ended."""
_USUAL_WAIT_MS = 1
"""Within this time most requests are answered: the first turn of a wait does not compute how long it may wait."""
_LONGEST_EXPRESS_WAIT_MS = 10
"""So long a thread waits for the response to a record that `send` has written; then it takes a turn."""
_SIGNALS_EVERY_S = 0.05
"""So long a signal may be held while a thread waits for the turn of another one."""
_FULL_TURN_EVERY_MS = 5
"""So long after a full turn, threads that wait may take short ones."""


class ProducerIo(IoThread):
    """The turns of one producer, and the thread that runs them while the application's threads do not."""

    def __init__(
        self,
        name: str,
        driven: Driven,
        core: ProducerCore,
        security: ClientSecurity | None,
        send_bytes: int,
        receive_bytes: int,
    ) -> None:
        """`driven` runs `core`."""
        super().__init__(name, driven, security, send_bytes, receive_bytes)
        self._core = core
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
        self._full_turn_ms = 0
        """When the last full turn began."""
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
            if self._acquire_baton():
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
        if self._baton.acquire(False):
            return True
        self.wake()  # the producer's thread may wait for sockets
        while not self._baton.acquire(timeout=_SIGNALS_EVERY_S):
            if self.signals.is_any:
                return False
        return True

    def _drive(self, awaited: Awaited, limit_ms: int | None) -> None:
        self._driver = threading.get_ident()
        try:
            now_ms = monotonic_ms()
            may_wait = limit_ms is None or limit_ms > now_ms + _USUAL_WAIT_MS
            longest_wait_ms = _USUAL_WAIT_MS if may_wait else None
            if may_wait and not self.has_ended:
                express = self._core.express
                if express is not None and express.batch is awaited:
                    longest_ms = _LONGEST_EXPRESS_WAIT_MS
                    self._await_express(express, longest_ms if limit_ms is None else min(longest_ms, limit_ms - now_ms))
                elif now_ms - self._full_turn_ms < _FULL_TURN_EVERY_MS:
                    self._short_turn(now_ms)
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

    def send_at_once(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        callback: OnDelivery | None,
    ) -> Ticket | None:
        """Send a record on the calling thread, where no other thread runs turns or waits for one, and nothing else is
        queued or in flight. None: it has to be appended."""
        express = self._core.express
        if express is None or self._wake_is_due or self._waiting or self._failure is not None or self.has_ended:
            return None
        is_holding = self.signals.hold()
        try:
            if not self._baton.acquire(False):
                return None
            try:
                ticket = express.begin(topic, partition, timestamp_ms, key, value, callback, monotonic_ms())
                if ticket is not None:
                    self._channels.write_at_once(express.connection_id, express.request)
                    express.on_written()
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self._baton.release()
        finally:
            if is_holding:
                self.signals.release()
        return ticket

    def _await_express(self, express: Express, wait_ms: int) -> None:
        """Wait for the response to the record that was sent at once. All else that may happen is left to a turn."""
        self._turns += 1
        self.sleeps_until_ms = monotonic_ms() + wait_ms  # before the queues are read: `send` appends, then reads this
        self._is_selecting = True
        if not self._wake_is_due and not self._core.accumulator.has_queued:
            began_ns = time.perf_counter_ns()
            events = self._select(wait_ms)
            self._is_selecting = False
            waited_ns = time.perf_counter_ns()
            if len(events) == 1 and events[0][1] == select.POLLIN:
                connection_id = self._watched.get(events[0][0])
                if connection_id == express.connection_id:
                    self._receive_express(express, connection_id)
            self._count_io(began_ns, waited_ns)
        self._is_selecting = False
        self.sleeps_until_ms = 0

    def _receive_express(self, express: Express, connection_id: int) -> None:
        frames = self._channels.receive_small(connection_id, express.response_bytes)
        now_ms = monotonic_ms()
        if len(frames) != 1 or not express.finish(frames[0], now_ms):
            for frame in frames:
                self._driven.at(now_ms).on_frame(connection_id, frame, now_ms)
        self._driven.finish()

    def _short_turn(self, now_ms: int) -> None:
        """Send what can be sent, and wait for what most probably comes next, an answer. All else is left to the next
        full turn, as is a `wake`: that remains due."""
        self.sleeps_until_ms = NEVER_MS
        self._turns += 1
        if not self._core.send(now_ms):
            return
        self._carry_out()
        if not self._core.sender.finished:  # as it has with acks=0
            self.sleeps_until_ms = now_ms + _USUAL_WAIT_MS
            self._wait(_USUAL_WAIT_MS)
        self.sleeps_until_ms = 0
        self._driven.finish()

    def _turn(
        self, awaited: Awaited | None = None, limit_ms: int | None = None, longest_wait_ms: int | None = None
    ) -> None:
        self._full_turn_ms = monotonic_ms()
        super()._turn(awaited, limit_ms, longest_wait_ms)

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
