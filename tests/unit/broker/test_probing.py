"""Probes: of brokers for the controller, and of controllers where a connection of the quorum breaks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.quorum.prober import Prober
from kalda.broker.quorum.raft_channel import RaftChannel
from kalda.broker.quorum.raft_driver import ConnectionRefused
from kalda.controller.suspects import Probe
from kalda.network.client import RpcClient
from kalda.network.free_ports import free_ports
from kalda.network.probe import is_refused
from kalda.protocol.messages.quorum import VoteRequest, VoteResponse
from kalda.raft.values import Destination

HOST = "127.0.0.1"


def probed(answers: dict[int, bool], *ports: int) -> list[tuple[Probe, bool]]:
    """What a prober reports of a broker with these ports, of which those refuse that are true in `answers`."""
    results: list[tuple[Probe, bool]] = []

    async def answer(host: str, port: int) -> bool:
        await asyncio.sleep(0)
        return answers[port]

    async def run() -> None:
        prober = Prober(answer, lambda probe, refused: results.append((probe, refused)))
        prober.start(Probe(1, 5, tuple((HOST, port) for port in ports)))
        await asyncio.gather(*prober._tasks)

    asyncio.run(run())
    return results


def test_all_addresses_must_refuse() -> None:
    assert [refused for _, refused in probed({1: True, 2: True}, 1, 2)] == [True]
    assert [refused for _, refused in probed({1: True, 2: False}, 1, 2)] == [False]
    assert [refused for _, refused in probed({1: False}, 1)] == [False]


def test_a_probe_that_raises_proves_nothing_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert [refused for _, refused in probed({1: True}, 1, 2)] == [False], "no answer is known for port 2"
    assert any(record.exc_info for record in caplog.records)


def test_a_node_that_stops_reports_no_results() -> None:
    results: list[object] = []
    may_answer = asyncio.Event()

    async def answer(host: str, port: int) -> bool:
        await may_answer.wait()
        return True

    async def run() -> None:
        prober = Prober(answer, lambda *result: results.append(result))
        prober.start(Probe(1, 5, ((HOST, 1),)))
        under_way = list(prober._tasks)
        await asyncio.sleep(0)
        prober.close()
        may_answer.set()
        await asyncio.gather(*under_way, return_exceptions=True)
        prober.start(Probe(2, 5, ((HOST, 1),)))
        assert not prober._tasks

    asyncio.run(run())
    assert results == []


def failure_at(port: int, probing: bool = True) -> ApiError:
    """How a request of the quorum to that port fails."""

    async def run() -> ApiError:
        channel = RaftChannel(
            lambda host, port: RpcClient(host, port, rng=lambda: 0.5, connect_timeout_ms=5_000),
            is_refused if probing else None,
        )
        pending: Pending[Any] = channel.send(Destination(2, HOST, port), VoteRequest(), 20_000)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending.then(lambda _, __: done.set_result(None))
        await done
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
        channel = RaftChannel(lambda host, port: RpcClient(host, port, rng=lambda: 0.5), is_refused)
        await channel.close()
        assert channel.send(Destination(2, HOST, 1), VoteRequest(), 100).error is not None

    asyncio.run(run())


class Script:
    """A client with the outcomes of its requests, in order."""

    host, port = HOST, 9

    def __init__(self, *answers: VoteResponse | ApiError) -> None:
        self.answers = list(answers)

    async def request(self, message: object, timeout_ms: int) -> VoteResponse:
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def close(self) -> None:
        pass


def test_a_controller_that_does_not_answer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    lost = ApiError(ErrorCode.NETWORK_EXCEPTION, "refused")
    foreign = VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    too_old = ApiError(ErrorCode.UNSUPPORTED_VERSION, "the peer speaks none")
    script = Script(lost, lost, VoteResponse(), too_old, VoteResponse(), foreign, foreign)

    async def run() -> None:
        channel = RaftChannel(lambda host, port: script)  # type: ignore[arg-type, return-value]
        while script.answers:
            answered = asyncio.Event()
            channel.send(Destination(1, HOST, 9), VoteRequest(), 1_000).then(lambda *_, wake=answered.set: wake())
            await answered.wait()
        await channel.close()

    with caplog.at_level(logging.INFO, "kalda.quorum"):
        asyncio.run(run())
    assert caplog.messages == [
        "no answer from the controller at 127.0.0.1:9: refused",
        "the controller at 127.0.0.1:9 answers now",
        "no answer from the controller at 127.0.0.1:9: it is of another cluster [INCONSISTENT_CLUSTER_ID]",
    ]


class BrokenClient:
    """A client with a bug."""

    host, port = HOST, 9

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def request(self, request: Any, timeout_ms: int) -> Any:
        raise self.error

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("error", [KeyError("a bug"), ApiError(ErrorCode.NETWORK_EXCEPTION, "reset")])
def test_a_request_of_the_quorum_ends_whatever_is_raised(error: Exception) -> None:
    """The machine sends nothing more to a destination whose request never ends."""

    async def broken_probe(host: str, port: int) -> bool:
        raise KeyError("a bug")

    async def run() -> Pending[Any]:
        channel = RaftChannel(lambda host, port: BrokenClient(error), broken_probe)  # type: ignore[arg-type, return-value]
        pending = channel.send(Destination(2, HOST, 9), VoteRequest(), 20_000)
        await asyncio.gather(*channel._tasks)
        await channel.close()
        return pending

    failure = asyncio.run(run()).error
    assert failure is not None
    assert not isinstance(failure, ConnectionRefused)


def test_a_controller_that_has_stopped_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Its address refuses connections. One that does not respond at all is a warning."""
    lost = ApiError(ErrorCode.NETWORK_EXCEPTION, "reset")
    refused: list[bool] = [True, False]

    async def is_refused(host: str, port: int) -> bool:
        return refused.pop(0)

    async def run() -> None:
        script = Script(lost, VoteResponse(), lost)
        channel = RaftChannel(lambda host, port: script, is_refused)  # type: ignore[arg-type, return-value]
        while script.answers:
            answered = asyncio.Event()
            channel.send(Destination(1, HOST, 9), VoteRequest(), 1_000).then(lambda *_, wake=answered.set: wake())
            await answered.wait()
        await channel.close()

    with caplog.at_level(logging.INFO, "kalda.quorum"):
        asyncio.run(run())
    assert [(record.levelname, record.getMessage()) for record in caplog.records if "no answer" in record.msg] == [
        (
            "INFO",
            "no answer from the controller at 127.0.0.1:9: it refuses connections, so no process runs there",
        ),
        ("WARNING", "no answer from the controller at 127.0.0.1:9: reset"),
    ]
