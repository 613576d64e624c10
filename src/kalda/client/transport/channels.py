"""The open sockets of one client, and how its core's actions are carried out on them.

Shared by the I/O thread of blocking clients and the loop of asyncio clients. Which sockets are readable or writable is
found out by the owner (`Watch`), and host names are resolved by it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from kalda.base.errors import ApiError
from kalda.client.transport.channel import Channel
from kalda.client.transport.driven import Driven
from kalda.clientcore.connections.connections import Close, Connect, SocketAddress, Write

if TYPE_CHECKING:
    from kalda.client.transport.sasl_channel import SaslChannel
    from kalda.security.mechanisms import ClientLogin


class Watch(Protocol):
    """Finds out which sockets are ready."""

    def watch(self, connection_id: int, peer: socket.socket, wants_write: bool) -> None:
        """Call `on_event` when the socket is readable, or, where wanted, writable. Also changes what is wanted."""
        ...

    def unwatch(self, peer: socket.socket) -> None:
        """No longer."""
        ...

    def resolve(self, action: Connect) -> None:
        """Find the addresses of the host, then call `on_resolved` or `on_failed`."""
        ...

    def log_in(self, connection_id: int, host: str) -> bool:
        """Call `ClientSecurity.login` on a thread, then `on_login`. False: nothing is done, as this thread may wait."""
        ...


def monotonic_ms() -> int:
    """The clock of clients."""
    return monotonic_ns() // 1_000_000


class Channels:
    """The sockets of one client, by connection id."""

    def __init__(self, driven: Driven, watch: Watch) -> None:
        self._core = driven.core
        self._connections = driven.core.connections
        self._driven = driven
        self._watch = watch
        self._security = driven.security
        self._channels: dict[int, Channel | SaslChannel] = {}

    def carry_out(self) -> None:
        """Carry out all of the core's actions, and those that follow from them."""
        while actions := self._connections.take_actions():
            unflushed: dict[int, Channel | SaslChannel] = {}
            for action in actions:
                if isinstance(action, Write):
                    connection_id, buffers = action
                    channel = self._channels.get(connection_id)
                    if channel is not None:
                        channel.write(buffers)
                        unflushed[connection_id] = channel
                elif isinstance(action, Connect):
                    if action.target is None:
                        self._watch.resolve(action)
                    else:
                        self._open(action, action.target)
                else:
                    assert isinstance(action, Close)
                    self._drop(action.connection_id)
            for connection_id, channel in unflushed.items():  # one system call each, where that is enough
                if connection_id in self._channels:
                    self._flush(connection_id, channel)

    def _flush(self, connection_id: int, channel: Channel | SaslChannel) -> None:
        """Write what was queued."""
        try:
            channel.flush()
        except OSError as error:
            self._lose(connection_id, error)
            return
        if channel.has_unwritten:
            self._watch.watch(connection_id, channel.socket, channel.wants_write)
        else:
            self._connections.on_written(connection_id)

    # -- connecting

    def on_resolved(self, action: Connect, found: Iterable[tuple[Any, ...]]) -> None:
        """The host's addresses were found, one at least, as `getaddrinfo` lists them."""
        targets = dict.fromkeys((int(family), target) for family, _, _, _, target in found)
        self._core.at(monotonic_ms()).on_resolved(action.connection_id, targets)

    def _open(self, action: Connect, target: SocketAddress) -> None:
        """Begin to connect to one of the host's addresses."""
        try:
            channel = self._make(target, action.address.host, action.connection_id)
        except (OSError, UnicodeError, ValueError) as error:
            self.on_failed(action, str(error))
            return
        self._channels[action.connection_id] = channel
        self._watch.watch(action.connection_id, channel.socket, True)

    def _make(self, address: SocketAddress, host: str, connection_id: int) -> Channel | SaslChannel:
        """Begin to connect. Raises `OSError`."""
        security = self._security
        if security is None:
            return Channel(address, *self._driven.socket_bytes)
        if security.tls is None:
            inner = Channel(address, *self._driven.socket_bytes)
        else:
            from kalda.client.transport.tls_channel import TlsChannel

            inner = TlsChannel(address, *self._driven.socket_bytes, security.tls, host)
        if security.mechanism is None:
            return inner
        from kalda.client.transport.sasl_channel import SaslChannel

        log_in = partial(self._watch.log_in, connection_id, host)
        return SaslChannel(inner, security, host, log_in, self._driven.metrics.renewals.append)

    def on_login(self, connection_id: int, login: ClientLogin | None, error: ApiError | None) -> None:
        """A thread has prepared the login of a connection, or failed."""
        channel = self._channels.get(connection_id)
        if channel is None:  # closed meanwhile
            return
        assert not isinstance(channel, Channel), "only connections with SASL log in"
        try:
            channel.on_login(login, error)
        except OSError as failure:
            self._lose(connection_id, failure)
            return
        if channel.has_unwritten:
            self._watch.watch(connection_id, channel.socket, channel.wants_write)

    def on_failed(self, action: Connect, why: str) -> None:
        """The host has no address, or this one cannot be tried."""
        now_ms = monotonic_ms()
        self._core.at(now_ms).on_connect_failed(action.connection_id, why, now_ms)

    # -- events

    def on_event(self, connection_id: int, readable: bool, writable: bool) -> bool:
        """A socket is ready. False: nothing follows from it, as where a part of a response has arrived."""
        channel = self._channels.get(connection_id)
        if channel is None:
            return False
        was_open = channel.is_open
        may_change = writable or not was_open or self._security is not None
        """Else frames have come, and nothing is different; with TLS or SASL a read may write, or log in anew."""
        before, was_unwritten = channel.socket, may_change and channel.wants_write
        frames: list[memoryview] = []
        try:
            if writable:
                channel.on_writable()
            if readable:
                frames = channel.receive()
        except OSError as error:
            self._lose(connection_id, error)
            return True
        now_ms = monotonic_ms()
        connections = self._core.at(now_ms)
        if may_change:
            if channel.socket is not before:  # TLS has taken it over, with the same descriptor
                self._watch.unwatch(before)
                self._watch.watch(connection_id, channel.socket, channel.wants_write)
            elif channel.wants_write != was_unwritten:
                self._watch.watch(connection_id, channel.socket, channel.wants_write)
            if channel.is_open and not was_open:
                if self._security is not None:
                    self._driven.metrics.logins.value += 1
                connections.on_connected(connection_id, now_ms)
        for frame in frames:
            connections.on_frame(connection_id, frame, now_ms)
        if may_change and channel.is_open and not channel.has_unwritten:
            connections.on_written(connection_id)
        return bool(frames) or writable or not was_open

    def _lose(self, connection_id: int, error: OSError) -> None:
        now_ms = monotonic_ms()
        connections = self._core.at(now_ms)
        refusal = getattr(error, "error", None)
        if isinstance(refusal, ApiError):  # of a login or a certificate: no retry mends it
            metrics = self._driven.metrics
            failed = metrics.failed_renewals if self._channels[connection_id].is_open else metrics.failed_logins
            failed.value += 1
            connections.on_refused(refusal)
        if self._channels[connection_id].is_open:
            connections.on_lost(connection_id, str(error), now_ms)
        else:
            connections.on_connect_failed(connection_id, str(error), now_ms)
        self._drop(connection_id)

    def _drop(self, connection_id: int) -> None:
        channel = self._channels.pop(connection_id, None)
        if channel is not None:
            self._watch.unwatch(channel.socket)
            channel.close()

    def close(self) -> None:
        """Close all sockets."""
        for connection_id in list(self._channels):
            self._drop(connection_id)
