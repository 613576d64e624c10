"""The page of metrics, the tables that it is made from, and what a running node has, are the same."""

from __future__ import annotations

import gzip
import json
import re
import urllib.request
from pathlib import Path

import psutil
import pytest

from kalda import Admin
from kalda.base.errors import ApiError
from kalda.base.sensors import Durations, bucket_of, quantiles_ms, upper_end_us
from kalda.broker.metrics.request_metrics import EVERY
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.producer.producer import Producer
from kalda.clientcore.administration import ANY, Ask, single
from kalda.protocol.apis import API, response_class
from kalda.protocol.encoder import ErrorCounts
from kalda.protocol.framing import counting_response_encoder, encode_response
from kalda.protocol.messages.groups import HeartbeatRequest
from kalda.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kalda.protocol.messages.partitions import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.telemetry.catalog import METRICS, page
from kalda.testing import Cluster

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
BY_USE = {
    "ConsumerLag",
    "throttle-time",
    "VerificationTimeMs",
    "ThrottleTimeMs",
    "partition-load-time-avg",
    "partition-load-time-max",
    "write-latency-avg",
    "write-latency-max",
    "last-pruned-offset",
    "DeadLetterQueueRecordCount",
    "DeadLetterQueueTotalProduceRequestsPerSec",
    "DeadLetterQueueFailedProduceRequestsPerSec",
    "EventQueueTimeMs",
    "EventQueueProcessingTimeMs",
    "election-latency-avg",
    "election-latency-max",
    "RemoteTimeMs",
    "LogFlushRateAndTimeMs",
    "connection-accept-throttle-time",
    "ip-connection-accept-throttle-time",
}
"""Metrics that exist, or have a value, only after what they measure has happened."""


KAFKAS = Path(__file__).parents[2] / "golden" / "telemetry" / "mbeans.txt.gz"
"""Types and names of the MBeans of an Apache Kafka 4.3.1 that has served groups, transactions, compaction, quotas."""
ABSENT_HERE = (
    r"-channel-metrics |(alter-partition|directory-assignments|forwarding|heartbeat|registration)-metrics ",
    r"(Remote|Share)|share-group|streams-group|consumer-group-|Acceptor|Processor |RequestChannel",
    r"ExpiredConnectionsKilled|number-unknown-voter",
    r"(RequestQueue|ResponseQueue|ResponseSend|MessageConversions)TimeMs|TemporaryMemory|FetchMessageConversions",
    r"(group|share)-coordinator-metrics (event|background|batch|thread)-|AvgIdleRatio|poll-idle",
    r"HandlerPool \w+RequestH",
    r"(MinFetchRate|DeadThreadCount|FailedPartitionsCount|queue-size|load-error-count|subscription-request-rate)$",
    r"socket-server-metrics (\w+-byte|failed|io|network-io|request|response|reauth|select|successful|connection-c)",
    r"MemoryPool\w*Depleted",
    r"ForwardingManager QueueTimeMs|RemoteTimeMs\.|BrokerMetadataListener|ClusterId|metrics-count|app-info",
    r"current-(state|vote-directory)",
)
"""Patterns of those that a node does not have: what the last table of the page says in words."""


def test_what_kafka_has_is_here_or_said_to_be_absent() -> None:
    known = {f"{group} {metric.name}" for group, metrics in METRICS.items() for metric in metrics}
    absent = re.compile("|".join(ABSENT_HERE))
    kafkas = gzip.decompress(KAFKAS.read_bytes()).decode().splitlines()
    assert len(kafkas) > 600
    assert [name for name in kafkas if name not in known and not absent.search(name)] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m kalda.telemetry.catalog > docs/metrics.md"


def numbers(page: str) -> dict[str, float]:
    """The samples of a page of OpenMetrics, by name with labels."""
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def read(cluster: Cluster, node_id: int = 1) -> dict[str, float]:
    listener = cluster.nodes[node_id].running.metrics_listener
    assert listener is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as answer:
        return numbers(answer.read().decode())


