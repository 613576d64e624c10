"""One non-blocking socket to a node: bytes to write, and frames that were read.

No loop and no thread of its own: its owner waits until the socket is readable or writable, and calls `on_writable` and
`receive`. Raises `OSError` where the connection is lost. `tls_channel` has the one that is encrypted.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from itertools import islice

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest, Portable
from kalda.clientcore.connections.connections import SocketAddress
from kalda.network.frames import Arena, BadFrameSize, FrameReader
from kalda.protocol.framing import MAX_RESPONSE_BYTES, MIN_RESPONSE_BYTES
from kalda.protocol.notation import Buffer

_MOST_BUFFERS = 64
"""Buffers in one system call."""
_SMALL_BYTES = 4096
"""Buffers of so little in all are joined: one buffer is written in fewer steps."""
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)
CLOSED = "the node closed the connection"
BLOCKED = -1
"""Instead of a number of bytes: the socket takes, or has, none now."""


class NodeHasTls(Portable, ConnectionError):
    """A listener with TLS has answered plain text. No retry mends it."""

    def __init__(self, error: BadFrameSize) -> None:
        self.error = ApiError(ErrorCode.NETWORK_EXCEPTION, f"plain text was sent to the node, but {error.message}")
        super().__init__(self.error.message)


class Channel:
    """A connection that is being made, then one that is open."""

    _early_close = " before its first answer: a listener with TLS does so if security.protocol is not SSL or SASL_SSL"
    """What is added to the error where nothing was received before the end."""

    def __init__(self, address: SocketAddress, send_bytes: int = -1, receive_bytes: int = -1) -> None:
        """Begin to connect. Raises `OSError`."""
        family, target = address
        self.is_open = False
        """Requests can be written."""
        self._out: deque[Buffer] = deque()
        self._frames = FrameReader(Arena(), MAX_RESPONSE_BYTES, MIN_RESPONSE_BYTES)
        self._is_connected = False
        self._has_received = False
        self.socket: socket.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if send_bytes > 0:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
            if receive_bytes > 0:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            code = self.socket.connect_ex(target)
            if code not in _IN_PROGRESS:
                raise OSError(code, os.strerror(code))
        except BaseException:
            self.socket.close()
            raise

    @property
    def wants_write(self) -> bool:
        """Whether to call `on_writable` when the socket is writable."""
        return bool(self._out) if self.is_open else not self._is_connected

    @property
    def has_unwritten(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._out)

    def write(self, buffers: list[Buffer]) -> None:
        """Write at the next `flush`, behind what waits already. The buffers are read until they are written, or the
        channel is closed."""
        if sum(map(len, buffers)) <= _SMALL_BYTES:
            self._out.append(b"".join(buffers))
        else:
            self._out.extend([buffer for buffer in buffers if len(buffer)])

    def on_writable(self) -> None:
        """Go on connecting, or writing."""
        if self.is_open:
            self.flush()
        else:
            self._go_on_connecting()

    def receive(self) -> list[memoryview]:
        """The frames that have arrived. Raises `ConnectionError` where the node has closed the connection."""
        if not self.is_open:
            self._go_on_connecting()
            return []
        frames: list[memoryview] = []
        reader = self._frames
        while True:
            room = reader.room()
            try:
                count = self._read_some(room)
            except ConnectionResetError:
                count = 0
            if count == BLOCKED:
                return frames
            if not count:
                if frames:
                    return frames  # the next call finds the end again
                raise ConnectionResetError(CLOSED if self._has_received else CLOSED + self._early_close)
            reader.filled(count)
            self._has_received = True
            try:
                while (frame := reader.next_frame()) is not None:
                    frames.append(frame)
            except InvalidRequest as error:
                if isinstance(error, BadFrameSize) and error.is_tls_alert:
                    raise NodeHasTls(error) from error
                raise ConnectionAbortedError(f"an invalid response: {error.message}") from error
            if not self._may_hold_more(count, len(room)):
                return frames

    def flush(self) -> None:
        """Write what the socket takes now."""
        out = self._out
        while out:
            count = self._write_some(out)
            if count == BLOCKED:
                return
            while count:
                size = len(out[0])
                if count < size:
                    out[0] = memoryview(out[0])[count:]
                    break
                count -= size
                out.popleft()

    def close(self) -> None:
        """Close; what is not written is dropped."""
        self._out.clear()
        self.socket.close()

    def _go_on_connecting(self) -> None:
        if not self._is_connected:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.socket.getpeername()  # raises where it is not connected yet
            self._is_connected = True
        self._on_connected()

    # -- what differs with TLS

    def _on_connected(self) -> None:
        self.is_open = True

    def _may_hold_more(self, count: int, room: int) -> bool:
        """Whether another read may find something, after one of `count` bytes into `room`."""
        return count == room

    def _read_some(self, room: memoryview) -> int:
        try:
            return self.socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return BLOCKED

    def _write_some(self, out: deque[Buffer]) -> int:
        try:
            if len(out) == 1:
                return self.socket.send(out[0])
            return self.socket.sendmsg(list(out) if len(out) <= _MOST_BUFFERS else list(islice(out, _MOST_BUFFERS)))
        except (BlockingIOError, InterruptedError):
            return BLOCKED
