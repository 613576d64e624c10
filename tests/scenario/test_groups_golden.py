"""Logs that an Apache Kafka 4.3.1 node left behind, taken over."""

from __future__ import annotations

from pathlib import Path

from groups_world import Client, World, describe, list_groups

GOLDEN = Path(__file__).parents[1] / "golden" / "coordinator"


def taken_over(partition: int) -> World:
    """A world of one partition whose log is the node's; the group ids were chosen to belong to it, of four."""
    world = World(partitions=1, initial_rebalance_delay_ms=0)
    log = (GOLDEN / f"consumer_offsets-{partition}.log").read_bytes()
    world.log.batches[0] = [log]
    world.log.ends[0] = world.log.high_watermarks[0] = 1_000
    world.elect()
    return world


def test_classic_simple_and_transactional_offsets() -> None:
    world = taken_over(0)
    assert list_groups(world) == ["txn-group  Empty", "classic-group consumer Empty", "simple-group  Empty"]
    assert world.state("classic-group") == "Empty 2"
    assert world.fetch(group="txn-group") == {("codec-none", 0): 42}
    assert world.fetch(group="classic-group") == {
        ("codec-none", 0): 123,
        ("keyed", 0): 28,
        ("keyed", 2): 44,
    }
    assert world.fetch(group="simple-group") == {("keyed", 2): 3}


def test_a_stable_group_with_a_static_member() -> None:
    world = taken_over(3)
    assert describe(world, "classic-static") == [("Stable", "cooperative-sticky", "NONE", 1)]
    assert world.group("classic-static").subscribed_topics == {"keyed"}
    back = Client(world, group="classic-static", instance="static-1", protocols=("cooperative-sticky",))
    assert back.join().value.skip_assignment
    assert back.sync().value.assignment.startswith(b"\x00\x03")
    assert world.state("classic-static") == "Stable 1"


def test_groups_of_other_types_keep_their_ids_and_offsets() -> None:
    world = taken_over(1)
    assert world.fetch(group="modern-group")[("idempotent", 0)] == 180
    assert Client(world, group="modern-group").join().error == "INCONSISTENT_GROUP_PROTOCOL"
    assert list_groups(world, types_filter=["consumer"]) == [
        "modern-group consumer Stable",
        "regex-group consumer Empty",
    ]
    assert list_groups(world, types_filter=["classic"]) == []
