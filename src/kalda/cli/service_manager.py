"""What a node reports to systemd (`Type=notify`): that it serves, and that it stops.

The protocol is one datagram with lines `KEY=VALUE` to the socket that `NOTIFY_SOCKET` names; without it, nothing is
sent.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger("kalda.server")


def notify(*lines: str) -> None:
    """Send lines such as `READY=1`. A failure is logged: the node serves all the same."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract address
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall("\n".join(lines).encode())
    except OSError as error:
        log.warning("systemd could not be notified of %s: %s", " ".join(lines), error)
