"""Quotas of a running node: they take effect at once, are explained, and are measured."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from os import utime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harness.blocking import BlockingConnection

from kalda import AcknowledgeType, Alteration, Producer, ShareConsumer
from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.broker.process.node import StartError
from kalda.cli.commands import cli
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.network.free_ports import free_ports
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kalda.records.builder import build_batch
from kalda.testing import Cluster
from waiting import wait_until

DEADLINE_S = 30.0
CALLBACK = """
class Quotas:
    def quota_metric_tags(self, quota_type, user, client_id):
        return {"all": "clients"}
    def quota_limit(self, quota_type, metric_tags):
        return LIMIT if quota_type == "PRODUCE" else None
    def update_quota(self, quota_type, entity, value): pass
    def remove_quota(self, quota_type, entity): pass
    def quota_reset_required(self, quota_type): return False
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    [port] = free_ports(1)
    with Cluster(config={"kalda.metrics.listener": f"127.0.0.1:{port}"}) as running:
        running.create_topic("t")
        yield running


def connect(cluster: Cluster, client_id: str) -> BlockingConnection:
    host, _, port = cluster.bootstrap_servers.partition(":")
    return BlockingConnection(host, int(port), client_id=client_id, timeout_ms=30_000)


def produce(connection: BlockingConnection, size: int = 20_000) -> int:
    """The throttle time of one batch of about that size."""
    batch = build_batch([(1, None, bytes(size), ())])
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
    response = connection.request(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=data), version=11)
    assert response.responses[0].partition_responses[0].error_code == 0
    return int(response.throttle_time_ms)


def test_a_quota_takes_effect_on_an_open_connection_and_ends_when_it_is_removed(cluster: Cluster) -> None:
    with CommandAdmin(cluster.bootstrap_servers) as admin, connect(cluster, "loader") as connection:
        assert produce(connection) == 0
        admin.alter_client_quotas({(("client-id", "loader"),): {"producer_byte_rate": 1_900.0}}).check()
        wait_until(lambda: produce(connection) > 0)
        found = admin.describe_client_quotas({"client-id": "loader"})
        assert found == {(("client-id", "loader"),): {"producer_byte_rate": 1_900.0}}
        with connect(cluster, "other") as other:
            assert produce(other) == 0
        admin.alter_client_quotas({(("client-id", "loader"),): {"producer_byte_rate": None}}).check()
        node = cluster.nodes[1]
        wait_until(lambda: not node.running.parts.quotas.managers.produce.is_enabled)
    with connect(cluster, "loader") as connection:
        assert produce(connection) == 0


def test_a_throttled_fetch_gets_no_records_and_the_connection_is_muted(cluster: Cluster) -> None:
    with CommandAdmin(cluster.bootstrap_servers) as admin, connect(cluster, "reader") as connection:
        with connect(cluster, "writer") as writer:
            for _ in range(5):
                produce(writer)
        asked = [FetchRequestFetchPartition(partition=0, partition_max_bytes=1 << 20)]
        request = FetchRequest(
            max_bytes=1 << 20, session_epoch=-1, topics=[FetchRequestFetchTopic(topic="t", partitions=asked)]
        )

        def fetch() -> Any:
            return connection.request(request, version=12)

        assert fetch().responses
        admin.alter_client_quotas({(("client-id", "reader"),): {"consumer_byte_rate": 100_000.0}}).check()
        throttled: list[Any] = []

        def is_throttled() -> bool:
            throttled.append(fetch())
            return bool(throttled[-1].throttle_time_ms)

        wait_until(is_throttled)
        assert throttled[-1].responses == []
        began = time.monotonic()
        assert connection.request(MetadataRequest(topics=[])).brokers
        assert time.monotonic() - began >= throttled[-1].throttle_time_ms / 1000 - 0.1
        admin.alter_client_quotas({(("client-id", "reader"),): {"consumer_byte_rate": None}}).check()


