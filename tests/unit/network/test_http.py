"""The HTTP server for operators: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from kalda.network.http import HttpServer, Page


def pages(path: str, query: dict[str, str]) -> Page | None:
    if path == "/fails":
        raise KeyError(path)
    if path == "/long":
        return Page("text/plain", (f"{number}\n" for number in range(10_000)))
    return (
        Page("text/plain", [path, *sorted(f" {key}={value}" for key, value in query.items())]) if path == "/a" else None
    )


def run(scenario: Callable[[Callable[[bytes], Awaitable[bytes]]], Awaitable[None]]) -> None:
    async def bounded() -> None:
        server = HttpServer(pages)
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
        assert await send(b"GET /a?x=1&y=%20z HTTP/1.1" + end) == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n/a x=1 y= z"
        )
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
