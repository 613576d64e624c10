"""A node with a thousand partitions, most of them idle: memory and files stay few, through clean and unclean stops.

`KALDA_PARTITIONS` sets how many; the times are printed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_node import LoneNode

from kalda.protocol.messages.admin import DescribeLogDirsRequest
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from waiting import wait_until

pytestmark = pytest.mark.compat

PARTITIONS = int(os.environ.get("KALDA_PARTITIONS", "1000"))
A_TOPIC = 100
MAX_RSS_MB = 100 + PARTITIONS * 0.05
MAX_FILES = 300
"""Logs that are used hold a file each; those that are not, none."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    with LoneNode(tmp_path) as made:
        made.format()
        yield made


def is_fit(node: LoneNode) -> None:
    """Every partition has a leader, and few files and little memory are in use."""
    with node.client() as client:
        topics = client.request(MetadataRequest(topics=None)).topics
    leaders = [partition.leader_id for topic in topics for partition in topic.partitions]
    assert leaders == [1] * PARTITIONS
    assert node.rss_mb() < MAX_RSS_MB
    assert node.descriptors() < MAX_FILES


def wait_for_logs(node: LoneNode) -> None:
    """Wait for the files: the controller answers before the broker has made them."""
    with node.client() as client:

        def are_there() -> bool:
            (found,) = client.request(DescribeLogDirsRequest(topics=None)).results
            return sum(len(topic.partitions) for topic in found.topics) == PARTITIONS

        wait_until(are_there, "the logs are there")


def test_a_thousand_partitions(node: LoneNode) -> None:
    took = {"first start": node.start()}
    began = time.monotonic()
    with node.client() as client:
        for number in range(PARTITIONS // A_TOPIC):
            topic = CreatableTopic(name=f"t{number}", num_partitions=A_TOPIC, replication_factor=1)
            answer = client.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), timeout_ms=60_000)
            assert answer.topics[0].error_code == 0
    took["creation"] = time.monotonic() - began
    wait_for_logs(node)
    is_fit(node)
    took["clean stop"] = node.stop()
    took["clean start"] = node.start()
    assert node.says(rf"opened {PARTITIONS} logs")
    is_fit(node)
    node.kill()
    took["start after a kill"] = node.start()
    assert node.says(rf"opened {PARTITIONS} logs")
    is_fit(node)
    print(", ".join(f"{what} {seconds:.2f} s" for what, seconds in took.items()), f"{node.rss_mb():.0f} MB")
    node.stop()
