"""Topics with known records, and frames that read them by a format of choice."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kalda import Admin, Producer
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.topics import NewTopic
from kalda.clientcore.administration import ANY, Ask, single
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.records.builder import build_batch
from kalda.testing import Cluster

NewRecord = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Timestamp in ms, key, value, headers."""
BASE_MS = 1_704_067_200_000


def append(servers: str, topic: str, records: Sequence[NewRecord]) -> None:
    """One batch to partition 0 of a cluster of one node: a producer refuses times before 1970."""
    with Admin({"bootstrap.servers": servers}) as admin, CommandAdmin(servers) as client:
        topic_id = admin.describe_topics([topic]).value(topic).topic_id
        partition = PartitionProduceData(index=0, records=build_batch(records))
        data = TopicProduceData(name=topic, topic_id=topic_id, partition_data=[partition])
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        response = client.run("producing", single(Ask(ANY, request)))
    assert response.responses[0].partition_responses[0].error_code == 0


class GivenCluster:
    """A cluster that `KALDA_SPARK_SERVERS` names, such as an Apache Kafka without topics."""

    def __init__(self, servers: str) -> None:
        self.bootstrap_servers = servers

    def __enter__(self) -> GivenCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, Any]) -> None:
        texts = {name: str(value) for name, value in configs.items()}
        with Admin({"bootstrap.servers": self.bootstrap_servers}) as admin:
            if topic in admin.list_topics():  # of another module
                admin.delete_topics([topic]).check()
            admin.create_topics([NewTopic(topic, partitions, 1, configs=texts)]).check()


def cluster_of_tests() -> Cluster | GivenCluster:
    """A new node, or the cluster that `KALDA_SPARK_SERVERS` names."""
    servers = os.environ.get("KALDA_SPARK_SERVERS")
    return GivenCluster(servers) if servers else Cluster()


class World:
    """Produces records to topics, and reads the topics with Spark."""

    def __init__(self, cluster: Cluster | GivenCluster, spark: Any, format_name: str = "kalda") -> None:
        self.cluster = cluster
        self.spark = spark
        self.format_name = format_name
        self.servers = cluster.bootstrap_servers
        self.admin = Admin({"bootstrap.servers": self.servers})

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.close()

    def create(self, topic: str, partitions: int = 1, **configs: Any) -> None:
        names = {name.replace("_", "."): value for name, value in configs.items()}
        names["retention.ms"] = -1  # the records have old timestamps
        self.cluster.create_topic(topic, partitions=partitions, configs=names)

    def produce(self, topic: str, partition: int, records: Sequence[NewRecord], compression: str = "none") -> None:
        with Producer({"bootstrap.servers": self.servers, "compression.type": compression}) as producer:
            for timestamp_ms, key, value, headers in records:
                producer.send(topic, value, key, partition, timestamp_ms, list(headers) or None)

    def number(self, topic: str, counts: Sequence[int], **configs: Any) -> None:
        """Create the topic, with `counts[n]` records in partition n; the value of each is its offset."""
        self.create(topic, len(counts), **configs)
        self.number_on(topic, counts)

    def number_on(self, topic: str, counts: Sequence[int], first: int = 0) -> None:
        """Append `counts[n]` records to partition n, which has `first` of them already."""
        with Producer({"bootstrap.servers": self.servers}) as producer:
            for partition, count in enumerate(counts):
                for offset in range(first, first + count):
                    producer.send(topic, str(offset).encode(), None, partition, BASE_MS + offset)

    def options(self, **given: Any) -> dict[str, str]:
        """Options of the format, with `__` for the dots in their names, and values as JSON where they are not plain."""
        named = {name.replace("__", "."): value for name, value in given.items()}
        texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in named.items()}
        return {"kafka.bootstrap.servers": self.servers, **texts}

    def frame(self, schema: str | None = None, **options: Any) -> Any:
        reader = self.spark.read.format(self.format_name)
        reader = reader.schema(schema) if schema else reader
        return reader.options(**self.options(**options)).load()

    def stream(self, **options: Any) -> Any:
        return self.spark.readStream.format(self.format_name).options(**self.options(**options)).load()

    def read(self, **options: Any) -> list[Any]:
        return sorted(self.frame(**options).collect(), key=lambda row: (row.topic, row.partition, row.offset))

    def offsets(self, **options: Any) -> dict[int, list[int]]:
        """The offsets read, by partition."""
        found: dict[int, list[int]] = {}
        for row in self.read(**options):
            assert row.value == str(row.offset).encode()
            found.setdefault(row.partition, []).append(row.offset)
        return found
