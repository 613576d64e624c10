"""Whether a process has ended: it has where every address of its host refuses connections to its port.

Where no process listens on a port, the host's kernel refuses the connection. Where a process is paused, busy or stuck,
the kernel accepts connections until the backlog is full, and then does not answer; a host that is down or cut off does
not answer either. So only a refusal proves anything, and only a refusal by all addresses of the host: its name may have
several, and the listener may be bound to one of them.
"""

from __future__ import annotations

import asyncio
import socket

from kalda.network.addresses import addresses_of

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


async def _refuses(loop: asyncio.AbstractEventLoop, probe: socket.socket, address: tuple[object, ...]) -> bool:
    with probe:
        probe.setblocking(False)
        try:
            await loop.sock_connect(probe, address)
        except ConnectionRefusedError:
            return True
        # On loopback the kernel may choose the probed port as the probe's own port; then the probe connects to itself.
        return bool(probe.getsockname() == probe.getpeername())
