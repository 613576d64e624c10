"""A node that is stopped for longer than its peers' deadlines, and whose peers have sent in time what waits in its
sockets: no session, join, rebalance, transaction or waiting request ends for that. A laptop that sleeps is such a node.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from harness.blocking import BlockingConnection
from lone_node import LoneNode

from kalda.base.errors import ErrorCode
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.topics import NewTopic
from kalda.protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
)
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch

pytestmark = pytest.mark.compat

TIMEOUT_MS = 1_500
"""Every timeout of this test."""
STOPPED_S = 3.0


class Peers:
    """Connections whose requests wait at the same time, each on a thread."""

    def __init__(self, node: LoneNode) -> None:
        self._node = node
        self._held = contextlib.ExitStack()
        self._threads = self._held.enter_context(ThreadPoolExecutor(40))

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def connect(self) -> BlockingConnection:
        return self._held.enter_context(self._node.client())

    def send(self, connection: BlockingConnection, request: Request, version: int | None = None) -> Future[Any]:
        return self._threads.submit(connection.request, request, version)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    settings = {
        "group.min.session.timeout.ms": 100,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
        "transaction.state.log.num.partitions": 1,
        "broker.session.timeout.ms": TIMEOUT_MS,
        "broker.heartbeat.interval.ms": 200,
    }
    with LoneNode(tmp_path_factory.mktemp("stalls"), settings) as node:
        node.format()
        node.start()
        with CommandAdmin(node.address) as client:
            client.create_topics([NewTopic("t", 1, 1)]).check()
        node.wait_led("t")
        yield node


def join_request(group: str, member_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=TIMEOUT_MS,
        rebalance_timeout_ms=TIMEOUT_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )


def coordinated(connection: BlockingConnection) -> None:
    """Return when the coordinators of groups and transactions are loaded."""
    deadline = time.monotonic() + 60
    for kind, keys in ((0, [f"group-{number}" for number in range(10)] + ["barrier", "pending"]), (1, ["committed"])):
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
        while any(each.error_code for each in connection.request(request).coordinators):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def once_loaded(ask: Callable[[], Any]) -> Any:
    """The first answer that is not COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR."""
    deadline = time.monotonic() + 60
    while (answer := ask()).error_code in (14, 16):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def new_member(connection: BlockingConnection, group: str) -> str:
    """An id that the coordinator expects to join soon."""
    return str(once_loaded(lambda: connection.request(join_request(group, ""))).member_id)


def joined(connection: BlockingConnection, group: str) -> tuple[str, int]:
    """The only member of a group, and its generation."""
    member_id = new_member(connection, group)
    answer = connection.request(join_request(group, member_id))
    assert answer.error_code == 0
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=answer.generation_id,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
    )
    assert connection.request(sync).error_code == 0
    return member_id, answer.generation_id


def open_transaction(connection: BlockingConnection, transactional_id: str) -> EndTxnRequest:
    """The request that commits it."""
    init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    producer = once_loaded(lambda: connection.request(init))
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    [topic] = connection.request(add, 3).results_by_topic_v3_and_below
    assert topic.results_by_partition[0].partition_error_code == 0
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )


def stopped(node: LoneNode, send: Callable[[], None]) -> None:
    """Stop the process, send the requests, and let it continue when all timeouts have passed."""
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    send()
    time.sleep(STOPPED_S)
    node.process.send_signal(signal.SIGCONT)


def test_what_waits_in_the_sockets_comes_before_the_deadlines(node: LoneNode) -> None:
    with Peers(node) as peers:
        offset = produced(peers.connect())
        coordinated(peers.connect())
        fetcher, producer = peers.connect(), peers.connect()
        committer, pending, old, new = (peers.connect() for _ in range(4))
        members = [(peers.connect(), f"group-{number}") for number in range(10)]
        old_id, generation = joined(old, "barrier")
        new_id = new_member(new, "barrier")
        heartbeats = [
            (connection, HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id))
            for connection, group in members
            for member_id, generation in [joined(connection, group)]
        ]
        pending_id = new_member(pending, "pending")
        commit = open_transaction(committer, "committed")
        fetched = peers.send(fetcher, fetch(fetcher, offset))
        rebalanced = [peers.send(new, join_request("barrier", new_id))]
        heartbeat = HeartbeatRequest(group_id="barrier", generation_id=generation, member_id=old_id)
        while old.request(heartbeat).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            time.sleep(0.01)  # until the request of the new member has arrived
        answers: list[Future[Any]] = []

        def send() -> None:
            answers.extend(peers.send(connection, heartbeat) for connection, heartbeat in heartbeats)
            answers.append(peers.send(pending, join_request("pending", pending_id)))
            answers.append(peers.send(committer, commit))
            rebalanced.append(peers.send(old, join_request("barrier", old_id)))
            peers.send(producer, produce_request(), 12)

        stopped(node, send)
        assert [answer.result(60).error_code for answer in answers] == [0] * len(answers)
        assert {answer.result(60).generation_id for answer in rebalanced} == {generation + 1}
        assert sum(len(answer.result(60).members) for answer in rebalanced) == 2, "both are in the generation"
        [topic] = fetched.result(60).responses
        assert topic.partitions[0].records, "what was produced meanwhile"
    assert not node.says("session has timed out"), "nor is the broker fenced"


def produce_request() -> ProduceRequest:
    batch = build_batch([(time.time_ns() // 1_000_000, None, b"x", [])])
    partition = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )


def produced(connection: BlockingConnection) -> int:
    """The offset after a record."""
    [topic] = connection.request(produce_request(), 12).responses
    assert topic.partition_responses[0].error_code == 0
    return int(topic.partition_responses[0].base_offset) + 1


def fetch(connection: BlockingConnection, offset: int) -> FetchRequest:
    """Waits for a record."""
    metadata = connection.request(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
    partition = FetchRequestFetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1_000_000, current_leader_epoch=-1
    )
    topic = FetchRequestFetchTopic(topic_id=metadata.topics[0].topic_id, partitions=[partition])
    return FetchRequest(max_wait_ms=TIMEOUT_MS, min_bytes=1, max_bytes=1_000_000, topics=[topic])
