"""A Kalda node and Apache Kafka run in turn on the same directory, and each continues with the other's files.

Each broker first reads everything: records of every codec with their headers, compacted and small segments,
transactions, topics and their configs, dynamic broker configs, committed offsets, SCRAM users, quotas. Then it adds its
own data and stops; at the end the first one reads everything again. Kalda's segments and indexes are also read by
Kafka's dump tool. `KALDA_SWAP_TURNS` sets the number of turns.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_kafka import ApacheKafkaNode, KafkaTools, release_of
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from lone_node import LoneNode

from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    OpData,
)
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)

pytestmark = pytest.mark.compat

_COORDINATOR_STARTS = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)

TURNS = int(os.environ.get("KALDA_SWAP_TURNS", "1"))
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = {
    "log.cleaner.backoff.ms": 200,
    "log.initial.task.delay.ms": 100,
    "metadata.log.max.record.bytes.between.snapshots": 4_000,
    "transaction.state.log.num.partitions": 2,
}
RECORDS = 120
SMALL_SEGMENTS = {"internal.segment.bytes": "16384", "index.interval.bytes": "256", "retention.ms": "-1"}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "8192",
    "segment.ms": "1000",
}

Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


class Known:
    """The data that the directory must have so far."""

    def __init__(self) -> None:
        self.visits = 0
        self.rows: dict[str, list[Row]] = {}
        self.latest: dict[bytes, bytes] = {}
        self.aborted: set[bytes] = set()
        self.configs: dict[str, dict[str, str]] = {}
        self.broker_configs: dict[str, str] = {}
        self.offsets: dict[tuple[str, str], int] = {}
        self.users: set[str] = set()
        self.quotas: dict[str, float] = {}


def read(address: str, topic: str) -> list[Row]:
    """All committed records of the topic's only partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows: list[Row] = []
    while True:
        message = consumer.poll(30)
        assert message is not None, f"{topic} gives nothing"
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            break
        assert error is None, error
        rows.append((message.key(), message.value(), tuple(message.headers() or ())))
    consumer.close()
    return rows


def commit_once_coordinated(consumer: Consumer, offset: TopicPartition) -> None:
    """Commit, again while a broker that has just started does not coordinate the group yet: librdkafka does not."""
    deadline = time.monotonic() + 30
    while True:
        try:
            consumer.commit(offsets=[offset], asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].code() not in _COORDINATOR_STARTS or time.monotonic() > deadline:
                raise
        else:
            return


class Visitor:
    """One broker's turn."""

    def __init__(self, node: LoneNode, known: Known, name: str) -> None:
        self.node, self.known = node, known
        self.name = f"{name}{known.visits}"
        self.is_kafka = name == "kafka"
        self._producers: dict[str, Producer] = {}
        """By codec: an idempotent one waits for its id for a good part of a second."""
        known.visits += 1

    # -- reading

    def check(self) -> None:
        known, address = self.known, self.node.address
        for topic, rows in known.rows.items():
            assert read(address, topic) == rows, f"{self.name} reads {topic} otherwise"
        if known.latest:
            assert {key: value for key, value, _ in read(address, "compacted")} == known.latest
        with self.node.client() as client:
            for (group, topic), offset in known.offsets.items():
                consumer = Consumer({"bootstrap.servers": address, "group.id": group})
                assert [each.offset for each in consumer.committed([TopicPartition(topic, 0)], 30)] == [offset]
                consumer.close()
            users = client.request(DescribeUserScramCredentialsRequest(users=None))
            assert {each.user for each in users.results} == known.users
            quotas = client.request(DescribeClientQuotasRequest())
            found = {entry.entity[0].entity_name: entry.values[0].value for entry in quotas.entries}
            assert found == known.quotas
            wanted = {(2, topic): configs for topic, configs in known.configs.items()}
            for (kind, resource), configs in {**wanted, (4, ""): known.broker_configs}.items():
                wanted_names = [name for name in configs if not name.startswith("internal.")]
                if not wanted_names:
                    continue
                ask = DescribeConfigsResource(
                    resource_type=kind, resource_name=resource, configuration_keys=wanted_names
                )
                received = client.request(DescribeConfigsRequest(resources=[ask])).results[0]
                assert received.error_code == 0, received.error_message
                assert {each.name: each.value for each in received.configs} == {
                    name: configs[name] for name in wanted_names
                }

    # -- adding

    def add(self) -> None:
        for codec in CODECS:
            self._add_topic(f"{self.name}-{codec}", codec, {"max.message.bytes": "2000000"})
        self._add_topic(f"{self.name}-small", "none", SMALL_SEGMENTS)
        for topic in list(self.known.rows):
            if topic.endswith(("-none", "-zstd", "-small")):
                self._produce(topic, topic.rpartition("-")[2].replace("small", "none"))
        self._compact()
        if self.is_kafka:
            self._transact()
        self._commit()
        self._administer()

    def _create(self, topic: str, configs: dict[str, str]) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.address})
        admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(30)
        self.known.configs[topic] = configs

    def _add_topic(self, topic: str, codec: str, configs: dict[str, str]) -> None:
        self._create(topic, configs)
        self.known.rows[topic] = []
        self._produce(topic, codec)

    def _producer(self, codec: str, **more: str) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.node.address,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 20,
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )

    def _of_codec(self, codec: str) -> Producer:
        if codec not in self._producers:
            self._producers[codec] = self._producer(codec)
        return self._producers[codec]

    def _produce(self, topic: str, codec: str) -> None:
        producer = self._of_codec(codec)
        rows = self.known.rows[topic]
        for number in range(RECORDS):
            key = b"%s %d" % (self.name.encode(), number)
            value = None if number % 40 == 7 else hashlib.sha256(key).digest() * (1 + number % 9)
            headers = (("who", self.name.encode()), ("n", b"%d" % number)) if number % 3 == 0 else ()
            producer.produce(topic, value, key, 0, headers=list(headers))
            rows.append((key, value, headers))
        assert producer.flush(60) == 0

    def _compact(self) -> None:
        if "compacted" not in self.known.configs:
            self._create("compacted", COMPACTED)
        producer = self._of_codec("lz4")
        for number in range(600):
            key, value = b"key %d" % (number % 37), b"%s %d" % (self.name.encode(), number) * 5
            producer.produce("compacted", value, key, 0)
            self.known.latest[key] = value
        assert producer.flush(60) == 0

    def _transact(self) -> None:
        topic = f"{self.name}-transactional"
        self._create(topic, {})
        rows = self.known.rows[topic] = []
        producer = self._producer("none", transactional_id=f"{self.name}-id")
        producer.init_transactions(30)
        for number in range(6):
            producer.begin_transaction()
            for index in range(5):
                key = b"%d %d" % (number, index)
                producer.produce(topic, b"value", key, 0)
                if number % 2:
                    self.known.aborted.add(key)
                else:
                    rows.append((key, b"value", ()))
            producer.flush(30)
            if number % 2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)

    def _commit(self) -> None:
        topic = f"{self.name}-none"
        for group in (self.name, "both"):
            consumer = Consumer({"bootstrap.servers": self.node.address, "group.id": group})
            offset = 10 * self.known.visits
            commit_once_coordinated(consumer, TopicPartition(topic, 0, offset))
            consumer.close()
            self.known.offsets[group, topic] = offset

    def _administer(self) -> None:
        known = self.known
        user = ScramCredentialUpsertion(
            name=self.name, mechanism=1, iterations=4096, salt=b"salt" * 4, salted_password=bytes(32)
        )
        quota = AlterClientQuotasRequestEntryData(
            entity=[AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=self.name)],
            ops=[OpData(key="producer_byte_rate", value=1e9 + known.visits)],
        )
        retention, threads = str(10**11 + known.visits), str(1 + known.visits)
        changes = [(2, f"{self.name}-none", "retention.ms", retention), (4, "", "log.cleaner.threads", threads)]
        resources = [
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=resource,
                configs=[IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)],
            )
            for kind, resource, name, value in changes
        ]
        with self.node.client() as client:
            scram = client.request(AlterUserScramCredentialsRequest(upsertions=[user]))
            quotas = client.request(AlterClientQuotasRequest(entries=[quota]))
            configs = client.request(IncrementalAlterConfigsRequest(resources=resources))
        outcomes = (*scram.results, *quotas.entries, *configs.responses)
        assert [each.error_code for each in outcomes] == [0] * 4, outcomes
        known.users.add(self.name)
        known.quotas[self.name] = 1e9 + known.visits
        known.configs[f"{self.name}-none"] = {**known.configs[f"{self.name}-none"], "retention.ms": retention}
        known.broker_configs["log.cleaner.threads"] = threads


