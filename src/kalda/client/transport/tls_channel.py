"""A `Channel` that is encrypted. A module of its own, because `ssl` costs a client without TLS its start."""

from __future__ import annotations

import ssl
from collections import deque

from kalda.base.errors import ApiError, ErrorCode, Portable
from kalda.client.transport.channel import BLOCKED, Channel
from kalda.clientcore.connections.connections import SocketAddress
from kalda.protocol.notation import Buffer


class HandshakeFailed(Portable, ConnectionError):
    """The certificate of a node is not trusted, or is of another host; or the node refuses this client's certificate or
    protocol. No retry mends it: Kafka's clients report an `SslAuthenticationException` then."""

    def __init__(self, cause: ssl.SSLError, host: str) -> None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = f"SSL handshake failed: the certificate of {host} is refused: {cause.verify_message}"
        else:
            reason = (cause.reason or str(cause)).replace("_", " ").lower()
            why = f"SSL handshake with {host} failed: {reason}"
            if cause.reason == "WRONG_VERSION_NUMBER":
                why += ": what answers there does not speak TLS"
        super().__init__(why)
        self.error = ApiError(ErrorCode.NETWORK_EXCEPTION, why)


class TlsChannel(Channel):
    """It is open when the handshake is done."""

    _early_close = ""

    def __init__(
        self, address: SocketAddress, send_bytes: int, receive_bytes: int, context: ssl.SSLContext, host: str
    ) -> None:
        super().__init__(address, send_bytes, receive_bytes)
        self._context = context
        self._host = host
        self._tls: ssl.SSLSocket | None = None
        self._handshake_wants_write = False

    @property
    def wants_write(self) -> bool:
        """Whether to call `on_writable` when the socket is writable."""
        return super().wants_write or (not self.is_open and self._handshake_wants_write)

    def _on_connected(self) -> None:
        if self._tls is None:
            self.socket = self._tls = self._context.wrap_socket(
                self.socket, server_hostname=self._host, do_handshake_on_connect=False
            )
        self._handshake_wants_write = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self._handshake_wants_write = True
            return
        except (ssl.SSLEOFError, ConnectionError) as error:  # a node that stops does so, too
            raise ConnectionResetError(
                f"{self._host} closed the connection in the TLS handshake: does its listener have TLS?"
            ) from error
        except ssl.SSLError as error:
            raise HandshakeFailed(error, self._host) from error
        self.is_open = True

    def _may_hold_more(self, count: int, room: int) -> bool:
        return True  # decrypted bytes may wait in the TLS layer, of which the socket shows nothing

    def _read_some(self, room: memoryview) -> int:
        try:
            count = self.socket.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return BLOCKED
        except ssl.SSLError as error:
            # With TLS 1.3 a node refuses a client's certificate only when the handshake is done for the client.
            if not self._has_received and "_ALERT_" in (error.reason or ""):
                raise HandshakeFailed(error, self._host) from error
            raise
        return count

    def _write_some(self, out: deque[Buffer]) -> int:
        try:
            return self.socket.send(out[0])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return BLOCKED
