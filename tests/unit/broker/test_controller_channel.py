"""The channels of a broker to the active controller, in virtual time: requests that expire, connections that break
without a sign."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from by_hand import inline_background
from paper_connection import PaperConnection

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.sensors import Sensors
from kalda.broker.channels.forwarding import Unwrapping, envelope_failed
from kalda.broker.channels.node_channels import ControllerChannel
from kalda.broker.handlers.forwarded import ForwardingModule, create_topics_failed
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import Authorization, Row
from kalda.broker.system_clock import SystemClock
from kalda.network.client.client import Reach
from kalda.network.server.connection import Answer, Connection
from kalda.network.server.server import Server
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import decode_request_header
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from kalda.protocol.messages.quorum import AddRaftVoterRequest, AddRaftVoterResponse
from kalda.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from kalda.protocol.notation import Request
from kalda.sim.loop import SimLoop
from kalda.sim.network import SimNetwork
from kalda.sim.process import BOOT, Boot

ADDRESS = ("controller", 9093)
SESSION_MS = 9_000
SILENCE_MS = 3_000
REQUEST_MS = 30_000
REACH = Reach(lambda: 0.5)


class _Config(dict[str, Any]):
    """What forwarding reads of a broker's configuration."""

    node_id = 1

    def __missing__(self, _key: str) -> None:
        return None


class Controller:
    """Answers heartbeats and ISR changes at once, and topics when the test completes them."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        """Those that a request came over, in the order of their first."""
        self.requests: list[Request] = []
        self.topics: list[Pending[CreateTopicsResponse]] = []
        self.slow_heartbeats: list[Pending[BrokerHeartbeatResponse]] | None = None
        """Heartbeats that wait until the test completes them; None: they are answered at once."""
        self._broken: set[int] = set()
        anyone = Authorization.ANYONE
        forwarded = [
            Row(ApiKey.CREATE_TOPICS, self._create, create_topics_failed, anyone, forwarded=True),
            Row(ApiKey.ADD_RAFT_VOTER, self._create, error_on_top, anyone, forwarded=True),
        ]
        unwrapping = Unwrapping(forwarded, lambda context: self._pipeline.answer(context))
        self._pipeline = RequestPipeline(
            [
                Row(
                    ApiKey.BROKER_HEARTBEAT,
                    self._answer(BrokerHeartbeatResponse),
                    error_on_top,
                    anyone,
                ),
                Row(
                    ApiKey.ALTER_PARTITION,
                    self._answer(AlterPartitionResponse),
                    error_on_top,
                    anyone,
                ),
                Row(ApiKey.ENVELOPE, unwrapping.unwrap, envelope_failed, anyone),
                *forwarded,
            ],
            lambda: Features({}, {}, 0),
            inline_background(),
        )

    def break_paths(self) -> None:
        """Nothing that is sent over the present connections arrives any more."""
        self._broken.update(connection.id for connection in self.connections)

    def on_frame(self, connection: Connection, frame: memoryview) -> Answer:
        if connection.id in self._broken:
            return Pending()
        if connection not in self.connections:
            self.connections.append(connection)
        return self._pipeline.on_frame(connection, frame)

    def _answer(self, response: Callable[[], Any]) -> Callable[[RequestContext, Any], Any]:
        def handler(context: RequestContext, request: Any) -> Any:
            self.requests.append(request)
            if self.slow_heartbeats is not None and isinstance(request, BrokerHeartbeatRequest):
                self.slow_heartbeats.append(Pending())
                return self.slow_heartbeats[-1]
            return response()

        return handler

    def _create(self, context: RequestContext, request: Any) -> Pending[CreateTopicsResponse]:
        self.requests.append(request)
        self.topics.append(Pending())
        return self.topics[-1]


class World:
    """A controller and the two channels of a broker, on a loop in virtual time."""

    def __init__(self) -> None:
        self.controller = Controller()
        self.requests = ControllerChannel(lambda: ADDRESS, "requests", REQUEST_MS, REACH)
        self.heartbeats = ControllerChannel(
            lambda: ADDRESS,
            "heartbeats",
            SESSION_MS // 2,
            REACH,
            SILENCE_MS,
            lambda: self.requests.drop_silent_connection(SILENCE_MS),
        )

    async def answer(self, channel: ControllerChannel, request: Request, timeout_ms: int | None = None) -> Any:
        """The response, or the code of the error."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel.send(request, timeout_ms).then(lambda value, error: done.set_result(error.code if error else value))
        return await done


