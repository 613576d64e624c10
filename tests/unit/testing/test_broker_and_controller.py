"""Between the brokers and the controller of an embedded cluster: forwarded requests that expire, brokers that an
administrator unregisters, logs without a topic id."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.cli.commands import cli
from kalda.controller.quorum_controller import QuorumController
from kalda.network.client.client import RpcConnection
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kalda.testing import Cluster
from waiting import wait_until

DEADLINE_S = 60.0


def kalda(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, list(map(str, arguments)), prog_name="kalda")
    assert result.exit_code == code, result.output
    return result


def test_the_timeout_of_one_client_does_not_disturb_the_requests_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwarded requests share a connection. It was closed at each timeout, and the others were sent again."""
    handled: Counter[str] = Counter()
    held: list[Pending[CreateTopicsResponse]] = []
    is_held = threading.Event()
    create = QuorumController.handle_create_topics

    def hold(self: QuorumController, request: CreateTopicsRequest, *arguments: Any) -> Pending[CreateTopicsResponse]:
        (topic,) = request.topics
        handled[topic.name] += 1
        if topic.name != "held":
            return create(self, request, *arguments)
        held.append(Pending())
        is_held.set()
        return held[-1]

    monkeypatch.setattr(QuorumController, "handle_create_topics", hold)

    async def code_of(name: str, timeout_ms: int, address: str) -> int:
        host, _, port = address.rpartition(":")
        connection = await RpcConnection.connect(host, int(port), negotiate=True)
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        response = await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms))
        connection.close()
        code: int = response.topics[0].error_code
        return code

    async def scenario(cluster: Cluster) -> None:
        patient = asyncio.ensure_future(code_of("held", 30_000, cluster.address(1)))
        assert await asyncio.to_thread(is_held.wait, DEADLINE_S)
        assert await code_of("hasty", 3, cluster.address(1)) == ErrorCode.REQUEST_TIMED_OUT
        response = CreateTopicsResponse(topics=[CreatableTopicResult(name="held")])
        assert cluster._loop is not None
        cluster._loop.call_soon_threadsafe(held[0].complete, response)
        assert await patient == ErrorCode.NONE

    with Cluster() as cluster:
        asyncio.run(scenario(cluster))
    assert handled == {"held": 1, "hasty": 1}


@pytest.mark.parametrize("at_controllers", [False, True])
def test_an_unregistered_broker_stays_away_until_it_is_restarted(
    caplog: pytest.LogCaptureFixture, at_controllers: bool
) -> None:
    def brokers() -> list[int]:
        return sorted(cluster.nodes[1].image.cluster.brokers)

    with Cluster(nodes=2, config={"broker.heartbeat.interval.ms": 50}) as cluster:
        cluster.create_topic("t", assignment=[[2, 1]])
        where = ("--bootstrap-server", cluster.address(1))
        if at_controllers:
            controller = cluster.nodes[1].port("CONTROLLER")
            where = ("--bootstrap-controller", f"127.0.0.1:{controller}")
        done = kalda("cluster", "unregister", "--yes", "--id", 2, *where)
        assert done.output == "Broker 2 is no longer registered.\n"
        wait_until(lambda: "broker 2 has been unregistered" in caplog.text)
        wait_until(lambda: brokers() == [1])
        assert cluster.nodes[1].image.topics.by_name["t"].partitions[0].leader == 1
        again = kalda("cluster", "unregister", "--yes", "--id", 2, *where, code=1)
        assert again.output == (
            "kalda: broker 2: Broker ID 2 is not currently registered [BROKER_ID_NOT_REGISTERED] "
            "(kalda cluster describe --include-fenced-brokers lists the brokers that are registered)\n"
        )
        assert brokers() == [1], "its heartbeats do not register it"
        cluster.stop_node(2)
        cluster.start_node(2)
        assert brokers() == [1, 2]


def test_a_log_without_topic_id_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(directory=tmp_path) as cluster:
        cluster.create_topic("orders")
        log = cluster.directory(1) / "orders-0"
        cluster.stop_node(1)
        (log / "partition.metadata").unlink()
        (log / "left-behind").touch()
        cluster.start_node(1)
        assert not (log / "left-behind").exists()
        assert (log / "partition.metadata").exists(), "the log was made anew, for this topic"
        (stray,) = cluster.directory(1).glob("orders-0.*-stray")
        assert (stray / "left-behind").exists()
    assert "orders-0 has no topic id: it is set aside" in caplog.text
