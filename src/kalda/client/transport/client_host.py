"""What an asyncio client gets from the machine that it runs on: clocks, random numbers, and its connections.

Not obvious:

- In the asyncio shells only the host's clocks and random numbers are used, or the simulator is not deterministic.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from kalda.client.transport.channels import monotonic_ms
from kalda.client.transport.driven import Driven
from kalda.client.transport.io_loop import IoLoop

if TYPE_CHECKING:
    from kalda.network.client.security import ClientSecurity


class ClientHost:
    """A real machine. The simulator has another one, in virtual time."""

    monotonic_ms: Callable[[], int] = staticmethod(monotonic_ms)
    wall_s: Callable[[], float] = staticmethod(time.time)
    random: Callable[[], float] = staticmethod(random.random)

    def new_member_id(self) -> str:
        """A fresh UUID, for a member of a group with `group.protocol=consumer`."""
        return str(uuid.uuid4())

    def new_io(
        self,
        loop: asyncio.AbstractEventLoop,
        driven: Driven,
        security: ClientSecurity | None,
        send_bytes: int,
        receive_bytes: int,
    ) -> IoLoop:
        """What runs a core on the loop; the sizes are those of socket buffers, -1: the system's."""
        return IoLoop(loop, driven, security, send_bytes, receive_bytes)


REAL_HOST = ClientHost()
