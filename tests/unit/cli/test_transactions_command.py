"""`kalda transactions` against a scripted broker: what is requested, what is printed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scripted_broker import ScriptedBroker

from kalda.base.errors import ErrorCode
from kalda.cli.commands import cli
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import FindCoordinatorResponse
from kalda.protocol.messages.transactions import (
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
    InitProducerIdResponse,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

OPEN, HANGING, YOUNG = 11, 12, 13
"""Producer ids: an open transaction, one that no coordinator holds, and one that has begun a moment ago."""
YEAR_2286_MS = 10**13


def producer(producer_id: int, start_offset: int, last_timestamp: int = 5_000) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=3,
        last_sequence=7,
        last_timestamp=last_timestamp,
        coordinator_epoch=-1,
        current_txn_start_offset=start_offset,
    )


class Transactions:
    """A broker with the transactional id `tx` ongoing in logs-0, and a transaction in logs-1 that hangs."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.marker_code = ErrorCode.NONE
        self.init_codes: list[ErrorCode] = []
        broker.answers |= {
            ApiKey.FIND_COORDINATOR: lambda request, version: FindCoordinatorResponse(
                node_id=1, host="127.0.0.1", port=broker.port
            ),
            ApiKey.LIST_TRANSACTIONS: self.list,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
            ApiKey.DESCRIBE_PRODUCERS: self.producers,
            ApiKey.WRITE_TXN_MARKERS: self.mark,
            ApiKey.INIT_PRODUCER_ID: self.init,
        }

    def list(self, request: Any, version: int) -> Any:
        if request.transactional_id_pattern == "(":
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        state = ListTransactionsResponseTransactionState(
            transactional_id="tx", producer_id=OPEN, transaction_state="Ongoing"
        )
        return ListTransactionsResponse(transaction_states=[state])

    def describe(self, request: Any, version: int) -> Any:
        name = request.transactional_ids[0]
        state = DescribeTransactionsResponseTransactionState(
            transactional_id=name,
            error_code=0 if name == "tx" else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=5_000,
            producer_id=OPEN,
            producer_epoch=3,
            topics=[DescribeTransactionsResponseTopicData(topic="logs", partitions=[0])],
        )
        return DescribeTransactionsResponse(transaction_states=[state])

    def producers(self, request: Any, version: int) -> Any:
        found = {
            0: [producer(OPEN, 40), producer(99, -1)],
            1: [producer(HANGING, 50), producer(YOUNG, 60, YEAR_2286_MS)],
        }
        topics = [
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, active_producers=found[index])
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
        return DescribeProducersResponse(topics=topics)

    def mark(self, request: Any, version: int) -> Any:
        [marker] = request.markers
        topics = [
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=self.marker_code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)])

    def init(self, request: Any, version: int) -> Any:
        code = self.init_codes.pop(0) if self.init_codes else ErrorCode.NONE
        return InitProducerIdResponse(producer_id=OPEN, producer_epoch=4, error_code=code)

    def run(self, *arguments: object, code: int = 0) -> Result:
        environment = {"KALDA_BOOTSTRAP_SERVER": self.broker.address}
        words = ["transactions", *map(str, arguments)]
        result = CliRunner().invoke(cli, words, prog_name="kalda", env=environment)
        assert result.exit_code == code, result.output
        return result

    def table(self, *arguments: object) -> list[list[str]]:
        """The rows, without headings."""
        return [line.split() for line in self.run(*arguments).output.splitlines()[1:]]


@pytest.fixture
def shell() -> Iterator[Transactions]:
    with ScriptedBroker() as broker:
        broker.topics["logs"] = [1, 1]
        yield Transactions(broker)


def test_list(shell: Transactions) -> None:
    assert shell.table("list") == [["tx", "1", str(OPEN), "Ongoing"]]
    arguments = ("--duration-filter", 500, "--transactional-id-pattern", "t.", "--state", "Ongoing", "--json")
    assert json.loads(shell.run("list", *arguments).output) == [
        {"transactional_id": "tx", "coordinator": 1, "producer_id": OPEN, "transaction_state": "Ongoing"}
    ]
    request = shell.broker.requests(ApiKey.LIST_TRANSACTIONS)[-1]
    assert (request.duration_filter, request.transactional_id_pattern, request.state_filters) == (
        500, "t.", ["Ongoing"]
    )  # fmt: skip
    assert "'('" in shell.run("list", "--transactional-id-pattern", "(", code=1).stderr


