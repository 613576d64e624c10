"""Topologies of streams groups, held against Apache Kafka's own configuration of them, and bounded.

`golden/coordinator/streams-topologies-4.4.0.jsonl.gz` is what `InternalTopicManager` of Apache Kafka 4.4.0 made of 260
topologies, sound ones and others. A line has the topics that exist; the subtopologies (id, sources, repartition
sources, repartition sinks, changelogs, copartition groups); and what was made of them: a status, the subtopologies
with their tasks and internal topics, and the topics to create in order, or the exception.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.coordinator.groups.streams.topology import MAX_TASKS, ConfiguredTopology, InternalTopic, configure_topology
from kalda.protocol.messages.group_records import (
    StreamsGroupTopologyValue,
    StreamsGroupTopologyValueCopartitionGroup,
    StreamsGroupTopologyValueSubtopology,
    StreamsGroupTopologyValueTopicInfo,
    TopicConfig,
)

GOLDEN = Path(__file__).parents[4] / "golden" / "coordinator" / "streams-topologies-4.4.0.jsonl.gz"


def vectors() -> Iterator[dict[str, Any]]:
    for line in gzip.decompress(GOLDEN.read_bytes()).decode().splitlines():
        yield json.loads(line)


def info(name: str, partitions: int = 0, replication: int = 0, configs: Any = ()) -> StreamsGroupTopologyValueTopicInfo:
    found = [TopicConfig(key=key, value=value) for key, value in dict(configs).items()]
    return StreamsGroupTopologyValueTopicInfo(
        name=name, partitions=partitions, replication_factor=replication, topic_configs=found
    )


def subtopology(
    subtopology_id: str,
    sources: Any = (),
    repartition: Any = (),
    sinks: Any = (),
    changelogs: Any = (),
    groups: Any = (),
) -> StreamsGroupTopologyValueSubtopology:
    return StreamsGroupTopologyValueSubtopology(
        subtopology_id=subtopology_id,
        source_topics=[*sources],
        repartition_source_topics=[info(*each) for each in repartition],
        repartition_sink_topics=[*sinks],
        state_changelog_topics=[info(*each) for each in changelogs],
        copartition_groups=[
            StreamsGroupTopologyValueCopartitionGroup(source_topics=sources, repartition_source_topics=repartition)
            for sources, repartition in groups
        ],
    )


def configure(topics: dict[str, int], *subtopologies: StreamsGroupTopologyValueSubtopology) -> ConfiguredTopology:
    topology = StreamsGroupTopologyValue(epoch=3, subtopologies=[*subtopologies])
    return run_to_end(configure_topology(topology, topics.get))


def internal(topics: dict[str, InternalTopic]) -> list[list[Any]]:
    return [[n, each.partitions, each.replication_factor, dict(each.configs)] for n, each in sorted(topics.items())]


def test_topologies_are_configured_as_by_kafka() -> None:
    for vector in vectors():
        subtopologies = [subtopology(*each) for each in vector["subtopologies"]]
        if "error" in vector:
            kind, text = vector["error"]
            with pytest.raises(ApiError) as raised:
                configure(vector["topics"], *subtopologies)
            assert raised.value.code == ErrorCode.STREAMS_INVALID_TOPOLOGY
            if kind == "StreamsInvalidTopologyException":
                assert raised.value.message == text
            continue
        configured = configure(vector["topics"], *subtopologies)
        assert configured.epoch == 3
        assert configured.status == (tuple(vector["status"]) if "status" in vector else None), vector
        assert [*configured.subtopologies] == sorted(vector.get("configured", {}))
        for key, (tasks, repartition, changelogs) in vector.get("configured", {}).items():
            found = configured.subtopologies[key]
            assert found.number_of_tasks == tasks
            assert internal({**found.repartition_source_topics}) == repartition
            assert internal({**found.state_changelog_topics}) == changelogs
            assert found.is_stateful == bool(changelogs)
        assert [
            [name, topic.partitions, topic.replication_factor]
            for name, topic in configured.internal_topics_to_create.items()
        ] == vector["create"]


def test_many_subtopologies_take_one_visit_each() -> None:
    """Each writes to what the one before it reads, so that rounds over all of them would be as many as there are."""
    many = 3000
    chain = [subtopology(f"{n:05}", [], [(f"r{n}",)], [f"r{n - 1}"]) for n in range(1, many)]
    steps = configure_topology(
        StreamsGroupTopologyValue(epoch=0, subtopologies=[*chain, subtopology("x", ["in"], [], [f"r{many - 1}"])]),
        {"in": 2}.get,
    )
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            configured = end.value
            break
        turns += 1
        assert turns < 10 * many
    assert {each.number_of_tasks for each in configured.subtopologies.values()} == {2}


@pytest.mark.parametrize(
    ("subtopologies", "what"),
    [
        ([subtopology("0", ["in"]), subtopology("0", ["in"])], "Two subtopologies have the same id"),
        ([subtopology("0", ["in"], [], [], [("c",), ("c",)])], "Topic c is twice"),
        ([subtopology("0", [], [("r", -1)])], "Topic r has -1 partitions"),
        ([subtopology("0", ["in"], [], [], [], [([-1], [])])], "names topic -1 of 1"),
        ([subtopology("0", [], [("r", MAX_TASKS + 1)])], "more tasks"),
    ],
)
def test_what_no_topics_would_make_work_is_refused(
    subtopologies: list[StreamsGroupTopologyValueSubtopology], what: str
) -> None:
    with pytest.raises(ApiError, match=what) as raised:
        configure({"in": 1}, *subtopologies)
    assert raised.value.code == ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_an_internal_topic_has_a_legal_name() -> None:
    with pytest.raises(ApiError, match="Topic name is invalid") as raised:
        configure({"in": 1}, subtopology("0", ["in"], [], [], [("a/b",)]))
    assert raised.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
