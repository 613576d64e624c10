"""The adaptive uniform sticky partitioner: when it switches, and where to."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from model_cluster import World

from kalda.clientcore.producing.accumulator import Candidates, Sticky, StickyPartitioner

THREE = Candidates(3, (0, 1, 2))


def partitioner(adaptive: bool = True) -> StickyPartitioner:
    return StickyPartitioner(100, Random(1).random, adaptive)


def shares(made: StickyPartitioner, candidates: Candidates, draws: int = 8_000) -> dict[int, float]:
    counts = Counter(made.next_partition(candidates) for _ in range(draws))
    return {partition: counts[partition] / draws for partition in range(candidates.partitions)}


def test_the_partition_stays_until_a_batch_is_full() -> None:
    made = partitioner()
    sticky = made.peek(THREE)
    made.update(sticky, 99, THREE, True)
    assert made.peek(THREE) is sticky
    made.update(sticky, 1, THREE, True)
    assert made.is_changed(sticky)


def test_a_part_filled_batch_holds_a_switch_back_up_to_twice_the_size() -> None:
    made = partitioner()
    sticky = made.peek(THREE)
    made.update(sticky, 199, THREE, False)
    assert not made.is_changed(sticky)
    assert made.bytes_until_switch(sticky) == 1
    made.update(sticky, 1, THREE, False)
    assert made.is_changed(sticky)


def test_a_stale_update_changes_nothing() -> None:
    made = partitioner()
    made.peek(THREE)
    made.update(Sticky(0), 1_000, THREE, True)
    assert made.switches == 1


def test_without_stats_partitions_with_a_leader_have_equal_chances() -> None:
    found = shares(partitioner(), Candidates(4, (0, 1, 3)))
    assert found[2] == 0
    assert all(found[index] == pytest.approx(1 / 3, abs=0.03) for index in (0, 1, 3))


def test_without_any_leader_all_partitions_have_equal_chances() -> None:
    found = shares(partitioner(), Candidates(2, ()))
    assert found[0] == pytest.approx(0.5, abs=0.03)


def test_longer_queues_get_fewer_records() -> None:
    made = partitioner()
    made.update_load([(0, 0), (1, 3), (2, 1)], 3)
    found = shares(made, THREE)
    assert [found[index] for index in range(3)] == [pytest.approx(share, abs=0.03) for share in (4 / 8, 1 / 8, 3 / 8)]


def test_equal_queues_need_no_weights_unless_a_partition_is_left_out() -> None:
    made = partitioner()
    made.update_load([(0, 2), (1, 2), (2, 2)], 3)
    assert shares(made, THREE)[0] == pytest.approx(1 / 3, abs=0.03)
    made.update_load([(0, 2), (2, 2)], 3)
    assert shares(made, THREE)[1] == 0, "its broker takes no batches"


def test_not_adaptive_ignores_queues() -> None:
    made = partitioner(adaptive=False)
    made.update_load([(0, 0), (1, 30), (2, 30)], 3)
    assert shares(made, THREE)[1] == pytest.approx(1 / 3, abs=0.03)


def test_partitions_led_in_the_clients_rack_are_preferred() -> None:
    made = partitioner()
    local = Candidates(3, (0, 1, 2), (1, 2))
    assert shares(made, local)[0] == 0
    made.update_load([(0, 0), (1, 3), (2, 0)], 3, (1, 2))
    found = shares(made, local)
    assert found[0] == 0
    assert found[2] == pytest.approx(4 / 5, abs=0.03)
    assert shares(made, THREE)[0] > 0, "without a partition in the rack, all count"


def test_where_no_partition_of_the_rack_takes_batches_the_others_do() -> None:
    made = partitioner()
    local = Candidates(3, (0, 1, 2), (1,))
    made.update_load([(0, 0), (2, 1)], 3, (1,))
    found = shares(made, local)
    assert [found[index] for index in range(3)] == [pytest.approx(share, abs=0.03) for share in (2 / 3, 0, 1 / 3)]
    made.update_load([], 3, (1,))
    assert shares(made, local)[1] == 1, "none takes batches: the rack is preferred again"


def test_the_chances_are_by_the_queues_at_the_moment_of_the_choice() -> None:
    world = World(partitions=2, brokers=2, **{"linger.ms": 1_000_000, "delivery.timeout.ms": 2_000_000})
    for partition in (0, 1):
        world.send(b"v", partition)
    topic, chosen = world.core.accumulator.topics["t"], []
    for _ in range(9):
        world.send(bytes(16_000), 0)  # a batch of its own; nothing is sent meanwhile
    for _ in range(2_000):
        with world.core.accumulator.lock:
            chosen.append(topic.partitioner.next_partition(world.core.accumulator.candidates("t")))
    assert [len(topic.queues[index].batches) for index in (0, 1)] == [9, 1]
    assert chosen.count(1) / 2_000 == pytest.approx(9 / 10, abs=0.03)
