"""Metrics that clients push to a running broker: requests, the topic, the page, the operator's class, bad input."""

from __future__ import annotations

import asyncio
import gzip
import json
import queue
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from by_hand import inline_background
from click.testing import CliRunner
from paper_connection import PaperConnection, read_answer

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid, uuid_to_text
from kalda.broker.handlers.telemetry import MAX_DECOMPRESSED_BYTES, ClientMetricsModule
from kalda.broker.metrics.client_metrics_receivers import MAX_QUEUED, PluginRunner, Push
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.cli.commands import cli
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.aio_admin import Admin as AioAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.client.consumer.aio_consumer import Consumer as AioConsumer
from kalda.client.consumer.consumer import Consumer
from kalda.client.producer.aio_producer import Producer as AioProducer
from kalda.client.producer.producer import Producer
from kalda.clientcore.administration import ANY, Ask, single
from kalda.clientcore.connections import telemetry_push
from kalda.network.server.connection import Connection
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from kalda.protocol.messages.metadata import ApiVersionsRequest
from kalda.records.compression import Compression, compress
from kalda.telemetry.client_metrics import PointSource
from kalda.telemetry.otlp import DataPoint, MetricKind, Temporality, encode
from kalda.testing import Cluster

POINTS = [
    DataPoint(
        "org.apache.kafka.producer.record.queue.time.avg", MetricKind.GAUGE, 1.5, 5_000_000, attributes=(("t", "x"),)
    ),
    DataPoint("a.total", MetricKind.SUM, 3, 5_000_000, 0, temporality=Temporality.DELTA, is_monotonic=True),
]
NODE = {
    "process.roles": "broker",
    "node.id": "1",
    "log.dirs": "/nowhere",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "controller.listener.names": "CONTROLLER",
}
PUSHED: queue.Queue[Push] = queue.Queue()


class Plugin:
    """What `kalda.client.metrics.plugins` of these tests names."""

    def export(self, push: Push) -> None:
        PUSHED.put(push)
        raise RuntimeError("the plugin fails each time")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {
        "kalda.metrics.listener": "127.0.0.1:0",
        "kalda.client.metrics.plugins": f"{__name__}:Plugin",
        "num.partitions": 2,
    }
    with Cluster(nodes=1, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def connected(cluster: Cluster) -> Iterator[CommandAdmin]:
    with CommandAdmin(cluster.bootstrap_servers, config={"client.id": "loader\x1b[2J" + "x" * 30_000}) as client:
        resource = ConfigResource(ConfigResourceType.CLIENT_METRICS, "all")
        client.set_configs(resource, {"metrics": "*", "interval.ms": "100", "match": "client_id=loader.*"})
        yield client


class Pusher:
    """A client of telemetry."""

    def __init__(self, client: CommandAdmin) -> None:
        self.client = client
        got = client.run("the subscriptions", single(Ask(ANY, GetTelemetrySubscriptionsRequest()), _refuse))
        self.instance_id: Uuid = got.client_instance_id
        self.subscription_id: int = got.subscription_id
        self.got = got

    def push(self, metrics: bytes, codec: int = 0, *, terminating: bool = False, **changes: Any) -> ErrorCode:
        fields = {
            "client_instance_id": self.instance_id,
            "subscription_id": self.subscription_id,
            "terminating": terminating,
            "compression_type": codec,
            "metrics": metrics,
            **changes,
        }
        answer = self.client.run("a push", single(Ask(ANY, PushTelemetryRequest(**fields))))
        return ErrorCode(answer.error_code)


def _refuse(answer: Any) -> ApiError | None:
    return ApiError(ErrorCode(answer.error_code)) if answer.error_code else None


@pytest.fixture
def pusher(connected: CommandAdmin) -> Pusher:
    return Pusher(connected)


def test_what_is_pushed_is_in_the_topic_on_the_page_and_at_the_plugin(
    cluster: Cluster, connected: CommandAdmin, pusher: Pusher
) -> None:
    assert pusher.got.requested_metrics == ["*"]
    assert (pusher.got.push_interval_ms, pusher.got.telemetry_max_bytes) == (100, 1_048_576)
    codec = Compression.ZSTD
    assert pusher.push(bytes(compress(codec, encode(POINTS))), codec) is ErrorCode.NONE
    address = ["--bootstrap-server", cluster.bootstrap_servers]
    push = PUSHED.get(timeout=30)
    assert list(push.points) == POINTS
    assert push.source.instance_id == pusher.instance_id
    listener = cluster.nodes[1].running.metrics_listener
    assert listener is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/client-metrics") as page:
        lines = page.read().decode().splitlines()
    label = f'client_instance_id="{uuid_to_text(pusher.instance_id)}"'
    assert any(line.startswith("a_total{" + label) and line.endswith(" 3.0") for line in lines), lines
    _wait_for_topic(connected)
    tail = ["client-metrics", "tail", "--from-beginning", "--max-messages", "2", "--timeout", "30", "--json", *address]
    shown = CliRunner().invoke(cli, tail)
    rows = [json.loads(line) for line in shown.output.splitlines()]
    assert {(row["name"], row["value"]) for row in rows} == {(each.name, each.value) for each in POINTS}
    assert {row["client_id"][:10] for row in rows} == {"loader\x1b[2J"[:10]}
    assert max(len(row["client_id"]) for row in rows) == 256
    assert "\x1b" not in shown.output


def _wait_for_topic(client: CommandAdmin) -> None:
    client.topic("__client_metrics")


def test_clients_cannot_append_to_the_topic(connected: CommandAdmin, pusher: Pusher) -> None:
    pusher.push(encode(POINTS))
    _wait_for_topic(connected)
    assert connected.topic("__client_metrics").is_internal


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (0, b"\x0a\xff\xff\xff\xff\x0f"),
        (1, b"no gzip"),
        (1, gzip.compress(bytes(MAX_DECOMPRESSED_BYTES + 1))),
        (4, bytes(compress(Compression.ZSTD, bytes(64 * MAX_DECOMPRESSED_BYTES)))),
        (1, zlib.compress(b"x")),
    ],
)
def test_bytes_that_cannot_be_read_are_refused(pusher: Pusher, codec: int, data: bytes) -> None:
    assert pusher.push(data, codec) is ErrorCode.INVALID_RECORD


