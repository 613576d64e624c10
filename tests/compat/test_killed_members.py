"""Apache Kafka's VerifiableConsumer and VerifiableShareConsumer, killed with their node: they get all records."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache_kafka import ApacheKafkaNode
from confluent_kafka.admin import AdminClient, NewTopic
from lone_node import LoneNode
from mixed_members import JavaMember, RunningMembers
from mixed_nodes import KAFKA, KALDA, START_S
from mixed_requests import ROUNDS
from watched_clients import PARTITIONS, TOPIC, Writer

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(ROUNDS == 1, reason="takes minutes: set KALDA_MIXED_ROUNDS to how often they are killed"),
]

GROUPS = {"consumer": "readers", "share": "sharers"}
QUICK: dict[str, object] = {
    f"group.{kind}.{bound}{name}": value
    for kind in GROUPS
    for bound in ("", "min.")
    for name, value in {"heartbeat.interval.ms": 1_000, "session.timeout.ms": 6_000}.items()
}


@pytest.mark.parametrize("product", [KALDA, KAFKA])
def test_members_and_their_node_are_killed(tmp_path: Path, jars: Path, product: str) -> None:
    with ApacheKafkaNode(tmp_path, jars, QUICK) if product == KAFKA else LoneNode(tmp_path, QUICK) as node:
        node.format()
        node.start()
        admin = AdminClient({"bootstrap.servers": node.address, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)

        def member(kind: str) -> JavaMember:
            options = ("--offset-reset-strategy", "earliest") if kind == "share" else ()
            return JavaMember(jars, kind, node.address, GROUPS[kind], TOPIC, *options)

        with RunningMembers([member(kind) for _ in range(2) for kind in GROUPS]) as members:
            writer = Writer(node.address, {"delivery.timeout.ms": 300_000})  # a JVM may start for long
            writer.start()
            members.wait_progress("the start")
            for round_ in range(ROUNDS):
                for victim in members.members[:2]:
                    assert isinstance(victim, JavaMember)
                    members.replace(victim, member(victim.kind))
                    members.wait_progress(f"the kill of a member in round {round_}")
                node.kill()
                node.launch()
                node.wait_line(node.serves, START_S)
                members.wait_progress(f"the kill of the node in round {round_}")
            writer.stop()
            assert writer.failures == []
            for group in GROUPS.values():
                members.wait_all(group, writer.acknowledged)
