"""`kalda server` without a file, and with that of `kalda storage properties`: both start a node that answers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kalda
from kalda.base.configs.server import ServerConfig
from kalda.base.texts import parse_properties
from kalda.broker.process.disk import RealDisk
from kalda.cli.local.single_node import prepare
from kalda.cli.server import ServerOptions, UsageError
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.network.free_ports import free_ports

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
"""The processes have other working directories, so the path of the package has to be absolute."""
KALDA = [sys.executable, "-m", "kalda"]


def cluster_ids(config: ServerConfig) -> set[str | None]:
    ensemble = MetaPropertiesEnsemble.load(RealDisk(), config.log_dirs, config.metadata_log_dir)
    return {each.cluster_id for each in ensemble.properties.values()}


def with_free_ports(path: Path) -> str:
    """Change the ports of a properties file; returns the address for clients."""
    client, controller = free_ports(2)
    text = path.read_text().replace("9092", str(client)).replace("9093", str(controller))
    path.write_text(text)
    return f"localhost:{client}"


def answers_until_sigterm(command: list[str], cwd: Path, address: str) -> str:
    """Run a node, wait until it answers, and stop it. Returns what it printed on stdout."""
    with subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as node:
        try:
            with kalda.Admin({"bootstrap.servers": address}) as admin:  # waits for the node
                assert [each.node_id for each in admin.describe_cluster().nodes] == [1]
            node.send_signal(signal.SIGTERM)
            printed, _ = node.communicate(timeout=60)
        finally:
            node.kill()
        assert node.returncode == 0
    return printed


def test_the_first_start_formats_and_the_next_ones_continue(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    config = prepare(str(directory), {"log.retention.hours": "3"})
    assert (config.is_broker, config.is_controller, config.log_retention_ms) == (True, True, 3 * 3_600_000)
    assert [str(endpoint) for endpoint in config.listeners] == [
        "PLAINTEXT://localhost:9092",
        "CONTROLLER://localhost:9093",
    ]
    assert config.log_dirs == (str(directory / "data"),)
    first = cluster_ids(config)
    assert len(first) == 1
    with open(directory / "server.properties", "a") as file:
        file.write("num.partitions=7\n")
    again = prepare(str(directory), {})
    assert (cluster_ids(again), again["num.partitions"]) == (first, 7)


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("")
    with pytest.raises(ValueError, match=r"has files, but no server\.properties"):
        prepare(str(tmp_path), {})
    with pytest.raises(ValueError, match="without a comma"):
        prepare(str(tmp_path / "a,b"), {})


def test_a_file_and_a_directory_exclude_each_other() -> None:
    assert ServerOptions([]).directory == "kalda-data"
    assert ServerOptions(["--dir", "x"]).source == "x"
    with pytest.raises(UsageError, match="--dir x is for a node without FILE"):
        ServerOptions(["a.properties", "--dir=x"])


def test_the_first_command_of_the_readme_serves_and_says_how_to_connect_and_stop(tmp_path: Path) -> None:
    prepare(str(tmp_path / "kalda-data"), {})
    address = with_free_ports(tmp_path / "kalda-data" / "server.properties")
    shutil.rmtree(tmp_path / "kalda-data" / "data")  # the quorum's only voter was recorded with the other port
    printed = answers_until_sigterm([*KALDA, "server"], tmp_path, address)
    assert f"Kalda serves at {address}." in printed
    assert str(tmp_path / "kalda-data") in printed
    assert "Ctrl-C" in printed
    answers_until_sigterm([*KALDA, "server"], tmp_path, address)


def test_the_printed_properties_format_and_start_a_node(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    with open(path, "wb") as file:
        subprocess.run([*KALDA, "storage", "properties"], env=ENVIRONMENT, check=True, stdout=file)
    ServerConfig(parse_properties(path.read_text()))
    address = with_free_ports(path)
    format_it = [*KALDA, "storage", "format", "--standalone", "-c", "server.properties", "-t", "4L6g3nShT-eMCtK--X86sw"]
    subprocess.run(format_it, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True)
    assert "Kalda serves" not in answers_until_sigterm([*KALDA, "server", "server.properties"], tmp_path, address)
