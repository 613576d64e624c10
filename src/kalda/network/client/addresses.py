"""The addresses of a host, and which of them a node's attempt to connect takes first; and whether the process there has
ended.

For connections of nodes alone: those of producers, consumers and tools are decided in
`clientcore/connections/connections.py`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
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


# Whether a process has ended: it has where every address of its host refuses connections to its port.
#
# Where no process listens on a port, the host's kernel refuses the connection. Where a process is paused, busy or
# stuck, the kernel accepts connections until the backlog is full, and then does not answer; a host that is down or cut
# off does not answer either. So only a refusal proves anything, and only a refusal by all addresses of the host: its
# name may have several, and the listener may be bound to one of them.

IsRefused = Callable[[str, int], Awaitable[bool]]
"""Probes an address, within a short time."""
PROBE_TIMEOUT_MS = 500
"""Shorter than the second after which a kernel repeats its first packet: without an answer by then the packet may have
been lost, which proves nothing."""
_MAX_ADDRESSES = 8


async def is_refused(host: str, port: int, timeout_ms: int = PROBE_TIMEOUT_MS) -> bool:
    """True only where every address of `host` refuses connections to `port`, within the timeout."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            addresses = await addresses_of(host, port)
            if not 0 < len(addresses) <= _MAX_ADDRESSES:
                return False
            for family, kind, protocol, _, address in addresses:
                if not await _refuses(loop, socket.socket(family, kind, protocol), address):
                    return False
    except (OSError, TimeoutError, UnicodeError):  # UnicodeError: the name cannot be encoded as a host name
        return False
    return True


async def all_refuse(addresses: Iterable[tuple[str, int]], is_refused: IsRefused) -> bool:
    """Whether each of a node's addresses refuses connections."""
    for host, port in addresses:
        if not await is_refused(host, port):
            return False
    return True


async def _refuses(loop: asyncio.AbstractEventLoop, probe: socket.socket, address: tuple[object, ...]) -> bool:
    with probe:
        probe.setblocking(False)
        try:
            await loop.sock_connect(probe, address)
        except ConnectionRefusedError:
            return True
        # On loopback the kernel may choose the probed port as the probe's own port; then the probe connects to itself.
        return bool(probe.getsockname() == probe.getpeername())
