"""A link to a store, in a process that is killed in the store's place: `python store_link.py PORT STORE_PORT`. After
SIGUSR1 it answers each request 503, after SIGUSR2 it is a link again."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

BODY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class Link:
    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._is_busy = False
        self._open: set[asyncio.StreamWriter] = set()

    def set_busy(self, is_busy: bool) -> None:
        self._is_busy = is_busy
        for each in self._open:
            each.close()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_busy:
            with suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(BUSY % (len(BODY), BODY))
                await writer.drain()
            writer.close()
            return
        try:
            ahead = await asyncio.open_connection("127.0.0.1", self._store_port)
        except OSError:  # as without a link
            writer.close()
            return
        self._open |= {writer, ahead[1]}
        await asyncio.gather(copy(reader, ahead[1]), copy(ahead[0], writer))
        self._open -= {writer, ahead[1]}


async def main(port: int, store_port: int) -> None:
    link, loop = Link(store_port), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, link.set_busy, True)
    loop.add_signal_handler(signal.SIGUSR2, link.set_busy, False)
    server = await asyncio.start_server(link.join, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
