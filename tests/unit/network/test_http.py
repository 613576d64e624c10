"""The HTTP server for operators: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from email.utils import parsedate_to_datetime

from kalda.network.server.http import HttpServer, Page


def pages(path: str, query: dict[str, str]) -> Page | None:
    if path == "/fails":
        raise KeyError(path)
    if path == "/long":
        return Page("text/plain", (f"{number}\n" for number in range(10_000)))
    return (
        Page("text/plain", [path, *sorted(f" {key}={value}" for key, value in query.items())]) if path == "/a" else None
    )


def run(
    scenario: Callable[[Callable[[bytes], Awaitable[bytes]]], Awaitable[None]], server: HttpServer | None = None
) -> None:
    async def bounded() -> None:
        nonlocal server
        server = server or HttpServer(pages)
        await server.open("127.0.0.1", 0)

        async def send(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            answer = await reader.read(1 << 20)
            while more := await reader.read(1 << 20):
                answer += more
            writer.close()
            return answer

        try:
            async with asyncio.timeout(30):
                await scenario(send)
        finally:
            await server.close()

    asyncio.run(bounded())


def test_pages_and_refusals() -> None:
    async def scenario(send: Callable[[bytes], Awaitable[bytes]]) -> None:
        end = b"\r\nHost: x\r\n\r\n"
        head, _, body = (await send(b"GET /a?x=1&y=%20z HTTP/1.1" + end)).partition(b"\r\n\r\n")
        status, date, *others = head.split(b"\r\n")
        assert (status, others, body) == (
            b"HTTP/1.1 200 OK", [b"Content-Type: text/plain", b"Connection: close"], b"/a x=1 y= z"
        )  # fmt: skip
        moment = parsedate_to_datetime(date.removeprefix(b"Date: ").decode())
        assert abs(time.time() - moment.timestamp()) < 60
        long = b"%0A" * 32_767  # the longest client id
        assert (await send(b"GET /a?client=" + long + b" HTTP/1.1" + end)).endswith(b"\n" * 32_767)
        for request, status in (
            (b"GET /b HTTP/1.1", b"404"),
            (b"POST /a HTTP/1.1", b"405"),
            (b"GET //[ HTTP/1.1", b"400"),
            (b"GET http://[::1 HTTP/1.1", b"400"),
            (b"\x00\x00\x00\x01 nonsense", b"400"),
            (b"GET /fails HTTP/1.0", b"500"),
        ):
            assert (await send(request + end)).split(b" ")[1] == status
        body = (await send(b"GET /long HTTP/1.1" + end)).partition(b"\r\n\r\n")[2]
        assert body.split() == [str(number).encode() for number in range(10_000)]

    run(scenario)


def test_an_action_needs_the_token() -> None:
    done: list[str] = []

    def act(path: str, query: dict[str, str]) -> Page:
        done.append(path)
        return Page("text/plain", ["taken"], 202)

    async def scenario(send: Callable[[bytes], Awaitable[bytes]]) -> None:
        async def status(request: bytes, *fields: bytes) -> bytes:
            return (await send(b"\r\n".join([request + b" HTTP/1.1", *fields, b"", b""]))).split(b" ")[1]

        assert await status(b"POST /stop") == b"401"
        assert await status(b"POST /stop", b"Authorization: Bearer another") == b"401"
        assert await status(b"POST /stop", b"Authorization: Basic secret") == b"401"
        assert await status(b"GET /a") == b"401"
        assert await status(b"GET /") == b"404", "everyone may ask for the first page"
        assert done == []
        assert await status(b"POST /stop", b"authorization: bearer secret") == b"202"
        assert await status(b"GET /a", b"Host: x", b"Authorization: Bearer secret") == b"200"
        assert await status(b"PUT /stop", b"Authorization: Bearer secret") == b"405"
        assert done == ["/stop"]

    run(scenario, HttpServer(pages, act, "secret"))


def test_a_request_without_an_end_is_dropped() -> None:
    async def scenario(send: Callable[[bytes], Awaitable[bytes]]) -> None:
        assert await send(b"GET /" + b"a" * 100_000) == b""
        assert (await send(b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")

    run(scenario)


def test_a_page_is_made_piece_by_piece_while_others_are_served() -> None:
    turns: list[str] = []

    def pieces() -> Iterator[str]:
        for number in range(5):
            turns.append(f"piece {number}")
            yield "x"

    async def scenario() -> None:
        server = HttpServer(lambda path, query: Page("text/plain", pieces()))
        await server.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        reading = asyncio.ensure_future(reader.read())
        while not reading.done():
            turns.append("another")
            await asyncio.sleep(0)
        writer.close()
        await server.close()

    asyncio.run(scenario())
    assert "another" in turns[turns.index("piece 0") : turns.index("piece 4")]
