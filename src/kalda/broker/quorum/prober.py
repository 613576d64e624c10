"""Carries out the controller's probes of brokers that may be dead (`kalda.controller.suspects`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kalda.controller.suspects import Probe

log = logging.getLogger("kalda.quorum")

IsRefused = Callable[[str, int], Awaitable[bool]]


class Prober:
    """Connects to the addresses of a broker, and reports whether all refuse. The controller bounds how many probes are
    under way."""

    def __init__(self, is_refused: IsRefused, on_probed: Callable[[Probe, bool], None]) -> None:
        """`is_refused(host, port)` returns within a short time. `on_probed(probe, refused)` is called with each result,
        until `close`; a probe that raises proves nothing."""
        self._is_refused = is_refused
        self._on_probed = on_probed
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each probe under way."""
        self._closed = False

    def start(self, probe: Probe) -> None:
        """Begin a probe."""
        if self._closed:
            return
        task = asyncio.get_running_loop().create_task(self._run(probe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, probe: Probe) -> None:
        refused = True
        try:
            for host, port in probe.addresses:
                refused = refused and await self._is_refused(host, port)
        except Exception:
            log.exception("broker %d could not be probed", probe.broker_id)
            refused = False
        if not self._closed:
            self._on_probed(probe, refused)

    def close(self) -> None:
        """Report nothing more. This node stops, so a refused connection may be its own doing."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
