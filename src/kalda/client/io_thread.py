"""The I/O thread of a blocking client: runs a core, its sockets, and the callbacks.

    while not at its end:
        run the core; carry out its actions; call what is done
        wait for sockets, a deadline, or `wake`

It holds no reference to the client itself, so a client that is dropped without `close` can be collected. What the
thread itself raises is a fault of this program: it is logged, and everything that waits fails with it.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.client.channels import Channels, Driven, monotonic_ms
from kalda.client.core.connections import Connect

if TYPE_CHECKING:
    from kalda.network.client_security import ClientSecurity

log = logging.getLogger(__name__)
_LONGEST_WAIT_S = 60.0
_NEVER_MS = 2**62
_READ_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE


class Awaited(Protocol):
    """What a turn may end for."""

    is_done: bool


class IoThread(threading.Thread):
    """The thread of one client."""

    def __init__(
        self, name: str, driven: Driven, security: ClientSecurity | None, send_bytes: int, receive_bytes: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._driven = driven
        self._channels = Channels(driven, self, security, send_bytes, receive_bytes)
        self._selector = selectors.DefaultSelector()
        self._wakened, self._waker = socket.socketpair()
        self._wakened.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ, None)
        self._wake_is_due = False
        """A byte is on its way to the thread."""
        self._is_selecting = False
        """The turn waits for sockets: an exception of a signal handler breaks nothing."""
        self.sleeps_until_ms = 0
        """When the thread goes on by itself. While it runs this is never: its turn may not see a change."""

    def wake(self) -> None:
        """Make the thread go on now. From any thread."""
        if not self._wake_is_due:
            self._wake_is_due = True
            with contextlib.suppress(OSError):  # the thread has ended, or its socket is full of wakes
                self._waker.send(b"\0")

    def wake_by(self, due_ms: int) -> None:
        """Make the thread go on at that time, where it would sleep longer."""
        if self.sleeps_until_ms > due_ms:
            self.wake()

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

    def _end(self, failure: ApiError | None) -> None:
        try:
            self._driven.on_end(failure)
            self._driven.finish()
        finally:
            self._channels.close()
            self._selector.close()
            self._wakened.close()
            self._waker.close()

    def _turn(
        self, awaited: Awaited | None = None, limit_ms: int | None = None, longest_wait_s: float | None = None
    ) -> None:
        """Do what can be done, and wait for what comes next: until `awaited` is done, or `limit_ms`. With
        `longest_wait_s` it waits no longer than that, and does not compute when something else is due."""
        driven = self._driven
        self.sleeps_until_ms = _NEVER_MS
        ran_ms = monotonic_ms()
        driven.run(ran_ms)
        self._channels.carry_out()
        driven.finish()
        if awaited is not None and awaited.is_done:
            self.sleeps_until_ms = 0
            return
        now_ms = monotonic_ms()
        if longest_wait_s is None:
            due_ms = driven.deadline_ms(ran_ms)  # what has become due since the run is due, not over
            if limit_ms is not None and (due_ms is None or due_ms > limit_ms):
                due_ms = limit_ms
            wait_s = _LONGEST_WAIT_S if due_ms is None else max(0.0, min(_LONGEST_WAIT_S, (due_ms - now_ms) / 1000))
        else:
            wait_s = longest_wait_s
        if self._wake_is_due or driven.is_over():
            wait_s = 0
        elif wait_s:
            self.sleeps_until_ms = now_ms + int(wait_s * 1000)
        left_s = wait_s
        while not self._wait(left_s):  # a part of a response has come: nothing else can be done before the rest
            left_s = max(0.0, wait_s - (monotonic_ms() - now_ms) / 1000)
        self.sleeps_until_ms = 0
        driven.finish()  # what was acknowledged does not wait for the next turn's work

    def _wait(self, wait_s: float) -> bool:
        """Wait for sockets, and hand over what has come. False: nothing follows from it, and the time is not over."""
        self._is_selecting = True
        events = self._selector.select(wait_s)
        self._is_selecting = False
        goes_on = not events or not wait_s
        for key, mask in events:
            if key.data is None:
                self._wakened.recv(4096)
                self._wake_is_due = False
                goes_on = True
            else:
                readable, writable = bool(mask & selectors.EVENT_READ), bool(mask & selectors.EVENT_WRITE)
                if self._channels.on_event(key.data, readable, writable):
                    goes_on = True
        return goes_on

    # -- what `Channels` needs

    def watch(self, connection_id: int, peer: socket.socket, wants_write: bool) -> None:
        """Wait for this socket too."""
        wanted = _READ_WRITE if wants_write else selectors.EVENT_READ
        key = self._selector.get_map().get(peer)
        if key is None:
            self._selector.register(peer, wanted, connection_id)
        elif key.events != wanted:
            self._selector.modify(peer, wanted, connection_id)

    def unwatch(self, peer: socket.socket) -> None:
        """Wait for it no longer."""
        self._selector.unregister(peer)

    def resolve(self, action: Connect) -> None:
        """Resolve the host; the thread waits meanwhile."""
        try:
            listed = socket.getaddrinfo(action.address.host, action.address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self._channels.on_unresolved(action, str(error))
            return
        self._channels.open(action, [(family, target) for family, _, _, _, target in listed])

    def log_in(self, connection_id: int, host: str) -> bool:
        """The thread waits for a login."""
        return False
