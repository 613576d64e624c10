"""Logs that nodes of Apache Kafka 4.3.1 and 4.4.0 left behind, taken over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from groups_world import Client, World, describe, list_groups

from kalda.assignors.server_assignor import TopicShape
from kalda.coordinator.groups.config import TopicCatalog
from kalda.coordinator.groups.records import KindRecord, decode_record, encode_record
from kalda.coordinator.groups.streams.member import task_ids
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records

GOLDEN = Path(__file__).parents[1] / "golden" / "coordinator"


def taken_over(partition: int) -> World:
    """A world of one partition whose log is the node's; the group ids were chosen to belong to it, of four."""
    return world_of((GOLDEN / f"consumer_offsets-{partition}.log").read_bytes())


def world_of(log: bytes) -> World:
    world = World(partitions=1, initial_rebalance_delay_ms=0)
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
    assert Client(world, group="modern-group").join().error == "NONE", "classic members may join it"
    assert list_groups(world, types_filter=["consumer"]) == [
        "modern-group consumer Reconciling",
        "regex-group consumer Empty",
    ]
    assert list_groups(world, types_filter=["classic"]) == []


def test_the_hash_of_topics_is_kafkas() -> None:
    world = taken_over(1)
    group = world.shard().consumers.groups["modern-group"]
    (topic_id,) = group.target(next(iter(group.members)))
    world.topics.ids["keyed"], world.topics.partitions["keyed"] = topic_id, 3
    racks = (frozenset({"rack-1"}),) * 3
    world.topics.shape_of = lambda name: (topic_id, TopicShape(name, 3, racks)) if name == "keyed" else None  # type: ignore[method-assign]
    catalog = TopicCatalog(world.topics)
    assert catalog.hash_of(["keyed", "gone"]) == group.epochs.metadata_hash
    assert catalog.hash_of(["gone"]) == 0


def test_a_streams_group_of_four_threads() -> None:
    log = (GOLDEN / "streams_group-4.4.0.log").read_bytes()
    world = world_of(log)
    assert list_groups(world) == ["app streams Stable"]
    group = world.shard("app").streams.get("app")
    assert (group.epochs.group, group.epochs.assignment, group.epochs.validated_topology) == (6, 6, 0)
    assert group.assignment_configs == {"num.standby.replicas": "0"}
    assert group.topology is not None
    assert group.topology.source_of["lines"] == "0"
    tasks = [task for member in group.members.values() for task in task_ids(member.assigned.active)]
    assert len(set(tasks)) == len(tasks) == 19
    for member in group.members.values():
        assert member.assigned.tasks == group.target(member.member_id)
        assert group.active_processes[next(task_ids(member.assigned.active))] == member.process_id
    # What the coordinator would write of its state is what the node has written.
    written = {(type(each.key), getattr(each.key, "member_id", "")): each for each in records_of(log)}
    for member in group.members.values():
        for record in (group.member_record(member), group.assignment_record(member)):
            assert written[type(record.key), member.member_id] == record
        target = group.target_record(member.member_id, group.target(member.member_id))
        assert written[type(target.key), member.member_id] == target
    epochs = group.epochs
    record = group.epoch_record(6, epochs.metadata_hash, epochs.validated_topology, group.assignment_configs)
    assert written[type(record.key), ""] == record


def records_of(log: bytes) -> Iterator[KindRecord]:
    """Records of groups, each of which is encoded to its bytes again."""
    for at, header in iter_batches(log):
        for each in read_records(log, at, header):
            assert each.key is not None
            record = decode_record(each.key, each.value)
            if isinstance(record, KindRecord):
                assert encode_record(record) == (each.key, each.value)
                yield record
