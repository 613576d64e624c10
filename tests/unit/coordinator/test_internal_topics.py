"""A key belongs to the partition that Kafka computes: Java's string hash, over UTF-16."""

from __future__ import annotations

import json
from pathlib import Path

from kalda.coordinator.internal_topics import coordinator_partition, java_hash

VECTORS = Path(__file__).parents[2] / "golden" / "coordinator" / "vectors.json"


def test_partitions_are_kafkas() -> None:
    cases = json.loads(VECTORS.read_text())["coordinator_partition"]
    assert len(cases) >= 8
    for case in cases:
        assert java_hash(case["id"]) == case["java_hash"]
        for partitions, expected in case["partition_of"].items():
            assert coordinator_partition(case["id"], int(partitions)) == expected
