"""An asyncio client: the loop that it belongs to, and its connections there.

Not obvious:

- In the asyncio shells only the host's clocks and random numbers are used, or the simulator is not deterministic.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kalda.base.errors import WrongState
from kalda.base.ids import Uuid
from kalda.client.transport.driven import Driven
from kalda.client.transport.faces import ClientFace, ClientHost
from kalda.client.transport.io_loop import IoLoop

if TYPE_CHECKING:
    pass


class LoopHost(ClientHost):
    """What asyncio clients get besides: connections on a loop."""

    def new_io(self, loop: asyncio.AbstractEventLoop, driven: Driven) -> IoLoop:
        """What runs a core on the loop."""
        return IoLoop(loop, driven)


class AioFace(ClientFace):
    """A client whose I/O runs on the loop of its user: the one in which its first call waits."""

    _host: LoopHost = LoopHost()
    _what: str
    """What a sentence calls it: producer, consumer."""
    _io: IoLoop | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def _started(self) -> IoLoop:
        """The I/O, which begins here. Raises `WrongState` in another loop than before."""
        loop = asyncio.get_running_loop()
        if self._io is None:
            self._loop = loop
            self._io = self._host.new_io(loop, self._driven)
        elif loop is not self._loop:
            raise WrongState(f"the {self._what} belongs to another event loop: make one in each loop")
        return self._io

    async def client_instance_id(self, timeout: float | None = None) -> Uuid | None:
        """The id that the cluster has given to this client for its telemetry (KIP-714). Waits for it, and returns None
        where it is not known after `timeout` seconds (default: `default.api.timeout.ms`, of a producer `max.block.ms`).
        Raises `WrongState` where `enable.metrics.push` is false."""
        own, limit_s = self._awaited_metrics(timeout)
        known = asyncio.Event()
        own.call_with_id(known.set)
        self._started().wake()
        try:
            async with asyncio.timeout(limit_s):
                await known.wait()
        except TimeoutError:
            pass
        return own.instance_id
