"""TLS of a listener: a transport between the socket's and a `Connection`.

`TlsTransport` is the protocol of the socket's transport and the transport of the connection, by `ssl.SSLObject` over
memory. The connection is made when TCP's is, so an unfinished handshake counts as a connection: the limits of admission
hold for it, and the sweep bounds its time. The connection reads nothing until the handshake is done.

A handshake costs much more CPU than a request, so a thread of its own does it: `Handshakes` hands it one step of one
handshake at a time. OpenSSL computes without the interpreter's lock, so the loop serves other connections meanwhile.
Invariant: while a step is queued or runs, nothing is read from the socket, and the loop touches neither the TLS object
nor its memory.

Nothing is buffered here but what a read or a write of the connection needs: the socket's transport holds what the peer
does not read, and pauses the connection; a paused connection pauses the socket.

Not obvious:

- A TLS connection counts from its accept on. A step of its handshake runs on a thread, once a record is complete;
  while it is queued or runs, the loop touches neither the TLS object nor its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast

from kalda.network.server.connection import Connection
from kalda.network.server.peer_log import log

READ_BYTES = 64 * 1024
_HEADER_BYTES = 5
_RECORD_TYPES = (20, 21, 22, 23)
"""The first byte of a record: change of cipher, alert, handshake, data."""
_WRITE_BYTES = 256 * 1024
"""Bytes that are encrypted before they are handed to the socket."""


class Handshakes:
    """Handshakes whose next message has come, in order of arrival, and the thread that goes on with them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_soon = loop.call_soon
        self._loop = loop
        self._ready: SimpleQueue[TlsTransport | None] = SimpleQueue()
        """Each at most once; None ends the thread."""
        self._thread: threading.Thread | None = None
        """None before the first handshake, and after `close`."""
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        """What sockets are read into; used within one callback of the loop."""

    def add(self, transport: TlsTransport) -> None:
        """Continue this handshake after those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tls-handshakes", daemon=True)
            self._thread.start()
        self._ready.put(transport)

    def close(self) -> None:
        """End the thread; handshakes that wait are not continued."""
        if self._thread is not None:
            self._ready.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (transport := self._ready.get()) is not None:
            error = transport.step()
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(transport.on_step, error)


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """One connection's."""

    __slots__ = (
        "_closing", "_connection", "_context", "_established", "_handshakes", "_header", "_incoming", "_missing",
        "_on_secured", "_outgoing", "_paused", "_queued", "_raw", "_tls",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        context: ssl.SSLContext,
        handshakes: Handshakes,
        on_secured: Callable[[Connection, bytes | None, str | None], None],
    ) -> None:
        """`on_secured(connection, certificate, error)` is called once the handshake has ended: with the peer's
        certificate in DER, where it has shown one, or with why it has failed."""
        self._connection = connection
        self._context = context
        self._handshakes = handshakes
        self._on_secured = on_secured
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport | None = None
        """None before the connection is made, and after it has ended."""
        self._established = False
        self._queued = False
        """Whether a step of the handshake is queued or runs. Nothing is read from the socket then."""
        self._header = b""
        """Of the record of the handshake that arrives; empty between records."""
        self._missing = 0
        """Bytes of that record behind its header that have not arrived."""
        self._paused = False
        self._closing = False

    # -- protocol of the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the server decides about admission."""
        self._raw = cast(asyncio.Transport, transport)
        self._connection.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Memory for encrypted bytes."""
        return self._handshakes.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Encrypted bytes were read."""
        self._incoming.write(self._handshakes.read_buffer[:nbytes])
        if self._established:
            self._read()
        elif self._has_record(self._handshakes.read_buffer[:nbytes]) and not self._queued and not self._closing:
            assert self._raw is not None
            self._queued = True
            self._raw.pause_reading()
            self._handshakes.add(self)

    def pause_writing(self) -> None:
        """The peer reads its answers too slowly."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The socket's buffer has room again."""
        self._connection.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        self._closing = True
        self._raw = None
        self._connection.connection_lost(exc)

    # -- handshake

    def _has_record(self, received: memoryview) -> bool:
        """Whether `received` completes a record of the handshake: a step before would do nothing. True as well for what
        is no record, which the step refuses."""
        completes = False
        while received:
            if self._missing:
                taken = min(self._missing, len(received))
                self._missing -= taken
            else:
                taken = min(_HEADER_BYTES - len(self._header), len(received))
                self._header += received[:taken]
                if self._header[0] not in _RECORD_TYPES:
                    return True
                if len(self._header) == _HEADER_BYTES:
                    self._missing = int.from_bytes(self._header[3:], "big")
            received = received[taken:]
            if len(self._header) == _HEADER_BYTES and not self._missing:
                self._header = b""
                completes = True
        return completes

    def step(self) -> Exception | None:
        """Do what the messages that have arrived allow, on the thread of handshakes. Returns None when the handshake is
        complete, `ssl.SSLWantReadError` where another message of the peer has to come, or why it has failed."""
        if self._closing:
            return None
        try:
            self._tls.do_handshake()
        except Exception as error:
            return error
        return None

    def on_step(self, error: Exception | None) -> None:
        """A step was done."""
        self._queued = False
        raw = self._raw
        if self._closing or raw is None:
            return
        self._flush()  # where it has failed, the alert that says what is wrong
        if error is None:
            self._established = True
            self._end_handshake(self._tls.getpeercert(binary_form=True), None)
        elif not isinstance(error, ssl.SSLWantReadError):
            self._end_handshake(None, _reason(error) if isinstance(error, ssl.SSLError) else repr(error))
        if not self._closing and not self._paused:
            raw.resume_reading()
            if self._established:
                self._read()

    def _end_handshake(self, certificate: bytes | None, error: str | None) -> None:
        try:
            self._on_secured(self._connection, certificate, error)
        except Exception:
            log.exception("the certificate of %s could not be evaluated; closing it", self._connection)
            error = "failed"
        if error is not None:
            self._connection.close()

    # -- data

    def _read(self) -> None:
        """Pass decrypted bytes to the connection until there are none, or it pauses."""
        connection = self._connection
        while not self._paused and not self._closing:
            room = connection.get_buffer(-1)
            count = at_end = 0
            try:
                while count < len(room):
                    size = self._tls.read(len(room) - count, room[count:])
                    if not size:
                        at_end = 1
                        break
                    count += cast(int, size)
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                at_end = 1
            except ssl.SSLError as error:
                log.info("closing %s: TLS failed: %s", connection, _reason(error))
                at_end = 1
            is_full = count == len(room)
            del room  # the connection may make its memory longer when none of it is in use
            connection.buffer_updated(count)
            if self._outgoing.pending:
                self._flush()
            if at_end:
                connection.close()
                return
            if not is_full:
                return

    def _go_on_reading(self) -> None:
        if self._established and not self._paused and not self._closing:
            self._read()

    def _flush(self) -> None:
        raw = self._raw
        if raw is not None and self._outgoing.pending:
            raw.write(self._outgoing.read())

    # -- transport of the connection

    def write(self, data: Any) -> None:
        """Encrypt and send."""
        if self._closing or not self._established:
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), _WRITE_BYTES):
                self._tls.write(view[start : start + _WRITE_BYTES])
                self._flush()
        except ssl.SSLError as error:
            log.info("closing %s: TLS failed: %s", self._connection, _reason(error))
            self._connection.abort()

    def pause_reading(self) -> None:
        """Read nothing more from the socket, and pass on nothing that was read."""
        self._paused = True
        if self._raw is not None and not self._raw.is_closing() and not self._queued:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Pass on what was read already, and read again."""
        self._paused = False
        if self._raw is not None and not self._raw.is_closing() and not self._queued:
            self._raw.resume_reading()
            if self._established and (self._incoming.pending or self._tls.pending()):
                # Not at once: the connection is still in the callback that resumes.
                self._handshakes.call_soon(self._go_on_reading)

    def close(self) -> None:
        """Say that nothing more comes, send what is written, close."""
        if self._closing or self._raw is None:
            return
        if self._established:
            with contextlib.suppress(ssl.SSLError):  # the peer has not answered, and need not
                self._tls.unwrap()
            self._flush()
        self._closing = True
        self._raw.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called, or the connection has ended."""
        return self._closing or self._raw is None or self._raw.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the socket's transport."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Of the socket's transport."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of the TLS session for `ssl_object`, else of the socket's transport."""
        if name == "ssl_object":
            return self._tls
        return default if self._raw is None else self._raw.get_extra_info(name, default)


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason, in words."""
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return "the client has sent no TLS handshake: does its security.protocol fit this listener?"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    detail = getattr(error, "verify_message", None)
    return f"{reason}: {detail}" if detail else reason
