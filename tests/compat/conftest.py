"""One node for all tests of real clients, and a fresh topic name for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from apache_kafka import ApacheKafkaNode, KafkaTools, kafka_jars, release_of, tools_of
from lone_node import LoneNode
from same_answers import Asker, compare

_counter = itertools.count(1)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    """A Kalda node as a process, with Kafka's defaults except single replicas and fast rebalances."""
    with LoneNode(tmp_path_factory.mktemp("node") / "kalda", {"num.partitions": 2}) as lone:
        lone.format()
        lone.start()
        yield lone
        assert lone.process is not None
        assert lone.process.poll() is None, "the node died:\n" + lone.last_lines()
        lone.stop()
        strange = [line for line in lone.lines if "Traceback" in line or "CRITICAL" in line]
        assert not strange, "\n".join(lone.lines[-200:])


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """A topic name that no other test uses."""
    return lambda kind: f"{kind}-{next(_counter)}"


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of Apache Kafka's jars; skips the test where there are none."""
    found = kafka_jars()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def kafka_tools(jars: Path) -> KafkaTools:
    """Apache Kafka's command-line tools."""
    return tools_of(jars)


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory, jars: Path) -> Iterator[Callable[[Callable[[Asker], None]], None]]:
    """Runs a scenario against a fresh Apache Kafka and a fresh Kalda, and fails where their answers differ."""
    with (
        ApacheKafkaNode(tmp_path_factory.mktemp("peer") / "kafka", jars) as kafka,
        LoneNode(tmp_path_factory.mktemp("node") / "kalda") as kalda,
    ):
        kafka.format()
        kalda.format(release=release_of(jars))
        for each in (kafka, kalda):
            each.start()
        yield lambda scenario: compare(scenario, kafka.port, kalda.port)
