"""A producer at a model cluster that misbehaves: no record is lost, doubled or reordered, each is reported once."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cluster import Faults, World

SEEDS = st.integers(0, 2**32)


def produce(world: World, count: int, rng: Random) -> list[tuple[int, bytes]]:
    """Send records to random partitions, with pauses; the partition and value of each."""
    sent = []
    for number in range(count):
        partition = rng.randrange(len(world.partitions))
        value = b"%06d" % number
        while world.send(value, partition) is None:
            world.run(5)
        sent.append((partition, value))
        if not world.core.config.linger_ms:
            world.run(rng.choice((0, 1, 20, 300)))
        elif rng.random() < 0.2:
            world.run(rng.choice((1, 3, 20)))
        if rng.random() < 0.01:
            world.cut(rng.choice(world.nodes))
    return sent


def world_of(seed: int, faults: Faults, alone: bool, **keys: object) -> World:
    """`alone`: no record lingers, and each has a pause behind it."""
    return World(seed, faults=faults, **{"linger.ms": 0} if alone else {}, **keys)


@given(
    seed=SEEDS,
    cut=st.floats(0, 0.2),
    lose=st.floats(0, 0.2),
    refuse=st.floats(0, 0.2),
    move=st.floats(0, 0.1),
    alone=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_idempotent_records_are_in_the_log_once_and_in_order(
    seed: int, cut: float, lose: float, refuse: float, move: float, alone: bool
) -> None:
    faults = Faults(cut=cut, lose=lose, refuse=refuse, move=move, until_ms=60_000)
    keys = {"batch.size": 120, "delivery.timeout.ms": 600_000, "buffer.memory": 4_096, "max.request.size": 4_096}
    world = world_of(seed, faults, alone, **keys)
    sent = produce(world, 200, Random(seed))
    world.run_until_idle()
    for index, partition in enumerate(world.partitions):
        assert partition.values == [value for at, value in sent if at == index]
    assert sorted(value for value, _ in world.delivered) == sorted(value for _, value in sent)
    assert not any(error for _, error in world.delivered)
    assert world.core.pool.available_bytes == world.core.pool.total_bytes


@given(seed=SEEDS, lose=st.floats(0, 0.3), refuse=st.floats(0, 0.3), alone=st.booleans())
@settings(max_examples=30, deadline=None)
def test_one_request_in_flight_keeps_order_without_sequence_numbers(
    seed: int, lose: float, refuse: float, alone: bool
) -> None:
    faults = Faults(lose=lose, refuse=refuse, until_ms=60_000)
    keys = {"batch.size": 120, "delivery.timeout.ms": 600_000, "enable.idempotence": False}
    world = world_of(seed, faults, alone, **keys, **{"max.in.flight.requests.per.connection": 1})
    sent = produce(world, 100, Random(seed))
    world.run_until_idle()
    for index, partition in enumerate(world.partitions):
        first_seen = list(dict.fromkeys(partition.values))
        assert first_seen == [value for at, value in sent if at == index], "duplicates are possible, another order not"


@given(
    seed=SEEDS,
    cut=st.floats(0, 0.3),
    lose=st.floats(0, 0.3),
    refuse=st.floats(0, 0.3),
    move=st.floats(0, 0.2),
    alone=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_record_is_reported_once_within_the_delivery_timeout(
    seed: int, cut: float, lose: float, refuse: float, move: float, alone: bool
) -> None:
    faults = Faults(cut=cut, lose=lose, refuse=refuse, move=move, until_ms=10**9)
    keys = {"batch.size": 120, "delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000}
    world = world_of(seed, faults, alone, **keys)
    sent = produce(world, 100, Random(seed))
    world.run(3_100)
    delivered = [value for value, _ in world.delivered]
    assert sorted(delivered) == sorted(value for _, value in sent)
    acked = {value for value, error in world.delivered if error is None}
    logged = world.values
    assert acked <= set(logged), "what was acknowledged is in a log"
    assert len(logged) == len(set(logged)), "nothing is doubled"
    for index, partition in enumerate(world.partitions):
        order = [value for at, value in sent if at == index]
        assert partition.values == [value for value in order if value in set(partition.values)], "the order is kept"
        assert [v for v in delivered if v in set(order)] == order, "callbacks come in the order of the records"


@pytest.mark.parametrize("seed", range(8))
def test_split_batches_keep_order_and_are_whole(seed: int) -> None:
    world = World(
        seed, faults=Faults(cut=0.1, lose=0.1, until_ms=60_000), **{"batch.size": 400, "delivery.timeout.ms": 600_000}
    )
    world.max_batch_bytes = 150
    sent = produce(world, 100, Random(seed))
    world.run_until_idle()
    for index, partition in enumerate(world.partitions):
        assert partition.values == [value for at, value in sent if at == index]
    assert sorted(value for value, _ in world.delivered) == sorted(value for _, value in sent)