@pytest.mark.parametrize("names", ["prometheus", "jmx"])
def test_a_process_has_the_names_that_prometheus_has_given_it(names: str) -> None:
    config = {"kalda.metrics.listener": "127.0.0.1:0", "kalda.metrics.names": names}
    with Cluster(config=config) as cluster:
        found = read(cluster)
    process = psutil.Process()
    assert found["process_start_time_seconds"] == pytest.approx(process.create_time(), abs=2)
    assert 0 < found["process_cpu_seconds_total"] <= sum(process.cpu_times()[:2]) + 1
    assert found["process_resident_memory_bytes"] > 10_000_000
    assert 3 < found["process_open_fds"] < found["process_max_fds"]


def test_groups_have_a_lag_where_their_coordinator_has_a_replica() -> None:
    config = {"kalda.metrics.listener": "127.0.0.1:0", "kalda.metrics.logs.max": 3}
    with Cluster(nodes=2, config=config) as cluster, Admin(cluster.client_config()) as admin:
        cluster.create_topic("orders", assignment=[[1, 2]])
        cluster.produce("orders", map(str, range(5)))
        admin.alter_group_offsets("shop", {("orders", 0): 3}).check()
        coordinator = admin.describe_groups(["shop"]).value("shop").coordinator
        labels = '{consumergroup="shop",topic="orders",partition="0"}'
        found = read(cluster, coordinator)
        assert found[f"kafka_consumergroup_current_offset{labels}"] == 3
        assert found[f"kafka_consumergroup_lag{labels}"] == 2
        assert not any("consumergroup" in name for name in read(cluster, 3 - coordinator))
        cluster.create_topic("elsewhere", assignment=[[3 - coordinator]])
        admin.alter_group_offsets("shop", {("elsewhere", 0): 0}).check()
        found = read(cluster, coordinator)
        assert found[f"kafka_consumergroup_current_offset{labels.replace('orders', 'elsewhere')}"] == 0
        assert f"kafka_consumergroup_lag{labels.replace('orders', 'elsewhere')}" not in found
        admin.alter_group_offsets("other", {("orders", 0): 9, ("elsewhere", 0): 9}).check()
        assert not any("consumergroup" in name for name in read(cluster, coordinator)), "there are too many"


