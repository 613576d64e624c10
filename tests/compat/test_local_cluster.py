"""`kalda cluster up | status | logs | down` with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import kalda
from kalda.cli.commands import cli
from waiting import wait_until

pytestmark = pytest.mark.compat


class LocalCluster:
    """Runs `kalda cluster` for a directory; kills the remaining nodes at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = {**os.environ, "PYTHONPATH": str(Path(kalda.__file__).parents[1])}

    def run(self, verb: str, *arguments: object) -> str:
        """Run a command in a process of its own, which the nodes outlive."""
        command = [sys.executable, "-m", "kalda.cli.main", "cluster", verb, "--dir", self.directory]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{verb} {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def ask(self, verb: str, *arguments: object) -> Result:
        """Run a command in this process."""
        return CliRunner().invoke(cli, ["cluster", verb, "--dir", str(self.directory), *map(str, arguments)])

    def nodes(self) -> dict[int, dict[str, Any]]:
        """The output of `status` for each node."""
        result = self.ask("status", "--json")
        nodes = {node["node_id"]: node for node in json.loads(result.stdout)["nodes"]}
        assert result.exit_code == any(node["state"] != "serves" for node in nodes.values())
        return nodes

    def noted_pids(self) -> list[int]:
        return [int(path.read_text().splitlines()[0]) for path in self.directory.glob("node-*/pid")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    local = LocalCluster(tmp_path / "cluster")
    yield local
    for pid in local.noted_pids():
        if str(local.directory) in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8"):
            os.kill(pid, signal.SIGKILL)


def test_a_cluster_from_up_to_down(cluster: LocalCluster) -> None:
    made = json.loads(cluster.run("up", "--nodes", 2, "--override", "num.partitions=3", "--json"))
    first = cluster.nodes()
    assert {node["state"] for node in first.values()} == {"serves"}
    assert (first[1]["quorum"], first[2]["quorum"], first[2]["roles"]) == ("leader", "observer", ["broker"])
    assert "num.partitions=3" in (cluster.directory / "node-2" / "server.properties").read_text()

    os.kill(first[2]["pid"], signal.SIGKILL)
    wait_until(lambda: cluster.nodes()[2]["state"] == "died", "status shows that the node has died")
    assert json.loads(cluster.run("up", "--json")) == made
    second = cluster.nodes()
    assert second[1]["pid"] == first[1]["pid"]
    assert second[2]["pid"] != first[2]["pid"]

    assert cluster.ask("logs", "--node", 2, "--lines", 200).stdout.count("node 2 of cluster") == 2
    assert [done["killed"] for done in json.loads(cluster.run("down", "--json"))] == [False, False]
    assert {node["state"] for node in cluster.nodes().values()} == {"stopped"}
