"""Envelopes, and the channel on which brokers send them: which errors the broker gets and which its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from by_hand import inline_background

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.forwarding import Unwrapping, encode_principal, envelope_failed
from kalda.broker.channels.node_channels import ControllerChannel
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.controller import ControllerHandlers
from kalda.broker.handlers.forwarded import create_topics_failed
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.pipeline import Handler, RequestPipeline
from kalda.broker.requests.rows import Authorization, QuotaClass, Row
from kalda.broker.system_clock import SystemClock
from kalda.network.client.client import Reach, RpcConnection
from kalda.network.server.server import Server
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.brokers import BrokerHeartbeatRequest, BrokerHeartbeatResponse, EnvelopeRequest
from kalda.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse


def row(key: ApiKey, handler: Handler) -> Row:
    """A row of an API that brokers forward, or of BrokerHeartbeat."""
    anyone = Authorization.ANYONE
    if key is ApiKey.BROKER_HEARTBEAT:
        return Row(key, handler, error_on_top, anyone, QuotaClass.EXEMPT)
    assert key is ApiKey.CREATE_TOPICS
    return Row(key, handler, create_topics_failed, anyone, forwarded=True)


@asynccontextmanager
async def controller(handlers: dict[ApiKey, Handler]) -> AsyncIterator[int]:
    """A listener with these handlers, which also takes their requests in envelopes; its port."""
    pipeline: RequestPipeline
    rows = [row(key, handler) for key, handler in handlers.items()]
    unwrapping = Unwrapping(rows, lambda context: pipeline.answer(context))
    rows.append(Row(ApiKey.ENVELOPE, unwrapping.unwrap, envelope_failed, Authorization.ANYONE, QuotaClass.EXEMPT))
    pipeline = RequestPipeline(rows, lambda: Features({}, {}, 0), inline_background())
    server = Server(SystemClock())
    listener = await server.listen("CONTROLLER", "127.0.0.1", 0, pipeline.on_frame)
    try:
        yield listener.port
    finally:
        await server.stop(deadline_ms=0)


def running(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(bounded())


def _refused_at_once(error: ApiError) -> Pending[Any]:
    raise error


def _refused_later(error: ApiError) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    asyncio.get_running_loop().call_soon(pending.fail, error)
    return pending


@pytest.mark.parametrize("refuse", [_refused_at_once, _refused_later])
@pytest.mark.parametrize(
    ("error", "of_envelope"),
    [(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER), (ErrorCode.POLICY_VIOLATION, ErrorCode.NONE)],
)
def test_only_the_broker_gets_not_controller(
    refuse: Callable[[ApiError], Pending[Any]], error: ErrorCode, of_envelope: ErrorCode
) -> None:
    """A client can do nothing about NOT_CONTROLLER, and a broker does not decode the response in an envelope."""

    def create(context: RequestContext, request: Any) -> Pending[Any]:
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
            assert response.error_code == of_envelope
            assert (response.response_data is None) == (of_envelope is not ErrorCode.NONE)
            connection.close()

    running(scenario())


def test_a_waiting_request_is_not_sent_again_when_another_is_refused() -> None:
    """A new leader refuses heartbeats until it is active, while a request already waits at it."""
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
            channel = ControllerChannel(lambda: ("127.0.0.1", port), "broker", 10_000, Reach(lambda: 0.5))
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


@pytest.mark.parametrize(("is_leader", "of_envelope"), [(True, ErrorCode.NONE), (False, ErrorCode.NOT_CONTROLLER)])
def test_a_follower_does_not_answer_for_the_quorum(is_leader: bool, of_envelope: ErrorCode) -> None:
    """A broker forwards to the old leader until it has learned of the new one."""
    raft = Mock()
    raft.machine.is_leader = is_leader
    raft.handle.return_value = DescribeQuorumResponse()
    configs = ConfigHandlers(1, Mock(), Mock())
    handlers = ControllerHandlers(raft, Mock(), Mock(), SystemClock(), "cluster", configs, lambda: None)

    async def scenario() -> None:
        server = Server(SystemClock())
        pipeline = handlers.pipeline(lambda: Features({}, {}, 0), inline_background())
        listener = await server.listen("CONTROLLER", "127.0.0.1", 0, pipeline.on_frame)
        connection = await RpcConnection.connect("127.0.0.1", listener.port)
        envelope = EnvelopeRequest(
            request_data=b"".join(encode_request(DescribeQuorumRequest(), 1, 1, "client")),
            request_principal=encode_principal("User:alice"),
            client_host_address=bytes((127, 0, 0, 1)),
        )
        assert (await connection.request(envelope, 0)).error_code == of_envelope
        connection.close()
        await server.stop(deadline_ms=0)

    running(scenario())


def test_a_request_without_a_controller_times_out() -> None:
    """Some clients do not try again after any other error."""

    async def scenario() -> None:
        answers: asyncio.Queue[Any] = asyncio.Queue()
        channel = ControllerChannel(lambda: None, "broker", 60_000, Reach(lambda: 0.5))
        for timeout_ms in (20, 60_000):
            channel.send(CreateTopicsRequest(), timeout_ms).then(lambda _, error: answers.put_nowait(error))
        assert (await answers.get()).code is ErrorCode.REQUEST_TIMED_OUT
        assert answers.empty(), "the other request has time left"
        await channel.close()
        assert (await answers.get()).code is ErrorCode.REQUEST_TIMED_OUT
        late = channel.send(CreateTopicsRequest())
        assert late.error is not None
        assert late.error.code is ErrorCode.REQUEST_TIMED_OUT

    running(scenario())