def test_a_node_has_the_metrics_of_the_catalog_and_no_others() -> None:
    with Cluster(nodes=1, config={"kalda.metrics.listener": "127.0.0.1:0"}) as cluster:
        with CommandAdmin(cluster.bootstrap_servers) as client:
            limits = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9, "request_percentage": 1e3}
            client.alter_client_quotas({(("client-id", None),): {**limits, "controller_mutation_rate": 1e3}}).check()
            cluster.create_topic("measured", partitions=1)
            with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
                for _ in range(EVERY):
                    producer.send("measured", value=b"x").result(30)
            cluster.create_topic("keys", configs={"cleanup.policy": "compact"})
            with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer, pytest.raises(ApiError):
                producer.send("keys", value=b"without a key").result(30)
            client.alter_group_offsets("g", {("measured", 0): 1}).check()
            client.list_topics()
            client.run("a heartbeat", single(Ask(ANY, HeartbeatRequest(group_id="g", member_id="m"))))
            listener = cluster.nodes[1].running.metrics_listener
            assert listener is not None
            with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics.json") as answer:
                rows = json.load(answer)
        found = {(row["group"], row["name"]): row for row in rows}
        values = {(row["name"], *row["tags"].values()): row["value"] for row in rows}
    known = {(group, metric.name): metric for group, metrics in METRICS.items() for metric in metrics}
    assert set(found) - set(known) == set(), "metrics without a description"
    missing = {
        key
        for key in set(known) - set(found)
        if key[1] not in BY_USE and key != ("kafka.server:type=Fetch", "byte-rate")
    }
    assert missing == set(), "metrics that the node does not have"
    for key, row in found.items():
        assert row["counter"] == known[key].is_counter, key
        assert set(row["tags"]) <= set(known[key].tags.split(",")), key
    assert values["RequestsPerSec", "Produce", "13"] == EVERY + 1
    assert values["TotalTimeMs", "Produce", "1.0"] > 0
    assert values["RequestBytes", "Produce"] > 60
    assert [key[2] for key in values if key[:2] == ("ErrorsPerSec", "Heartbeat")] != []
    assert 0 <= values["TimeSinceLastHeartbeatReceivedMs", "1"] < 60_000
    assert values["LogEndOffset", "measured", "0"] == EVERY
    assert values["Size", "measured", "0"] > 60 * EVERY
    assert values["NumLogSegments", "measured", "0"] == 1
    assert values["ProducerIdCount",] == 1
    for fetched_by in ("Replica", "ReplicaAlterLogDirs"):
        assert values["FailedPartitionsCount", fetched_by] == 0
    assert values["MaxLag", "Replica"] == values["ReassigningPartitions",] == 0
    assert values["NumOffsets",] == values["offset-commit-count",] == 1
    active = {"state": "active"}
    led = {row["group"]: row["value"] for row in rows if row["name"] == "num-partitions" and row["tags"] == active}
    assert led == {
        "kafka.server:type=group-coordinator-metrics": 1,
        "kafka.server:type=share-coordinator-metrics": 0,
    }
    assert values["RemoteTimeMs", "1.0"] > 0, "of requests that were forwarded to the controller"
    assert values["NoKeyCompactedTopicRecordsPerSec",] == 1
    assert values["ReplicasCount", "measured", "0"] == values["InSyncReplicasCount", "measured", "0"] == 1
    assert values["EventQueueOperationsStartedCount",] > 3
    assert values["FinalizedLevel", "metadata.version"] == values["CurrentMetadataVersion",] > 0
    assert values["minimum-supported-level", "kraft.version"] == 0
    assert values["FinalizedLevel", "kraft.version"] == 1
    assert values["LatestSnapshotGeneratedAgeMs",] < 600_000
    assert 0 < values["RequestHandlerAvgIdlePercent",] <= 1
    assert values["connection-creation-total", "PLAINTEXT"] > values["connection-close-total", "PLAINTEXT"] > 0
    assert values["connection-count", "PLAINTEXT"] >= 1
    assert any(key[:2] == ("connections", "kalda") for key in values)
    assert values["MemoryPoolAvailable",] == 2**63 - 1
    assert [value for key, value in values.items() if key[0] == "remainingLogsToRecover"] == [0]


def test_durations_fall_into_buckets_of_an_eighth_at_most() -> None:
    for duration_us in (0, 1, 3, 4, 5, 7, 8, 100, 999, 1_000, 123_456, 10**9):
        end_us = upper_end_us(bucket_of(duration_us))
        assert duration_us <= end_us <= duration_us * 1.25 + 1, duration_us
        assert bucket_of(end_us) == bucket_of(duration_us)
        assert bucket_of(end_us + 1) == bucket_of(duration_us) + 1


def test_quantiles_are_of_the_last_windows() -> None:
    durations = Durations()
    assert quantiles_ms(durations.recent(60_000)) == []
    for duration_us in (*[1_000] * 99, 50_000):
        durations.counts[bucket_of(duration_us)] += 1
    half, *_, most = quantiles_ms(durations.recent(61_000))
    assert 1.0 <= half < 1.3
    assert 50 <= most < 64
    assert sum(durations.recent(120_000)) == 100, "they are less than two windows old"
    assert sum(durations.recent(180_000)) == 0


def test_error_codes_are_counted_wherever_a_response_has_them() -> None:
    counts = ErrorCounts(int)
    partitions = [PartitionProduceResponse(error_code=code) for code in (0, 0, 6)]
    response = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=partitions)])
    assert counting_response_encoder(ProduceResponse, 9, counts)(7, response) == encode_response(7, response, 9)
    assert counts == {6: 1}
    unknown = [MetadataResponsePartition(error_code=9)]
    topics = [MetadataResponseTopic(error_code=3), MetadataResponseTopic(partitions=unknown)]
    counting_response_encoder(MetadataResponse, 9, counts)(1, MetadataResponse(topics=topics))
    assert counts == {6: 1, 3: 1, 9: 1}
    for api in API.values():
        for version in range(api.lowest, api.highest + 1):
            response_of = response_class(api.key)
            encode = counting_response_encoder(response_of, version, counts)
            assert encode(1, response_of()) == encode_response(1, response_of(), version)
