"""A channel that logs in by SASL before it is open, and renews its session (KIP-368).

It wraps a plain or encrypted channel. The requests of a login have correlation ids that the client's own requests never
have, so their responses are recognized and are not passed on. A session that ends is renewed before the next write that
comes late in its life; what is written meanwhile waits here, as the server accepts no other request until then.

A login that fails raises `LoginFailed`: no retry mends it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from kalda.base.errors import ApiError, InvalidRequest, Portable
from kalda.client.transport.channel import Channel
from kalda.network.client.security import ClientSecurity
from kalda.protocol.framing import RENEWAL_SHARE, Call, frame_request
from kalda.protocol.notation import Buffer, Request
from kalda.security.mechanisms import ClientLogin, authentication_failed

_FIRST_CORRELATION_ID = -1_000_000_000
"""The ids of a client's own requests are positive."""
_CLIENT_ID = "kalda"
_HANDSHAKE_VERSION = 1
_AUTHENTICATE_VERSION = 1
"""The first with the life of the session; brokers have it since 2.2."""


class LoginFailed(Portable, ConnectionError):
    """The node has refused the login, or is not who it should be."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message or error.code.name)
        self.error = error


class SaslChannel:
    """What `Channel` is, with a login."""

    def __init__(
        self,
        inner: Channel,
        security: ClientSecurity,
        host: str,
        log_in_by_thread: Callable[[], bool],
        on_renewed: Callable[[int], None],
    ) -> None:
        """`log_in_by_thread()` is called for a login that may have to wait: it has `security.login` called on a thread
        and its result given to `on_login`, or returns False where the login may wait here. `on_renewed(ms)` is called
        when a session was renewed, with the time that this has taken."""
        self.is_open = False
        self._inner = inner
        self._security = security
        self._host = host
        self._log_in_by_thread = log_in_by_thread
        self._on_renewed = on_renewed
        self._began_s = 0.0
        """When the login under way began."""
        self._is_preparing = False
        """A thread prepares a login."""
        self._login: ClientLogin | None = None
        """The login under way."""
        self._call: Call | None = None
        """Its request that has no response yet."""
        self._last_correlation_id = _FIRST_CORRELATION_ID
        self._renew_at_s: float | None = None
        """By the monotonic clock; None: the session does not end."""
        self._failure: LoginFailed | None = None
        """Of a renewal that could not begin; `flush` raises it."""
        self._held: list[list[Buffer]] = []
        """What was written while the session is renewed, in order."""

    @property
    def socket(self) -> socket.socket:
        """The socket; TLS replaces it once."""
        return self._inner.socket

    @property
    def wants_write(self) -> bool:
        """Whether to call `on_writable` when the socket is writable."""
        return self._inner.wants_write

    @property
    def has_unwritten(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._held) or self._inner.has_unwritten

    def write(self, buffers: list[Buffer]) -> None:
        """Write at the next `flush`; see `Channel.write`."""
        if self._renew_at_s is not None and time.monotonic() >= self._renew_at_s:
            self._held.append(buffers)
            try:
                self._begin()
            except LoginFailed as error:
                self._failure = error
        elif self._login is not None or self._is_preparing:
            self._held.append(buffers)
        else:
            self._inner.write(buffers)

    def on_writable(self) -> None:
        """Go on connecting, or writing."""
        self._inner.on_writable()
        self._begin_where_connected()

    def receive(self) -> list[memoryview]:
        """The frames that have arrived, without those of a login. Raises `OSError`."""
        frames = self._inner.receive()
        self._begin_where_connected()
        if self._call is None:
            return frames
        passed = []
        for frame in frames:
            if self._call is not None and bytes(frame[:4]) == self._call.correlation_id.to_bytes(4, "big", signed=True):
                self._on_response(self._call, frame)
            else:
                passed.append(frame)
        return passed

    def flush(self) -> None:
        """Write what the socket takes now. Raises `OSError`."""
        if self._failure is not None:
            raise self._failure
        self._inner.flush()

    def close(self) -> None:
        """Close; what is not written is dropped."""
        self._held.clear()
        self._inner.close()

    # -- the login

    def _begin_where_connected(self) -> None:
        if self._inner.is_open and not self.is_open and self._login is None and not self._is_preparing:
            self._begin()

    def _begin(self) -> None:
        self._renew_at_s = None
        self._began_s = time.monotonic()
        if self._security.blocks and self._log_in_by_thread():
            self._is_preparing = True
            return
        try:
            login = self._security.login(self._host)
        except ApiError as error:
            raise LoginFailed(error) from error
        self._start(login)

    def on_login(self, login: ClientLogin | None, error: ApiError | None) -> None:
        """A thread has prepared the login, or failed. Raises `OSError`."""
        self._is_preparing = False
        if error is not None:
            raise LoginFailed(error)
        self._start(login)
        self._inner.flush()

    def _start(self, login: ClientLogin | None) -> None:
        assert login is not None, "made for connections with SASL"
        self._login = login
        self._send(login.first(), _HANDSHAKE_VERSION)

    def _send(self, request: Request, version: int) -> None:
        self._last_correlation_id += 1
        self._call = Call(request.API_KEY, version, self._last_correlation_id)
        self._inner.write(frame_request(self._call, request, _CLIENT_ID))
        if not self.is_open:  # else the flush of what was written comes next
            self._inner.flush()

    def _on_response(self, call: Call, frame: memoryview) -> None:
        login = self._login
        assert login is not None
        try:
            following = login.on_response(call.read_answer(frame))
        except InvalidRequest as error:
            raise LoginFailed(authentication_failed(f"an invalid response: {error.message}")) from error
        except ApiError as error:
            raise LoginFailed(error) from error
        if following is not None:
            self._send(following, _AUTHENTICATE_VERSION)
            self._inner.flush()
            return
        self._login = self._call = None
        if self.is_open:
            self._on_renewed(int((time.monotonic() - self._began_s) * 1000))
        self.is_open = True
        if login.session_lifetime_ms > 0:
            self._renew_at_s = time.monotonic() + login.session_lifetime_ms * RENEWAL_SHARE / 1000
        held, self._held = self._held, []
        for buffers in held:
            self._inner.write(buffers)
        self._inner.flush()
