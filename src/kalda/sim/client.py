"""A client of the simulated cluster: finds leaders and coordinators, retries, and returns or raises each outcome.

It uses the real RPC client over the simulated network, on a machine of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.ids import TopicPartition, random_uuid, uuid_to_text
from kalda.client.admin.aio_admin import Admin
from kalda.client.consumer.aio_consumer import Consumer
from kalda.client.consumer.aio_share_consumer import ShareConsumer
from kalda.client.producer.aio_producer import Producer
from kalda.client.transport.aio_face import IoLoop, LoopHost
from kalda.client.transport.channels import Channels
from kalda.client.transport.driven import Driven
from kalda.clientcore.administration import Ask, Target, TargetKind, single
from kalda.clientcore.connections.connections import Action, Connect, Connections, OnDone, Write
from kalda.clientcore.connections.metadata import Metadata, Topic, newest, read_metadata
from kalda.network.client.client import Reach, RpcClient, RpcPolicy
from kalda.network.frames import Arena, FrameReader
from kalda.protocol.framing import MAX_RESPONSE_BYTES, MIN_RESPONSE_BYTES
from kalda.protocol.messages.groups import FindCoordinatorRequest
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.notation import Request
from kalda.sim.process import Boot
from kalda.sim.world import World

_TIMEOUT_MS = 4_000
_MAX_METADATA = 12
_BACKOFF_S = (0.02, 0.3)


class SimClient:
    """One client process."""

    def __init__(self, world: World, name: str, bootstrap: list[tuple[str, int]]) -> None:
        self.world = world
        self.name = name
        self.rng = world.rng(name)
        self.metadata = Metadata(None, -1, {}, {})
        self._last_received: dict[str, Topic] = {}
        """The last metadata of each topic, kept by `forget_leaders`: a stale response must not replace later epochs."""
        self.timeout_ms = _TIMEOUT_MS
        self.bootstrap = bootstrap
        self._policy = RpcPolicy(client_id=name, connect_timeout_ms=_TIMEOUT_MS)
        self._clients: dict[tuple[str, int], RpcClient] = {}
        self._coordinators: dict[str, tuple[str, int]] = {}
        self._boot: Boot = world.machine(name).start()[0]

    def spawn(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process. An exception in it is a violation."""

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.world.violated(f"{self.name}: {error!r}")

        task: asyncio.Task[Any] = self._boot.context().run(self.world.loop.create_task, main)
        task.add_done_callback(ended)
        return task

    async def ask(self, address: tuple[str, int], request: Request, version: int | None = None) -> Any:
        """One attempt. Raises `ApiError`."""
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = RpcClient(*address, self._policy, Reach(self.rng.random))
        try:
            async with asyncio.timeout(self.timeout_ms / 1000 + 1):
                connection = await client.connection()
                response = connection.send(request, version, timeout_ms=self.timeout_ms)
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no connection to {address[0]}") from None
        return await response

    async def ask_any(self, request: Request, version: int | None = None) -> Any:
        """One attempt, at a random node."""
        return await self.ask(self.rng.choice(self.bootstrap), request, version)

    async def ask_leader(self, partition: TopicPartition, request: Request, version: int | None = None) -> Any:
        """One attempt, at the leader in this client's metadata. Raises `ApiError`."""
        return await self.ask(await self.find_leader(partition), request, version)

    async def ask_coordinator(self, group: str, request: Request, version: int) -> Any:
        """One attempt, at the group's coordinator, which is looked up if it is not cached. Raises `ApiError`."""
        return await self.ask(await self.find_coordinator(group), request, version)

    async def find_coordinator(self, group: str) -> tuple[str, int]:
        """The address of the group's coordinator, from the cache or a lookup. Raises `ApiError`."""
        address = self._coordinators.get(group)
        if address is None:
            found = await self.ask_any(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
            [coordinator] = found.coordinators
            if coordinator.error_code:
                raise ApiError(ErrorCode(coordinator.error_code))
            address = self._coordinators[group] = (coordinator.host, coordinator.port)
        return address

    async def find_leader(self, partition: TopicPartition) -> tuple[str, int]:
        """The leader's address, from the cached metadata or new one. Raises `ApiError`."""
        address = self._leader(partition)
        if address is None:
            await self.refresh()
            address = self._leader(partition)
        if address is None:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        return address

    def forget_leaders(self) -> None:
        """Drop the cached leaders and coordinators, so that the next attempt looks them up."""
        self.metadata = self.metadata._replace(topics={})
        self._coordinators.clear()

    def _leader(self, partition: TopicPartition) -> tuple[str, int] | None:
        topic = self.metadata.topics.get(partition.topic)
        index = partition.partition
        found = None if topic is None else next((each for each in topic.partitions if each.partition == index), None)
        broker = None if found is None else self.metadata.brokers.get(found.leader)
        return None if broker is None else (broker.host, broker.port)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The leader epoch in this client's metadata; -1 where there is none."""
        topic = self.metadata.topics.get(partition.topic)
        index = partition.partition
        epochs = (each.leader_epoch for each in topic.partitions if each.partition == index) if topic else ()
        return next(iter(epochs), -1)

    async def refresh(self) -> None:
        """Request the metadata from a random node, which may be cut off from the controllers. Raises `ApiError`."""
        received = read_metadata(
            await self.ask_any(MetadataRequest(topics=None, allow_auto_topic_creation=False), _MAX_METADATA)
        )
        topics = {name: newest(topic, self._last_received.get(name)) for name, topic in received.topics.items()}
        self._last_received |= {name: topic for name, topic in topics.items() if not topic.error_code}
        self.metadata = received._replace(topics=topics)

    async def until(self, attempt: Callable[[], Coroutine[Any, Any, Any]], give_up_s: float | None = None) -> Any:
        """Call `attempt` until it returns, or raises an `ApiError` that is not retriable, or `give_up_s` has passed."""
        until = None if give_up_s is None else self.world.now_s + give_up_s
        while True:
            try:
                return await attempt()
            except ApiError as error:
                if not (error.code.retriable or error.code in _AGAIN) or (
                    until is not None and self.world.now_s >= until
                ):
                    raise
                self.forget_leaders()
                await self.pause()

    async def pause(self) -> None:
        """Wait for a random backoff."""
        await asyncio.sleep(self.rng.uniform(*_BACKOFF_S))


_AGAIN = frozenset((ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.BROKER_NOT_AVAILABLE))


# Kalda's own asyncio clients on a simulated machine: its clocks, and connections over the simulated network.
#
# The clients of `kalda.aio` run as they are, their cores and their shells, except for the sockets. A `Tap` sees a
# client's requests: for a check of their responses, or to lose some.

Tap = Callable[[int, Request, OnDone], OnDone | None]
"""Called with the node id, a request and what is called with its outcome; returns what is called instead, or None where
the request is lost before it is sent."""


class SimClientHost(LoopHost):
    """The machine of one simulated client."""

    def __init__(self, client: SimClient) -> None:
        world = client.world
        clock = world.machine(client.name).clock
        self._rng = client.rng
        self.monotonic_ms = clock.mono_ms
        self.wall_s = lambda: clock.wall_ms() / 1000
        self.random = client.rng.random

    def new_member_id(self) -> str:
        return uuid_to_text(random_uuid(self._rng.randbytes))

    def new_io(self, loop: asyncio.AbstractEventLoop, driven: Driven) -> IoLoop:
        return _SimIo(loop, driven, self.monotonic_ms)


class SimProducer(Producer):
    """The producer of a simulated client."""

    def __init__(self, client: SimClient, config: dict[str, object], tap: Tap | None = None) -> None:
        self._host = SimClientHost(client)
        super().__init__(_common(client) | config)
        _install(self._core.connections, tap)
        self.core = self._core


class SimConsumer(Consumer):
    """The consumer of a simulated client."""

    def __init__(self, client: SimClient, config: dict[str, object], tap: Tap | None = None) -> None:
        self._host = SimClientHost(client)
        super().__init__(_common(client) | config)
        _install(self._core.connections, tap)


class SimShareConsumer(ShareConsumer):
    """The share consumer of a simulated client."""

    def __init__(self, client: SimClient, config: dict[str, object]) -> None:
        self._host = SimClientHost(client)
        super().__init__(_common(client) | config)


class SimAdmin(Admin):
    """The admin client of a simulated client."""

    def __init__(self, client: SimClient, config: dict[str, object] | None = None) -> None:
        self._host = SimClientHost(client)
        self._client = client
        super().__init__(_common(client) | (config or {}))

    async def ask(self, target: Target, request: Request, version: int) -> Any:
        """One attempt of a request as it is, with this version at most. Raises `ApiError`."""
        plan = single(Ask(target, request, version), retries=False)
        return await self._call(type(request).__name__, plan, self._client.timeout_ms / 1000)

    async def ask_any(self, request: Request, version: int) -> Any:
        """One attempt, at a random broker, which may be cut off from the others. Raises `ApiError`."""
        host, _ = self._client.rng.choice(self._client.bootstrap)
        return await self.ask(Target(TargetKind.BROKER, node_id_of(host)), request, version)

    def forget_leaders(self) -> None:
        """Request the metadata anew: a leader has refused a request."""
        self._driven.core.metadata.request_update()


def node_id_of(name: str) -> int:
    """The id of a node, from the name of its machine."""
    return int(name.rpartition("-")[2])


def _common(client: SimClient) -> dict[str, object]:
    return {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in client.bootstrap),
        "client.id": client.name,
        "request.timeout.ms": client.timeout_ms,
        "socket.connection.setup.timeout.ms": client.timeout_ms,
    }


