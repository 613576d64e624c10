"""The assignor of streams groups, held against Apache Kafka's own and against what it promises.

`golden/assignors/sticky-tasks-4.4.0.jsonl.gz` is what `StickyTaskAssignor` of Apache Kafka 4.4.0 made of thirty groups
that changed six times each: members and processes that came and went, tasks that were lost, states on disk, topics that
grew. A line is one assignment: standby replicas; by subtopology, how many tasks and whether it is stateful; by member,
its process, the active and the standby tasks that it had, the offsets of its states, and the two kinds of tasks that it
was given.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalda.assignors.server_assignor import (
    AssignorError,
    MemberTasks,
    StreamsGroupSpec,
    StreamsMemberSpec,
    SubtopologyShape,
    TaskId,
    Tasks,
)
from kalda.assignors.sticky_task_assignor import StickyTaskAssignor
from kalda.base.background import run_to_end

GOLDEN = Path(__file__).parents[2] / "golden" / "assignors" / "sticky-tasks-4.4.0.jsonl.gz"


def tasks(text: str) -> Tasks:
    found = (each.split(":") for each in text.split())
    return {subtopology: frozenset(map(int, partitions.split(","))) for subtopology, partitions in found}


def offsets(text: str) -> Iterator[tuple[TaskId, int]]:
    for each in text.split():
        task, offset = each.split("=")
        subtopology, partition = task.split("_")
        yield TaskId(subtopology, int(partition)), int(offset)


def assign(spec: StreamsGroupSpec) -> dict[str, MemberTasks]:
    return run_to_end(StickyTaskAssignor().assign(spec))


def ids(assigned: Tasks) -> list[TaskId]:
    return [TaskId(subtopology, partition) for subtopology, those in assigned.items() for partition in those]


def test_tasks_are_assigned_as_by_kafka() -> None:
    for line in gzip.decompress(GOLDEN.read_bytes()).decode().splitlines():
        vector = json.loads(line)
        spec = StreamsGroupSpec(
            {
                member_id: StreamsMemberSpec(process, MemberTasks(tasks(ran), tasks(stood)), dict(offsets(on_disk)))
                for member_id, (process, ran, stood, on_disk, *_) in vector["members"].items()
            },
            {each: SubtopologyShape(*shape) for each, shape in vector["subtopologies"].items()},
            vector["standby"],
        )
        expected = {
            member_id: MemberTasks(tasks(active), tasks(standby))
            for member_id, (*_, active, standby) in vector["members"].items()
        }
        assert assign(spec) == expected, line


def members_of(processes: Mapping[str, int], had: Mapping[str, MemberTasks]) -> dict[str, StreamsMemberSpec]:
    return {
        f"{process}-{number}": StreamsMemberSpec(process, had.get(f"{process}-{number}", MemberTasks()))
        for process, threads in processes.items()
        for number in range(threads)
    }


@given(
    processes=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=1),
    then=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=1),
    shapes=st.lists(st.builds(SubtopologyShape, st.integers(1, 7), st.booleans()), min_size=1, max_size=4),
    replicas=st.integers(0, 3),
)
@settings(max_examples=60)
def test_each_task_runs_once_and_copies_are_in_different_processes(
    processes: dict[str, int], then: dict[str, int], shapes: list[SubtopologyShape], replicas: int
) -> None:
    subtopologies = {str(number): shape for number, shape in enumerate(shapes)}
    had = assign(StreamsGroupSpec(members_of(processes, {}), subtopologies, replicas))
    members = members_of(then, had)
    given_to = assign(StreamsGroupSpec(members, subtopologies, replicas))
    assert given_to.keys() == members.keys()
    active = Counter(task for each in given_to.values() for task in ids(each.active))
    assert active == Counter(
        TaskId(each, n) for each, shape in subtopologies.items() for n in range(shape.number_of_tasks)
    )
    copies: dict[TaskId, list[str]] = {}
    for member_id, each in given_to.items():
        for task in (*ids(each.active), *ids(each.standby)):
            copies.setdefault(task, []).append(members[member_id].process_id)
    for task, holders in copies.items():
        assert len(set(holders)) == len(holders)
        wanted = 1 + replicas * subtopologies[task.subtopology_id].is_stateful
        assert len(holders) == min(wanted, len(then))
    if then == processes:
        assert [each.active for each in given_to.values()] == [had[member_id].active for member_id in given_to]


def test_without_members_the_first_task_is_named() -> None:
    with pytest.raises(AssignorError, match="No process available to assign active task 0_0"):
        assign(StreamsGroupSpec({}, {"0": SubtopologyShape(1, False)}))
