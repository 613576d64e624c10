"""An application of Kafka Streams counts exactly while it and the nodes are killed.

It needs the jars of Kafka Streams, of 4.2 or later, so it runs where `KALDA_STREAMS_JARS` names their folder: that of
`mvn dependency:copy-dependencies` with a pom that has `org.apache.kafka:kafka-streams`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_node import LoneNode
from node_cluster import NodeCluster
from streams_application import Feed, StreamsApplication, compiled, started, streams_jars

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(isinstance(streams_jars(), str), reason=str(streams_jars())),
]

RECORDS = 600
CLASSIC: dict[str, object] = {
    "group.protocol": "classic",
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 1_000,
    "num.standby.replicas": 1,
}


STREAMS: dict[str, object] = {"group.protocol": "streams"}
NODE: dict[str, object] = {
    f"group.streams.{name}": value
    for name, value in {
        "min.session.timeout.ms": 6_000,
        "session.timeout.ms": 6_000,
        "min.heartbeat.interval.ms": 1_000,
        "heartbeat.interval.ms": 1_000,
        "initial.rebalance.delay.ms": 0,
        "num.standby.replicas": 1,
    }.items()
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jars = streams_jars()
    assert isinstance(jars, Path)
    return compiled(jars, tmp_path_factory.mktemp("classes"))


@pytest.fixture(params=[CLASSIC, STREAMS], ids=["classic", "streams"])
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    """Of the application."""
    return {
        "application.id": "counting",
        "processing.guarantee": "exactly_once_v2",
        "num.stream.threads": 2,
        "commit.interval.ms": 100,
        "transaction.timeout.ms": 10_000,
        **request.param,
    }


def applications(
    home: Path, classes: Path, bootstrap: str, settings: dict[str, object]
) -> tuple[StreamsApplication, StreamsApplication]:
    jars = streams_jars()
    assert isinstance(jars, Path)
    one, other = (
        StreamsApplication(home / name, classes, jars, {"bootstrap.servers": bootstrap, **settings})
        for name in ("one", "other")
    )
    return one, other


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    with LoneNode(tmp_path / "node", NODE) as lone:
        lone.format()
        lone.start()
        yield lone


def test_an_instance_and_the_node_are_killed(
    node: LoneNode, tmp_path: Path, classes: Path, settings: dict[str, object]
) -> None:
    feed = Feed(node.address)
    one, other = applications(tmp_path, classes, node.address, settings)
    with one, other:
        started((one, other))
        feed.produce(RECORDS)
        one.kill()
        feed.produce(RECORDS)
        one.start()
        node.kill()
        node.start()
        feed.produce(RECORDS)
        feed.wait_counted()
        one.close()
        other.close()
    feed.check_exactly_once()


def test_brokers_are_killed_one_after_the_other(tmp_path: Path, classes: Path, settings: dict[str, object]) -> None:
    replicated: dict[str, object] = {
        **NODE,
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.num.partitions": 4,
    }
    with NodeCluster(tmp_path, settings=replicated) as cluster:
        cluster.start()
        feed = Feed(cluster.addresses, replication=3)
        one, other = applications(tmp_path, classes, cluster.addresses, settings)
        with one, other:
            started((one, other))
            for node in cluster.nodes.values():
                feed.produce(RECORDS)
                node.kill()
                feed.produce(RECORDS)
                node.start()
                cluster.wait_in_sync("lines", 4)
            one.kill()
            feed.wait_counted()
            other.close()
        feed.check_exactly_once()