def test_mutations_of_a_client_are_refused_by_the_controller(cluster: Cluster) -> None:
    with CommandAdmin(cluster.bootstrap_servers) as admin, connect(cluster, "creator") as connection:
        admin.alter_client_quotas({(("client-id", "creator"),): {"controller_mutation_rate": 1.0}}).check()

        def create(name: str, version: int | None = None) -> Any:
            topics = [CreatableTopic(name=name, num_partitions=40, replication_factor=1)]
            return connection.request(
                CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True), version=version
            )

        answers: list[Any] = []

        def is_refused() -> bool:
            answers.append(create(f"m{len(answers)}"))
            return bool(answers[-1].topics[0].error_code == 89)

        wait_until(is_refused)
        assert 0 < answers[-1].throttle_time_ms <= 40_000
        admin.alter_client_quotas({(("client-id", "creator"),): {"controller_mutation_rate": None}}).check()


def get(cluster: Cluster, path: str) -> tuple[int, str]:
    listener = cluster.nodes[1].running.metrics_listener
    assert listener is not None
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_a_node_serves_its_metrics(cluster: Cluster) -> None:
    status, text = get(cluster, "/metrics")
    assert status == 200
    lines = text.splitlines()
    assert lines[-1] == "# EOF"
    assert "kafka_controller_kafkacontroller_activecontrollercount 1" in lines
    assert "kafka_server_kafkaserver_brokerstate 3" in lines
    assert any(line.startswith("kafka_server_brokertopicmetrics_bytesin_total ") for line in lines)
    assert any(
        line.startswith('kafka_server_socket_server_metrics_connection_accept_rate{listener="') for line in lines
    )
    assert get(cluster, "/nothing")[0] == 404
    values = {(row["group"], row["name"]): row["value"] for row in json.loads(get(cluster, "/metrics.json")[1])}
    assert values["kafka.controller:type=KafkaController", "ActiveBrokerCount"] == 1


def test_records_in_flight_of_a_share_group(cluster: Cluster) -> None:
    """They are on the page of the node that leads their partition."""
    cluster.create_topic("jobs")
    keys = {"share.acknowledgement.mode": "explicit", "share.acquire.mode": "record_limit", "max.poll.records": 2}
    begin = Alteration("share.auto.offset.reset", ConfigOperation.SET, "earliest")
    with CommandAdmin(cluster.bootstrap_servers) as admin:
        admin.alter_configs({ConfigResource(ConfigResourceType.GROUP, "workers"): [begin]}).check()
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(3):
            producer.send("jobs", b"%d" % number)
    command = ["groups", "describe", "workers", "--locks", "--bootstrap-server", cluster.bootstrap_servers]
    with ShareConsumer(keys, bootstrap_servers=cluster.bootstrap_servers, group_id="workers") as consumer:
        consumer.subscribe("jobs")
        first, second = consumer.poll(DEADLINE_S)
        consumer.acknowledge(first, AcknowledgeType.RELEASE)
        consumer.commit_sync()
        found = json.loads(CliRunner().invoke(cli, [*command, "--json"]).output)[0]
        (member,) = found["members"]
        released, acquired = found["in_flight"]
        shown = CliRunner().invoke(cli, command).output
        consumer.acknowledge(second)
    row = {"topic": "jobs", "partition": 0, "deliveries": 1}
    assert released == row | {"first_offset": 0, "last_offset": 0, "state": "available", "member": None} | {
        "lock_left_ms": None
    }
    assert 0 < acquired.pop("lock_left_ms") <= 30_000
    assert acquired == row | {"first_offset": 1, "last_offset": 1, "state": "acquired", "member": member["member_id"]}
    assert re.search(r"workers +jobs +0 +1 +1 +acquired +1 +\S+ +[0-9.]+", shown)


