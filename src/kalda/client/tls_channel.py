"""A `Channel` that is encrypted. A module of its own, because `ssl` costs a client without TLS its start."""

from __future__ import annotations

import ssl
from collections import deque

from kalda.base.errors import ApiError, ErrorCode
from kalda.client.channel import BLOCKED, Channel, SocketAddress


class CertificateRefused(ConnectionError):
    """The certificate of a node is not trusted, or is of another host. No retry mends it."""

    def __init__(self, cause: ssl.SSLCertVerificationError, host: str) -> None:
        why = f"SSL handshake failed: the certificate of {host} is refused: {cause.verify_message}"
        super().__init__(why)
        self.error = ApiError(ErrorCode.NETWORK_EXCEPTION, why)


class TlsChannel(Channel):
    """It is open when the handshake is done."""

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
        except ssl.SSLCertVerificationError as error:
            raise CertificateRefused(error, self._host) from error
        self.is_open = True

    def _may_hold_more(self, count: int, room: int) -> bool:
        return True  # decrypted bytes may wait in the TLS layer, of which the socket shows nothing

    def _read_some(self, room: memoryview) -> int:
        try:
            return self.socket.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return BLOCKED

    def _write_some(self, out: deque[memoryview]) -> int:
        try:
            return self.socket.send(out[0])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return BLOCKED
