"""A cluster of an earlier commit is rolled to this one under load, and its features raised: nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from lone_node import SERVES
from mixed_members import KaldaMember, LibrdkafkaMember
from node_cluster import ClusterNode, NodeCluster
from watched_clients import PARTITIONS, TOPIC, Reader, Writer, check, quorum, read_all

from kalda.cli.commands import cli
from waiting import wait_until

EARLIER = os.environ.get("KALDA_EARLIER_SOURCES", "")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(not EARLIER, reason="set KALDA_EARLIER_SOURCES to src of an earlier commit, compiled there"),
]


class EarlierNode(ClusterNode):
    """It runs the earlier commit, until it is `rolled`."""

    rolled = False

    def format(self, cluster_id: str = "4L6g3nShT-eMCtK--X86sw", *arguments: str) -> None:
        command = [sys.executable, "-m", "kalda.cli.main", "storage", "format", "-t", cluster_id, "-c", str(self.file)]
        subprocess.run([*command, *arguments], env={**os.environ, "PYTHONPATH": EARLIER}, check=True, timeout=60)

    def launch(self, **_: object) -> None:
        super().launch(env=None if self.rolled else {"PYTHONPATH": EARLIER})


class EarlierCluster(NodeCluster):
    node_class = EarlierNode


def test_a_roll_from_an_earlier_commit_loses_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each node is stopped and started with this code, the leader of the quorum last; then `features upgrade`."""
    with EarlierCluster(tmp_path_factory.mktemp("roll")) as cluster:
        cluster.start()
        cluster.create(TOPIC, PARTITIONS, **{"min.insync.replicas": "2"})
        writer, reader = Writer(cluster.addresses), Reader(cluster.addresses)
        writer.start(), reader.start()
        leader, _ = quorum(cluster.nodes[1])
        for node in sorted(cluster.nodes.values(), key=lambda node: node.node_id == leader):
            writer.wait_progress(), reader.wait_progress()
            node.stop()
            writer.wait_progress()
            assert isinstance(node, EarlierNode)
            node.rolled = True
            node.launch()
            node.wait_line(SERVES, 60)
            cluster.wait_in_sync(TOPIC, PARTITIONS)
        writer.wait_progress(), reader.wait_progress()
        upgrade = ["features", "upgrade", "--release-version", "4.4", "--bootstrap-server", cluster.addresses]
        done = CliRunner().invoke(cli, upgrade)
        assert done.exit_code == 0, done.output
        writer.wait_progress(), reader.wait_progress()
        members = [
            make("consumer", cluster.addresses, group, TOPIC)
            for group in ("survivors", "newcomers")
            for make in (LibrdkafkaMember, KaldaMember)
        ]
        for member in members:
            member.start()
        for member in members:
            wait_until(lambda member=member: member.count > 20, f"{member} has joined")
        writer.wait_progress()
        writer.stop()
        wanted = {number for numbers in writer.acknowledged.values() for number in numbers}
        for group, kept in {"survivors": reader.seen.values(), "newcomers": ()}.items():
            seen = [member.seen for member in members if member.group == group]
            wait_until(lambda seen=seen, kept=kept: wanted <= set().union(*kept, *seen), f"{group} got all records")
        reader.stop()
        for member in members:
            member.stop()
        check(writer, read_all(cluster.addresses))
        strange = [line for node in cluster.nodes.values() for line in node.lines if "Traceback" in line]
        assert not strange, "\n".join(strange)
