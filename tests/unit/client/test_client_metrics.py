"""What clients measure: the names of Apache Kafka 4.3.1's clients, and values of all that was sent and received."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from consumer_world import Cluster, Member
from model_cluster import World

from kalda.base.configs.admin import admin_config
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.sensors import SensorName
from kalda.base.stats import MetricConfig
from kalda.client.admin.admin_driven import AdminDriven
from kalda.clientcore.connections.client_metrics import ClientMetrics
from kalda.protocol.apis import ApiKey

NAMES: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "client" / "metric_names.json").read_text()
)
"""Group, name and tags, the client's id apart, of what `metrics()` of Kafka's Java clients returns."""
T0 = TopicPartition("t", 0)


def names_of(metrics: ClientMetrics, now_ms: int) -> set[str]:
    names = [name for name, _, _ in metrics.measured(now_ms)]
    names += [SensorName("app-info", text) for text in ("version", "commit-id", "start-time-ms")]
    names.append(SensorName("kafka-metrics-count", "count"))
    assert set(metrics.snapshot(now_ms)) >= {name.name for name in names if len(name.tags) < 2}
    return {
        " ".join((name.group, name.name, *sorted(tag for tag, _ in name.tags if tag != "client-id"))) for name in names
    }


def measured(world: World) -> dict[str, Any]:
    return world.core.metrics.snapshot(world.now_ms)


def test_a_producer_has_the_names_of_kafkas() -> None:
    world = World(partitions=2)
    world.send(b"v", 0)
    world.run_until_idle()
    assert names_of(world.core.metrics, world.now_ms) == set(NAMES["producer"])
    assert measured(world)["count"] == len(measured(world))


def test_a_consumer_has_the_names_of_kafkas() -> None:
    cluster = Cluster()
    cluster.add_topic("t", 1)
    cluster.append("t", 0, b"a")
    member = Member(cluster, **{"group.id": "g"}).subscribe("t")
    while not member.poll(100):
        pass
    member.commit()
    assert names_of(member.core.metrics, cluster.now_ms) == set(NAMES["consumer"])


def test_an_admin_client_has_the_names_of_kafkas() -> None:
    driven = AdminDriven(admin_config({"bootstrap.servers": "localhost:1"}, {}), lambda: 0.5, 0)
    driven.core.connections.metrics.node(-1)
    assert names_of(driven.metrics, 0) == set(NAMES["admin"])


def test_a_maximum_is_that_of_all_values_and_an_average_their_mean() -> None:
    world = World(partitions=1, brokers=1, **{"linger.ms": 0, "batch.size": 20_000})
    for size in (10, 9_999, 10, 10):  # each in a request of its own
        world.send(bytes(size), 0)
        world.run_until_idle()
    found = measured(world)
    largest = 61 + 21 + 1 + 3 + 9_999 + 1  # as Kafka counts it: with the batch's header and the most of the record's
    small = 61 + 21 + 1 + 1 + 10 + 1
    assert (found["record-size-max"], found["record-size-avg"]) == (largest, (largest + 3 * small) / 4)
    sizes = [len(data.records) for data in sent_batches(world)]
    assert (found["batch-size-max"], found["batch-size-avg"]) == (max(sizes), sum(sizes) / 4)
    assert found["t.byte-total"] == sum(sizes)
    assert found["records-per-request-avg"] == 1
    assert found["record-send-total"] == found["t.record-send-total"] == 4


def sent_batches(world: World) -> list[Any]:
    produced = [request for _, key, request in world.requests if key is ApiKey.PRODUCE]
    return [data for request in produced for topic in request.topic_data for data in topic.partition_data]


def test_a_maximum_counts_for_as_long_as_its_window() -> None:
    world = World(partitions=1, brokers=1, **{"metrics.sample.window.ms": 1_000, "metrics.num.samples": 2})
    world.send(bytes(5_000), 0)
    world.run_until_idle()
    assert measured(world)["record-size-max"] > 5_000
    world.run(5_000)
    assert isnan(measured(world)["record-size-max"])
    world.send(b"v", 0)
    world.run_until_idle()
    assert measured(world)["record-size-max"] < 100


def test_the_traffic_is_counted_for_each_node() -> None:
    world = World(partitions=2, brokers=2)
    for partition in (0, 0, 1):
        world.send(b"v", partition)
        world.run_until_idle()
    found = measured(world)
    nodes = sorted({key.partition(".")[0] for key in found if key.startswith("node-")})
    assert nodes == ["node--1", "node-0", "node-1"]
    for what in ("request-total", "response-total", "outgoing-byte-total", "incoming-byte-total"):
        assert found[what] == sum(found[f"{node}.{what}"] for node in nodes) > 0, what
    assert found["request-total"] == found["response-total"] == len(world.requests)
    assert found["network-io-total"] == 2 * len(world.requests)
    assert found["request-size-max"] == max(found[f"{node}.request-size-max"] for node in nodes)
    assert found["node-0.request-latency-max"] > 0
    assert isnan(found["node--1.request-latency-max"]), "only Produce is measured"


def test_connections_are_counted_when_they_are_made_and_when_they_end() -> None:
    world = World(partitions=1, brokers=1)
    world.down.add(0)
    world.core.metadata.want("t", world.now_ms)
    world.run(3_000)
    found = measured(world)
    assert found["connection-creation-total"] == 0
    assert found["connection-close-total"] > 0, "attempts that have failed, as Kafka counts them"
    world.down.clear()
    world.send(b"v", 0)
    world.run_until_idle()
    found = measured(world)
    assert found["connection-creation-total"] > 0
    assert found["connection-count"] == 1
    world.core.connections.close(world.now_ms)
    assert measured(world)["connection-count"] == 0


def test_compression_is_that_of_the_records() -> None:
    world = World(partitions=1, brokers=1, **{"compression.type": "gzip"})
    world.send(b"v" * 10_000, 0)
    world.run_until_idle()
    found = measured(world)
    assert 0 < found["compression-rate-avg"] < 0.02
    assert found["t.compression-rate"] == found["compression-rate-avg"]
    assert found["batch-size-max"] == len(sent_batches(world)[0].records)


def test_retries_and_errors_are_counted_in_all_and_by_topic() -> None:
    world = World(partitions=1, brokers=1, retries=1, **{"linger.ms": 5})
    answers = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS]
    world.on_produce = lambda _partition, _batch: answers.pop() if answers else None
    for _ in range(3):
        world.send(b"v", 0)
    world.run_until_idle()
    found = measured(world)
    for place in ("", "t."):
        assert (found[place + "record-retry-total"], found[place + "record-error-total"]) == (3, 3)
        assert found[place + "record-error-rate"] > 0


def test_the_age_of_metadata_is_in_seconds() -> None:
    world = World(partitions=1, brokers=1)
    world.send(b"v", 0)
    world.run_until_idle()
    before = measured(world)["metadata-age"]
    world.run(20_000)
    assert measured(world)["metadata-age"] == pytest.approx(before + 20, abs=0.01)


def test_the_sizes_of_a_lone_record_and_its_request_are_measured() -> None:
    world = World(partitions=1, brokers=1, **{"linger.ms": 0})
    world.send(b"v", 0)
    world.run_until_idle()
    before = measured(world)
    assert world.send(b"a longer one", 0)
    world.run(100)
    found = measured(world)
    assert found["request-total"] == found["response-total"] == before["request-total"] + 1
    assert found["record-size-max"] == 61 + 21 + 1 + 1 + 12 + 1
    assert found["node-0.request-size-max"] > before["node-0.request-size-max"]
    assert found["requests-in-flight"] == 0


def test_what_a_consumer_has_returned_is_counted_at_once_and_by_fetch() -> None:
    cluster = Cluster(brokers=1)
    cluster.add_topic("t", 2)
    cluster.append("t", 0, *[bytes(100)] * 10)
    member = Member(cluster).assign(("t", 0), ("t", 1))
    while not (taken := member.poll(100, limit=4)):
        pass
    metrics = member.core.metrics
    found = metrics.snapshot(cluster.now_ms)
    assert found["records-consumed-total"] == found["t.records-consumed-total"] == len(taken) == 4
    assert isnan(found["fetch-size-max"]), "records of the Fetch are left"
    assert (found["t-0.records-lag"], found["t-0.records-lag-max"], found["records-lag-max"]) == (6, 6, 6)
    assert (found["t-0.records-lead"], found["records-lead-min"]) == (4, 4)
    while len(taken) < 10:
        taken += member.poll(100, limit=6)
    found = metrics.snapshot(cluster.now_ms)
    assert found["bytes-consumed-total"] == found["fetch-size-max"] == found["t.fetch-size-avg"] > 1_000
    assert (found["records-per-request-avg"], found["t-0.records-lag"]) == (10, 0)
    assert (found["t-0.records-lag-max"], found["t-0.records-lag-avg"]) == (6, 3)
    member.assign(("t", 1))
    assert not [name for name in metrics.snapshot(cluster.now_ms) if name.startswith("t-0.")]


def test_polls_rebalances_and_commits_of_a_consumer() -> None:
    cluster = Cluster(brokers=1)
    cluster.add_topic("t", 1)
    cluster.append("t", 0, b"a")
    member = Member(cluster, **{"group.id": "g", "enable.auto.commit": False}).subscribe("t")
    while not member.poll(100):
        pass
    cluster.run(10_000)
    member.poll(100)
    member.commit()
    found = member.core.metrics.snapshot(cluster.now_ms)
    assert found["time-between-poll-max"] >= 10_000
    assert found["last-poll-seconds-ago"] < 10
    assert found["join-total"] == found["sync-total"] == found["rebalance-total"] == 1
    assert found["rebalance-rate-per-hour"] == pytest.approx(1, abs=0.1)
    assert found["commit-total"] == 1
    assert found["commit-latency-max"] >= found["commit-latency-avg"] >= 0
    assert found["heartbeat-total"] > 0
    assert 0 <= found["last-heartbeat-seconds-ago"] <= 4
    assert found["assigned-partitions"] == 1


def test_series_count_each_value_once_whoever_reads() -> None:
    metrics = ClientMetrics("test", "c", MetricConfig(window_ms=1_000, samples=2))
    series = metrics.series(metrics.stats("size", "avg", "max", "min", "rate", "total"))
    for value in (5, 1, 3):
        series.append(value)
    metrics.run(0)
    for _ in range(2):
        found = metrics.snapshot(0)
        assert [found[f"size-{ending}"] for ending in ("avg", "max", "min", "rate", "total")] == [3, 5, 1, 9, 9]


def test_a_topics_compression_rate_has_the_configured_windows() -> None:
    world = World(partitions=1, **{"metrics.sample.window.ms": 100, "metrics.num.samples": 1})
    world.send(b"v", 0)
    world.run_until_idle()
    assert measured(world)["t.compression-rate"] == measured(world)["compression-rate-avg"] == 1.0
    world.run(1_000)
    assert isnan(measured(world)["t.compression-rate"])
    assert isnan(measured(world)["compression-rate-avg"])
