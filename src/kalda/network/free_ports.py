"""Ports for nodes that are laid out before they run.

A node that comes back must be found where it was, so its ports are chosen once. They are taken from below the range
that the kernel gives to outgoing connections: nothing takes one by chance while its node is down.
"""

from __future__ import annotations

import errno
import random
import socket

LOOPBACK = "127.0.0.1"
_RANGE = (15_000, 32_000)
_ATTEMPTS = 1_000


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Ports that nobody listens on. Raises `OSError` where none are found."""
    held: dict[int, socket.socket] = {}
    try:
        for _ in range(_ATTEMPTS + count):
            if len(held) == count:
                return list(held)
            port = random.randrange(*_RANGE)
            if port not in held:
                taken = _take(host, port)
                if taken is not None:
                    held[port] = taken
        raise OSError(f"no {count} free ports between {_RANGE[0]} and {_RANGE[1]}")
    finally:
        for each in held.values():
            each.close()


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen there now. Raises `OSError` for a host that is not this one."""
    taken = _take(host, port)
    if taken is None:
        return False
    taken.close()
    return True


def _take(host: str, port: int) -> socket.socket | None:
    """The address, bound as servers bind it: connections of a server that has ended do not count."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    attempt = socket.socket(family, kind, protocol)
    try:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        attempt.bind(address)
        attempt.listen(1)  # two may be bound to an address where none listens yet
    except OSError as error:
        attempt.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    return attempt
