"""An asyncio loop in virtual time, for all simulated processes.

When no callback is ready, the clock jumps to the next timer: an hour of waiting costs nothing, and two runs with the
same calls in the same order are equal. There are no sockets, threads or signals; connections are made by the simulated
network.

Each callback belongs to a process, and is run only while that process lives (see `process`).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from kalda.sim.network import BACKLOG, SimNetwork, SimServer
from kalda.sim.process import BOOT, Boot

_MAX_TURNS_AT_ONE_TIME = 200_000
_RESOLUTION_S = 1e-9
_MIN_CANCELLED = 100


class Stuck(Exception):
    """The run cannot continue: no callback is ready and no timer is set, or time does not advance."""


class SimLoop(asyncio.BaseEventLoop):
    """The loop. `network` must be set before the first connection."""

    network: SimNetwork

    def __init__(self, start_s: float = 0.0) -> None:
        super().__init__()
        self._now = start_s
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """Sorted by time, then by the order in which they were set: comparing the numbers spares the slow comparison of
        handles."""
        self._set = 0
        """Number of timers set so far."""
        self._cancelled = 0
        """Number of cancelled timers in `_timers`."""
        self._turns = 0
        """Turns since the clock last advanced."""
        self._over = False
        self._step: asyncio.Handle | None = None
        """The callback that is being run."""
        self.set_task_factory(_make_task)

    # Replacements of the base class's methods, which use a selector and a pipe.

    def _run_once(self) -> None:
        """One turn. Where no callback is ready, the time becomes that of the next timer."""
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled -= 1
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck("no callback is ready, and no timer is set")
            if timers[0][0] > self._now:
                self._now = timers[0][0]
                self._turns = 0
        self._turns += 1
        if self._turns > _MAX_TURNS_AT_ONE_TIME:
            raise Stuck(f"{_MAX_TURNS_AT_ONE_TIME} turns of the loop at {self._now:.6f} s")
        until = self._now + _RESOLUTION_S
        while timers and timers[0][0] < until:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            step = ready.popleft()
            if not step.cancelled():
                self._step = step
                step._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > _MIN_CANCELLED and self._cancelled > len(self._timers) // 2:
            self._timers[:] = [timer for timer in self._timers if not timer[2].cancelled() and timer[2] is not handle]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _process_events(self, event_list: object) -> None:
        return

    def _write_to_self(self) -> None:
        return

    # Time and callbacks.

    def time(self) -> float:
        return self._now

    def finish(self) -> None:
        """The run is over. Coroutines that are closed now may still schedule callbacks, which must not fail although
        the loop is closed; their exceptions are ignored."""
        self._over = True
        self.set_exception_handler(lambda *_: None)

    def _check_closed(self) -> None:
        if not self._over:
            super()._check_closed()  # type: ignore[misc]

    def close(self) -> None:
        self._timers.clear()
        super().close()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        boot = BOOT.get() if context is None else context.get(BOOT)
        if context is None:
            context = contextvars.copy_context()
        if boot is None:
            step = asyncio.Handle(callback, args, self, context)
        else:
            step = asyncio.Handle(self._take, (boot, callback, args), self, context)
        self._ready.append(step)  # type: ignore[attr-defined]
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        boot = BOOT.get() if context is None else context.get(BOOT)
        if context is None:
            context = contextvars.copy_context()
        if boot is None:
            timer = asyncio.TimerHandle(when, callback, args, self, context)
        else:
            timer = asyncio.TimerHandle(when, self._take, (boot, callback, args), self, context)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def resume(self, boot: Boot) -> None:
        """Resume a paused process: the callbacks that came due meanwhile are run in order."""
        boot.paused = False
        held, boot.held = boot.held, []
        self._ready += held  # type: ignore[attr-defined]

    def _take(self, boot: Boot, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run a callback of a process, unless it has ended; keep it for later where it is paused."""
        if not boot.alive:
            return
        if boot.paused:
            assert self._step is not None
            boot.held.append(self._step)
        else:
            callback(*args)

    # The network.

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        backlog: int = BACKLOG,
        start_serving: bool = True,
        **_: Any,
    ) -> SimServer:
        server = self.network.listen(protocol_factory, host, port, backlog)
        if start_serving:
            await server.start_serving()
        return server

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> Any:  # type: ignore[override]
        """One address, of which `create_connection` takes the name."""
        return [(0, 0, 0, "", (host, port))]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.network.connect(protocol_factory, host, port)


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """A task that its boot references: the unfinished task of a killed process must not be garbage collected during the
    run, since that would run its `finally` blocks."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    boot = BOOT.get()
    if boot is not None:
        boot.tasks.append(task)
        if len(boot.tasks) > 1_000:
            boot.tasks = [each for each in boot.tasks if not each.done()]
    return task
