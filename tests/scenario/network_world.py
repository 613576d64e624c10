"""What tests of servers and connections over loopback sockets share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kalda.network.server.connection import Answer, Connection


class HandClock:
    """A clock that stands still until the test sets `now`."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def wall_ms(self) -> int:
        return self.now

    def mono_ms(self) -> int:
        return self.now


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the conditions are states of the server, not events
        await asyncio.sleep(0)


def echo(connection: Connection, frame: memoryview) -> Answer:
    return [b"re:", frame]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], body: bytes) -> bytes:
    reader, writer = streams
    writer.write(frame(body))
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
