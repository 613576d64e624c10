"""Sensors as OpenMetrics text, and as values under Kafka's names."""

from __future__ import annotations

import math

from kalda.base.sensors import SensorName, Sensors
from kalda.base.stats import Avg
from kalda.broker.metrics.metrics_export import node_points
from kalda.telemetry.exposition import as_json, jmx_text, openmetrics
from kalda.telemetry.otlp import MetricKind, Temporality

TOPICS = "kafka.server:type=BrokerTopicMetrics"


def some() -> Sensors:
    sensors = Sensors()
    sensors.counter_sum(TOPICS, "BytesInPerSec").value = 7
    sensors.counter(TOPICS, "BytesInPerSec", (("topic", "a"),)).value = 5
    sensors.gauge("kafka.server:type=KafkaServer", "BrokerState").value = 3
    sensors.gauge("g:type=t", "infinite").value = math.inf
    sensors.gauge("g:type=t", "half").value = 0.5
    sensors.average("g:type=t", "of-nothing")
    return sensors


def test_openmetrics() -> None:
    assert "".join(openmetrics(some().everything(), 0)).splitlines() == [
        "# TYPE g_t_half gauge",
        "g_t_half 0.5",
        "# TYPE g_t_infinite gauge",
        "g_t_infinite +Inf",
        "# TYPE g_t_of_nothing gauge",
        "# TYPE kafka_server_brokertopicmetrics_bytesin counter",
        "# HELP kafka_server_brokertopicmetrics_bytesin Bytes of batches that producers sent",
        "kafka_server_brokertopicmetrics_bytesin_total 7",
        'kafka_server_brokertopicmetrics_bytesin_total{topic="a"} 5',
        "# TYPE kafka_server_kafkaserver_brokerstate gauge",
        "# HELP kafka_server_kafkaserver_brokerstate 1 starting, 2 recovery, 3 running, 6 controlled shutdown, "
        "7 shutting down",
        "kafka_server_kafkaserver_brokerstate 3",
        "# EOF",
    ]


def test_names_that_clients_make_up_are_escaped() -> None:
    sensors = Sensors()
    name = SensorName("kafka.server:type=Produce", "byte-rate", (("user", ""), ("client-id", 'a"\n\\b')))
    sensors.add_source(lambda: [(name, Avg()), (name, sensors.gauge("g:type=t", "n"))])
    lines = "".join(openmetrics(sensors.everything(), 0)).splitlines()
    assert 'kafka_server_produce_byte_rate{user="",client_id="a\\"\\n\\\\b"} 0' in lines


def test_many_sensors_come_in_pieces() -> None:
    sensors = Sensors()
    for number in range(2_000):
        sensors.counter(TOPICS, "BytesInPerSec", (("topic", f"t{number}"),))
    pieces = list(openmetrics(sensors.everything(), 0))
    assert len(pieces) > 3
    assert pieces[:4] == [""] * 4, "listing them is cut too"
    assert max(piece.count("\n") for piece in pieces) <= 501
    names = Sensors()
    for number in range(20):
        names.counter(TOPICS, "BytesInPerSec", (("client-id", f"{number}" * 32_000),))
    for found in (list(openmetrics(names.everything(), 0)), list(jmx_text(names.everything(), 0))):
        assert max(map(len, found)) < 150_000, "names may be long"
    assert "".join(pieces).count("_total{") == 2_000


def test_values_under_kafkas_names() -> None:
    found = list(as_json(some().everything(), 0))
    assert {"group": TOPICS, "name": "BytesInPerSec", "tags": {"topic": "a"}, "value": 5, "counter": True} in found
    assert [row["value"] for row in found if row["name"] == "infinite"] == [None]
    assert not any(row["name"] == "of-nothing" for row in found)


def test_the_names_of_the_jmx_exporter() -> None:
    sensors = some()
    sensors.gauge("kafka.server:type=raft-metrics", "current-leader").value = 1
    sensors.gauge(
        "kafka.network:type=RequestMetrics", "TotalTimeMs", (("request", "Fetch"), ("quantile", "0.99"))
    ).value = 2
    lines = [line for line in "".join(jmx_text(sensors.everything(), 0)).splitlines() if not line.startswith("#")]
    assert lines == [
        "g_t_half 0.5",
        "g_t_infinite +Inf",
        'kafka_network_RequestMetrics_99thPercentile{name="TotalTimeMs",request="Fetch"} 2',
        'kafka_server_BrokerTopicMetrics_Count{name="BytesInPerSec"} 7',
        'kafka_server_BrokerTopicMetrics_Count{name="BytesInPerSec",topic="a"} 5',
        'kafka_server_KafkaServer_Value{name="BrokerState"} 3',
        "kafka_server_raft_metrics_current_leader 1",
    ]


def test_data_points_for_a_collector() -> None:
    points = {(point.name, point.attributes): point for point in node_points(some().everything(), 0, 2_000, 1_000)}
    assert ("g_t_infinite", ()) not in points
    total = points["kafka_server_brokertopicmetrics_bytesin", (("topic", "a"),)]
    assert (total.kind, total.value, total.temporality, total.is_monotonic) == (
        MetricKind.SUM,
        5,
        Temporality.CUMULATIVE,
        True,
    )
    assert (total.start_ns, total.time_ns) == (10**9, 2 * 10**9)
    assert points["g_t_half", ()].kind is MetricKind.GAUGE
