"""Dynamic configs: altering, and what is in effect for a topic.

An alteration is checked against the whole set of keys that the resource would have, so that keys which depend on one
another are judged together. A record is written for each key whose value changes, and for every key of a broker, even
unchanged: a broker takes it as the wish to reload what the value points to, such as a key store.

With eligible leader replicas on (KIP-966), `min.insync.replicas` must be the same whatever broker decides, or a
partition's eligible set would mean different things in different places. So the cluster has one value, which cannot
be removed, and no broker has its own; and a change to it clears the eligible sets that were formed under the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType, ConfigSource
from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.answers import check_batch_size
from kalda.metadata.configs import (
    ConfigResource,
    ConfigsImage,
    broker_resource,
    topic_resource,
)
from kalda.metadata.metadata_version import MetadataVersion
from kalda.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

MIN_INSYNC_REPLICAS = "min.insync.replicas"
CORDONED_LOG_DIRS = "cordoned.log.dirs"
UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"
CLUSTER_DEFAULT = broker_resource(None)


class KeyOp(NamedTuple):
    key: str
    op: ConfigOperation
    value: str | None


class EffectiveConfig(NamedTuple):
    """One key of a topic as it holds."""

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    read_only: bool = False


class ConfigSchema(Protocol):
    """What is known of keys: types, defaults, validity, and which broker keys stand in for a topic's."""

    def validate(self, resource: ConfigResource, proposed: Mapping[str, str], existing: Mapping[str, str]) -> None:
        """Raises `ApiError` INVALID_CONFIG (or INVALID_REQUEST for an impossible resource)."""
        ...

    def is_list(self, kind: ConfigResourceType, key: str) -> bool: ...

    def default(self, kind: ConfigResourceType, key: str) -> str | None: ...

    def static_or_default(self, key: str) -> str | None:
        """A broker key as this node's properties give it, or its default."""
        ...

    def effective_topic_configs(
        self, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Sequence[EffectiveConfig]:
        """Every topic key, by name."""
        ...

    def effective_topic_value(
        self, key: str, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> str | None:
        """The topic's own, else the broker's dynamic one, else the cluster's, else the node's static one or default."""
        ...


AlterConfigPolicy = Callable[[ConfigResource, Mapping[str, str | None]], None]
"""`alter.config.policy.class.name`: raises `ApiError` POLICY_VIOLATION."""

Outcome = dict[ConfigResource, ApiError | None]


class ConfigControl:
    """Values by key, by resource."""

    def __init__(
        self,
        registry: SnapshotRegistry,
        schema: ConfigSchema,
        *,
        node_id: int,
        is_elr_enabled: Callable[[], bool],
        can_cordon: Callable[[], bool],
        require_exists: Callable[[ConfigResource], None],
        policy: AlterConfigPolicy | None = None,
    ) -> None:
        """`can_cordon`: whether metadata.version lets brokers cordon log directories (KIP-1066). `require_exists`
        raises `ApiError` for a resource that is not there."""
        self._schema = schema
        self._node = broker_resource(node_id)
        self._is_elr_enabled = is_elr_enabled
        self._can_cordon = can_cordon
        self._require_exists = require_exists
        self._policy = policy
        self.values: TimelineDict[ConfigResource, Mapping[str, str]] = TimelineDict(registry)

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        return self.values.get(resource) or {}

    def incremental_alter(self, changes: Mapping[ConfigResource, Sequence[KeyOp]]) -> Result[VersionedRecord, Outcome]:
        """Each resource is altered as a whole or not at all."""
        records: list[VersionedRecord] = []
        outcome: Outcome = {}
        for resource, ops in changes.items():
            try:
                records += self.alter_one(resource, ops)
                outcome[resource] = None
            except ApiError as error:
                outcome[resource] = error
        return self._finish(records, outcome)

    def legacy_alter(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]]
    ) -> Result[VersionedRecord, Outcome]:
        """AlterConfigs: what is not named is deleted."""
        records: list[VersionedRecord] = []
        outcome: Outcome = {}
        for resource, proposed in changes.items():
            current = self.of(resource)
            altered = {key: value for key, value in proposed.items() if self._is_change(resource, current, key, value)}
            dropped = [key for key in current if key not in proposed]
            try:
                self._check(resource, altered, dropped, is_new=False)
                records += [_record(resource, key, value) for key, value in altered.items()]
                records += [_record(resource, key, None) for key in dropped]
                outcome[resource] = None
            except ApiError as error:
                outcome[resource] = error
        return self._finish(records, outcome)

    def alter_one(
        self, resource: ConfigResource, ops: Sequence[KeyOp], *, is_new: bool = False
    ) -> list[VersionedRecord]:
        """Records of one resource's alteration, without those that follow from it. Raises `ApiError`."""
        current = self.of(resource)
        altered: dict[str, str | None] = {}
        for op in ops:
            value = self._applied(resource, current.get(op.key), op)
            if self._is_change(resource, current, op.key, value):
                altered[op.key] = value
        self._check(resource, altered, (), is_new=is_new)
        return [_record(resource, key, value) for key, value in altered.items()]

    def clear_elr_records(self, records: Iterable[VersionedRecord]) -> list[VersionedRecord]:
        """What must follow `records` where they change the minimum ISR: eligible sets formed under it are void."""
        if not self._is_elr_enabled():
            return []
        cleared = []
        for versioned in records:
            record = versioned.record
            if isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS:
                is_topic = record.resource_type == ConfigResourceType.TOPIC
                cleared.append(VersionedRecord(ClearElrRecord(topic_name=record.resource_name if is_topic else ""), 0))
        return cleared

    def elr_safety_records(self) -> list[VersionedRecord]:
        """What turning eligible leader replicas on takes: one minimum ISR for the cluster, none for any broker."""
        records = []
        if MIN_INSYNC_REPLICAS not in self.of(CLUSTER_DEFAULT):
            records.append(_record(CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, self.static_min_insync_replicas))
        for resource, values in self.values.items():
            if resource.type == ConfigResourceType.BROKER and resource.name and MIN_INSYNC_REPLICAS in values:
                records.append(_record(resource, MIN_INSYNC_REPLICAS, None))
        return records

    @property
    def static_min_insync_replicas(self) -> str:
        return self._schema.static_or_default(MIN_INSYNC_REPLICAS) or "1"

    def unclean_election_enabled(self, topic: str) -> bool:
        return (self._topic_value(topic, UNCLEAN_LEADER_ELECTION_ENABLE) or "").strip().lower() == "true"

    def min_insync_replicas(self, topic: str) -> int:
        return int(self._topic_value(topic, MIN_INSYNC_REPLICAS) or 1)

    def effective_topic_configs(self, creation: Mapping[str, str]) -> Sequence[EffectiveConfig]:
        """What a topic made with these keys would have."""
        return self._schema.effective_topic_configs(creation, self.of(self._node), self.of(CLUSTER_DEFAULT))

    def load(self, image: ConfigsImage) -> None:
        """All that there is, after a reset."""
        self.values.load(image.resources)

    def replay(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        values = dict(self.of(resource))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self.values[resource] = values
        else:
            self.values.pop(resource, None)

    def forget_topic(self, name: str) -> None:
        """Part of a topic's removal, on replay: its configs have no records of their own."""
        self.values.pop(topic_resource(name), None)

    def _topic_value(self, topic: str, key: str) -> str | None:
        return self._schema.effective_topic_value(
            key, self.of(topic_resource(topic)), self.of(self._node), self.of(CLUSTER_DEFAULT)
        )

    def _finish(self, records: list[VersionedRecord], outcome: Outcome) -> Result[VersionedRecord, Outcome]:
        records += self.clear_elr_records(records)
        check_batch_size(len(records))
        return Result(records, outcome, atomic=True)

    @staticmethod
    def _is_change(resource: ConfigResource, current: Mapping[str, str], key: str, value: str | None) -> bool:
        return resource.type == ConfigResourceType.BROKER or current.get(key) != value

    def _applied(self, resource: ConfigResource, current: str | None, op: KeyOp) -> str | None:
        kind = ConfigResourceType(resource.type)
        if op.op is ConfigOperation.DELETE:
            return None
        if op.value is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {op.key}")
        if op.op is ConfigOperation.SET:
            return op.value
        if not self._schema.is_list(kind, op.key):
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"Can't {op.op.name} to key {op.key} because its type is not LIST."
            )
        base = self._schema.default(kind, op.key) if current is None else current
        parts = [part for part in (base or "").split(",") if part]
        for part in op.value.split(","):
            if op.op is ConfigOperation.APPEND and part not in parts:
                parts.append(part)
            elif op.op is ConfigOperation.SUBTRACT and part in parts:
                parts.remove(part)
        return ",".join(parts)

    def _check(
        self, resource: ConfigResource, altered: Mapping[str, str | None], dropped: Iterable[str], *, is_new: bool
    ) -> None:
        current = self.of(resource)
        proposed = dict(current)
        for key, value in [*altered.items(), *((key, None) for key in dropped)]:
            self._check_min_insync_replicas(resource, key, value)
            self._check_cordoning(resource, key)
            if value is None:
                proposed.pop(key, None)
            else:
                proposed[key] = value
        self._schema.validate(resource, proposed, current)
        if not is_new:
            self._require_exists(resource)
        if self._policy is not None:
            self._policy(resource, altered)

    def _check_min_insync_replicas(self, resource: ConfigResource, key: str, value: str | None) -> None:
        if key != MIN_INSYNC_REPLICAS or resource.type != ConfigResourceType.BROKER or not self._is_elr_enabled():
            return
        if resource.name:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
            )
        if not resource.name and value is None:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
            )

    def _check_cordoning(self, resource: ConfigResource, key: str) -> None:
        if key == CORDONED_LOG_DIRS and resource.type == ConfigResourceType.BROKER and not self._can_cordon():
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                "The cordoned.log.dirs configuration value cannot be set because it requires metadata.version >= "
                f"{MetadataVersion.IBP_4_3_IV0}",
            )


def _record(resource: ConfigResource, key: str, value: str | None) -> VersionedRecord:
    record = ConfigRecord(resource_type=int(resource.type), resource_name=resource.name, name=key, value=value)
    return VersionedRecord(record, 0)