def test_commands_over_a_nodes_quotas(cluster: Cluster) -> None:
    address = ["--bootstrap-server", cluster.bootstrap_servers]

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, [*arguments, *address])
        assert result.exit_code == 0, result.output
        return result.output

    assert "There are no quotas" in run("quotas", "describe")
    assert "were altered" in run("quotas", "alter", "--client-id", "cli", "--set", "producer_byte_rate=15000")
    assert "can be altered" in run("quotas", "alter", "--user-default", "--set", "request_percentage=5", "--dry-run")
    assert "client-id cli  producer_byte_rate  15000" in run("quotas", "describe")
    with connect(cluster, "cli") as connection:
        for _ in range(8):
            produce(connection)
    assert "producer_byte_rate" in run("quotas", "top")
    told = run("explain", "throttle", "--client", "cli")
    assert re.search(r"7 +client id cli +15000\.0 +applies", told)
    assert "applies" in told
    assert "O = " in told
    assert "the last" in told
    [node] = json.loads(run("explain", "throttle", "--client", "cli", "--json"))
    assert node["quotas"][0]["decisions"]
    assert "not limited" in run("explain", "throttle", "--client", "nobody")
    with CommandAdmin(cluster.bootstrap_servers) as admin:
        admin.alter_group_offsets("copies", {("t", 0): 0}).check()
    assert "copies, a classic group: Empty, generation 0, 0 members" in run("explain", "rebalance", "copies")
    unknown = CliRunner().invoke(cli, ["explain", "rebalance", "unknown", *address])
    assert (unknown.exit_code, "broker 1: GROUP_ID_NOT_FOUND" in unknown.output) == (1, True)
    forged = ("\n\x1b[31mbroker 1\u202e" + "x" * 32_767)[:32_765]
    run("quotas", "alter", "--client-id-default", "--set", "producer_byte_rate=15000")
    with connect(cluster, forged) as connection:
        for _ in range(8):
            produce(connection)
    for command in (["explain", "throttle", "--client", forged], ["quotas", "top"]):
        shown = run(*command)
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "\nbroker 1\u202e" not in shown
        assert "producer_byte_rate" in shown
        assert len(shown) < 20_000
    [node] = json.loads(run("explain", "throttle", "--client", forged, "--json"))
    assert node["quotas"][0]["used"]
    run("quotas", "alter", "--client-id-default", "--remove", "producer_byte_rate")
    assert "byte-rate" in run("metrics", "Produce.*byte-rate")
    run("quotas", "alter", "--client-id", "cli", "--remove", "producer_byte_rate")
    refused = CliRunner().invoke(cli, ["quotas", "alter", "--ip", "1.2.3.4", "--set", "nonsense=1", *address])
    assert refused.exit_code == 1
    assert "Invalid configuration key nonsense" in refused.output


def test_a_dynamic_rate_of_connections_of_an_address(cluster: Cluster) -> None:
    with CommandAdmin(cluster.bootstrap_servers) as admin:
        node = cluster.nodes[1]
        limits = node.running.listeners.server._admissions[False]._ip_limits
        admin.alter_client_quotas({(("ip", "10.9.8.7"),): {"connection_creation_rate": 5.0}}).check()
        wait_until(lambda: limits.get("10.9.8.7") == 5.0)
        admin.alter_client_quotas({(("ip", "10.9.8.7"),): {"connection_creation_rate": None}}).check()
        wait_until(lambda: "10.9.8.7" not in limits)


def test_rates_of_replication_are_dynamic(cluster: Cluster) -> None:
    replicas = cluster.nodes[1].replicas
    assert replicas is not None
    throttle = replicas.throttle
    assert throttle is not None
    with CommandAdmin(cluster.bootstrap_servers) as admin:
        admin.set_configs(
            ConfigResource(ConfigResourceType.BROKER, "1"), {"leader.replication.throttled.rate": "1000000"}
        )
        admin.set_configs(
            ConfigResource(ConfigResourceType.TOPIC, "t"), {"leader.replication.throttled.replicas": "0:1"}
        )
        wait_until(lambda: throttle.is_enabled)
        assert throttle.is_throttled("t", 0)


