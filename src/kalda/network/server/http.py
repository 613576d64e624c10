"""A small HTTP server, for what operators read from a node, and a few actions: one answer a connection.

It serves no clients of the log. Bounded: the size of a request, the time in which it must arrive and its answer must be
read, and how many connections there are. An answer is made and sent piece by piece, with turns of the event loop in
between, so that a long one delays no other request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

log = logging.getLogger("kalda.http")

_MAX_REQUEST_BYTES = 128 * 1024
"""The longest client id fits into a query, each byte of it escaped."""
_MAX_CONNECTIONS = 32
_REQUEST_S = 5.0
_ANSWER_S = 60.0
_REASONS = {
    200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    409: "Conflict", 413: "Content Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class Page(NamedTuple):
    """An answer, in pieces."""

    content_type: str
    pieces: Iterable[str]
    status: int = 200


Handle = Callable[[str, dict[str, str]], Page | None]
"""`(path, query)`: the page, or None where there is none."""


class HttpServer:
    """One listener."""

    def __init__(self, handle: Handle, act: Handle | None = None, token: str | None = None) -> None:
        """`handle` answers GET, `act` POST without a body. With a `token`, each request but that of `/` needs it, as
        `Authorization: Bearer`."""
        self._methods = {"GET": handle} if act is None else {"GET": handle, "POST": act}
        self._token = token
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen. Port 0 chooses a free one, and sets `port`. Raises `OSError`."""
        self._server = await asyncio.start_server(self._serve, host or None, port, limit=_MAX_REQUEST_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close the listener and its connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(_ANSWER_S):
                    await self._answer(head, writer)
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the peer has closed the connection, is too slow, or speaks another protocol
        finally:
            self._tasks.discard(task)
            writer.transport.abort()  # what the peer has not read by now would be kept until it closes

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        line, *fields = head.decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            await _send(writer, 400, Page("text/plain", ["no HTTP request\n"]))
        elif words[0] not in self._methods:
            await _send(writer, 405, Page("text/plain", [f"only {' and '.join(self._methods)} is served\n"]))
        else:
            try:
                url = urlsplit(words[1])
            except ValueError:  # as for "//[", a host that is no address
                await _send(writer, 400, Page("text/plain", ["no URL\n"]))
                return
            named = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
            if url.path != "/" and not self._is_allowed(named.get("authorization", "")):
                await _send(writer, 401, Page("text/plain", ["Authorization: Bearer TOKEN is missing or wrong\n"]))
                return
            if named.get("content-length", "0") != "0" or "transfer-encoding" in named:
                await _send(writer, 413, Page("text/plain", ["a request has no body\n"]))
                return
            try:
                page = self._methods[words[0]](url.path, dict(parse_qsl(url.query)))
            except Exception:
                log.exception("%s %s failed", words[0], url.path)
                await _send(writer, 500, Page("text/plain", ["see the log of the node\n"]))
                return
            if page is None:
                await _send(writer, 404, Page("text/plain", ["no such page\n"]))
            else:
                await _send(writer, page.status, page)

    def _is_allowed(self, given: str) -> bool:
        """Whether this value of `Authorization` has the token."""
        if self._token is None:
            return True
        scheme, _, token = given.partition(" ")
        is_bearer = scheme.lower() == "bearer"
        return compare_digest((token.strip() if is_bearer else "").encode("latin-1"), self._token.encode())


async def _send(writer: asyncio.StreamWriter, status: int, page: Page) -> None:
    from email.utils import formatdate

    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {page.content_type}",
        "Connection: close",
    )
    writer.write("".join(f"{line}\r\n" for line in (*head, "")).encode())
    for piece in page.pieces:
        writer.write(piece.encode("utf-8", "replace"))
        await writer.drain()
        await asyncio.sleep(0)
