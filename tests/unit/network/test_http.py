"""The HTTP server for operators: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from email.utils import parsedate_to_datetime

import pytest

from kalda.network.server import http
from kalda.network.server.http import HttpServer, Page
from waiting import wait_until


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


def test_requests_that_are_no_clean_ones() -> None:
    """Bodies are refused before the action; what stands behind a request is not read as one; a name that has line
    breaks in it is a name."""
    done: list[str] = []

    def act(path: str, query: dict[str, str]) -> Page:
        done.append(path)
        return Page("text/plain", ["taken"], 202)

    async def scenario(send: Callable[[bytes], Awaitable[bytes]]) -> None:
        head = b"POST /stop HTTP/1.1\r\nAuthorization: Bearer secret\r\n"
        for given, status in (
            (head + b"Content-Length: 1000000000000\r\n\r\n" + b"x" * 100_000, b"413"),
            (head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"413"),
            (head + b"Content-Length: -1\r\n\r\n", b"413"),
            (b"POST /stop HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", b"401"),
            (b"POST /stop HTTP/1.1\r\nAuthorization: Bearer\r\n\r\n", b"401"),
            (b"POST /stop HTTP/1.1\r\n : Bearer secret\r\nAuthorization\r\n\r\n", b"401"),
            (b"POST /stop HTTP/1.1\r\nAuthorization: Bearer " + b"\xff" * 60_000 + b"\r\n\r\n", b"401"),
            (b"HEAD / HTTP/1.1\r\n\r\n", b"405"),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"405"),
            (b"GET  / HTTP/1.1\r\n\r\n", b"400"),
            (b"\r\n\r\n", b"400"),
        ):
            assert (await send(given)).split(b" ")[1] == status, given[:60]
        assert done == []
        answer = await send(head + b"Content-Length: 0\r\n\r\n" + head.replace(b"stop", b"other") + b"\r\n")
        assert answer.count(b"HTTP/1.1") == 1
        assert (await send(head.replace(b"/stop", b"/%0d%0aSet-Cookie:%20a%0d%0a") + b"\r\n")).count(b"\r\n") == 5
        assert done == ["/stop", "/%0d%0aSet-Cookie:%20a%0d%0a"]

    run(scenario, HttpServer(pages, act, "secret"))


def test_slow_and_very_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """900 connections at once: those beyond the bound are closed, and the others too when their time is over, whether
    they do not ask or do not read. No connection is kept then."""
    monkeypatch.setattr(http, "_REQUEST_S", 0.2)
    monkeypatch.setattr(http, "_ANSWER_S", 0.2)
    end = b" HTTP/1.1\r\n\r\n"

    def large(path: str, query: dict[str, str]) -> Page:
        return Page("text/plain", ("x" * 100_000 for _ in range(200 if path == "/large" else 0)))

    async def scenario() -> None:
        server = HttpServer(large)
        await server.open("127.0.0.1", 0)
        before = len(os.listdir("/proc/self/fd"))
        clients = [socket.socket() for _ in range(900)]
        try:
            for number, each in enumerate(clients):
                each.setblocking(False)
                await asyncio.get_running_loop().sock_connect(each, ("127.0.0.1", server.port))
                if number < 20:
                    each.send(b"GET /large" + end)
            await asyncio.to_thread(wait_until, lambda: len(os.listdir("/proc/self/fd")) <= before + len(clients))
            for each in clients[20:]:
                assert each.recv(1) == b""
        finally:
            for each in clients:
                each.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /" + end)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await server.close()

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


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
