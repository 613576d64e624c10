"""A `Channel` that is encrypted. A module of its own, because `ssl` costs a client without TLS its start."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Mapping

from kalda.client.channel import BLOCKED, Channel, SocketAddress


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


def tls_context(values: Mapping[str, object]) -> ssl.SSLContext:
    """The context of the `ssl.*` keys."""
    trusted = values.get("ssl.truststore.location")
    context = ssl.create_default_context(cafile=str(trusted) if trusted else None)
    if not values.get("ssl.endpoint.identification.algorithm"):
        context.check_hostname = False
    own = values.get("ssl.keystore.location")
    if own:
        password = values.get("ssl.key.password")
        context.load_cert_chain(str(own), password=None if password is None else str(password))
    return context