def running(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    loop.network = SimNetwork(loop, random.Random(1))

    async def main() -> None:
        world = World()
        server = Server(SystemClock())
        await server.listen("CONTROLLER", *ADDRESS, world.controller.on_frame)
        async with asyncio.timeout(600):
            await scenario(world)
        await world.heartbeats.close()
        await world.requests.close()
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


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def test_a_request_that_expires_fails_alone() -> None:
    """The timeout of one client's request must not end the requests of others on the same connection."""

    async def scenario(world: World) -> None:
        controller = world.controller
        other = asyncio.ensure_future(world.answer(world.requests, CreateTopicsRequest()))
        hasty = await world.answer(world.requests, CreateTopicsRequest(), 3)
        assert hasty is ErrorCode.REQUEST_TIMED_OUT
        behind = asyncio.ensure_future(world.answer(world.requests, AlterPartitionRequest()))
        await asyncio.sleep(1)
        assert len(controller.topics) == 2
        for pending in reversed(controller.topics):
            pending.complete(CreateTopicsResponse())
        assert isinstance(await other, CreateTopicsResponse)
        assert isinstance(await behind, AlterPartitionResponse), "the late response before it was dropped"
        assert (len(controller.connections), len(controller.requests)) == (1, 3)

    running(scenario)


def test_a_heartbeat_over_a_broken_path_is_sent_again_within_the_session(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        assert isinstance(await world.answer(world.heartbeats, BrokerHeartbeatRequest()), BrokerHeartbeatResponse)
        world.controller.break_paths()
        began_ms = now_ms()
        assert isinstance(await world.answer(world.heartbeats, BrokerHeartbeatRequest()), BrokerHeartbeatResponse)
        assert now_ms() - began_ms < SESSION_MS / 2
        assert len(world.controller.connections) == 2

    running(scenario)
    (line,) = [each for each in caplog.messages if "anew" in each]
    assert line == "heartbeats: no byte came from the controller at controller:9093 for 3000 ms: connecting anew"


def test_a_heartbeat_does_not_wait_behind_other_requests() -> None:
    async def scenario(world: World) -> None:
        slow = asyncio.ensure_future(world.answer(world.requests, CreateTopicsRequest()))
        await asyncio.sleep(1)
        began_ms = now_ms()
        await world.answer(world.heartbeats, BrokerHeartbeatRequest())
        assert now_ms() - began_ms < 100
        world.controller.topics[0].complete(CreateTopicsResponse())
        await slow

    running(scenario)


def test_a_brokers_own_requests_do_not_wait_behind_those_of_clients() -> None:
    """Nor do clients wait behind a change of the voters, which is answered when the new voter has caught up."""

    async def scenario(world: World) -> None:
        host = SimpleNamespace(clock=SimpleNamespace(mono_ms=lambda: 0))
        context = SimpleNamespace(channel=world.requests, config=_Config(), host=host, sensors=Sensors())
        forwarding = ForwardingModule(cast(Any, context)).forwarding
        client = PaperConnection()
        voters, voters_frame = AddRaftVoterRequest(cluster_id="c"), client.frame(AddRaftVoterRequest(cluster_id="c"), 0)
        topics_frame = client.frame(CreateTopicsRequest(), 7)
        added, created = (
            forwarding.forward(RequestContext(cast(Any, client), decode_request_header(frame), frame), request)
            for request, frame in ((voters, voters_frame), (CreateTopicsRequest(), topics_frame))
        )
        await asyncio.sleep(1)
        assert [type(each) for each in world.controller.requests] == [AddRaftVoterRequest, CreateTopicsRequest]
        began_ms = now_ms()
        await world.answer(world.requests, AlterPartitionRequest())
        assert now_ms() - began_ms < 100
        world.controller.topics[1].complete(CreateTopicsResponse())
        await asyncio.sleep(1)
        assert (created.done, added.done) == (True, False)
        assert len(world.controller.connections) == 3
        world.controller.topics[0].complete(cast(Any, AddRaftVoterResponse()))
        await asyncio.sleep(1)
        assert added.done

    running(scenario)


def test_the_other_requests_do_not_wait_on_a_path_that_heartbeats_found_broken() -> None:
    async def scenario(world: World) -> None:
        for channel, request in (
            (world.heartbeats, BrokerHeartbeatRequest()),
            (world.requests, AlterPartitionRequest()),
        ):
            await world.answer(channel, request)
        world.controller.break_paths()
        began_ms = now_ms()
        alter = asyncio.ensure_future(world.answer(world.requests, AlterPartitionRequest()))
        await world.answer(world.heartbeats, BrokerHeartbeatRequest())
        assert isinstance(await alter, AlterPartitionResponse)
        assert now_ms() - began_ms < SESSION_MS / 2

    running(scenario)


def test_a_slow_request_is_not_sent_again_while_heartbeats_are_answered() -> None:
    """The controller would process it twice."""

    async def scenario(world: World) -> None:
        slow = asyncio.ensure_future(world.answer(world.requests, CreateTopicsRequest()))
        for _ in range(10):
            await world.answer(world.heartbeats, BrokerHeartbeatRequest())
            await asyncio.sleep(2)
        world.controller.topics[0].complete(CreateTopicsResponse())
        assert isinstance(await slow, CreateTopicsResponse)
        assert len(world.controller.topics) == 1

    running(scenario)


def test_a_controller_that_is_only_slow_processes_a_request_once() -> None:
    """Its disk does not commit anything for a while, and then answers all that waited, heartbeats first."""

    async def scenario(world: World) -> None:
        controller = world.controller
        controller.slow_heartbeats = []
        slow = asyncio.ensure_future(world.answer(world.requests, CreateTopicsRequest()))
        alive = asyncio.ensure_future(world.answer(world.heartbeats, BrokerHeartbeatRequest()))
        await asyncio.sleep(SILENCE_MS / 1000 + 1)
        assert len(controller.slow_heartbeats) == 2, "sent again over a new connection"
        for pending in controller.slow_heartbeats:
            pending.complete(BrokerHeartbeatResponse())
        await alive
        await asyncio.sleep(0.1)
        controller.topics[0].complete(CreateTopicsResponse())
        assert isinstance(await slow, CreateTopicsResponse)
        await asyncio.sleep(1)
        assert len(controller.topics) == 1

    running(scenario)


def test_a_silent_connection_is_closed_without_heartbeats_too() -> None:
    async def scenario(world: World) -> None:
        await world.answer(world.requests, AlterPartitionRequest())
        world.controller.break_paths()
        assert await world.answer(world.requests, AlterPartitionRequest(), 3) is ErrorCode.REQUEST_TIMED_OUT
        await asyncio.sleep(REQUEST_MS / 1000)
        assert isinstance(await world.answer(world.requests, AlterPartitionRequest(), 100), AlterPartitionResponse)

    running(scenario)
