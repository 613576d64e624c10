"""The assignors beside Kafka's own: the same members, topics and racks give the same partitions to the same members."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kalda.assignors.stateless import RangeAssignor, Rebalance, RoundRobinAssignor, Subscriber, Topics
from kalda.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kalda.base.ids import TopicPartition

VECTORS = Path(__file__).parents[2] / "golden" / "client" / "assignors.jsonl.gz"
ASSIGNORS = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def vectors(name: str) -> list[dict[str, Any]]:
    lines = gzip.decompress(VECTORS.read_bytes()).decode().splitlines()
    return [vector for vector in map(json.loads, lines) if vector["assignor"] == name]


def rebalance_of(vector: dict[str, Any]) -> Rebalance:
    subscribers = tuple(
        Subscriber(
            member["id"],
            tuple(member["topics"]),
            member["instance"],
            member["rack"],
            tuple(TopicPartition(*pair) for pair in member["owned"]),
            member["generation"],
            None if member["data"] is None else bytes.fromhex(member["data"]),
        )
        for member in vector["members"]
    )
    racks = {
        TopicPartition(topic, index): tuple(names)
        for topic, partitions in vector["topics"].items()
        for index, names in enumerate(partitions)
    }
    return Rebalance(subscribers, Topics({name: len(each) for name, each in vector["topics"].items()}, racks))


@pytest.mark.parametrize("name", ASSIGNORS)
def test_assigns_what_kafka_assigns(name: str) -> None:
    different = []
    for number, vector in enumerate(vectors(name)):
        assigned = ASSIGNORS[name]().assign(rebalance_of(vector))
        expected = {
            member: sorted(TopicPartition(*pair) for pair in pairs) for member, pairs in vector["assigned"].items()
        }
        if {member: sorted(partitions) for member, partitions in assigned.items()} != expected:
            different.append(number)
    assert not different
    assert number >= 59
