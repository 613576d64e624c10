"""The topology of a streams group against the topics that exist (KIP-1071): how many partitions its internal topics
have, which of them are missing, and how many tasks its subtopologies have.

The sources of a subtopology are topics of others and repartition topics. A repartition topic has the partitions that
the application sets, or as many as the largest source of the subtopology that writes to it, and a changelog as many as
the largest source of its own. Topics of one copartition group have equally many: repartition topics that are not set
follow. A topic that exists has the partitions that it has; where those are not what the topology needs, it is
incorrectly partitioned.

The results and the texts are those of Apache Kafka 4.4. They depend on the order in which a topology is walked
where it is not consistent in itself; that is the order of Java's hash tables (`java_order`). A topology comes from a
client: it is walked in steps, each subtopology once, and the number of tasks is bounded.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import validate_topic_name
from kalda.base.java_order import java_order, java_order_steps
from kalda.protocol.messages.group_records import (
    StreamsGroupTopologyValue,
    StreamsGroupTopologyValueSubtopology,
    StreamsGroupTopologyValueTopicInfo,
)
from kalda.protocol.messages.streams import StreamsGroupStatus

MAX_TASKS: Final = 100_000
"""Of one topology. Apache Kafka has no bound; each task is a value in the memory of the coordinator."""
_SHOWN: Final = 3
"""Topics that a text names."""
_DEFAULT_REPLICATION_FACTOR: Final = -1

PartitionCount: TypeAlias = Callable[[str], int | None]
"""By topic; None where there is no such topic."""
_Subtopology: TypeAlias = StreamsGroupTopologyValueSubtopology


class InternalTopic(NamedTuple):
    """A topic that the group needs for itself."""

    name: str
    partitions: int
    replication_factor: int
    """As the topology has it, where 0 is the default of the cluster; of a topic to create, that default is -1."""
    configs: Mapping[str, str]


class ConfiguredSubtopology(NamedTuple):
    """A subtopology whose topics have numbers of partitions."""

    number_of_tasks: int
    source_topics: frozenset[str]
    repartition_source_topics: Mapping[str, InternalTopic]
    repartition_sink_topics: frozenset[str]
    state_changelog_topics: Mapping[str, InternalTopic]

    @property
    def is_stateful(self) -> bool:
        return bool(self.state_changelog_topics)


class ConfiguredTopology(NamedTuple):
    """A topology as the topics that exist allow it."""

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology]
    """By ascending id; empty where source topics are missing or topics are incorrectly partitioned."""
    internal_topics_to_create: Mapping[str, InternalTopic]
    status: tuple[StreamsGroupStatus, str] | None
    """Why tasks cannot be assigned, and the text for members; None where they can."""

    @property
    def is_ready(self) -> bool:
        return self.status is None


class _NotConfigured(Exception):
    """The topics that exist do not allow the topology; the arguments are `ConfiguredTopology.status`."""


def configure_topology(
    topology: StreamsGroupTopologyValue, partition_count: PartitionCount
) -> Steps[ConfiguredTopology]:
    """What the topology is with the topics that `partition_count` knows.

    Raises `ApiError` STREAMS_INVALID_TOPOLOGY where no topics would make it work, and INVALID_TOPIC_EXCEPTION for a
    name that no topic can have.
    """
    by_id = {each.subtopology_id: each for each in topology.subtopologies}
    if len(by_id) < len(topology.subtopologies):
        raise _invalid("Two subtopologies have the same id.")
    subtopologies = [by_id[each] for each in (yield from java_order_steps(by_id))]
    counts = _PartitionCounts(subtopologies, partition_count)
    yield from counts.read()
    try:
        yield from _check_sources(subtopologies, partition_count)
        yield from counts.decide()
        configured: dict[str, ConfiguredSubtopology] = {}
        tasks = 0
        for each in sorted(by_id):
            configured[each] = yield from _configured(by_id[each], counts)
            tasks += configured[each].number_of_tasks
            if tasks > MAX_TASKS:
                raise _invalid(f"The topology has more tasks than the {MAX_TASKS} that a streams group may have.")
            yield
        missing = yield from _missing_internal_topics(configured, subtopologies, partition_count)
    except _NotConfigured as error:
        return ConfiguredTopology(topology.epoch, {}, {}, error.args[0])
    status = None
    if missing:
        status = StreamsGroupStatus.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_summary(missing)}"
    return ConfiguredTopology(topology.epoch, configured, missing, status)


def _check_sources(subtopologies: Sequence[_Subtopology], partition_count: PartitionCount) -> Steps[None]:
    missing: set[str] = set()
    for each in subtopologies:
        missing.update(topic for topic in each.source_topics if partition_count(topic) is None)
        yield
    if missing:
        text = f"Source topics {_summary(sorted(missing))} are missing."
        raise _NotConfigured((StreamsGroupStatus.MISSING_SOURCE_TOPICS, text))


class _PartitionCounts:
    """The numbers of partitions of the topics of one topology."""

    def __init__(self, subtopologies: Sequence[_Subtopology], partition_count: PartitionCount) -> None:
        self._subtopologies = subtopologies
        self._existing = partition_count
        self._decided: dict[str, int] = {}
        """Of internal topics."""
        self._fixed: set[str] = set()
        """Repartition topics whose number the application sets, and below those whose number it does not set."""
        self._flexible: set[str] = set()
        self._copartitioned: list[list[str]] = []

    def read(self) -> Steps[None]:
        """Which topics the application sets, and which are to have equally many partitions."""
        for each in self._subtopologies:
            for topic in each.repartition_source_topics:
                (self._fixed if topic.partitions else self._flexible).add(topic.name)
            for group in each.copartition_groups:
                self._copartitioned.append(_copartitioned(each, group.source_topics, group.repartition_source_topics))
                yield

    def of(self, topic: str) -> int:
        """Of a topic that exists, the number that it has; of an internal one else, the number that it is to have."""
        existing = self._existing(topic)
        return self._decided[topic] if existing is None else existing

    def of_internal(self, topic: StreamsGroupTopologyValueTopicInfo) -> int:
        """The number that an internal topic is to have, whether it exists or not."""
        return topic.partitions or self._decided[topic.name]

    def decide(self) -> Steps[None]:
        """Of all internal topics."""
        yield from self._decide_repartition_topics()
        for topics in self._copartitioned:
            self._enforce(topics)
            yield
        for each in self._subtopologies:
            sources = self.of_sources(each)
            if not sources:
                raise _invalid(f"No source topics found for subtopology {each.subtopology_id}")
            largest = max(sources)
            self._decided |= {topic.name: largest for topic in each.state_changelog_topics}
            yield

    def of_sources(self, subtopology: _Subtopology) -> list[int]:
        return [self.of(topic) for topic in (*subtopology.source_topics, *_names(subtopology))]

    def _decide_repartition_topics(self) -> Steps[None]:
        """Subtopologies are walked round after round; one whose sources have no number yet is left to the next
        round. Only those are visited again that have got a source with a number since."""
        counts: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for position, each in enumerate(self._subtopologies):
            for topic in each.repartition_source_topics:
                readers.setdefault(topic.name, []).append(position)
                if topic.partitions:
                    counts[topic.name] = topic.partitions
        visits = [(0, position) for position in range(len(self._subtopologies))]
        while visits:
            visit, position = heapq.heappop(visits)
            each = self._subtopologies[position]
            sinks = [topic for topic in each.repartition_sink_topics if topic not in counts]
            known = [counts[topic] for topic in _names(each) if topic in counts]
            known += [count for topic in each.source_topics if (count := self._existing(topic)) is not None]
            for sink in sinks if known else ():
                counts[sink] = max(known)
                for reader in readers.pop(sink, []):
                    heapq.heappush(visits, (visit + (reader <= position), reader))
            yield
        if any(topic not in counts for each in self._subtopologies for topic in each.repartition_sink_topics):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the topology"
                " that cannot be resolved."
            )
        if not counts.keys() >= self._fixed | self._flexible:
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a repartition source topic"
                " is never used as a sink topic."
            )
        self._decided |= counts

    def _enforce(self, topics: Collection[str]) -> None:
        """Topics that are to have equally many partitions, in order."""
        if not topics:
            return
        repartition = {
            topic: self.of(topic) for topic in java_order(topics) if topic in self._fixed or topic in self._flexible
        }
        others = {topic: self.of(topic) for topic in topics if topic not in repartition}
        if others:
            count = self._same(others, others)
        elif self._fixed:  # Kafka compares those of the whole topology
            count = self._same({topic: self.of(topic) for topic in self._fixed}, repartition)
        else:
            count = max(repartition.values())
        for topic in java_order(repartition):
            if topic in self._fixed and repartition[topic] != count:
                text = (
                    f"Number of partitions [{repartition[topic]}] of repartition topic [{topic}] doesn't match number"
                    f" of partitions [{count}] of the source topic."
                )
                raise _NotConfigured((StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text))
            self._decided[topic] = count

    @staticmethod
    def _same(counts: Mapping[str, int], shown: Mapping[str, int]) -> int:
        if len(found := set(counts.values())) > 1:
            topics = ", ".join(f"{topic}={shown[topic]}" for topic in sorted(shown))
            text = f"Following topics do not have the same number of partitions: [{{{topics}}}]"
            raise _NotConfigured((StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text))
        return found.pop()


def _names(subtopology: _Subtopology) -> list[str]:
    return [topic.name for topic in subtopology.repartition_source_topics]


def _copartitioned(subtopology: _Subtopology, sources: Sequence[int], repartition: Sequence[int]) -> list[str]:
    """The topics of a copartition group, which has their positions; each once, in the order of Java's set."""
    names = _names(subtopology)
    found = dict.fromkeys(
        [*(_at(subtopology.source_topics, each) for each in sources), *(_at(names, each) for each in repartition)]
    )
    return java_order(found)