@pytest.fixture
def brokers(tmp_path: Path, jars: Path) -> Iterator[dict[str, LoneNode]]:
    """Kalda and Kafka with the same properties, on the same directory and ports; one of them runs at a time."""
    with LoneNode(tmp_path, SETTINGS) as kalda, ApacheKafkaNode(tmp_path, jars) as kafka:
        kafka.port, kafka.controller_port, kafka.properties = kalda.port, kalda.controller_port, kalda.properties
        yield {"kalda": kalda, "kafka": kafka}


def dump(tools: KafkaTools, data: Path) -> None:
    """Kafka's own tool finds no error in any segment or index."""
    logs = [path for path in sorted(data.glob("*-*/*.log")) if path.stat().st_size]
    indexes = [path.with_suffix(suffix) for path in logs for suffix in (".index", ".timeindex")]
    checked = tools.run("dump-log", "--files", ",".join(map(str, indexes)), "--index-sanity-check")
    outcomes = re.findall(r"passed sanity check|index is empty", checked)
    assert len(outcomes) == len(indexes), checked
    # A batch that compaction has emptied has no timestamp, so the tool reports its index entry as a mismatch.
    exact = [str(path) for path in indexes if not path.parent.name.startswith("compacted")]
    verified = tools.run("dump-log", "--files", ",".join(exact), "--verify-index-only")
    assert not re.search(r"(?i)mismatch|error|exception|out of order|found entries", verified), verified
    deep = tools.run("dump-log", "--files", ",".join(map(str, logs)), "--deep-iteration")
    assert "isvalid: false" not in deep
    assert deep.count("isvalid: true") > len(logs)


@pytest.mark.parametrize("order", [("kalda", "kafka") * TURNS, ("kafka", "kalda") * TURNS], ids=["kalda", "kafka"])
def test_taking_turns(
    brokers: dict[str, LoneNode], kafka_tools: KafkaTools, jars: Path, order: tuple[str, ...]
) -> None:
    known = Known()
    brokers[order[0]].format(release=release_of(jars))
    for name in order:
        node = brokers[name]
        node.start()
        visitor = Visitor(node, known, name)
        visitor.check()
        visitor.add()
        visitor.check()
        if name == "kalda":
            node.stop()
            assert not node.says("is set aside"), "\n".join(node.lines)
            dump(kafka_tools, node.home / "data")
        else:
            node.process.terminate()  # type: ignore[union-attr]
            assert node.wait_exit(60) in (0, 143)
    last = brokers[order[0]]
    last.start()
    Visitor(last, known, order[0]).check()
