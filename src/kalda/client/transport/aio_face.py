"""An asyncio client: the loop that it belongs to, and its connections there.

Not obvious:

- In the asyncio shells only the host's clocks and random numbers are used, or the simulator is not deterministic.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from kalda.base.errors import ApiError, ErrorCode, WrongState
from kalda.base.ids import Uuid
from kalda.client.transport.channels import Channels, monotonic_ms
from kalda.client.transport.driven import Driven
from kalda.client.transport.faces import ClientFace, ClientHost
from kalda.clientcore.connections.connections import Connect

# What runs the core of an asyncio client: its turns, sockets and timer on the loop of its user.
#
# A turn is as in `io_thread`. `wake` schedules one behind the callbacks that are due already, so what is sent in one
# go is sent together.

log = logging.getLogger(__name__)


class IoLoop:
    """The turns of one client. Used on one loop, by that loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        driven: Driven,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._driven = driven
        self._channels: Channels = Channels(driven, self)
        self._io_s = loop.time()
        """When the last reading or writing has ended."""
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._waiting: set[asyncio.Task[None]] = set()
        """Each waits for the addresses of a host, or for a thread that prepares a login."""
        self._writing: set[int] = set()
        """Descriptors that are watched for writing."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the client has ended."""

    def wake(self) -> None:
        """Take a turn soon."""
        if not self._is_scheduled and not self.ended.done():
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def wake_by(self, due_ms: int) -> None:
        """Take a turn at that time, where the next one is later."""
        if self._timer is None or self._timer_ms > due_ms:
            self._set_timer(due_ms)

    def _set_timer(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(max(0.0, (due_ms - self._now_ms()) / 1000), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _turn(self) -> None:
        self._is_scheduled = False
        if self.ended.done():
            return
        driven = self._driven
        try:
            ran_ms = self._now_ms()
            driven.run(ran_ms)
            began_s = self._loop.time()
            self._channels.carry_out()
            self._count_io(began_s)
            driven.finish()
            if driven.is_over():
                self._end(None)
                return
            due_ms = driven.deadline_ms(ran_ms)  # what has become due since the run is due, not over
        except Exception as error:
            log.exception("a turn of the client failed")
            self._end(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a turn of the client failed: {error!r}"))
            return
        if due_ms is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None or self._timer_ms != due_ms:
            self._set_timer(due_ms)

    def _end(self, error: ApiError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._waiting:
            task.cancel()
        try:
            self._driven.on_end(error)
            self._driven.finish()
        finally:
            self._channels.close()
            if not self.ended.done():
                self.ended.set_result(None)

    # -- what `Channels` needs

    def watch(self, connection_id: int, peer: socket.socket, wants_write: bool) -> None:
        """Wait for this socket too."""
        descriptor = peer.fileno()
        self._loop.add_reader(descriptor, self._on_event, connection_id, True, False)
        if wants_write:
            self._writing.add(descriptor)
            self._loop.add_writer(descriptor, self._on_event, connection_id, False, True)
        elif descriptor in self._writing:
            self._writing.discard(descriptor)
            self._loop.remove_writer(descriptor)

    def unwatch(self, peer: socket.socket) -> None:
        """Wait for it no longer."""
        descriptor = peer.fileno()
        if descriptor >= 0:
            self._writing.discard(descriptor)
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def resolve(self, action: Connect) -> None:
        """Resolve the host, while the loop goes on."""
        task = self._loop.create_task(self._resolve(action))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _resolve(self, action: Connect) -> None:
        try:
            listed = await self._loop.getaddrinfo(action.address.host, action.address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self._channels.on_failed(action, str(error))
        else:
            self._channels.on_resolved(action, listed)
        self.wake()

    def log_in(self, connection_id: int, host: str) -> bool:
        """Prepare a login on a thread, while the loop goes on."""
        task = self._loop.create_task(self._log_in(connection_id, host))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return True

    async def _log_in(self, connection_id: int, host: str) -> None:
        security = self._driven.security
        assert security is not None, "only connections with SASL log in"
        login = failure = None
        try:
            login = await asyncio.to_thread(security.login, host)
        except ApiError as error:
            failure = error
        except Exception as error:
            log.exception("a login failed")
            failure = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a login failed: {type(error).__name__}")
        self._channels.on_login(connection_id, login, failure)
        self.wake()

    def _on_event(self, connection_id: int, readable: bool, writable: bool) -> None:
        began_s = self._loop.time()
        has_come = self._channels.on_event(connection_id, readable, writable)
        self._count_io(began_s)
        if has_come:
            self._driven.finish()
            self.wake()

    def _count_io(self, began_s: float) -> None:
        """Reading or writing has ended, which began at that time. The time before it counts as a wait for sockets."""
        ended_s, metrics = self._loop.time(), self._driven.metrics
        metrics.io_wait_ns.append(int((began_s - self._io_s) * 1e9))
        metrics.io_ns.append(int((ended_s - began_s) * 1e9))
        self._io_s = ended_s


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
