"""The assignors of consumer groups, held against Apache Kafka's own and against what they promise.

`golden/assignors/kafka-4.3.1.txt` is what `UniformAssignor` and `RangeAssignor` of Apache Kafka 4.3.1 made of forty
groups that changed seven times each: members that came and went, topics that came and grew, subscriptions alike and
not. They were run with members and topics in ascending order, which Kafka itself leaves to its hash tables.
`simple-4.3.1.txt` is the same of `SimpleAssignor`, for groups whose subscriptions differ; where they are alike, the
order of Kafka's hash tables shows in the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalda.assignors.server_assignor import (
    GroupSpec,
    MemberPartitions,
    MemberSubscription,
    TargetAssignment,
    TopicShape,
)
from kalda.assignors.server_assignors import load_assignors
from kalda.assignors.simple_assignor import SimpleAssignor
from kalda.base.background import run_to_end
from kalda.base.configs.definition import InvalidConfig
from kalda.base.ids import Uuid

GOLDEN = Path(__file__).parents[2] / "golden" / "assignors"
KEY: Final = "group.consumer.assignors"


def topic(number: int) -> Uuid:
    return Uuid(number.to_bytes(16, "big"))


def partitions(text: str) -> MemberPartitions:
    found = (each.split(":") for each in text.split())
    return {topic(int(number)): frozenset(map(int, indexes.split(","))) for number, indexes in found}


def vectors(file: str) -> Iterator[tuple[str, GroupSpec, TargetAssignment]]:
    for block in (GOLDEN / file).read_text().strip().split("\n\n"):
        (name, sizes), *members = ([cell.strip() for cell in line.split("|")] for line in block.splitlines())
        shapes = {topic(int(n)): TopicShape(n, int(size)) for n, size in (each.split("=") for each in sizes.split())}
        subscriptions, current, target = {}, {}, {}
        for who, topics, had, has in members:
            member_id, _, instance_id = who.partition("/")
            subscribed = frozenset(topic(int(each)) for each in topics.split())
            subscriptions[member_id] = MemberSubscription(subscribed, instance_id=instance_id or None)
            current[member_id] = partitions(had)
            target[member_id] = partitions(has)
        yield name, GroupSpec(subscriptions, current, shapes), target


def assign(name: str, spec: GroupSpec) -> TargetAssignment:
    return run_to_end(load_assignors(KEY, [name])[name].assign(spec))


def test_what_apache_kafka_assigns_is_assigned() -> None:
    seen = {"uniform": 0, "range": 0}
    for name, spec, target in vectors("kafka-4.3.1.txt"):
        assert assign(name, spec) == target
        seen[name] += 1
    assert seen["uniform"] > 100
    assert seen["range"] > 50


@st.composite
def specs(draw: st.DrawFn) -> GroupSpec:
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    shapes = {topic(number): TopicShape(str(number), size) for number, size in enumerate(sizes, 1)}
    ids = draw(st.sets(st.sampled_from("abcdefgh"), min_size=1, max_size=8))
    alike = draw(st.booleans())
    everything = frozenset(shapes)
    members = {
        member_id: MemberSubscription(everything if alike else draw(st.frozensets(st.sampled_from(sorted(shapes)))))
        for member_id in sorted(ids)
    }
    had: dict[str, dict[Uuid, set[int]]] = {}
    for topic_id, shape in shapes.items():
        for index in range(shape.partitions):
            owner = draw(st.sampled_from([None, *sorted(ids)]))
            if owner is not None:
                had.setdefault(owner, {}).setdefault(topic_id, set()).add(index)
    current = {each: {key: frozenset(value) for key, value in topics.items()} for each, topics in had.items()}
    subscribed = frozenset[Uuid]().union(*(member.topics for member in members.values()))
    return GroupSpec(members, current, {key: value for key, value in shapes.items() if key in subscribed})


@settings(max_examples=150)
@given(specs(), st.sampled_from(["uniform", "range"]))
def test_every_partition_has_one_subscriber_and_members_the_mapping_they_had_where_nothing_changes(
    spec: GroupSpec, name: str
) -> None:
    target = assign(name, spec)
    assert target.keys() == spec.members.keys()
    owned = [(key, index) for each in target.values() for key, indexes in each.items() for index in indexes]
    assert sorted(owned) == sorted((key, n) for key, shape in spec.topics.items() for n in range(shape.partitions))
    assert all(target[member_id].keys() <= member.topics for member_id, member in spec.members.items())
    again = assign(name, GroupSpec(dict(reversed(spec.members.items())), target, spec.topics))
    if name == "range" or len({member.topics for member in spec.members.values()}) == 1:
        assert all(again[member_id] is target[member_id] for member_id in target)


@settings(max_examples=150)
@given(specs())
def test_uniform_is_level_and_takes_no_more_than_it_must(spec: GroupSpec) -> None:
    target = assign("uniform", spec)
    sizes = {each: sum(map(len, topics.values())) for each, topics in target.items()}
    if len({member.topics for member in spec.members.values()}) > 1:
        return
    assert max(sizes.values()) - min(sizes.values()) <= 1
    quota = max(sizes.values())
    for member_id, had in spec.current.items():
        has = target[member_id]
        lost = sum(len(indexes - has.get(key, frozenset())) for key, indexes in had.items() if key in spec.topics)
        held = sum(len(indexes) for key, indexes in had.items() if key in spec.topics)
        assert lost <= max(0, held - quota + 1)


def test_what_apache_kafka_assigns_in_share_groups_is_assigned() -> None:
    for _, spec, target in vectors("simple-4.3.1.txt"):
        assert run_to_end(SimpleAssignor().assign(spec)) == target


@settings(max_examples=150)
@given(specs(), st.data())
def test_simple_has_each_assignable_partition_shared_alike_and_no_subscriber_idle(
    spec: GroupSpec, data: st.DataObject
) -> None:
    assignable = {
        key: data.draw(st.sets(st.sampled_from(range(shape.partitions)))) for key, shape in spec.topics.items()
    }
    target = run_to_end(SimpleAssignor().assign(spec, assignable))
    places = {(key, index) for key, indexes in assignable.items() for index in indexes}
    shares = Counter((key, index) for each in target.values() for key, indexes in each.items() for index in indexes)
    assert shares.keys() == places
    assert all(target[member_id].keys() <= member.topics for member_id, member in spec.members.items())
    if len({member.topics for member in spec.members.values()}) == 1 and places:
        sharing = -(-len(spec.members) // len(places))
        assert max(shares.values()) <= sharing
        assert all(target.values())
    assert run_to_end(SimpleAssignor().assign(spec, assignable)) == target


def test_assignors_are_loaded_by_name_by_kafkas_class_and_from_python() -> None:
    kafkas = "org.apache.kafka.coordinator.group.assignor.RangeAssignor"
    assert list(load_assignors(KEY, [kafkas, "uniform"])) == ["range", "uniform"]
    assert list(load_assignors(KEY, ["kalda.assignors.uniform_assignor:UniformAssignor"])) == ["uniform"]
    for bad in ("sticky", "no.such.module:Class", "kalda.assignors.uniform_assignor:Nothing", "builtins:dict"):
        with pytest.raises(InvalidConfig, match=bad):
            load_assignors(KEY, [bad])
    with pytest.raises(InvalidConfig, match="Two assignors"):
        load_assignors(KEY, ["range", kafkas])
    of_streams = "org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor"
    assert list(load_assignors("group.streams.assignors", [of_streams])) == ["sticky"]
    with pytest.raises(InvalidConfig, match=r"group\.streams\.assignors.*sticky"):
        load_assignors("group.streams.assignors", ["uniform"])