def _at(topics: Sequence[str], position: int) -> str:
    if not 0 <= position < len(topics):
        raise _invalid(f"A copartition group names topic {position} of {len(topics)}.")
    return topics[position]


def _configured(subtopology: _Subtopology, counts: _PartitionCounts) -> Steps[ConfiguredSubtopology]:
    return ConfiguredSubtopology(
        max(counts.of_sources(subtopology)),
        frozenset(subtopology.source_topics),
        (yield from _internal_topics(subtopology.repartition_source_topics, counts)),
        frozenset(subtopology.repartition_sink_topics),
        (yield from _internal_topics(subtopology.state_changelog_topics, counts)),
    )


def _internal_topics(
    topics: Sequence[StreamsGroupTopologyValueTopicInfo], counts: _PartitionCounts
) -> Steps[dict[str, InternalTopic]]:
    found: dict[str, InternalTopic] = {}
    for topic in topics:
        validate_topic_name(topic.name)
        partitions = counts.of_internal(topic)
        if partitions < 1:
            raise _invalid(f"Topic {topic.name} has {partitions} partitions. It has to have one or more.")
        if topic.name in found:
            raise _invalid(f"Topic {topic.name} is twice among the topics of a subtopology.")
        configs = {config.key: config.value for config in topic.topic_configs}
        found[topic.name] = InternalTopic(topic.name, partitions, topic.replication_factor, configs)
        if len(found) % ITEMS_A_STEP == 0:
            yield
    return {name: found[name] for name in (yield from java_order_steps(found))}