def test_describe(shell: Transactions) -> None:
    [document] = json.loads(shell.run("describe", "--transactional-id", "tx", "--json").output)
    assert document.pop("transaction_duration_ms") > 0
    assert document == {
        "coordinator_id": 1,
        "transactional_id": "tx",
        "producer_id": OPEN,
        "producer_epoch": 3,
        "transaction_state": "Ongoing",
        "transaction_timeout_ms": 60_000,
        "current_transaction_start_time_ms": 5_000,
        "topic_partitions": ["logs-0"],
    }
    assert shell.broker.requests(ApiKey.FIND_COORDINATOR)[0].key_type == 1
    assert "'other'" in shell.run("describe", "--transactional-id", "other", code=1).stderr


def test_describe_producers(shell: Transactions) -> None:
    rows = [[str(OPEN), "3", "-1", "7", "5000", "40"], ["99", "3", "-1", "7", "5000", "-"]]
    assert shell.table("describe-producers", "--topic", "logs", "--partition", 0) == rows
    assert shell.table("describe-producers", "--topic", "logs", "--partition", 0, "--broker", 1) == rows
    shell.run("describe-producers", "--topic", "logs", "--partition", 0, "--broker", 8, code=1)


def test_find_hanging(shell: Transactions) -> None:
    """Of the three open transactions, one is the coordinator's, and one may not have timed out."""
    for where in (("--topic", "logs"), ("--broker", 1), ("--topic", "logs", "--partition", 1)):
        [row] = shell.table("find-hanging", *where)
        assert row[:6] == ["logs", "1", str(HANGING), "3", "-1", "50"]
    assert shell.table("find-hanging", "--topic", "logs", "--partition", 0) == []
    assert shell.table("find-hanging", "--topic", "logs", "--max-transaction-timeout", 2**31 - 1) == []


def test_find_hanging_needs_a_place(shell: Transactions) -> None:
    assert "--broker or --topic" in shell.run("find-hanging", code=2).stderr
    assert "--topic" in shell.run("find-hanging", "--partition", 1, code=2).stderr
    assert "logs-7" in shell.run("find-hanging", "--topic", "logs", "--partition", 7, code=1).stderr
    assert "no replica on 5" in shell.run("find-hanging", "--topic", "logs", "--broker", 5, code=1).stderr


def test_abort(shell: Transactions) -> None:
    result = shell.run("abort", "--topic", "logs", "--partition", 1, "--start-offset", 50, "--yes")
    assert result.output == f"Aborted the transaction of producer {HANGING} with epoch 3 in logs-1.\n"
    [marker] = shell.broker.requests(ApiKey.WRITE_TXN_MARKERS)[0].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (HANGING, 3, 0)
    assert not marker.transaction_result
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("logs", [1])]


def test_abort_for_older_brokers(shell: Transactions) -> None:
    where = ("--topic", "logs", "--partition", 1)
    identity = ("--producer-id", 5, "--producer-epoch", 6, "--coordinator-epoch", 7)
    document = json.loads(shell.run("abort", *where, *identity, "--json", "--yes").output)
    assert document == {"topic": "logs", "partition": 1, "producer_id": 5, "producer_epoch": 6}
    [marker] = shell.broker.requests(ApiKey.WRITE_TXN_MARKERS)[0].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 6, 7)
    assert "must be identified" in shell.run("abort", *where, "--producer-id", 5, code=2).stderr
    assert "--start-offset names" in shell.run("abort", *where, *identity, "--start-offset", 1, code=2).stderr


def test_an_abort_that_is_refused(shell: Transactions) -> None:
    where = ("--topic", "logs", "--partition", 1, "--start-offset")
    refusal = shell.run("abort", *where, 77, code=1).stderr
    assert "Could not find any open transactions starting at offset 77 on partition logs-1" in refusal
    shell.marker_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "CLUSTER_AUTHORIZATION_FAILED" in shell.run("abort", *where, 50, "--yes", code=1).stderr


def test_force_terminate_waits_for_the_markers(shell: Transactions) -> None:
    shell.init_codes = [ErrorCode.CONCURRENT_TRANSACTIONS]
    result = shell.run("force-terminate", "--transactional-id", "tx", "--yes")
    assert result.output == "Terminated the transaction of tx, and fenced its producer.\n"
    requests = shell.broker.requests(ApiKey.INIT_PRODUCER_ID)
    assert [(r.transactional_id, r.transaction_timeout_ms, r.producer_id) for r in requests] == [("tx", 30_000, -1)] * 2
    shell.init_codes = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert "no right" in shell.run("force-terminate", "--transactional-id", "tx", "--yes", code=1).stderr
