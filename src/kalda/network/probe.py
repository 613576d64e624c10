"""Is anybody listening there? One TCP connection, made and dropped, which tells a process that is gone from all else.

Where no process listens, the kernel of the host refuses. A process that is paused, busy, or stuck does not: its kernel
accepts in its place until the backlog is full, and then says nothing. Neither does a host that is down or cut off. So
only a refusal says anything, and only where each address of the host refuses: a name may stand for several, of which
the listener is bound to one.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

PROBE_TIMEOUT_MS = 500
"""Shorter than the second after which a kernel sends its first packet again: what has not answered by then may have
been lost, and that says nothing."""
_MAX_ADDRESSES = 8


async def is_refused(host: str, port: int, timeout_ms: int = PROBE_TIMEOUT_MS) -> bool:
    """True only where every address of `host` refuses connections to `port`, within the timeout."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            addresses = _numeric(host, port) or await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            if not 0 < len(addresses) <= _MAX_ADDRESSES:
                return False
            for family, kind, protocol, _, address in addresses:
                if not await _refuses(loop, socket.socket(family, kind, protocol), address):
                    return False
    except (OSError, TimeoutError, UnicodeError):  # the last is of a name that can be no host's
        return False
    return True


def _numeric(host: str, port: int) -> list[Any]:
    """An address that is one already needs no thread to be looked up."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


async def _refuses(loop: asyncio.AbstractEventLoop, probe: socket.socket, address: tuple[object, ...]) -> bool:
    with probe:
        probe.setblocking(False)
        try:
            await loop.sock_connect(probe, address)
        except ConnectionRefusedError:
            return True
        # On loopback a port that nobody listens on may be drawn for the probe's own end, which then meets itself.
        return bool(probe.getsockname() == probe.getpeername())