def test_an_operators_class_is_loaded_anew_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = tmp_path / "our_quotas.py"
    second_ns = 1_700_000_000_000_000_000

    def put(source: str, modified_ns: int) -> None:
        """Replace the file at once."""
        written = tmp_path / "written"
        written.write_text(CALLBACK + source)
        utime(written, ns=(modified_ns, modified_ns))
        written.replace(module)

    put("LIMIT = None\n", second_ns)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Cluster(config={"client.quota.callback.class": "our_quotas.Quotas"}) as cluster:
        cluster.create_topic("t")
        with connect(cluster, "any") as connection:
            assert produce(connection) == 0
            put("LIMIT = 'broken\n", second_ns + 1)
            wait_until(lambda: "cannot be loaded" in caplog.text)
            assert produce(connection) == 0, "the former one stays"
            put("LIMIT = 5e+3\n", second_ns + 2)  # of the length, and in the second, of the first one
            wait_until(lambda: produce(connection, 5_000) > 0)


def test_a_class_that_fails_limits_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = CALLBACK.replace("return LIMIT", "raise KeyError(user) if user else ValueError\n        return 0")
    broken = broken.replace('return {"all": "clients"}', 'raise KeyError("no such client")')
    (tmp_path / "failing_quotas.py").write_text(broken)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Cluster(config={"client.quota.callback.class": "failing_quotas:Quotas"}) as cluster:
        cluster.create_topic("t")
        with connect(cluster, "any") as connection:
            assert [produce(connection) for _ in range(5)] == [0] * 5
    assert "client.quota.callback.class has failed 1 times, now by KeyError('no such client')" in caplog.text


def test_a_class_that_cannot_be_used_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poor_quotas.py").write_text("class Quotas: pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    for path, why in (
        ("poor_quotas:Quotas", "no class with quota_metric_tags"),
        ("no.such.Class", "cannot be imported"),
    ):
        with pytest.raises(StartError, match=why):
            Cluster(config={"client.quota.callback.class": path}).start()


def limited_to(cluster: Cluster, limit: int) -> bool:
    """Whether of `limit` + 5 connections at the same time as many as `limit` are served. Others wait, or are closed."""
    node = cluster.nodes[1]
    admission = node.running.listeners.server._admissions[False]
    host, _, port = cluster.bootstrap_servers.partition(":")
    body = b"".join(encode_request(ApiVersionsRequest(), 3, 1, "test"))
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(limit + 5)]
        for each in sockets:
            with contextlib.suppress(OSError):
                each.sendall(len(body).to_bytes(4, "big") + body)
        heard = 0
        while heard < limit:
            for each in select.select(sockets, [], [], DEADLINE_S)[0]:
                sockets.remove(each)
                with contextlib.suppress(OSError):
                    heard += bool(each.recv(1))
        is_limited = admission.count == limit
    wait_until(lambda: admission.count == 0)
    return is_limited


@pytest.mark.parametrize(
    "limit", ["max.connections", "max.connections.per.ip", "listener.name.plaintext.max.connections"]
)
def test_a_node_with_one_listener_for_clients_limits_their_connections(limit: str) -> None:
    """The node's own connections, to its controller, do not count."""
    with Cluster(config={limit: 10}) as cluster:
        assert limited_to(cluster, 10)


def test_overrides_of_connections_name_hosts(tmp_path: Path) -> None:
    with Cluster(config={"max.connections.per.ip.overrides": "localhost:4"}) as cluster:
        assert limited_to(cluster, 4)
        with CommandAdmin(cluster.bootstrap_servers) as admin:
            every = ConfigResource(ConfigResourceType.BROKER, "")
            admin.set_configs(every, {"max.connections.per.ip.overrides": "localhost:6"})
            node = cluster.nodes[1]
            server = node.running.listeners.server
            wait_until(lambda: server.limits.max_connections_per_ip_overrides.get("127.0.0.1") == 6)
        assert limited_to(cluster, 6)
    with pytest.raises(StartError, match=r"the host nowhere\.invalid has no address"):
        Cluster(config={"max.connections.per.ip.overrides": "nowhere.invalid:4"}).start()
