"""`kalda server --port`: a node is moved by one number; a port in use is named with its process, before any write."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kalda
from kalda.base.configs.server import ServerConfig
from kalda.base.texts import parse_properties
from kalda.cli.local.ports import check_ports, moved, who_listens
from kalda.cli.local.single_node import check_formatted, prepare, properties_text
from kalda.cli.server import ServerOptions, UsageError, run
from kalda.network.free_ports import free_ports, is_free

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}


def two_free_ports() -> int:
    """The first of two neighbours."""
    while True:
        (port,) = free_ports(1)
        if is_free(port + 1):
            return port


@pytest.fixture
def taken() -> Iterator[int]:
    """A port with a listener of this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def config_of(**properties: str) -> ServerConfig:
    return ServerConfig({name.replace("_", "."): value for name, value in properties.items()})


def test_listeners_what_is_advertised_and_the_quorum_are_moved_together() -> None:
    config = ServerConfig(parse_properties(properties_text("x")))
    assert moved(config, 19092) == {
        "listeners": "PLAINTEXT://localhost:19092,CONTROLLER://localhost:19093",
        "advertised.listeners": "PLAINTEXT://localhost:19092,CONTROLLER://localhost:19093",
        "controller.quorum.bootstrap.servers": "localhost:19093",
    }


def test_an_advertised_port_of_its_own_and_other_voters_stay() -> None:
    config = config_of(
        process_roles="controller,broker",
        node_id="2",
        listeners="CONTROLLER://:9093,PLAINTEXT://:9092",
        advertised_listeners="PLAINTEXT://public:443",
        controller_listener_names="CONTROLLER",
        controller_quorum_voters="1@a:9093,2@b:9093",
    )
    assert moved(config, 7000) == {
        "listeners": "CONTROLLER://:7001,PLAINTEXT://:7000",
        "advertised.listeners": "PLAINTEXT://public:443,CONTROLLER://b:9093".replace("b:9093", "b:7001"),
        "controller.quorum.voters": "1@a:9093,2@b:7001",
    }


def test_there_must_be_room_for_all_listeners() -> None:
    with pytest.raises(ValueError, match="needs 2 ports"):
        moved(ServerConfig(parse_properties(properties_text("x"))), 65_535)
    with pytest.raises(UsageError, match="from 1 to 65534"):
        ServerOptions(["--port", "70000"])
    with pytest.raises(UsageError, match=r"no such option: --prot\. Did you mean --port\?"):
        ServerOptions(["--prot", "1"])


def test_the_process_that_listens_is_found_and_none_where_nobody_does(taken: int) -> None:
    holder = who_listens(taken)
    assert holder is not None
    assert (holder.pid, "py" in holder.command) == (os.getpid(), True)
    assert who_listens(free_ports(1)[0]) is None


def test_a_busy_port_is_named_with_its_process_and_nothing_is_made(
    taken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--dir", str(tmp_path / "new"), "--port", str(taken)]) == 1
    said = capsys.readouterr().out
    assert f"port {taken} of listener PLAINTEXT is in use by process {os.getpid()} (" in said
    assert f"kalda server --dir {tmp_path}/new --port " in said
    assert not (tmp_path / "new").exists()


def test_the_proposed_ports_are_free(taken: int) -> None:
    config = ServerConfig(parse_properties(properties_text("x", taken)))
    with pytest.raises(ValueError, match="--port ") as failed:
        check_ports(config, "kalda server")
    port = int(str(failed.value).rpartition(" ")[2])
    assert is_free(port)
    assert is_free(port + 1)


def test_a_node_that_is_not_formatted_says_a_command_that_formats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(properties_text(str(tmp_path / "logs"), two_free_ports()))
    assert run([str(path)]) == 1
    _, _, command = capsys.readouterr().out.partition("Format it with: ")
    command = command.partition(" (kalda.server)")[0].replace("kalda ", f"{sys.executable} -m kalda ")
    done = subprocess.run(command, shell=True, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Record(" not in done.stdout
    assert "metadata.version=33 (4.4-IV2)" in done.stdout
    assert (tmp_path / "logs" / "meta.properties").exists()


def test_a_node_of_a_larger_cluster_needs_the_clusters_id(tmp_path: Path) -> None:
    logs, voters = str(tmp_path / "logs"), "1@a:1,2@b:1"
    static = config_of(
        process_roles="controller", node_id="1", listeners="CONTROLLER://:1", controller_listener_names="CONTROLLER",
        controller_quorum_voters=voters, log_dirs=logs,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"-t CLUSTER_ID -c 'my file' \(all nodes have the same CLUSTER_ID"):
        check_formatted(static, "my file")


def test_one_flag_moves_a_formatted_node_and_its_log_stays_out_of_the_way(tmp_path: Path) -> None:
    first, second = two_free_ports(), two_free_ports()
    prepare(str(tmp_path / "kalda-data"), {}, first)  # the quorum's only voter is recorded at first + 1
    command = [sys.executable, "-m", "kalda", "server", "--port", str(second)]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as node:
        try:
            with kalda.Admin({"bootstrap.servers": f"localhost:{second}"}) as admin:  # waits for the node
                assert [each.port for each in admin.describe_cluster().nodes] == [second]
            again = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
            assert again.returncode == 1
            assert f"is running already, process {node.pid} (" in again.stdout
            node.terminate()
            printed, _ = node.communicate(timeout=60)
        finally:
            node.kill()
    assert printed.startswith(f"Kalda serves at localhost:{second}.")
    assert "INFO" not in printed
    assert "Kafka Server started" in (tmp_path / "kalda-data" / "server.log").read_text()
