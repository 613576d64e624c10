"""Ports for nodes whose configuration is written before they run.

A node must have the same address after a restart, so its ports are chosen once. They are below the range that the
kernel uses for outgoing connections, so that no such connection takes one while its node is down.
"""

from __future__ import annotations

import errno
import random
import socket

LOOPBACK = "127.0.0.1"
_RANGE = (15_000, 32_000)
_ATTEMPTS = 1_000


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Ports without a listener. Raises `OSError` where not enough are found."""
    held: dict[int, socket.socket] = {}
    try:
        for _ in range(_ATTEMPTS + count):
            if len(held) == count:
                return list(held)
            port = random.randrange(*_RANGE)
            if port not in held:
                bound = _bind(host, port)
                if bound is not None:
                    held[port] = bound
        raise OSError(f"no {count} free ports between {_RANGE[0]} and {_RANGE[1]}")
    finally:
        for each in held.values():
            each.close()


def is_free(port: int, host: str | None = LOOPBACK) -> bool:
    """Whether a server could listen there now; None stands for every address of this host. Raises `OSError` for a host
    that is not this one."""
    bound = _bind(host, port)
    if bound is None:
        return False
    bound.close()
    return True


def _bind(host: str | None, port: int) -> socket.socket | None:
    """A socket bound as servers bind it, so that closed connections in TIME_WAIT are no obstacle; None: in use."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    attempt = socket.socket(family, kind, protocol)
    try:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        attempt.bind(address)
        attempt.listen(1)  # with SO_REUSEADDR two sockets can be bound to one port as long as neither listens
    except OSError as error:
        attempt.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    return attempt
