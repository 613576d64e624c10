"""Apache Kafka's own tools of transactions, with its Java clients, against Kalda and against Apache Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from apache_kafka import ApacheKafkaNode, KafkaTools
from lone_node import LoneNode
from transactional_clients import made, producer_of, visible, waited_for

pytestmark = pytest.mark.compat

RECORDS = 600


@pytest.fixture(scope="module", params=["kalda", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, jars: Path) -> Iterator[LoneNode]:
    """A node of either."""
    home = tmp_path_factory.mktemp("java") / request.param
    with LoneNode(home) if request.param == "kalda" else ApacheKafkaNode(home, jars) as lone:
        lone.format()
        lone.start()
        yield lone


def test_records_are_produced_in_transactions(system: LoneNode, kafka_tools: KafkaTools) -> None:
    at = system.address
    made(at, "written", 1)
    done = kafka_tools.run(
        "producer-perf-test",
        *("--topic", "written", "--num-records", RECORDS, "--record-size", 20, "--throughput", -1),
        *("--transactional-id", "writer", "--transaction-duration-ms", 50, "--bootstrap-server", at),
    )
    assert f"{RECORDS} records sent" in done
    assert len(visible(at, "written", partitions=1)) == RECORDS
    listed = kafka_tools.run("transactions", "--bootstrap-server", at, "list")
    assert re.search(r"writer\s+1\s+\d+\s+CompleteCommit", listed)


def test_records_are_copied_in_transactions(system: LoneNode, kafka_tools: KafkaTools) -> None:
    """TransactionalMessageCopier aborts at random, and commits its offsets as a member of a group. It ends when its
    input has no offset left, so the input has no transaction markers."""
    at = system.address
    made(at, "input", 1)
    made(at, "output", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": at})
    for number in range(RECORDS):
        producer.produce("input", f"{number:04}".encode(), partition=0)
    assert producer.flush(30) == 0
    done = kafka_tools.run(
        "transactional-message-copier",
        *("--broker-list", at, "--input-topic", "input", "--input-partition", 0),
        *("--output-topic", "output", "--max-messages", RECORDS, "--consumer-group", "copiers"),
        *("--transaction-size", 50, "--transaction-timeout", 10_000, "--transactional-id", "copier"),
        *("--enable-random-aborts", "--use-group-metadata", "--group-mode"),
    )
    assert "ShutdownComplete" in done
    assert visible(at, "output", partitions=1) == [f"{number:04}" for number in range(RECORDS)]


def test_a_transaction_is_described_and_terminated(system: LoneNode, kafka_tools: KafkaTools) -> None:
    bootstrap, at = system.address, ("--bootstrap-server", system.address)
    partition = ("--topic", "open", "--partition", 0)
    made(bootstrap, "open", 1)
    producer = producer_of(bootstrap, "opener")
    producer.begin_transaction()
    producer.produce("open", b"open", partition=0)
    assert producer.flush(30) == 0
    described = kafka_tools.run("transactions", *at, "describe", "--transactional-id", "opener")
    assert re.search(r"Ongoing\s.*open-0", described)
    producers = kafka_tools.run("transactions", *at, "describe-producers", *partition)
    assert re.search(r"\n\d+\s+\d+\s+", producers)
    found = kafka_tools.run("transactions", *at, "find-hanging", *partition)
    assert "open" not in found, "its coordinator knows it: it does not hang"
    kafka_tools.run("transactions", *at, "forceTerminateTransaction", "--transactionalId", "opener")
    waited_for(lambda: visible(bootstrap, "open", "read_uncommitted", partitions=1) == ["open"], "it is there")
    described = kafka_tools.run("transactions", *at, "describe", "--transactional-id", "opener")
    assert "Abort" in described or "Empty" in described
    assert visible(bootstrap, "open", partitions=1) == []
