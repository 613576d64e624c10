"""One non-blocking socket to a node: bytes to write, frames that were read, TLS.

No loop and no thread of its own: its owner waits until the socket is readable or writable, and calls `on_writable` and
`receive`. Raises `OSError` where the connection is lost.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections import deque

from kalda.base.errors import InvalidRequest
from kalda.network.calls import MAX_RESPONSE_BYTES, MIN_RESPONSE_BYTES
from kalda.network.frames import Arena, FrameReader
from kalda.protocol.notation import Buffer

_MOST_BUFFERS = 64
"""Buffers in one system call."""
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)
SocketAddress = tuple[int, tuple[object, ...]]
"""Address family, and what `connect` takes."""


class Channel:
    """A connection that is being made, then one that is open."""

    def __init__(
        self,
        address: SocketAddress,
        host: str,
        tls: ssl.SSLContext | None,
        send_bytes: int = -1,
        receive_bytes: int = -1,
    ) -> None:
        """Begin to connect. Raises `OSError`."""
        family, target = address
        self.is_open = False
        """Connected, and the TLS handshake is done."""
        self._tls = tls
        self._host = host
        self._out: deque[memoryview] = deque()
        self._frames = FrameReader(Arena(), MAX_RESPONSE_BYTES, MIN_RESPONSE_BYTES)
        self._is_connected = False
        self._tls_wants_write = False
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
        if not self.is_open:
            return not self._is_connected or self._tls_wants_write
        return bool(self._out)

    @property
    def has_unwritten(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._out)

    def write(self, buffers: list[Buffer]) -> None:
        """Write at the next `flush`, behind what waits already. The buffers are read until they are written, or the
        channel is closed."""
        self._out.extend([memoryview(buffer) for buffer in buffers if len(buffer)])

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
                count = self.socket.recv_into(room)
            except (BlockingIOError, ssl.SSLWantReadError, InterruptedError):
                return frames
            except ssl.SSLWantWriteError:
                return frames
            if not count:
                if frames:
                    return frames  # the next call finds the end again
                raise ConnectionResetError("the node closed the connection")
            reader.filled(count)
            try:
                while (frame := reader.next_frame()) is not None:
                    frames.append(frame)
            except InvalidRequest as error:
                raise ConnectionAbortedError(f"an invalid response: {error.message}") from error
            if count < len(room) and self._tls is None:
                return frames

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
            if self._tls is not None:
                self.socket = self._tls.wrap_socket(
                    self.socket, server_hostname=self._host, do_handshake_on_connect=False
                )
        if isinstance(self.socket, ssl.SSLSocket):
            self._tls_wants_write = False
            try:
                self.socket.do_handshake()
            except ssl.SSLWantReadError:
                return
            except ssl.SSLWantWriteError:
                self._tls_wants_write = True
                return
        self.is_open = True

    def flush(self) -> None:
        """Write what the socket takes now."""
        out = self._out
        while out:
            try:
                if self._tls is None:
                    buffers = list(out) if len(out) <= _MOST_BUFFERS else [out[at] for at in range(_MOST_BUFFERS)]
                    count = self.socket.sendmsg(buffers)
                else:
                    count = self.socket.send(out[0])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError, InterruptedError):
                return
            while count:
                size = len(out[0])
                if count < size:
                    out[0] = out[0][count:]
                    break
                count -= size
                out.popleft()


def tls_context(values: dict[str, object] | object) -> ssl.SSLContext | None:
    """The context of `security.protocol` and the `ssl.*` keys; None for plain text."""
    at = values if isinstance(values, dict) else {}
    if str(at.get("security.protocol", "PLAINTEXT")).upper() != "SSL":
        return None
    trusted = at.get("ssl.truststore.location")
    context = ssl.create_default_context(cafile=str(trusted) if trusted else None)
    if not at.get("ssl.endpoint.identification.algorithm"):
        context.check_hostname = False
    own = at.get("ssl.keystore.location")
    if own:
        password = at.get("ssl.key.password")
        context.load_cert_chain(str(own), password=None if password is None else str(password))
    return context