def test_pushes_that_are_not_allowed(pusher: Pusher) -> None:
    assert pusher.push(b"", client_instance_id=ZERO_UUID) is ErrorCode.INVALID_REQUEST
    assert pusher.push(b"", subscription_id=pusher.subscription_id + 1) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert pusher.push(bytes(2_000_000), terminating=True) is ErrorCode.TELEMETRY_TOO_LARGE
    assert pusher.push(b"", terminating=True) is ErrorCode.INVALID_REQUEST


def test_an_unknown_codec(pusher: Pusher) -> None:
    assert pusher.push(b"", 77) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_client_that_matches_nothing_has_nothing_to_push(cluster: Cluster, connected: CommandAdmin) -> None:
    with CommandAdmin(cluster.bootstrap_servers, config={"client.id": "other"}) as other:
        got = Pusher(other).got
    assert (got.requested_metrics, got.push_interval_ms) == ([], 300_000)


def test_the_clients_of_kalda_push_and_end_with_a_last_push(
    cluster: Cluster, connected: CommandAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_push, "_CLOSE_MS", 30_000)  # the machine may be busy for longer than clients wait
    cluster.create_topic("pushed", partitions=1)
    while not PUSHED.empty():
        PUSHED.get()
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "loader-own"}
    with (
        Producer(settings, transactional_id=None) as producer,
        Consumer(settings, group_id="g") as consumer,
        Admin(settings) as admin,
    ):
        admin.list_topics()
        ids = {client.client_instance_id(30) for client in (producer, consumer, admin)}
        assert len(ids - {None}) == 3
        assert producer.client_instance_id(0) in ids
        producer.register_metric("org.acme.orders.total", lambda: 42, is_total=True)
        consumer.subscribe(["pushed"])
        producer.send("pushed", value=b"1").result(30)
        seen: dict[str, Push] = {}
        while len(seen) < 3:
            consumer.poll(0.1)
            while not PUSHED.empty():
                push = PUSHED.get()
                seen[push.points[0].name.split(".")[3]] = push
        assert set(seen) == {"producer", "consumer", "admin"}
    points = {point.name: point for push in seen.values() for point in push.points}
    assert points["org.apache.kafka.producer.record.send.total"].temporality is Temporality.DELTA
    assert points["org.acme.orders.total"].value in (42, 0), "the first push has it all, later ones the difference"
    assert points["org.apache.kafka.consumer.coordinator.assigned.partitions"].kind is MetricKind.GAUGE
    assert ("group_id", "g") in points["org.apache.kafka.consumer.connection.creation.total"].resource
    last = 0
    assert points["org.apache.kafka.admin.client.connection.creation.total"].is_monotonic
    while last < 3:
        last += PUSHED.get(timeout=30).is_terminating


