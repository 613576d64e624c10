"""The I/O thread of a blocking client: runs a core, its sockets, and the callbacks.

    while not at its end:
        run the core; carry out its actions; call what is done
        wait for sockets, a deadline, or `wake`

It holds no reference to the client itself, so a client that is dropped without `close` can be collected. What the
thread itself raises is a fault of this program: it is logged, and everything that waits fails with it.

Not obvious:

- `select.poll` keeps descriptors that were closed, and reports them at every call: `IoThread` removes them.
- `wake` sets `_wake_is_due` before it reads `_is_selecting`; a turn clears the first at its start, and `_wait` sets
  the second before it reads the first. In any other order a wake is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sys
import threading
import weakref
from time import perf_counter_ns
from typing import Protocol

from kalda.base.errors import MORE_THREADS, ApiError, ErrorCode, WrongState
from kalda.client.transport.channels import Channels, monotonic_ms
from kalda.client.transport.driven import Driven
from kalda.client.transport.held_signals import HeldSignals
from kalda.clientcore.connections.connections import Connect

log = logging.getLogger(__name__)
_LONGEST_WAIT_MS = 60_000
NEVER_MS = 2**62
_READABLE, _WRITABLE = ~select.POLLOUT, ~select.POLLIN
"""An event of any kind but one: errors are both, as with `selectors`."""
_made: weakref.WeakSet[IoThread] = weakref.WeakSet()


class Awaited(Protocol):
    """What a turn may end for."""

    @property
    def is_done(self) -> bool: ...


class IoThread(threading.Thread):
    """The thread of one client."""

    def __init__(self, name: str, driven: Driven) -> None:
        super().__init__(name=name, daemon=True)
        self._driven = driven
        self._channels = Channels(driven, self)
        self._metrics = driven.metrics
        self._io_ns = 0
        """Nanoseconds of writing since the last wait for sockets."""
        self._poll = select.poll()
        self._select = self._poll.poll
        self._watched: dict[int, int] = {}
        """Connection ids by descriptor."""
        self._wakened, self._waker = socket.socketpair()
        self._wakened.setblocking(False)
        self._waker.setblocking(False)
        self._poll.register(self._wakened, select.POLLIN)
        self._wake_is_due = False
        """`wake` was called since the turn began: its end does not wait."""
        self._turns = 0
        self._wakened_turn = 0
        """The turn whose waiting was last ended by `wake`: another byte would change nothing."""
        self._is_selecting = False
        """The turn waits for sockets, or is about to. An exception of a signal handler breaks nothing then."""
        self._driver = 0
        """The thread of the application that runs turns now; 0: none."""
        self.signals = HeldSignals(self._may_be_interrupted, self._end_turn)
        """For threads of the application that run turns."""
        self.sleeps_until_ms = 0
        """When the thread goes on by itself. While it runs this is never: its turn may not see a change."""
        self.last_turn_ms = 0
        """When the last turn began."""
        self.was_forked = False
        """The thread is one of the process from which this one was forked."""
        self.has_ended = False
        """The thread has ended, or `was_forked`."""
        _made.add(self)

    def start(self) -> None:
        """Raises `WrongState` in a `__del__` at the interpreter's end: no thread starts any more then, and Python 3.11
        would wait for this one for ever. And where the process may have no more threads."""
        if sys.is_finalizing():
            raise WrongState("the interpreter ends, and runs no new thread: make and use clients before")
        try:
            super().start()
        except RuntimeError as error:
            raise WrongState(f"{error}: {MORE_THREADS}") from error

    def wake(self) -> None:
        """Make the thread go on now. From any thread.

        What a signal handler raises in here (Ctrl-C) may prevent this wake. It prevents no later one: a wake is left
        out only where a byte was sent for the same turn.
        """
        turn = self._turns
        self._wake_is_due = True  # before the other thread's state is read: that one sets it, then reads this
        if self._is_selecting and self._wakened_turn != turn:
            with contextlib.suppress(OSError):  # the thread has ended, or its socket is full of wakes
                self._waker.send(b"\0")
            self._wakened_turn = turn

    def wake_by(self, due_ms: int) -> None:
        """Make the thread go on at that time, where it would sleep longer."""
        if self.sleeps_until_ms > due_ms:
            self.wake()

    def _may_be_interrupted(self) -> bool:
        """Whether the calling thread is the one that waits for sockets."""
        return self._is_selecting and self._driver == threading.get_ident()

    def _end_turn(self) -> None:
        """The turn's end does not wait."""
        self._wake_is_due = True

    def run(self) -> None:
        """The thread's work."""
        failure: ApiError | None = None
        try:
            self._work()
        except BaseException as error:
            log.exception("the I/O thread %s failed", self.name)
            failure = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the I/O thread failed: {error!r}")
        finally:
            self._end(failure)

    def _work(self) -> None:
        while not self._driven.is_over():
            self._turn()

    def on_fork(self) -> None:
        """In a forked child: the client cannot be used here."""
        self._driven.on_fork()

    def end_unstarted(self) -> None:
        """The end of a thread that was never started."""
        self._end(None)

    def _end(self, failure: ApiError | None) -> None:
        try:
            self._driven.on_end(failure)
            self._driven.finish()
        finally:
            self.has_ended = True
            self._close_sockets()

    def _close_sockets(self) -> None:
        self._channels.close()
        self._wakened.close()
        self._waker.close()

    def _turn(
        self, awaited: Awaited | None = None, limit_ms: int | None = None, longest_wait_ms: int | None = None
    ) -> None:
        """Do what can be done, and wait for what comes next: until `awaited` is done, or `limit_ms`. With
        `longest_wait_ms` it waits no longer than that, and does not compute when something else is due."""
        driven = self._driven
        self.sleeps_until_ms = NEVER_MS
        self._turns += 1
        self._wake_is_due = False
        self.last_turn_ms = ran_ms = monotonic_ms()
        driven.run(ran_ms)
        began_ns = perf_counter_ns()
        self._channels.carry_out()
        self._io_ns += perf_counter_ns() - began_ns
        driven.finish()
        if awaited is not None and awaited.is_done:
            self.sleeps_until_ms = 0
            return
        now_ms = ran_ms
        if longest_wait_ms is None:
            now_ms = monotonic_ms()
            due_ms = driven.deadline_ms(ran_ms)  # what has become due since the run is due, not over
            if limit_ms is not None and (due_ms is None or due_ms > limit_ms):
                due_ms = limit_ms
            wait_ms = _LONGEST_WAIT_MS if due_ms is None else max(0, min(_LONGEST_WAIT_MS, due_ms - now_ms))
        else:
            wait_ms = longest_wait_ms
        if driven.is_over():
            wait_ms = 0
        elif wait_ms:
            self.sleeps_until_ms = now_ms + wait_ms
        left_ms = wait_ms
        while not self._wait(left_ms):  # a part of a response has come: nothing else can be done before the rest
            left_ms = max(0, wait_ms - (monotonic_ms() - now_ms))
        self.sleeps_until_ms = 0
        driven.finish()  # what was acknowledged does not wait for the next turn's work

    def _wait(self, wait_ms: int) -> bool:
        """Wait for sockets, and hand over what has come. False: nothing follows from it, and the time is not over."""
        self._is_selecting = True
        if self._wake_is_due or self.signals.is_any:
            wait_ms = 0
        began_ns = perf_counter_ns()
        events = self._select(wait_ms)
        self._is_selecting = False
        waited_ns = perf_counter_ns()
        goes_on = not events or not wait_ms
        for descriptor, mask in events:
            connection_id = self._watched.get(descriptor)
            if connection_id is not None:
                if self._channels.on_event(connection_id, mask & _READABLE != 0, mask & _WRITABLE != 0):
                    goes_on = True
                elif mask & select.POLLNVAL:  # TLS has closed the descriptor, and failed then
                    del self._watched[descriptor]
                    self._poll.unregister(descriptor)
            elif descriptor == self._wakened.fileno():
                self._wakened.recv(4096)
                goes_on = True
        metrics = self._metrics
        metrics.io_wait_ns.append(waited_ns - began_ns)
        metrics.io_ns.append(self._io_ns + perf_counter_ns() - waited_ns)
        self._io_ns = 0
        return goes_on

    # -- what `Channels` needs

    def watch(self, connection_id: int, peer: socket.socket, wants_write: bool) -> None:
        """Wait for this socket too."""
        descriptor = peer.fileno()
        self._watched[descriptor] = connection_id
        self._poll.register(descriptor, select.POLLIN | select.POLLOUT if wants_write else select.POLLIN)

    def unwatch(self, peer: socket.socket) -> None:
        """Wait for it no longer."""
        descriptor = peer.fileno()
        if descriptor >= 0:  # else TLS has taken the descriptor over
            del self._watched[descriptor]
            self._poll.unregister(descriptor)

    def resolve(self, action: Connect) -> None:
        """Resolve the host; the thread waits meanwhile."""
        try:
            listed = socket.getaddrinfo(action.address.host, action.address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self._channels.on_failed(action, str(error))
            return
        self._channels.on_resolved(action, listed)

    def log_in(self, connection_id: int, host: str) -> bool:
        """The thread waits for a login."""
        return False


def _after_fork() -> None:
    """In the child: the parent's clients have no thread here, and their sockets are the parent's."""
    for thread in list(_made):
        thread.was_forked = thread.has_ended = True
        thread.on_fork()


os.register_at_fork(after_in_child=_after_fork)
