"""The broker configs of the group coordinator, those that a single group may have instead, and what it has counted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import xxhash

from kalda.assignors.server_assignor import ServerAssignor, TaskAssignor, TopicShape
from kalda.base.configs.group import BROKER_SYNONYMS, bound_key
from kalda.base.ids import Uuid
from kalda.base.sensors import Measurable, SensorName
from kalda.base.stats import Meter
from kalda.coordinator.groups.kind_group import CONSUMER, SHARE, STREAMS
from kalda.coordinator.share.records import LatestOffsets, ShareStates

# The topics that groups subscribe to, and the hash of them that a group keeps: where it differs, a topic was made,
# deleted, extended or moved to other racks, and the group needs another target assignment.
#
# The bytes that are hashed are Apache Kafka's, so that a group that moves between products is not reassigned for
# that.

_MAX_KEPT = 10_000
"""Shapes of topics. Members may name topics that do not exist, in any number."""
_MAGIC = b"\0"
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<Q")
_INT64_BIG = struct.Struct(">QQ")


class TopicSource(Protocol):
    """What is read of the cluster's metadata."""

    def shape_of(self, name: str) -> tuple[Uuid, TopicShape] | None:
        """Id and shape of the topic that has the name; None where there is none."""
        ...

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of the topic that has the id; None where there is none."""
        ...

    def names(self) -> Sequence[str]:
        """The names of all topics."""
        ...


class TopicCatalog:
    """The topics that groups subscribe to. Their hashes are kept until they change."""

    def __init__(self, source: TopicSource) -> None:
        self._source = source
        self.offset = -1
        """Of the metadata that was reported last."""
        self.created_offset = -1
        """Of the metadata with which a topic was last made: regular expressions may match more since."""
        self._shapes: dict[str, tuple[Uuid, TopicShape] | None] = {}
        """By name; None of a topic that does not exist."""
        self._hashes: dict[str, int] = {}
        """Of topics that exist, by name."""

    def on_changed(self, names: Iterable[str], offset: int, *, created: bool) -> None:
        """These topics have changed, or were deleted; `created`: some are new."""
        self.offset = offset
        if created or self.created_offset < 0:
            self.created_offset = offset
        for name in names:
            self._shapes.pop(name, None)
            self._hashes.pop(name, None)

    def names(self) -> Sequence[str]:
        """The names of all topics."""
        return self._source.names()

    def shape_of(self, name: str) -> tuple[Uuid, TopicShape] | None:
        """Id and shape of the topic that has the name; None where there is none."""
        if name not in self._shapes:
            if len(self._shapes) >= _MAX_KEPT:
                self._shapes.clear()
            self._shapes[name] = self._source.shape_of(name)
        return self._shapes[name]

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of the topic that has the id; None where there is none."""
        return self._source.name_of(topic_id)

    def hash_of(self, names: Iterable[str]) -> int:
        """The hash of the topics among `names` that exist, as a signed number; 0 where none does."""
        hashes = []
        for name in sorted(names, key=_java_order):
            found = self.shape_of(name)
            if found is not None:
                value = self._hashes.get(name)
                if value is None:
                    value = self._hashes[name] = _hash(*found)
                hashes.append(_INT64.pack(value))
        if not hashes:
            return 0
        digest = xxhash.xxh3_64_intdigest(b"".join(hashes))
        return digest - (1 << 64) if digest >> 63 else digest


def _hash(topic_id: Uuid, shape: TopicShape) -> int:
    parts = [
        _MAGIC,
        *(_INT64.pack(half) for half in _INT64_BIG.unpack(topic_id)),
        _string(shape.name),
        _INT32.pack(shape.partitions),
    ]
    for partition in range(shape.partitions):
        parts.append(_INT32.pack(partition))
        for rack in sorted(shape.racks[partition], key=_java_order) if shape.racks else ():
            parts += _INT32.pack(_units(rack)), _string(rack)
    return xxhash.xxh3_64_intdigest(b"".join(parts))


