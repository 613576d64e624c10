"""A client of the simulated cluster: finds leaders and coordinators, retries, and returns or raises each outcome.

It uses the real RPC client over the simulated network, on a machine of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.cluster_values import Metadata, Topic, newest, read_metadata
from kalda.network.client.client import Reach, RpcClient, RpcPolicy
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
