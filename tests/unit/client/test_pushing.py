"""A client pushes its own metrics, in virtual time: what is sent when, and what each answer leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.base.sensors import SensorName
from kalda.clientcore.connections.telemetry_push import FIRST_MS, Measured, OwnMetrics, by_names_of_telemetry
from kalda.protocol.messages.admin import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryResponse,
)
from kalda.records.compression import Compression, decompress
from kalda.telemetry.otlp import DataPoint, MetricKind, Temporality, decode

ID = Uuid(bytes(15) + b"\xcc")


class World:
    """A client whose connections are lists."""

    def __init__(self) -> None:
        self.now_ms = 10_000
        self.node: int | None = 1
        self.sent: list[tuple[int, Any, Callable[[Any, ApiError | None], None]]] = []
        self.totals = 5.0
        self.metrics = OwnMetrics(
            self,  # type: ignore[arg-type]
            self.measure,
            (("group_id", "g"),),
            wall_ms=lambda: self.now_ms + 1_000_000,
            now_ms=lambda: self.now_ms,
            random=lambda: 0.25,
        )

    def measure(self, now_ms: int) -> list[Measured]:
        return [
            Measured("org.apache.kafka.producer.a.total", self.totals, True, (("topic", "t"),)),
            Measured("org.apache.kafka.producer.b.avg", 1.5),
            Measured("org.apache.kafka.producer.c.avg", float("nan")),
            Measured("org.apache.kafka.consumer.d.avg", 2.5),
        ]

    # what the machine calls

    def least_loaded(self, now_ms: int) -> int | None:
        return self.node

    def send(self, node_id: int, request: Any, now_ms: int, on_done: Callable[[Any, ApiError | None], None]) -> None:
        self.sent.append((now_ms, request, on_done))

    # what the tests do

    def run_to(self, now_ms: int) -> None:
        while self.metrics.due_ms <= now_ms:
            self.now_ms = max(self.now_ms, self.metrics.due_ms)
            self.metrics.run(self.now_ms)
        self.now_ms = now_ms

    def subscribe(
        self, *metrics: str, codecs: tuple[int, ...] = (Compression.LZ4,), max_bytes: int = 1_000_000
    ) -> None:
        self.answer(
            GetTelemetrySubscriptionsResponse(
                client_instance_id=ID,
                subscription_id=7,
                accepted_compression_types=[Compression.LZ4],
                push_interval_ms=1_000,
                telemetry_max_bytes=max_bytes,
                delta_temporality=True,
                requested_metrics=list(metrics),
            )
        )

    def answer(self, response: Any, error: ApiError | None = None) -> None:
        self.sent[-1][2](response, error)

    def points(self) -> list[DataPoint]:
        request = self.sent[-1][1]
        return decode(bytes(decompress(Compression(request.compression_type), bytes(request.metrics))))

    @property
    def times(self) -> list[int]:
        return [sent_ms for sent_ms, _, _ in self.sent]


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_request_waits_and_the_first_push_is_spread(world: World) -> None:
    world.run_to(10_000 + FIRST_MS)
    ((sent_ms, request, _),) = world.sent
    assert (sent_ms, type(request)) == (11_000, GetTelemetrySubscriptionsRequest)
    assert request.client_instance_id == ZERO_UUID
    world.subscribe("org.apache.kafka.producer.")
    world.run_to(20_000)
    assert world.times == [11_000, 11_750]
    a, b = world.points()
    assert (a.name, a.kind, a.value, a.temporality) == (
        "org.apache.kafka.producer.a.total",
        MetricKind.SUM,
        5,
        Temporality.DELTA,
    )
    assert (a.attributes, a.resource) == ((("topic", "t"),), (("group_id", "g"),))
    assert (b.kind, b.value) == (MetricKind.GAUGE, 1.5)
    assert b.time_ns == 1_011_750 * 10**6


def test_later_pushes_have_the_difference_and_come_once_an_interval_after_the_answer(world: World) -> None:
    world.run_to(11_000)
    world.subscribe("*")
    world.run_to(11_800)
    world.answer(PushTelemetryResponse())
    world.totals = 9.0
    world.run_to(13_000)
    assert world.times == [11_000, 11_750, 12_800]
    assert world.points()[0].value == 4
    assert world.points()[0].start_ns == 1_011_750 * 10**6
    world.answer(None, ApiError(ErrorCode.NETWORK_EXCEPTION))
    world.run_to(14_000)
    assert world.times[-1] == 14_000
    world.subscribe("*")
    world.run_to(15_000)
    assert world.points()[0].value == 4, "what was not answered is pushed again"


def test_nothing_subscribed(world: World) -> None:
    world.run_to(11_000)
    world.subscribe()
    world.run_to(12_500)
    assert world.times == [11_000, 12_000]
    world.subscribe()
    assert world.metrics.has_ended(12_500), "there is no last push"


@pytest.mark.parametrize(
    ("code", "next_ms"),
    [
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 11_750),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 11_750),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 12_750),
        (ErrorCode.TELEMETRY_TOO_LARGE, 12_750),
        (ErrorCode.INVALID_RECORD, None),
        (ErrorCode.INVALID_REQUEST, None),
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
    ],
)
def test_what_an_error_leads_to(world: World, code: ErrorCode, next_ms: int | None) -> None:
    world.run_to(11_000)
    world.subscribe("*")
    world.run_to(11_750)
    world.answer(PushTelemetryResponse(error_code=code))
    world.run_to(100_000)
    assert world.times == [11_000, 11_750] + ([] if next_ms is None else [next_ms])


def test_a_broker_that_announces_no_telemetry_may_do_so_after_an_interval(world: World) -> None:
    world.run_to(11_000)
    world.answer(None, ApiError(ErrorCode.UNSUPPORTED_VERSION))
    world.run_to(310_999)
    assert len(world.sent) == 1
    world.run_to(311_000)
    assert world.times == [11_000, 311_000]
    world.answer(None, ApiError(ErrorCode.UNSUPPORTED_VERSION))
    assert world.metrics.has_ended(world.now_ms)


def test_without_a_broker_it_is_tried_again(world: World) -> None:
    world.node = None
    world.run_to(13_500)
    world.node = 1
    world.run_to(14_000)
    assert world.times == [14_000]


def test_the_last_push_is_waited_for_but_not_for_long(world: World) -> None:
    world.run_to(11_000)
    world.subscribe("*")
    world.run_to(11_100)
    assert not world.metrics.has_ended(11_100)
    world.run_to(11_100)
    assert world.sent[-1][1].terminating
    assert not world.metrics.has_ended(11_399)
    world.run_to(11_400)
    assert world.metrics.has_ended(11_400)


def test_the_answer_ends_it(world: World) -> None:
    world.run_to(11_000)
    world.subscribe("*")
    assert not world.metrics.has_ended(11_100)
    world.run_to(11_100)
    world.answer(PushTelemetryResponse())
    assert world.metrics.has_ended(11_101)
    world.run_to(10**9)
    assert len(world.sent) == 2


def test_too_much_is_not_pushed(world: World) -> None:
    world.run_to(11_000)
    world.subscribe("*", max_bytes=10)
    world.run_to(20_000)
    assert len(world.sent) == 1


def test_metrics_of_the_application(world: World) -> None:
    def fail() -> float:
        raise RuntimeError("the application is broken")

    world.metrics.register("org.acme.x.total", lambda: 3, is_total=True)
    world.metrics.register("org.acme.y", fail)
    world.run_to(11_000)
    world.subscribe("org.acme.")
    world.run_to(11_750)
    assert [(point.name, point.value) for point in world.points()] == [("org.acme.x.total", 3)]
    world.metrics.unregister("org.acme.x.total")
    world.answer(PushTelemetryResponse())
    world.run_to(13_000)
    assert world.points() == []


def test_the_id_is_requested_at_once_where_somebody_waits_for_it(world: World) -> None:
    told: list[Uuid | None] = []
    world.node = None
    world.metrics.call_with_id(lambda: told.append(world.metrics.instance_id))
    world.run_to(10_100)
    assert not world.sent, "no node is connected"
    world.node = 1
    world.run_to(10_150)
    assert [type(request) for _, request, _ in world.sent] == [GetTelemetrySubscriptionsRequest]
    assert (told, world.metrics.instance_id) == ([], None)
    world.subscribe()
    assert told == [ID], "although nothing is subscribed"
    world.metrics.call_with_id(lambda: told.append(world.metrics.instance_id))
    assert told == [ID, ID], "it is known"


def test_names_are_those_of_kip_714() -> None:
    client, topic = ("client-id", "c"), ("topic", "a-b")
    found = by_names_of_telemetry(
        [
            (SensorName("producer-topic-metrics", "record-send-total", (client, topic)), 1, True),
            (SensorName("admin-client-node-metrics", "request-rate", (client, ("node-id", "node-1"))), 2.0, False),
            (
                SensorName("consumer-fetch-manager-metrics", "records-lag", (client, topic, ("partition", "3"))),
                3,
                False,
            ),
        ]
    )
    assert list(found) == [
        Measured("org.apache.kafka.producer.topic.record.send.total", 1, True, (topic,)),
        Measured("org.apache.kafka.admin.client.node.request.rate", 2.0, False, (("node_id", "node-1"),)),
        Measured("org.apache.kafka.consumer.fetch.manager.records.lag", 3, False, (topic, ("partition", "3"))),
    ]