def _missing_internal_topics(
    configured: Mapping[str, ConfiguredSubtopology],
    subtopologies: Sequence[_Subtopology],
    partition_count: PartitionCount,
) -> Steps[dict[str, InternalTopic]]:
    """Those to create, in the order of Java's table. Raises `_NotConfigured` for the first that exists and has another
    number of partitions."""
    needed: dict[str, InternalTopic] = {}
    for subtopology in configured.values():
        needed |= subtopology.repartition_source_topics
        needed |= subtopology.state_changelog_topics
        yield
    required: dict[str, None] = {}
    for each in subtopologies:
        required |= dict.fromkeys(each.source_topics)
        required |= dict.fromkeys(_names(each))
        required |= dict.fromkeys(topic.name for topic in each.state_changelog_topics)
        yield
    size = len(needed)
    for count, name in enumerate((yield from java_order_steps(required))):
        if count % ITEMS_A_STEP == 0:
            yield
        existing = partition_count(name)
        expected = needed.pop(name, None) if existing is not None else None
        if expected is not None and expected.partitions != existing:
            text = (
                f"Existing topic {name} has different number of partitions: expected {expected.partitions},"
                f" found {existing}"
            )
            raise _NotConfigured((StreamsGroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text))
    missing: dict[str, InternalTopic] = {}
    for name in (yield from java_order_steps(needed, size)):
        factor = needed[name].replication_factor or _DEFAULT_REPLICATION_FACTOR
        missing[name] = needed[name]._replace(replication_factor=factor)
        if len(missing) % ITEMS_A_STEP == 0:
            yield
    return missing


def _summary(topics: Collection[str]) -> str:
    """The first ones, in order."""
    more = f" and {len(topics) - _SHOWN} additional topics" if len(topics) > _SHOWN else ""
    return ", ".join([*topics][:_SHOWN]) + more


def _invalid(what: str) -> ApiError:
    return ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, what)