def _install(connections: Connections, tap: Tap | None) -> None:
    if tap is None:
        return
    send = connections.send

    def tapped(node_id: int, message: Request, now_ms: int, on_done: OnDone, **options: Any) -> None:
        outcome = tap(node_id, message, on_done)
        if outcome is not None:
            send(node_id, message, now_ms, outcome, **options)

    vars(connections)["send"] = tapped


class _SimIo(IoLoop):
    """The turns of one client, over the simulated network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, driven: Driven, now_ms: Callable[[], int]) -> None:
        super().__init__(loop, driven, now_ms)
        self._channels = _SimChannels(loop, driven, self, now_ms)


class _SimChannels(Channels):
    """The simulated connections of one client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, driven: Driven, io: IoLoop, now_ms: Callable[[], int]) -> None:
        super().__init__(driven, io)
        self.arena = Arena()
        self._loop = loop
        self._io = io
        self._now_ms = now_ms
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._connected: dict[int, _SimChannel] = {}

    def carry_out(self) -> None:
        while actions := self._core.connections.take_actions():
            written: dict[int, None] = {}
            for action in actions:
                self._carry_out(action, written)
            for connection_id in written:
                self._core.connections.on_written(connection_id)

    def _carry_out(self, action: Action, written: dict[int, None]) -> None:
        if isinstance(action, Write):
            channel = self._connected.get(action.connection_id)
            if channel is not None:
                channel.write(b"".join(action.buffers))
                written[action.connection_id] = None
        elif isinstance(action, Connect):
            self._connecting[action.connection_id] = self._loop.create_task(self._connect(action))
        else:
            self._drop(action.connection_id)

    async def _connect(self, action: Connect) -> None:
        connection_id, (host, port) = action.connection_id, action.address
        try:
            _, protocol = await self._loop.create_connection(lambda: _SimChannel(self, connection_id), host, port)
        except OSError as error:
            now_ms = self._now_ms()
            self._core.at(now_ms).on_connect_failed(connection_id, str(error), now_ms)
        else:
            self._connected[connection_id] = protocol
            now_ms = self._now_ms()
            self._core.at(now_ms).on_connected(connection_id, now_ms)
        finally:
            self._connecting.pop(connection_id, None)
        self._io.wake()

    def on_frame(self, connection_id: int, frame: memoryview) -> None:
        """A response has arrived."""
        now_ms = self._now_ms()
        self._core.at(now_ms).on_frame(connection_id, frame, now_ms)

    def on_read(self) -> None:
        """All frames of one arrival were handed to the core."""
        self._driven.finish()
        self._io.wake()

    def on_lost(self, connection_id: int, why: str) -> None:
        """The connection has ended. The core is not called where it has ended it itself."""
        if self._connected.pop(connection_id, None) is not None:
            now_ms = self._now_ms()
            self._core.at(now_ms).on_lost(connection_id, why, now_ms)
            self._driven.finish()
            self._io.wake()

    def _drop(self, connection_id: int) -> None:
        connecting = self._connecting.pop(connection_id, None)
        if connecting is not None:
            connecting.cancel()
        channel = self._connected.pop(connection_id, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        for connection_id in [*self._connecting, *self._connected]:
            self._drop(connection_id)


class _SimChannel(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, channels: _SimChannels, connection_id: int) -> None:
        self._channels = channels
        self._id = connection_id
        self._frames = FrameReader(channels.arena, MAX_RESPONSE_BYTES, MIN_RESPONSE_BYTES)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.filled(nbytes)
        try:
            while (frame := self._frames.next_frame()) is not None:
                self._channels.on_frame(self._id, frame)
        except InvalidRequest as error:
            self._transport.abort()
            self._channels.on_lost(self._id, f"an invalid response: {error.message}")
        self._channels.on_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channels.on_lost(self._id, "the node closed the connection" if exc is None else str(exc))
