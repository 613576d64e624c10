"""Probes: of brokers for the controller, and of controllers where a connection of the quorum breaks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from unittest.mock import Mock

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.node_channels import RaftChannel
from kalda.broker.process.shell import wait_settled
from kalda.network.client.addresses import IsRefused, is_refused
from kalda.network.client.client import Reach, RpcClient, RpcPolicy
from kalda.network.free_ports import free_ports
from kalda.protocol.framing import ConnectionRefused
from kalda.protocol.messages.quorum import VoteRequest, VoteResponse
from kalda.raft.voters import Destination

HOST = "127.0.0.1"


def raft_channel(is_refused: IsRefused | None) -> RaftChannel:
    return RaftChannel(RpcPolicy(connect_timeout_ms=5_000, probes=True), Reach(lambda: 0.5, is_refused=is_refused))


@pytest.mark.parametrize(("answers", "refused"), [((True, True), True), ((True, False), False), ((False,), False)])
def test_a_broker_is_dead_where_all_its_addresses_refuse(answers: tuple[bool, ...], refused: bool) -> None:
    async def answer(host: str, port: int) -> bool:
        return answers[port]

    async def run() -> Pending[bool]:
        channel = raft_channel(answer)
        probed = channel.probe(tuple((HOST, port) for port in range(len(answers))))
        await wait_settled(probed)
        await channel.close()
        return probed

    assert asyncio.run(run()).value is refused


def failure_at(port: int, probing: bool = True) -> ApiError:
    """How a request of the quorum to that port fails."""

    async def run() -> ApiError:
        channel = raft_channel(is_refused if probing else None)
        pending: Pending[Any] = channel.send(Destination(2, HOST, port), VoteRequest(), 20_000)
        await wait_settled(pending)
        await channel.close()
        assert pending.error is not None
        return pending.error

    return asyncio.run(run())


def test_a_replica_whose_address_refuses_connections_is_dead() -> None:
    error = failure_at(free_ports(1)[0])
    assert isinstance(error, ConnectionRefused)
    assert error.code is ErrorCode.NETWORK_EXCEPTION


def test_without_a_probe_no_replica_is_dead() -> None:
    assert not isinstance(failure_at(free_ports(1)[0], probing=False), ConnectionRefused)


def test_a_replica_that_closes_the_connection_but_listens_is_not_dead() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(hang_up, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        error = await asyncio.to_thread(failure_at, port)
        assert error.code is ErrorCode.NETWORK_EXCEPTION
        assert not isinstance(error, ConnectionRefused)
        server.close()

    asyncio.run(run())


def test_a_closed_channel_fails_requests() -> None:
    async def run() -> None:
        channel = raft_channel(is_refused)
        await channel.close()
        assert channel.send(Destination(2, HOST, 1), VoteRequest(), 100).error is not None

    asyncio.run(run())


async def answers(channel: RaftChannel, monkeypatch: pytest.MonkeyPatch, *scripted: VoteResponse | ApiError) -> None:
    """Send a request for each of these outcomes, one after the other."""
    script = list(scripted)
    connection = Mock(closed=asyncio.Event(), may_send=True)

    def send(message: object, timeout_ms: int) -> asyncio.Future[VoteResponse]:
        future: asyncio.Future[VoteResponse] = asyncio.get_running_loop().create_future()
        outcome = script.pop(0)
        if isinstance(outcome, ApiError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        return future

    connection.send = send
    monkeypatch.setattr(RpcClient, "connected", lambda self: connection)
    while script:
        await wait_settled(channel.send(Destination(1, HOST, 9), VoteRequest(), 1_000))
    await channel.close()


def test_a_controller_that_does_not_answer_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ApiError(ErrorCode.NETWORK_EXCEPTION, "refused")
    foreign = VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    too_old = ApiError(ErrorCode.UNSUPPORTED_VERSION, "the peer speaks none")

    async def run() -> None:
        script = (lost, lost, VoteResponse(), too_old, VoteResponse(), foreign, foreign)
        await answers(raft_channel(None), monkeypatch, *script)

    with caplog.at_level(logging.INFO, "kalda.quorum"):
        asyncio.run(run())
    assert caplog.messages == [
        "no answer from the controller at 127.0.0.1:9: refused",
        "the controller at 127.0.0.1:9 answers now",
        "no answer from the controller at 127.0.0.1:9: it is of another cluster [INCONSISTENT_CLUSTER_ID]",
    ]


def test_a_probe_that_raises_proves_nothing_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The request ends nevertheless: the machine sends nothing more to a destination whose request never ends."""

    async def broken_probe(host: str, port: int) -> bool:
        raise KeyError("a bug")

    async def run() -> Pending[Any]:
        channel = raft_channel(broken_probe)
        pending = channel.send(Destination(2, HOST, free_ports(1)[0]), VoteRequest(), 20_000)
        await wait_settled(pending)
        await channel.close()
        return pending

    failure = asyncio.run(run()).error
    assert failure is not None
    assert not isinstance(failure, ConnectionRefused)
    assert any(record.exc_info for record in caplog.records)


def test_a_controller_that_has_stopped_is_no_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address refuses connections. One that does not respond at all is a warning."""
    lost = ApiError(ErrorCode.NETWORK_EXCEPTION, "reset")
    refused: list[bool] = [True, False]

    async def is_refused(host: str, port: int) -> bool:
        return refused.pop(0)

    with caplog.at_level(logging.INFO, "kalda.quorum"):
        asyncio.run(answers(raft_channel(is_refused), monkeypatch, lost, VoteResponse(), lost))
    assert [(record.levelname, record.getMessage()) for record in caplog.records if "no answer" in record.msg] == [
        (
            "INFO",
            "no answer from the controller at 127.0.0.1:9: it refuses connections, so no process runs there",
        ),
        ("WARNING", "no answer from the controller at 127.0.0.1:9: reset"),
    ]
