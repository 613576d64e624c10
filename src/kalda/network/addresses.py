"""The addresses of a host, and which of them an attempt to connect takes first."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


class AddressIndex:
    """Of one client's connections to one host. It moves on where an address fails, also where the attempt is cancelled,
    so that the next attempt begins behind an address that does not answer; one that works is kept."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


async def addresses_of(host: str, port: int) -> list[tuple[Any, ...]]:
    """As `getaddrinfo` lists them, one at least; a numeric address needs no lookup on a thread. Raises `OSError`, and
    `UnicodeError` where the name cannot be encoded as a host name."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
