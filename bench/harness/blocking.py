"""Requests over a blocking socket, for tests and benchmarks: also what no client sends, in any version, before a login.

It sends the same frames, negotiates the same versions and raises the same errors as the clients.
"""

from __future__ import annotations

import contextlib
import socket
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kalda import __version__
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.network.frames import Arena, FrameReader
from kalda.protocol.framing import (
    MAX_RESPONSE_BYTES,
    MIN_RESPONSE_BYTES,
    RENEWAL_SHARE,
    Call,
    PeerVersions,
    api_versions_request,
    choose_version,
    disconnected,
    frame_request,
    peer_versions,
    retry_version,
    timed_out,
)
from kalda.protocol.notation import Request

if TYPE_CHECKING:
    from kalda.network.client.security import ClientSecurity


class BlockingConnection:
    """One connection to a node; a context manager. Any failure but `UNSUPPORTED_VERSION` closes it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "kalda",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        security: ClientSecurity | None = None,
        negotiate: bool = True,
    ) -> None:
        """Connect, with `negotiate` request the peer's API versions, and with `security` log in; without it the
        connection is plain text. Raises `ApiError`."""
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.versions: PeerVersions | None = None
        """None before `negotiate`: then requests are sent in the highest version supported here."""
        self._frames = FrameReader(Arena(), max_response_bytes, MIN_RESPONSE_BYTES)
        self._last_correlation_id = 0
        self._security = security
        self._host = host
        self._renew_at_s: float | None = None
        """When the session has to be renewed, by the monotonic clock; None: it does not end."""
        tls = None if security is None else security.tls
        try:
            peer = socket.create_connection((host, port), connect_timeout_ms / 1000)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = tls.wrap_socket(peer, server_hostname=host) if tls is not None else peer
        except (OSError, UnicodeError) as error:  # UnicodeError: the name cannot be encoded as a host name
            raise disconnected(f"cannot connect to {host}:{port}: {error}") from error
        if negotiate:
            try:
                self.negotiate()
            except BaseException:
                self.close()
                raise
        if security is not None and security.mechanism is not None:
            try:
                self._log_in(security)
            except BaseException:
                self.close()
                raise

    def _log_in(self, security: ClientSecurity) -> None:
        """Log in by SASL, or renew the session."""
        self._renew_at_s = None
        login = security.login(self._host)
        if login is None:
            return
        message: Request | None = login.first()
        while message is not None:
            message = login.on_response(self.request(message))
        if login.session_lifetime_ms > 0:
            self._renew_at_s = time.monotonic() + login.session_lifetime_ms * RENEWAL_SHARE / 1000

    def negotiate(self) -> PeerVersions:
        """Request the peer's API versions, and use only these from now on (KIP-511)."""
        request = api_versions_request(__version__)
        answer = self.request(request)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = self.request(request, retry_version(answer))
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code), "the peer refused to list its API versions")
        self.versions = peer_versions(answer)
        return self.versions

    def request(self, message: Request, version: int | None = None, *, timeout_ms: int | None = None) -> Any:
        """The response to `message`, in `version` or the highest version in common. Raises `ApiError`.

        The timeout bounds each wait for the peer, not the transfer of a long answer.
        """
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        return self.receive(self.send(message, version, timeout_ms=timeout_ms), timeout_ms=timeout_ms)

    def send(self, message: Request, version: int | None = None, *, timeout_ms: int | None = None) -> Call:
        """Send without waiting: `receive` returns the answers, in the order of sending. Raises `ApiError`."""
        return self._send(message, version, self.timeout_ms if timeout_ms is None else timeout_ms)

    def receive(self, call: Call, *, timeout_ms: int | None = None) -> Any:
        """The response to `call`, which must be the oldest without one. Raises `ApiError`."""
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        try:
            self._socket.settimeout(timeout_ms / 1000)
            return call.read_answer(self._read_frame())
        except TimeoutError:
            self.close()
            raise timed_out(call, timeout_ms) from None
        except OSError as error:
            self.close()
            raise disconnected(f"the connection was lost: {error}") from error
        except InvalidRequest as error:
            self.close()
            raise disconnected(f"the peer sent an invalid response: {error.message}") from error

    def close(self) -> None:
        """Close; may be called more than once."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: Request, version: int | None, timeout_ms: int) -> Call:
        if self._renew_at_s is not None and time.monotonic() >= self._renew_at_s:
            assert self._security is not None, "only a login has a session"
            self._log_in(self._security)
        version = choose_version(message, version, self.versions)
        self._last_correlation_id = (self._last_correlation_id + 1) & 0x7FFFFFFF
        call = Call(message.API_KEY, version, self._last_correlation_id)
        try:
            frame = b"".join(frame_request(call, message, self.client_id))
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"the request cannot be encoded: {error}") from error
        try:
            self._socket.settimeout(timeout_ms / 1000)
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise disconnected(f"the connection was lost: {error}") from error
        return call

    def _read_frame(self) -> memoryview:
        while (frame := self._frames.next_frame()) is None:
            count = self._socket.recv_into(self._frames.room())
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            self._frames.filled(count)
        return frame
