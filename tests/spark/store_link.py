"""A link to a store, in a process that is killed in the store's place: `python store_link.py PORT STORE_PORT`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(port: int, store_port: int) -> None:
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead = await asyncio.open_connection("127.0.0.1", store_port)
        await asyncio.gather(copy(reader, ahead[1]), copy(ahead[0], writer))

    server = await asyncio.start_server(join, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
