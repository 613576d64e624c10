"""The I/O thread of a blocking client: runs a core, its sockets, and the callbacks.

    while not at its end:
        run the core; carry out its actions; call what is done
        wait for sockets, a deadline, or `wake`

It holds no reference to the client itself, so a client that is dropped without `close` can be collected. What the
thread itself raises is a fault of this program: it is logged, and everything that waits fails with it.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import threading
import time
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.client.channel import Channel, SocketAddress
from kalda.client.core.connections import Action, Connect, Connections, Write
from kalda.client.metadata import Address

log = logging.getLogger(__name__)
_LONGEST_WAIT_S = 60.0
_NEVER_MS = 2**62


class Driven(Protocol):
    """What the thread runs."""

    def at(self, now_ms: int) -> Connections:
        """The connections, for an event at this time."""
        ...

    def run(self, now_ms: int) -> None:
        """Do what can be done now."""
        ...

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` is due."""
        ...

    def take_actions(self) -> list[Action]:
        """What to do on connections."""
        ...

    def finish(self) -> None:
        """Call what is done."""
        ...

    def is_over(self) -> bool:
        """Whether the thread ends now."""
        ...

    def on_end(self, error: ApiError | None) -> None:
        """The thread ends; `error`: by its own fault."""
        ...


def monotonic_ms() -> int:
    """The clock of clients."""
    return int(time.monotonic() * 1000)


class IoThread(threading.Thread):
    """The thread of one client."""

    def __init__(
        self, name: str, driven: Driven, tls: ssl.SSLContext | None, send_bytes: int, receive_bytes: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._driven = driven
        self._tls = tls
        self._socket_bytes = send_bytes, receive_bytes
        self._channels: dict[int, Channel] = {}
        self._selector = selectors.DefaultSelector()
        self._wakened, self._waker = socket.socketpair()
        self._wakened.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ, None)
        self._wake_is_due = False
        """A byte is on its way to the thread."""
        self.sleeps_until_ms = 0
        """When the thread goes on by itself. What changes while it runs is not seen by that turn: then this is never."""
        self._addresses: dict[Address, tuple[list[SocketAddress], int]] = {}
        """The addresses of a host, and which one is next."""

    def wake(self) -> None:
        """Make the thread go on now. From any thread."""
        if not self._wake_is_due:
            self._wake_is_due = True
            try:
                self._waker.send(b"\0")
            except OSError:
                pass  # the thread has ended, or its socket is full of wakes

    def wake_by(self, due_ms: int) -> None:
        """Make the thread go on at that time, where it would sleep longer."""
        if self.sleeps_until_ms > due_ms:
            self.wake()

    def run(self) -> None:
        """The thread's work."""
        failure: ApiError | None = None
        try:
            while not self._driven.is_over():
                self._turn()
        except BaseException as error:
            log.exception("the I/O thread %s failed", self.name)
            failure = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the I/O thread failed: {error!r}")
        finally:
            try:
                self._driven.on_end(failure)
                self._driven.finish()
            finally:
                self._close()

    def _turn(self) -> None:
        driven = self._driven
        now_ms = monotonic_ms()
        self.sleeps_until_ms = _NEVER_MS
        driven.run(now_ms)
        while actions := driven.take_actions():
            for action in actions:
                self._carry_out(action)
        driven.finish()
        now_ms = monotonic_ms()
        due_ms = driven.deadline_ms(now_ms)
        wait_s = _LONGEST_WAIT_S if due_ms is None else max(0.0, min(_LONGEST_WAIT_S, (due_ms - now_ms) / 1000))
        self.sleeps_until_ms = now_ms + int(wait_s * 1000)
        if self._wake_is_due or driven.is_over():
            wait_s = 0
        events = self._selector.select(wait_s)
        self.sleeps_until_ms = 0
        for key, mask in events:
            if key.data is None:
                self._wakened.recv(4096)
                self._wake_is_due = False
            else:
                self._on_event(key.data, mask)

    # -- channels

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Write):
            channel = self._channels.get(action.connection_id)
            if channel is not None:
                try:
                    channel.write(action.buffers)
                except OSError as error:
                    self._lose(action.connection_id, error)
                    return
                self._watch(action.connection_id, channel)
                if not channel.has_unwritten:
                    self._driven.at(monotonic_ms()).on_written(action.connection_id)
        elif isinstance(action, Connect):
            self._connect(action)
        else:
            self._drop(action.connection_id)

    def _connect(self, action: Connect) -> None:
        try:
            address = self._resolve(action.address)
            channel = Channel(address, action.address.host, self._tls, *self._socket_bytes)
        except (OSError, UnicodeError, ValueError) as error:
            self._driven.at(monotonic_ms()).on_connect_failed(action.connection_id, str(error), monotonic_ms())
            return
        self._channels[action.connection_id] = channel
        self._selector.register(channel.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, action.connection_id)

    def _resolve(self, address: Address) -> SocketAddress:
        """The next address of the host: each attempt to connect takes another one (KIP-302)."""
        found, index = self._addresses.pop(address, ([], 0))
        if index >= len(found):
            listed = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            found, index = [(family, target) for family, _, _, _, target in listed], 0
        self._addresses[address] = found, index + 1
        return found[index]

    def _on_event(self, connection_id: int, mask: int) -> None:
        channel = self._channels.get(connection_id)
        if channel is None:
            return
        was_open = channel.is_open
        try:
            if mask & selectors.EVENT_WRITE:
                descriptor = channel.socket
                channel.on_writable()
                if channel.socket is not descriptor:  # TLS has taken it over
                    self._selector.unregister(descriptor)
                    self._selector.register(channel.socket, selectors.EVENT_READ, connection_id)
            frames = channel.receive() if mask & selectors.EVENT_READ else []
        except OSError as error:
            self._lose(connection_id, error)
            return
        now_ms = monotonic_ms()
        connections = self._driven.at(now_ms)
        if channel.is_open and not was_open:
            connections.on_connected(connection_id, now_ms)
        for frame in frames:
            connections.on_frame(connection_id, frame, now_ms)
        if channel.is_open and mask & selectors.EVENT_WRITE and not channel.has_unwritten:
            connections.on_written(connection_id)
        self._watch(connection_id, channel)

    def _watch(self, connection_id: int, channel: Channel) -> None:
        if self._channels.get(connection_id) is not channel:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
        key = self._selector.get_key(channel.socket)
        if key.events != wanted:
            self._selector.modify(channel.socket, wanted, connection_id)

    def _lose(self, connection_id: int, error: OSError) -> None:
        channel = self._channels[connection_id]
        now_ms = monotonic_ms()
        connections = self._driven.at(now_ms)
        if channel.is_open:
            connections.on_lost(connection_id, str(error), now_ms)
        else:
            connections.on_connect_failed(connection_id, str(error), now_ms)
        self._drop(connection_id)

    def _drop(self, connection_id: int) -> None:
        channel = self._channels.pop(connection_id, None)
        if channel is not None:
            self._selector.unregister(channel.socket)
            channel.close()

    def _close(self) -> None:
        for connection_id in list(self._channels):
            self._drop(connection_id)
        self._selector.close()
        self._wakened.close()
        self._waker.close()
