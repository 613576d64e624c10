"""Envelopes and the channel they travel on: what a broker is told, what its client, and what is done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.controller_channel import ControllerChannel
from kalda.broker.controller_handlers import ControllerHandlers
from kalda.broker.dispatch import Dispatcher, Features, Handler, Reply, RequestContext
from kalda.broker.forwarding import Unwrapping, encode_principal
from kalda.broker.shell import SystemClock
from kalda.network.client import RpcConnection
from kalda.network.server import Server
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.brokers import BrokerHeartbeatRequest, BrokerHeartbeatResponse, EnvelopeRequest
from kalda.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse


@asynccontextmanager
async def controller(handlers: dict[ApiKey, Handler]) -> AsyncIterator[int]:
    """A listener that answers so, also from envelopes; its port."""
    dispatcher: Dispatcher
    unwrapping = Unwrapping(lambda context: dispatcher.answer(context))
    dispatcher = Dispatcher({**handlers, ApiKey.ENVELOPE: unwrapping.unwrap}, lambda: Features({}, {}, 0))
    server = Server(SystemClock())
    listener = await server.listen("CONTROLLER", "127.0.0.1", 0, dispatcher.on_frame)
    try:
        yield listener.port
    finally:
        await server.stop(deadline_ms=0)


def running(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(bounded())


def _refused_at_once(error: ApiError) -> Reply:
    raise error


def _refused_later(error: ApiError) -> Reply:
    pending: Pending[Any] = Pending()
    asyncio.get_running_loop().call_soon(pending.fail, error)
    return pending


@pytest.mark.parametrize("refuse", [_refused_at_once, _refused_later])
@pytest.mark.parametrize(
    ("error", "told"),
    [(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER), (ErrorCode.POLICY_VIOLATION, ErrorCode.NONE)],
)
def test_only_the_broker_is_told_to_look_elsewhere(
    refuse: Callable[[ApiError], Reply], error: ErrorCode, told: ErrorCode
) -> None:
    """Its client cannot do anything with NOT_CONTROLLER, and the broker would not look into the answer."""

    def create(context: RequestContext, request: Any) -> Reply:
        return refuse(ApiError(error))

    async def scenario() -> None:
        async with controller({ApiKey.CREATE_TOPICS: create}) as port:
            connection = await RpcConnection.connect("127.0.0.1", port)
            request = CreateTopicsRequest(topics=[CreatableTopic(name="orders")])
            envelope = EnvelopeRequest(
                request_data=b"".join(encode_request(request, 7, 1, "client")),
                request_principal=encode_principal("User:alice"),
                client_host_address=bytes((127, 0, 0, 1)),
            )
            response = await connection.request(envelope, 0)
            assert response.error_code == told
            assert (response.response_data is None) == (told is not ErrorCode.NONE)
            connection.close()

    running(scenario())


def test_what_waits_is_not_sent_again_because_somebody_was_refused() -> None:
    """A new leader refuses heartbeats until it is active, and has taken in a request meanwhile."""
    created: list[Pending[CreateTopicsResponse]] = []
    heartbeats: list[BrokerHeartbeatRequest] = []
    refused = asyncio.Event()

    def create(context: RequestContext, request: Any) -> Pending[CreateTopicsResponse]:
        created.append(Pending())
        return created[-1]

    def heartbeat(context: RequestContext, request: Any) -> Any:
        heartbeats.append(request)
        if len(heartbeats) == 1:
            refused.set()
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        created[0].complete(CreateTopicsResponse())
        return BrokerHeartbeatResponse()

    async def scenario() -> None:
        handlers: dict[ApiKey, Handler] = {ApiKey.CREATE_TOPICS: create, ApiKey.BROKER_HEARTBEAT: heartbeat}
        async with controller(handlers) as port:
            channel = ControllerChannel(lambda: ("127.0.0.1", port), "broker", 10_000)
            alive = channel.send(BrokerHeartbeatRequest(broker_id=1))
            await refused.wait()
            made = channel.send(CreateTopicsRequest())
            answers: asyncio.Queue[Any] = asyncio.Queue()
            for pending in (made, alive):
                pending.then(lambda value, error: answers.put_nowait(value or error))
            assert {type(await answers.get()), type(await answers.get())} == {
                CreateTopicsResponse,
                BrokerHeartbeatResponse,
            }
            await channel.close()

    running(scenario())
    assert (len(created), len(heartbeats)) == (1, 2)


@pytest.mark.parametrize(("leads", "told"), [(True, ErrorCode.NONE), (False, ErrorCode.NOT_CONTROLLER)])
def test_a_follower_does_not_answer_for_the_quorum(leads: bool, told: ErrorCode) -> None:
    """A broker that has not noticed yet that the leader is another one forwards to the old one."""
    raft = Mock()
    raft.machine.is_leader = leads
    raft.handle.return_value = DescribeQuorumResponse()
    handlers = ControllerHandlers(raft, Mock(), Mock(), SystemClock(), "cluster", Mock(), lambda: None)

    async def scenario() -> None:
        server = Server(SystemClock())
        dispatcher = handlers.dispatcher(lambda: Features({}, {}, 0), False)
        listener = await server.listen("CONTROLLER", "127.0.0.1", 0, dispatcher.on_frame)
        connection = await RpcConnection.connect("127.0.0.1", listener.port)
        envelope = EnvelopeRequest(
            request_data=b"".join(encode_request(DescribeQuorumRequest(), 1, 1, "client")),
            request_principal=encode_principal("User:alice"),
            client_host_address=bytes((127, 0, 0, 1)),
        )
        assert (await connection.request(envelope, 0)).error_code == told
        connection.close()
        await server.stop(deadline_ms=0)

    running(scenario())


def test_whoever_finds_no_controller_is_told_that_time_ran_out() -> None:
    """Anything else would be final to some clients."""

    async def scenario() -> None:
        answers: asyncio.Queue[Any] = asyncio.Queue()
        channel = ControllerChannel(lambda: None, "broker", 60_000)
        for timeout_ms in (20, 60_000):
            channel.send(CreateTopicsRequest(), timeout_ms).then(lambda _, error: answers.put_nowait(error))
        assert (await answers.get()).code is ErrorCode.REQUEST_TIMED_OUT
        assert answers.empty(), "the other one is tried on"
        await channel.close()
        assert (await answers.get()).code is ErrorCode.REQUEST_TIMED_OUT
        late = channel.send(CreateTopicsRequest())
        assert late.error is not None
        assert late.error.code is ErrorCode.REQUEST_TIMED_OUT

    running(scenario())


def test_what_the_controllers_version_cannot_say_fails_and_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose heartbeat was never answered would not send another."""

    async def scenario() -> None:
        older = Mock(closed=asyncio.Event())
        older.request.side_effect = ValueError("version 0 has no such field")
        monkeypatch.setattr(RpcConnection, "connect", AsyncMock(return_value=older))
        channel = ControllerChannel(lambda: ("127.0.0.1", 1), "broker", 10_000)
        answers: asyncio.Queue[Any] = asyncio.Queue()
        channel.send(BrokerHeartbeatRequest()).then(lambda _, error: answers.put_nowait(error))
        assert (await answers.get()).code is ErrorCode.UNSUPPORTED_VERSION
        await channel.close()

    running(scenario())