def test_the_asyncio_admin_client_pushes_too(cluster: Cluster, connected: CommandAdmin) -> None:
    async def pushed() -> Push:
        async with AioAdmin({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "loader-aio"}) as admin:
            await admin.list_topics()
            while True:
                push = await asyncio.to_thread(PUSHED.get, timeout=60)
                if push.source.client.client_id == "loader-aio":
                    return push

    assert {".".join(point.name.split(".")[:5]) for point in asyncio.run(pushed()).points} == {
        "org.apache.kafka.admin.client"
    }


def test_the_command_line(cluster: Cluster, connected: CommandAdmin) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(
            cli, ["client-metrics", *arguments, "--bootstrap-server", cluster.bootstrap_servers]
        )
        assert result.exit_code == 0, result.output
        return result.output

    assert "was altered" in run("alter", "--name", "two", "--metrics", "a.,b.", "--interval", "200")
    found = json.loads(run("describe", "--name", "two", "--json"))
    assert found == [{"name": "two", "interval.ms": "200", "match": "", "metrics": "a.,b."}]
    run("alter", "--name", "two", "--delete", "--yes")
    names: list[str] = []
    while names != ["all"]:  # the broker applies the record a moment after the controller's answer
        names = json.loads(run("list", "--json"))
    bad = ["client-metrics", "alter", "--name", "x", "--interval", "99", "--bootstrap-server"]
    refused = CliRunner().invoke(cli, [*bad, cluster.bootstrap_servers])
    assert refused.exit_code == 1
    assert "interval must be between 100 and 3600000" in refused.output


@pytest.mark.parametrize("plugins", ["", f"{__name__}:Plugin"])
def test_telemetry_is_announced_where_something_receives_it(plugins: str) -> None:
    """A plugin, or a subscription; else a librdkafka client would log that it has nothing to push."""
    context = MagicMock()
    context.config = ServerConfig({**NODE, "kalda.client.metrics.plugins": plugins})
    module = ClientMetricsModule(context, MagicMock())
    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    pipeline = RequestPipeline(
        module.rows(), lambda: Features({}, {}, 0), inline_background(), hidden=module.hidden_apis
    )

    def announced() -> set[int]:
        connection, request = PaperConnection(), ApiVersionsRequest()
        answer = pipeline.on_frame(cast(Connection, connection), connection.frame(request, 2))
        return {each.api_key for each in read_answer(answer, request, 2).api_keys} & telemetry

    assert announced() == (telemetry if plugins else set())
    assert module.instances.set_subscription("s", {"metrics": "*"}) is None
    assert announced() == telemetry
    module.instances.set_subscription("s", {})
    assert announced() == (telemetry if plugins else set())


def test_a_plugin_that_hangs_loses_pushes_and_nothing_else() -> None:
    runner = PluginRunner(f"{__name__}:Hanging")
    push = Push(PointSource(ZERO_UUID, None, "", 1), False, [], b"")  # type: ignore[arg-type]
    for _ in range(MAX_QUEUED + 10):
        runner.put(push)
    assert runner.dropped >= 9
    runner.close()
    Hanging.goes_on.put(None)


class Hanging:
    """A plugin that does not return."""

    goes_on: queue.Queue[None] = queue.Queue()

    def export(self, push: Push) -> None:
        self.goes_on.get()


@pytest.mark.parametrize("path", ["no.such:Module", "nonsense", f"{__name__}:Pusher"])
def test_a_plugin_that_cannot_be_loaded_stops_the_start(path: str) -> None:
    with pytest.raises(ValueError, match=r"kalda\.client\.metrics\.plugins="):
        PluginRunner(path)


def test_the_id_of_a_client_of_asyncio(cluster: Cluster, connected: CommandAdmin) -> None:
    async def ids() -> list[Uuid | None]:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "loader-own"}
        async with (
            AioProducer(settings) as producer,
            AioConsumer(settings) as consumer,
            AioAdmin(settings) as admin,
        ):
            return [await client.client_instance_id(30) for client in (producer, consumer, admin)]

    found = asyncio.run(ids())
    assert None not in found
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("keys", "timeout", "error"), [({"enable.metrics.push": False}, 0, RuntimeError), ({}, -1, ValueError)]
)
def test_a_client_without_an_id(keys: dict[str, Any], timeout: float, error: type[Exception]) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": "localhost:1", "reconnect.backoff.ms": 10, **keys}
    for kind in (Producer, Consumer, Admin):
        client = kind(settings)  # type: ignore[operator]
        with pytest.raises(error, match=r"enable\.metrics\.push|negative"):
            client.client_instance_id(timeout)
        if not keys:
            assert client.client_instance_id(0.01) is None, "no broker answers"
        client.close()
