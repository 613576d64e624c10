"""Requests to other brokers, in virtual time: one connection to each, which ends with the broker's registration."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from by_hand import inline_background

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.node_channels import BrokerChannels
from kalda.broker.handlers.markers import write_txn_markers_failed
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import Authorization, Row
from kalda.broker.system_clock import SystemClock
from kalda.network.client.client import Reach
from kalda.network.server.connection import Answer, Connection
from kalda.network.server.server import Server
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kalda.sim.loop import SimLoop
from kalda.sim.network import SimNetwork
from kalda.sim.process import BOOT, Boot

ADDRESS = ("broker", 9092)
SETTINGS = {"request.timeout.ms": 30_000, "socket.connection.setup.timeout.ms": 2_000}


class World:
    """Broker 2, which answers when the test says so, and the channels of broker 1."""

    def __init__(self) -> None:
        self.waiting: list[Pending[WriteTxnMarkersResponse]] = []
        """Requests that arrived; each is answered by the test."""
        self.connections: list[Connection] = []
        self.broker = SimpleNamespace(
            epoch=5, fenced=False, listeners={"PLAINTEXT": SimpleNamespace(host=ADDRESS[0], port=ADDRESS[1])}
        )
        self.image: Any = SimpleNamespace(cluster=SimpleNamespace(brokers={2: self.broker}))

        class Config(dict[str, int]):
            node_id = 1
            inter_broker_listener_name = "PLAINTEXT"

        cache = cast(MetadataCache, SimpleNamespace(image=self.image))
        self.channels = BrokerChannels("tests", cast(ServerConfig, Config(SETTINGS)), cache, Reach(lambda: 0.5))
        row = Row(ApiKey.WRITE_TXN_MARKERS, self._handle, write_txn_markers_failed, Authorization.ANYONE)
        self._pipeline = RequestPipeline([row], lambda: Features({}, {}, 0), inline_background())

    def _handle(self, context: RequestContext, request: Any) -> Pending[WriteTxnMarkersResponse]:
        self.waiting.append(Pending())
        return self.waiting[-1]

    def on_frame(self, connection: Connection, frame: memoryview) -> Answer:
        if connection not in self.connections:
            self.connections.append(connection)
        return self._pipeline.on_frame(connection, frame)

    def send(self, broker_id: int = 2, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        """The future response, or the code of the error."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent = self.channels.send(broker_id, WriteTxnMarkersRequest(), timeout_ms)
        sent.then(lambda value, error: done.set_result(error.code if error else value))
        return done

    async def arrived(self, count: int) -> None:
        await asyncio.sleep(0.1)
        assert len(self.waiting) == count


def running(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    loop.network = SimNetwork(loop, random.Random(1))

    async def main() -> None:
        world = World()
        server = Server(SystemClock())
        await server.listen("PLAINTEXT", *ADDRESS, world.on_frame)
        async with asyncio.timeout(600):
            await scenario(world)
        await world.channels.close()
        await server.stop(deadline_ms=0)

    boot = Boot("broker", 1)
    token = BOOT.set(boot)
    try:
        loop.run_until_complete(main())
    finally:
        BOOT.reset(token)
        loop.finish()
        boot.clear()
        loop.close()


def test_requests_to_a_broker_share_a_connection() -> None:
    async def scenario(world: World) -> None:
        first, second = world.send(), world.send()
        await world.arrived(2)
        third = world.send()
        await world.arrived(3)
        for pending in world.waiting:
            pending.complete(WriteTxnMarkersResponse())
        for sent in (first, second, third):
            assert isinstance(await sent, WriteTxnMarkersResponse)
        assert len(world.connections) == 1

    running(scenario)


def test_requests_to_a_broker_that_is_fenced_do_not_wait_for_their_timeout() -> None:
    async def scenario(world: World) -> None:
        sent = world.send()
        await world.arrived(1)
        world.broker.fenced = True
        world.channels.on_metadata_update(cast(Any, None), world.image, cast(Any, None))
        assert await sent is ErrorCode.NETWORK_EXCEPTION
        assert await world.send() is ErrorCode.BROKER_NOT_AVAILABLE

    running(scenario)


def test_a_broker_that_has_registered_again_is_connected_anew() -> None:
    async def scenario(world: World) -> None:
        sent = world.send()
        await world.arrived(1)
        world.broker.epoch = 6
        again = world.send()
        assert await sent is ErrorCode.NETWORK_EXCEPTION
        await world.arrived(2)
        world.waiting[1].complete(WriteTxnMarkersResponse())
        assert isinstance(await again, WriteTxnMarkersResponse)
        assert len(world.connections) == 2

    running(scenario)


def test_every_request_is_settled() -> None:
    async def scenario(world: World) -> None:
        assert await world.send(3) is ErrorCode.BROKER_NOT_AVAILABLE
        assert await world.send(2, 100) is ErrorCode.REQUEST_TIMED_OUT
        world.broker.listeners["PLAINTEXT"].port = 1
        assert await world.send() is ErrorCode.NETWORK_EXCEPTION
        waits = world.send()
        await world.channels.close()
        assert await waits is ErrorCode.NETWORK_EXCEPTION
        assert await world.send() is ErrorCode.BROKER_NOT_AVAILABLE

    running(scenario)
