"""`kalda doctor`: a healthy cluster, and what each illness is called."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kalda.base.ids import ZERO_UUID
from kalda.cli.commands import cli
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.health import cluster as cluster_health
from kalda.cli.health.cluster import _clock, _clocks, _silent, space
from kalda.cli.health.findings import Finding, Severity, Spoken, examine, spoken_at
from kalda.cli.health.host import examine_properties
from kalda.cli.local.single_node import prepare, properties_text
from kalda.client.admin.quorum import Quorum, QuorumReplica
from kalda.network.free_ports import free_ports
from kalda.security.certificates import Authority
from kalda.testing import Cluster
from waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def findings(*arguments: str, code: int) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli, ["doctor", *arguments, "--json"])
    assert result.exit_code == code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def errors(found: list[dict[str, Any]]) -> list[str]:
    return [each["check"] for each in found if each["severity"] == "error"]


def test_a_healthy_cluster_has_no_error(cluster: Cluster) -> None:
    found = findings("-b", cluster.bootstrap_servers, code=0)
    checks = {each["check"] for each in found}
    assert {"bootstrap", "login", "brokers", "partitions", "quorum", "clock", "versions", "disk", "kernel"} <= checks
    assert all(bool(each["mend"]) == (each["severity"] != "ok") for each in found)
    shown = CliRunner().invoke(cli, ["doctor", "-b", cluster.bootstrap_servers])
    assert (shown.exit_code, "0 errors" in shown.output) == (0, True)


def test_an_address_where_nobody_listens_and_a_name_that_does_not_exist() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    found = findings("-b", f"127.0.0.1:{port}", code=1)
    assert errors(found) == ["bootstrap"]
    assert "cannot be reached from here: Connection refused" in found[-1]["text"]
    (nameless,) = examine("bootstrap", "no-such-host.invalid", 9092, "PLAINTEXT")
    assert (nameless.severity, "does not resolve" in nameless.text) == (Severity.ERROR, True)


def test_what_only_a_broker_can_say_that_is_not_reached_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster is reached, and gives an address that is not."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        dead = held.getsockname()[1]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("only that broker could answer")

    monkeypatch.setattr(CommandAdmin, "describe_configs", refuse)
    with Cluster() as running:
        host, port = running.bootstrap_servers.split(":")
        listed = CommandAdmin.describe_cluster

        def advertised(admin: CommandAdmin, **options: Any) -> Any:
            described = listed(admin, **options)
            return described._replace(nodes=[node._replace(host=host, port=dead) for node in described.nodes])

        monkeypatch.setattr(CommandAdmin, "describe_cluster", advertised)
        found = findings("-b", f"{host}:{port}", code=1)
    assert errors(found) == ["broker 1"]
    assert "clocks and disks were not examined of 1 broker that this host does not reach: 1" in found[-1]["text"]
    assert not [each for each in found if each["check"] in ("rights", "answers", "disk")]


def test_tls_at_a_plain_port(cluster: Cluster) -> None:
    host, port = cluster.bootstrap_servers.split(":")
    assert spoken_at(host, int(port)) is Spoken.PLAIN
    (found,) = examine("bootstrap", host, int(port), "SASL_SSL")
    assert "speaks plain text, and the client would begin with TLS" in found.text
    assert "security.protocol=SASL_PLAINTEXT" in found.mend


class TlsServer:
    """Shakes hands with whoever comes, and closes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            peer, _ = self._socket.accept()
            with peer:
                if peer.recv(1, socket.MSG_PEEK) == b"q":
                    return
                with suppress(OSError), self._context.wrap_socket(peer, server_side=True) as encrypted:
                    encrypted.recv(1)

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"q")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    now = datetime.datetime.now(datetime.UTC)
    authority = Authority("CN=authority", now)
    issued = authority.issue("CN=node", ("127.0.0.1",), days=10)
    pem = tmp_path / "server.pem"
    pem.write_text(issued.key + issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = TlsServer(context)
    try:
        yield server
    finally:
        server.close()


def test_plain_text_at_a_port_with_tls_whose_certificate_ends_soon(tls: TlsServer) -> None:
    found = list(examine("bootstrap", "127.0.0.1", tls.port, "PLAINTEXT"))
    assert "speaks TLS, and the client would send plain text" in found[0].text
    assert "set security.protocol=SSL" in found[0].mend
    assert [each.severity for each in found] == [Severity.ERROR, Severity.WARNING]
    assert "renew it" in found[1].mend


def test_a_broker_that_is_down_and_its_partitions() -> None:
    with Cluster(4) as two:
        two.create_topic("orders", 4, replication_factor=4)
        two.kill_node(4)
        two.wait_for_leader("orders", 0, other_than=4)
        two.wait_for_leader("orders", 1, other_than=4)
        found: list[dict[str, Any]] = []

        def is_told() -> bool:  # the node that is asked may learn of it a moment after the others
            found[:] = findings("-b", two.address(1), code=1)
            return {"brokers", "partitions"} <= set(errors(found))

        wait_until(is_told, "the doctor names the broker and its partitions")
    assert "start them" in next(each["mend"] for each in found if each["check"] == "brokers")


def replica(node_id: int, at_ms: int) -> QuorumReplica:
    return QuorumReplica(node_id, ZERO_UUID, 5, 0, at_ms, at_ms)


def test_a_voter_that_is_silent_and_clocks_that_differ() -> None:
    quorum = Quorum(1, 1, 5, (replica(1, 100_000), replica(2, 99_500), replica(3, 1_000)), (), {})
    assert _silent(quorum, 100_000) == [3]
    assert [each.severity for each in _clock(100_000, 99_990, 100_010)] == [Severity.OK]
    assert [each.severity for each in _clock(100_000, 105_000, 105_010)] == [Severity.WARNING]
    assert [each.severity for each in _clock(100_000, 10_000, 10_010)] == [Severity.ERROR]


def test_room_on_a_disk() -> None:
    assert space("disk", "/d", 50, 100) is None
    assert space("disk", "/d", -1, -1) is None
    shares = [space("disk", "/d", free, 100) for free in (10, 2)]
    assert [each and each.severity for each in shares] == [Severity.WARNING, Severity.ERROR]


def test_brokers_that_serve_metrics_show_their_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    with (
        Cluster(config={"kalda.metrics.listener": f"127.0.0.1:{port}"}) as measured,
        CommandAdmin(measured.bootstrap_servers) as admin,
    ):
        assert [each.severity for each in _clocks(admin, [])] == [Severity.OK]
        monkeypatch.setattr(cluster_health, "clock_of", lambda _: time.time() - 3_600)
        [late] = _clocks(admin, [])
    assert (late.severity, "broker 1 and of this host differ by 3599" in late.text) == (Severity.ERROR, True)


def test_the_stores_of_a_properties_file(tmp_path: Path) -> None:
    issued = Authority("CN=authority", datetime.datetime.now(datetime.UTC)).issue("CN=node", ("localhost",), days=10)
    store = tmp_path / "node.pem"
    store.write_text(issued.key + issued.certificate)
    store.chmod(0o644)
    prepare(str(tmp_path / "node"), {}, 15_999)
    path = tmp_path / "node" / "server.properties"
    text = path.read_text().replace("PLAINTEXT://", "SSL://")
    text += "listener.security.protocol.map=SSL:SSL,CONTROLLER:PLAINTEXT\ninter.broker.listener.name=SSL\n"
    text += "ssl.keystore.type=PEM\n"

    def tls_findings(location: Path) -> list[Finding]:
        path.write_text(f"{text}ssl.keystore.location={location}\n")
        return [each for each in examine_properties(str(path)) if each.check == "tls"]

    assert [each.severity for each in tls_findings(store)] == [Severity.WARNING] * 2
    ends, readable = tls_findings(store)
    assert "the certificate of listener SSL ends on" in ends.text
    assert readable.mend == f"chmod o= {store}"
    [absent] = tls_findings(tmp_path / "absent.pem")
    assert (absent.severity, "absent.pem cannot be read" in absent.text) == (Severity.ERROR, True)


def test_a_properties_file(tmp_path: Path) -> None:
    config = prepare(str(tmp_path / "node"), {}, 15_999)
    path = tmp_path / "node" / "server.properties"
    with path.open("a") as file:
        file.write("log.retension.hours=3\n")
    found = list(examine_properties(str(path)))
    assert any("write log.retention.hours" in each.mend for each in found)
    assert any("is formatted, and has room" in each.text or each.check == "disk" for each in found)
    assert config.log_dirs
    path.write_text(properties_text(str(tmp_path / "new")) + "num.partitions=many\n")
    (wrong,) = examine_properties(str(path))
    assert (wrong.severity, "num.partitions" in wrong.text) == (Severity.ERROR, True)
    found = findings("--config", str(path), "--no-cluster", code=1)
    assert errors(found) == ["config"]
