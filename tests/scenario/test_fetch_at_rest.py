"""Followers of idle partitions: their fetches read nothing, and still keep them in the ISR."""

from __future__ import annotations

from typing import Any

import pytest
from replication_world import LAG_MAX_MS, World

from kalda.replication.partition import Partition
from kalda.storage.log.snapshot_jobs import ColdRead
from kalda.storage.values import FetchInfo


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets that were read anywhere."""
    seen: list[int] = []
    read = Partition.read

    def counted(partition: Partition, offset: int, *how: Any) -> FetchInfo | ColdRead:
        seen.append(offset)
        return read(partition, offset, *how)

    monkeypatch.setattr(Partition, "read", counted)
    return seen


def test_idle_partitions_are_not_read(reads: list[int]) -> None:
    world = World()
    world[1].write("abc")
    world.run(2_000)
    reads.clear()
    world.run(10_000)
    assert reads == []
    world[1].write("d")
    world.run(1_100)
    assert 3 in reads
    assert [broker.values for broker in world.brokers.values()] == ["abcd"] * 3
    assert {broker.log.high_watermark for broker in world.brokers.values()} == {4}


def test_the_fetches_of_idle_followers_keep_them_in_sync() -> None:
    world = World()
    world.watch_isrs()
    world[1].write("a")
    world.run(5 * LAG_MAX_MS)
    world.cut.add((3, 1))
    world.run(LAG_MAX_MS // 2)
    world[1].write("b")
    world.run(LAG_MAX_MS // 4)
    assert world.lines == [], "3 was caught up less than the allowed time ago, by a fetch that found it idle"
    world.run(2 * LAG_MAX_MS)
    assert world.lines == ["1 proposes [1, 2]", "the ISR is [1, 2]"]


def test_a_new_log_start_is_sent_to_idle_followers() -> None:
    world = World()
    world[1].write("abc")
    world.run(2_000)
    world[1].partition.delete_records(2)
    world.run(1_100)
    assert [broker.log.log_start_offset for broker in world.brokers.values()] == [2, 2, 2]
