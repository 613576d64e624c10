"""Reassignment plans: their goals, the replicas that stay, and their files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kalda.base.ids import TopicPartition
from kalda.cli.reassignment.planner import Assignment, ReplicaBroker, plan
from kalda.cli.reassignment.plans import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    DocumentError,
    Move,
    ReplicaTarget,
    read_plan,
    read_topics,
    throttled_replicas,
    to_document,
    to_text,
)


def topic(name: str, *replicas: tuple[int, ...]) -> Assignment:
    return {TopicPartition(name, index): each for index, each in enumerate(replicas)}


def brokers(*ids: int, racks: str = "") -> list[ReplicaBroker]:
    return [ReplicaBroker(node_id, racks[i] if racks else None) for i, node_id in enumerate(ids)]


def loads(planned: Assignment) -> Counter[int]:
    return Counter(replica for replicas in planned.values() for replica in replicas)


def copies(before: Assignment, after: Assignment) -> int:
    return sum(len(set(after[at]) - set(before[at])) for at in before)


def test_replicas_that_are_placed_well_stay() -> None:
    current = topic("t", (1, 2), (2, 3), (3, 1))
    assert plan(current, brokers(1, 2, 3)) == current


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    current = topic("t", *([(1, 2), (2, 3), (3, 1)] * 4))
    planned = plan(current, brokers(1, 2, 3, 4))
    assert set(loads(planned).values()) == {6}
    assert copies(current, planned) == 6
    assert set(Counter(replicas[0] for replicas in planned.values()).values()) == {3}


def test_a_broker_that_is_left_out_is_emptied_and_nothing_else_moves() -> None:
    current = topic("t", *([(1, 2), (2, 3), (3, 1)] * 4))
    planned = plan(current, brokers(2, 3, 4))
    assert 1 not in loads(planned)
    assert copies(current, planned) == 8
    assert set(loads(planned).values()) == {8}


def test_racks_come_before_loads() -> None:
    current = topic("t", (1, 2), (1, 2), (1, 2), (1, 2))
    planned = plan(current, brokers(1, 2, 3, 4, racks="aabb"))
    assert all(len({replica > 2 for replica in replicas}) == 2 for replicas in planned.values())
    assert copies(current, planned) == 4
    assert set(loads(planned).values()) == {2}
    assert plan(current, brokers(1, 2, racks="aa")).keys() == current.keys()


def test_replicas_are_added_and_removed() -> None:
    current = topic("t", (1,), (2,), (3,))
    more = plan(current, brokers(1, 2, 3), replication_factor=3)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in more.values())
    assert copies(current, more) == 6
    fewer = plan(more, brokers(1, 2, 3), replication_factor=1)
    assert sorted(fewer.values()) == [(1,), (2,), (3,)]
    with pytest.raises(ValueError, match="replicas of a partition: 4; brokers to have one each: 3"):
        plan(current, brokers(1, 2, 3), replication_factor=4)


def test_small_topics_use_brokers_without_other_replicas() -> None:
    current = {TopicPartition(f"t{i}", 0): (1,) for i in range(6)}
    planned = plan(current, brokers(1, 2, 3), others={1: 2, 2: 1, 3: 0})
    assert loads(planned) + Counter({1: 2, 2: 1}) == Counter({1: 3, 2: 3, 3: 3})


def test_the_smallest_partitions_move() -> None:
    current = topic("t", (1,), (1,), (1,), (1,))
    sizes = {at: 100 * (4 - at.partition) for at in current}
    planned = plan(current, brokers(1, 2), sizes=sizes)
    assert {at.partition for at in current if planned[at] != (1,)} == {2, 3}


@given(
    st.lists(st.lists(st.permutations(range(6)).map(lambda p: tuple(p[:2])), min_size=1, max_size=8), max_size=4),
    st.sets(st.integers(0, 8), min_size=2).map(sorted),
    st.lists(st.sampled_from("abc"), min_size=9, max_size=9),
)
# Here the balance of all topics together unbalanced one of them.
@example([[(0, 1)] * 8, [(0, 1)], [(0, 1)]], list(range(9)), list("ababbcaaa"))
def test_every_plan_is_valid(topics: list[list[tuple[int, ...]]], ids: list[int], racks: list[str]) -> None:
    """Only given brokers, none twice, racks as even as possible, a plan of the plan is empty, no needless copy."""
    current = {TopicPartition(f"t{i}", p): r for i, each in enumerate(topics) for p, r in enumerate(each)}
    chosen = [ReplicaBroker(node_id, racks[node_id]) for node_id in ids]
    planned = plan(current, chosen)
    different = len({racks[node_id] for node_id in ids})
    for at, replicas in planned.items():
        assert len(set(replicas)) == len(current[at]) == len(replicas)
        assert set(replicas) <= set(ids)
        assert len({racks[replica] for replica in replicas}) == min(len(replicas), different)
    assert plan(planned, chosen) == planned
    free = plan(current, chosen, rack_aware=False)
    for index in range(len(topics)):
        of_topic = loads({at: replicas for at, replicas in free.items() if at.topic == f"t{index}"})
        assert max(of_topic[node_id] for node_id in ids) - min(of_topic[node_id] for node_id in ids) <= 1


# -- documents


def test_a_plan_has_kafkas_format(tmp_path: Path) -> None:
    text = to_text(to_document(topic("a", (1, 2), (2,))))
    assert text == (
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"a","partition":1,"replicas":[2],"log_dirs":["any"]}]}'
    )
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert read_plan(str(path)) == {
        TopicPartition("a", 0): ReplicaTarget((1, 2), ("any", "any")),
        TopicPartition("a", 1): ReplicaTarget((2,), ("any",)),
    }


def entry(**changes: object) -> dict[str, object]:
    return {"topic": "a", "partition": 0, "replicas": [1], **changes}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "plan.json: "),
        ([], "plan.json: an object with the version and a list is expected"),
        ({"version": 2, "partitions": [entry()]}, "version 2"),
        ({"version": 1}, "'partitions' is missing"),
        ({"version": 1, "partitions": []}, "moves nothing"),
        ({"version": 1, "partitions": [entry(), entry()]}, "a-0 is there twice"),
        ({"version": 1, "partitions": [entry(replicas=[])]}, "no replicas"),
        ({"version": 1, "partitions": [entry(replicas=[1, 1])]}, "a broker twice"),
        ({"version": 1, "partitions": [entry(replicas=["1"])]}, "'1' where a number"),
        ({"version": 1, "partitions": [entry(replicas=[True])]}, "True where a number"),
        ({"version": 1, "partitions": [entry(log_dirs=["any", "any"])]}, "2 log_dirs for replicas: 1"),
        ({"version": 1, "partitions": [entry(log_dirs=["data"])]}, "absolute"),
        ({"version": 1, "partitions": [entry(topic="")]}, "'' where a text"),
        ({"version": 1, "partitions": 7}, "plan.json: "),
    ],
)
def test_invalid_plans(tmp_path: Path, document: object, words: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(DocumentError) as raised:
        read_plan(str(path))
    assert words in str(raised.value)


def test_topics_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('{"version": 1, "topics": [{"topic": "a"}, {"topic": "b"}, {"topic": "a"}]}')
    assert read_topics(str(path)) == ["a", "b"]
    path.write_text('{"version": 1, "topics": []}')
    with pytest.raises(DocumentError, match="names no topic"):
        read_topics(str(path))


def test_both_ends_of_a_copy_are_throttled() -> None:
    moves = {
        TopicPartition("a", 0): Move((1, 2), (3,)),
        TopicPartition("a", 1): Move((2,), (1, 3)),
        TopicPartition("b", 0): Move((1, 2), ()),
    }
    assert throttled_replicas(moves) == {"a": {LEADER_REPLICAS: "0:1,0:2,1:2", FOLLOWER_REPLICAS: "0:3,1:1,1:3"}}