def _java_order(text: str) -> bytes:
    """Java compares UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _string(text: str) -> bytes:
    """UTF-16 code units and their number, as hash4j puts a string into a hash."""
    return text.encode("utf-16-le", "surrogatepass") + _INT32.pack(_units(text))


_MINUTE_MS = 60_000


class GroupCoordinatorConfig(NamedTuple):
    """Values of the broker keys named beside each field, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    max_group_size: int = 2**31 - 1  # group.max.size
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms
    offsets_retention_ms: int = 10_080 * _MINUTE_MS  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS
    """A new member whose JoinGroup waits longer than this is removed: its client may have closed the connection, which
    nothing reports while the request is parked. Not configurable, as in Kafka."""

    @classmethod
    def from_properties(cls, values: Mapping[str, Any]) -> GroupCoordinatorConfig:
        """From parsed broker configs (`{"group.max.size": 10, …}`); keys that are absent keep Kafka's defaults."""
        default = cls()

        def value(key: str, fallback: int) -> int:
            return int(values.get(key, fallback))

        return cls(
            min_session_timeout_ms=value("group.min.session.timeout.ms", default.min_session_timeout_ms),
            max_session_timeout_ms=value("group.max.session.timeout.ms", default.max_session_timeout_ms),
            max_group_size=value("group.max.size", default.max_group_size),
            initial_rebalance_delay_ms=value("group.initial.rebalance.delay.ms", default.initial_rebalance_delay_ms),
            offset_metadata_max_bytes=value("offset.metadata.max.bytes", default.offset_metadata_max_bytes),
            commit_timeout_ms=value("offsets.commit.timeout.ms", default.commit_timeout_ms),
            offsets_retention_ms=value("offsets.retention.minutes", default.offsets_retention_ms // _MINUTE_MS)
            * _MINUTE_MS,
            retention_check_interval_ms=value(
                "offsets.retention.check.interval.ms", default.retention_check_interval_ms
            ),
        )


# The configs of groups of one kind: those of the broker, and those that one group has instead.

GroupOverrides: TypeAlias = Callable[[str], Mapping[str, str]]
"""The configs that a group has been given, by key; none for most."""


def no_overrides(group_id: str) -> Mapping[str, str]:
    """No group has configs of its own."""
    return MappingProxyType({})


class KindConfig:
    """Values of one kind of groups as they are now: a broker's and a group's may change while it runs."""

    kind: str
    """`consumer`, `share` or `streams`: what the keys have in their names."""
    defaults: Mapping[str, Any]
    """Kafka's, of the broker keys of this kind: of its maximum size, of three timings with their bounds, and others."""

    def __init__(self, values: Mapping[str, Any], overrides: GroupOverrides = no_overrides) -> None:
        """`values` are the broker's, parsed, by key; those that are absent have Kafka's defaults."""
        self._overrides = overrides
        self._values: dict[str, Any] = {}
        self.update(values)

    def update(self, values: Mapping[str, Any]) -> None:
        """The broker's values have changed."""
        self._values = {key: values.get(key, default) for key, default in self.defaults.items()}

    @property
    def max_size(self) -> int:
        """Members that a group may have."""
        return int(self._values[f"group.{self.kind}.max.size"])

    def session_timeout_ms(self, group_id: str) -> int:
        """After how long without a heartbeat a member is removed."""
        return self._bounded(group_id, "session.timeout.ms")

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members send heartbeats."""
        return self._bounded(group_id, "heartbeat.interval.ms")

    def assignment_interval_ms(self, group_id: str) -> int:
        """How much time lies at least between two target assignments."""
        return self._bounded(group_id, "assignment.interval.ms")

    def _bounded(self, group_id: str, subject: str) -> int:
        """The group's value, within the broker's bounds, which may have been changed since it was set."""
        name = f"{self.kind}.{subject}"
        text = self._overrides(group_id).get(name)
        if text is None:
            return int(self._values[BROKER_SYNONYMS[name]])
        lowest, highest = self._values[bound_key(name, "min")], self._values[bound_key(name, "max")]
        return int(min(max(int(text), lowest), highest))


# What a group coordinator has counted, under Kafka's names. A store.

GROUP_METRICS: Final = "kafka.server:type=group-coordinator-metrics"


class GroupCounters:
    """Of all groups that one broker coordinates."""

    def __init__(self) -> None:
        self.completed_rebalances = Meter()
        """Generations of classic groups whose assignment was committed."""
        self.consumer_rebalances = Meter()
        """Group epochs of consumer groups that a subscription or its topics have raised."""
        self.share_rebalances = Meter()
        """Group epochs of share groups that a subscription, its topics or their initialization have raised."""
        self.streams_rebalances = Meter()
        """Group epochs of streams groups that a member, topics or configs have raised."""
        self.offset_commits = Meter()
        """Offsets, also those in transactions, as they are committed."""
        self.offset_expirations = Meter()
        self.offset_deletions = Meter()
        """By OffsetDelete. As in Kafka, those that are deleted with their group or their topic do not count."""

    def sensors(self) -> Iterator[tuple[SensorName, Measurable]]:
        """A source for `Sensors.add_source`."""
        for name, meter in (
            ("group-completed-rebalance", self.completed_rebalances),
            ("consumer-group-rebalance", self.consumer_rebalances),
            ("share-group-rebalance", self.share_rebalances),
            ("streams-group-rebalance", self.streams_rebalances),
            ("offset-commit", self.offset_commits),
            ("offset-expiration", self.offset_expirations),
            ("offset-deletion", self.offset_deletions),
        ):
            yield SensorName(GROUP_METRICS, f"{name}-rate"), meter.rate
            yield SensorName(GROUP_METRICS, f"{name}-count"), meter.total


_BIDIRECTIONAL: Final = "bidirectional"


class ConsumerGroupConfig(KindConfig):
    """Values as they are now."""

    kind = CONSUMER
    defaults: Mapping[str, Any] = {
        "group.consumer.session.timeout.ms": 45_000,
        "group.consumer.min.session.timeout.ms": 45_000,
        "group.consumer.max.session.timeout.ms": 60_000,
        "group.consumer.heartbeat.interval.ms": 5_000,
        "group.consumer.min.heartbeat.interval.ms": 5_000,
        "group.consumer.max.heartbeat.interval.ms": 15_000,
        "group.consumer.assignment.interval.ms": 1_000,
        "group.consumer.min.assignment.interval.ms": 0,
        "group.consumer.max.assignment.interval.ms": 15_000,
        "group.consumer.max.size": 2**31 - 1,
        "group.consumer.regex.refresh.interval.ms": 600_000,
        "group.consumer.migration.policy": _BIDIRECTIONAL,
    }

    @property
    def _policy(self) -> str:
        return str(self._values["group.consumer.migration.policy"]).lower()

    @property
    def allows_upgrade(self) -> bool:
        """Whether a classic group becomes a consumer group when a member of the consumer protocol joins it."""
        return self._policy in ("upgrade", _BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        """Whether a consumer group becomes a classic group when only members of the classic protocol are left."""
        return self._policy in ("downgrade", _BIDIRECTIONAL)

    @property
    def allows_classic_members(self) -> bool:
        """Whether members may join a consumer group by the classic protocol."""
        return self._policy != "disabled"

    @property
    def regex_refresh_interval_ms(self) -> int:
        """After how long regular expressions are resolved anew, whatever happens."""
        return int(self._values["group.consumer.regex.refresh.interval.ms"])


class ConsumerSettings(NamedTuple):
    """What the consumer groups of all shards share."""

    config: ConsumerGroupConfig
    catalog: TopicCatalog
    assignors: Mapping[str, ServerAssignor]
    """By name, the default first."""


class ShareGroupConfig(KindConfig):
    """Values as they are now."""

    kind = SHARE
    defaults: Mapping[str, Any] = {
        "group.share.session.timeout.ms": 45_000,
        "group.share.min.session.timeout.ms": 45_000,
        "group.share.max.session.timeout.ms": 60_000,
        "group.share.heartbeat.interval.ms": 5_000,
        "group.share.min.heartbeat.interval.ms": 5_000,
        "group.share.max.heartbeat.interval.ms": 15_000,
        "group.share.assignment.interval.ms": 1_000,
        "group.share.min.assignment.interval.ms": 0,
        "group.share.max.assignment.interval.ms": 15_000,
        "group.share.max.size": 200,
        "group.share.initialize.retry.interval.ms": 30_000,
    }

    @property
    def initialize_retry_interval_ms(self) -> int:
        """After how long partitions whose initialization has no answer are initialized again."""
        return int(self._values["group.share.initialize.retry.interval.ms"])


class ShareServices(NamedTuple):
    """What share groups need of a broker besides what all groups do."""

    config: ShareGroupConfig
    states: ShareStates
    latest: LatestOffsets


class ShareGroupSettings(NamedTuple):
    """What the share groups of all shards share."""

    config: ShareGroupConfig
    catalog: TopicCatalog
    states: ShareStates


class StreamsGroupConfig(KindConfig):
    """Values as they are now."""

    kind = STREAMS
    defaults: Mapping[str, Any] = {
        "group.streams.session.timeout.ms": 45_000,
        "group.streams.min.session.timeout.ms": 45_000,
        "group.streams.max.session.timeout.ms": 60_000,
        "group.streams.heartbeat.interval.ms": 5_000,
        "group.streams.min.heartbeat.interval.ms": 5_000,
        "group.streams.max.heartbeat.interval.ms": 15_000,
        "group.streams.assignment.interval.ms": 1_000,
        "group.streams.min.assignment.interval.ms": 0,
        "group.streams.max.assignment.interval.ms": 15_000,
        "group.streams.max.size": 2**31 - 1,
        "group.streams.initial.rebalance.delay.ms": 3_000,
        "group.streams.num.standby.replicas": 0,
        "group.streams.max.standby.replicas": 2,
        "group.streams.rack.aware.assignment.tags": (),
        "group.streams.task.offset.interval.ms": 60_000,
        "group.streams.min.task.offset.interval.ms": 15_000,
        "group.streams.acceptable.recovery.lag": 10_000,
    }

    def initial_rebalance_delay_ms(self, group_id: str) -> int:
        """How long a new group waits for more members before the first assignment."""
        return int(self._text(group_id, "streams.initial.rebalance.delay.ms"))

    def assignment_configs(self, group_id: str) -> dict[str, str]:
        """What assignments depend on, by name in ascending order, as the group's record has it."""
        replicas = min(self.num_standby_replicas(group_id), int(self._values["group.streams.max.standby.replicas"]))
        configs = {"num.standby.replicas": str(replicas)}
        tags = self.rack_aware_assignment_tags(group_id)
        if tags:
            configs["rack.aware.assignment.tags"] = ",".join(tags)
        return configs

    def num_standby_replicas(self, group_id: str) -> int:
        """How many standby copies the tasks of stateful subtopologies have."""
        return int(self._text(group_id, "streams.num.standby.replicas"))

    def rack_aware_assignment_tags(self, group_id: str) -> tuple[str, ...]:
        """Client tags that members must have, over whose values standby copies are spread."""
        value = self._text(group_id, "streams.rack.aware.assignment.tags")
        listed = value.split(",") if isinstance(value, str) else value
        return tuple(tag.strip() for tag in listed if tag.strip())

    def task_offset_interval_ms(self, group_id: str) -> int:
        """How often members report how far the state of their tasks is."""
        lowest = int(self._values["group.streams.min.task.offset.interval.ms"])
        return max(int(self._text(group_id, "streams.task.offset.interval.ms")), lowest)

    def acceptable_recovery_lag(self, group_id: str) -> int:
        """With how much state to restore a copy of a task counts as caught up."""
        return int(self._text(group_id, "streams.acceptable.recovery.lag"))

    def assignor_name(self, group_id: str) -> str | None:
        """The assignor that the group has been given; None for the default."""
        return self._overrides(group_id).get("streams.assignor.name")

    def _text(self, group_id: str, name: str) -> Any:
        """The group's value as text, or the broker's."""
        text = self._overrides(group_id).get(name)
        return self._values[BROKER_SYNONYMS[name]] if text is None else text


class StreamsServices(NamedTuple):
    """What streams groups need of a broker besides what all groups do."""

    config: StreamsGroupConfig
    assignors: Mapping[str, TaskAssignor]


class StreamsSettings(NamedTuple):
    """What the streams groups of all shards share."""

    config: StreamsGroupConfig
    catalog: TopicCatalog
    assignors: Mapping[str, TaskAssignor]
    """By name, the default first."""

    def assignor(self, group_id: str) -> TaskAssignor:
        """That of a group; the default where it names one that this broker does not have."""
        named = self.assignors.get(self.config.assignor_name(group_id) or "")
        return next(iter(self.assignors.values())) if named is None else named
