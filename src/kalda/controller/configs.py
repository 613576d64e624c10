"""Dynamic configs: alterations, and the effective values of topics.

An alteration is checked together with all other keys of the resource, because some keys depend on each other. A record
is written for each key whose value changes. For brokers a record is written even for an unchanged value: it makes a
broker reload the file that the value points to, such as a key store.

With eligible leader replicas on (KIP-966), all brokers must have the same `min.insync.replicas`, or the eligible
replicas of a partition would be defined differently on different brokers. So the cluster has one value, which cannot be
removed, and no broker has its own. A change of it clears the eligible replicas, which were chosen under the old value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.resources import ConfigOperation, ConfigResourceType, ConfigSource
from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.answers import check_batch_size, error_fields
from kalda.metadata.configs import (
    ConfigResource,
    ConfigsImage,
    broker_resource,
    topic_resource,
)
from kalda.metadata.features import MetadataVersion
from kalda.protocol.access import Caller
from kalda.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from kalda.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

MIN_INSYNC_REPLICAS = "min.insync.replicas"
CORDONED_LOG_DIRS = "cordoned.log.dirs"
_MAX_VALUE_LENGTH = 32_767
UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"
CLUSTER_DEFAULT = broker_resource(None)


class KeyOp(NamedTuple):
    """One operation of an alteration."""

    key: str
    op: ConfigOperation
    value: str | None


class EffectiveConfig(NamedTuple):
    """The effective value of one key of a topic."""

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    read_only: bool = False


class ConfigSchema(Protocol):
    """Types, defaults and validation of keys, and the broker keys that are defaults of topic keys."""

    def validate(self, resource: ConfigResource, proposed: Mapping[str, str], existing: Mapping[str, str]) -> None:
        """Raises `ApiError` INVALID_CONFIG (or INVALID_REQUEST for an impossible resource)."""
        ...

    def is_list(self, kind: ConfigResourceType, key: str) -> bool: ...

    def default(self, kind: ConfigResourceType, key: str) -> str | None: ...

    def static_or_default(self, key: str) -> str | None:
        """The value of a broker key in this node's properties, or its default."""
        ...

    def effective_topic_configs(
        self, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Sequence[EffectiveConfig]:
        """Every topic key, by name."""
        ...

    def effective_topic_value(
        self, key: str, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> str | None:
        """The topic's value, else the broker's dynamic one, the cluster's, the one in the properties, the default."""
        ...


AlterConfigPolicy = Callable[[ConfigResource, Mapping[str, str | None]], None]
"""`alter.config.policy.class.name`: raises `ApiError` POLICY_VIOLATION."""

Outcome = dict[ConfigResource, ApiError | None]
_TopicDefaults = tuple[Mapping[str, str] | None, Mapping[str, str] | None, Sequence[EffectiveConfig]]


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
        """`can_cordon`: whether brokers may cordon log directories at the present metadata.version (KIP-1066).
        `require_exists` raises `ApiError` for a resource that does not exist."""
        self._schema = schema
        self._node = broker_resource(node_id)
        self._is_elr_enabled = is_elr_enabled
        self._can_cordon = can_cordon
        self._require_exists = require_exists
        self._policy = policy
        self.values: TimelineDict[ConfigResource, Mapping[str, str]] = TimelineDict(registry)
        self._topic_defaults: _TopicDefaults | None = None
        """Computed from the configs of this broker and of all brokers that it begins with, which are never changed in
        place."""

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        return self.values.get(resource) or {}

    def incremental_alter(
        self, changes: Mapping[ConfigResource, Sequence[KeyOp]], *, is_forwarded: bool = True
    ) -> Steps[Result[VersionedRecord, Outcome]]:
        """Alter resources. Of each one all keys are altered or none. `is_forwarded`: a broker has checked the changes
        of its own configs."""
        records: list[VersionedRecord] = []
        outcome: Outcome = {}
        step_ends_at = ITEMS_A_STEP
        for resource, ops in changes.items():
            if len(records) + len(outcome) >= step_ends_at:
                step_ends_at = len(records) + len(outcome) + ITEMS_A_STEP
                yield
            try:
                records += self.alter_one(resource, ops, is_forwarded=is_forwarded)
                outcome[resource] = None
            except ApiError as error:
                outcome[resource] = error
        return self._finish(records, outcome)

    def legacy_alter(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, is_forwarded: bool = True
    ) -> Steps[Result[VersionedRecord, Outcome]]:
        """Alter resources. Keys of a resource that are not in `changes` are deleted."""
        records: list[VersionedRecord] = []
        outcome: Outcome = {}
        step_ends_at = ITEMS_A_STEP
        for resource, proposed in changes.items():
            if len(records) + len(outcome) >= step_ends_at:
                step_ends_at = len(records) + len(outcome) + ITEMS_A_STEP
                yield
            current = self.of(resource)
            altered = {key: value for key, value in proposed.items() if self._is_change(resource, current, key, value)}
            dropped = [key for key in current if key not in proposed]
            try:
                self._check(resource, altered, dropped, is_new=False, is_forwarded=is_forwarded)
                records += [_record(resource, key, value) for key, value in altered.items()]
                records += [_record(resource, key, None) for key in dropped]
                outcome[resource] = None
            except ApiError as error:
                outcome[resource] = error
            check_batch_size(len(records))
        return self._finish(records, outcome)

    def alter_one(
        self, resource: ConfigResource, ops: Sequence[KeyOp], *, is_new: bool = False, is_forwarded: bool = True
    ) -> list[VersionedRecord]:
        """The records of one resource's alteration, without `clear_elr_records`. Raises `ApiError`."""
        current = self.of(resource)
        altered: dict[str, str | None] = {}
        for op in ops:
            value = self._applied(resource, current.get(op.key), op)
            if self._is_change(resource, current, op.key, value):
                altered[op.key] = value
        self._check(resource, altered, (), is_new=is_new, is_forwarded=is_forwarded)
        return [_record(resource, key, value) for key, value in altered.items()]

    def clear_elr_records(self, records: Iterable[VersionedRecord]) -> list[VersionedRecord]:
        """The records that must follow `records` where these change the minimum ISR: eligible replicas that were chosen
        under the old minimum are cleared."""
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
        """The records that turning on eligible leader replicas needs: one minimum ISR for the cluster, none for single
        brokers."""
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
        """The effective configs of a topic created with these keys. Without any, the same object until the configs of
        brokers change."""
        broker, cluster = self.values.get(self._node), self.values.get(CLUSTER_DEFAULT)
        known = self._topic_defaults
        if known is None or known[0] is not broker or known[1] is not cluster:
            defaults = self._schema.effective_topic_configs({}, broker or {}, cluster or {})
            known = self._topic_defaults = (broker, cluster, defaults)
        if not creation:
            return known[2]
        effective = {each.name: each for each in known[2]}
        for name, value in creation.items():  # internal keys are among these only
            sensitive = effective[name].is_sensitive if name in effective else False
            effective[name] = EffectiveConfig(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG, sensitive)
        return [effective[name] for name in sorted(effective)]

    def load(self, image: ConfigsImage) -> None:
        """Load all configs into the empty state after a reset."""
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

    def replay_topic_removal(self, name: str) -> None:
        """Remove the configs of a removed topic. The log has no records for this."""
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
        self,
        resource: ConfigResource,
        altered: Mapping[str, str | None],
        dropped: Iterable[str],
        *,
        is_new: bool,
        is_forwarded: bool,
    ) -> None:
        current = self.of(resource)
        proposed = dict(current)
        for key, value in [*altered.items(), *((key, None) for key in dropped)]:
            self._check_min_insync_replicas(resource, key, value)
            self._check_cordoning(resource, key, value, current.get(key), is_forwarded)
            if value is None:
                proposed.pop(key, None)
            elif len(value) > _MAX_VALUE_LENGTH:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    "The configuration value cannot be added because it exceeds the maximum value size of "
                    f"{_MAX_VALUE_LENGTH} bytes.",
                )
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

    def _check_cordoning(
        self, resource: ConfigResource, key: str, value: str | None, before: str | None, is_forwarded: bool
    ) -> None:
        if key != CORDONED_LOG_DIRS or resource.type != ConfigResourceType.BROKER:
            return
        if not self._can_cordon():
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                "The cordoned.log.dirs configuration value cannot be set because it requires metadata.version >= "
                f"{MetadataVersion.IBP_4_3_IV0}",
            )
        # A controller has the ids of a broker's directories and not their paths: it can only take some of them away.
        if not is_forwarded and value and value.strip() and not _paths(value) <= _paths(before or ""):
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                "When updating cordoned.log.dirs via controllers,  the new value must be a subset of the current "
                "configuration value.",
            )


def _paths(text: str) -> set[str]:
    return {path.strip() for path in text.split(",")}


def _record(resource: ConfigResource, key: str, value: str | None) -> VersionedRecord:
    record = ConfigRecord(resource_type=int(resource.type), resource_name=resource.name, name=key, value=value)
    return VersionedRecord(record, 0)


# AlterConfigs and IncrementalAlterConfigs: requests to alterations, and results to responses.
#
# A resource that a request has twice is refused, because the result would depend on the order.


class _Named(Protocol):
    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


def incremental_alter_configs(
    configs: ConfigControl, request: IncrementalAlterConfigsRequest, caller: Caller
) -> Steps[Result[VersionedRecord, IncrementalAlterConfigsResponse]]:
    """IncrementalAlterConfigs (KIP-339): keys that are not in the request are not changed."""
    check_batch_size(len(request.resources) + sum(len(resource.configs) for resource in request.resources))
    outcome, accepted = yield from _check_resources(request.resources, caller)
    changes: dict[ConfigResource, list[KeyOp]] = {}
    for number, resource in enumerate(request.resources, 1):
        if number % ITEMS_A_STEP == 0:
            yield
        key = _key(resource)
        if key not in accepted:
            continue
        try:
            changes[key] = _operations(resource)
        except ApiError as error:
            outcome[key] = error
    result = yield from configs.incremental_alter(changes, is_forwarded=caller.forwarded_by is not None)
    outcome.update(result.response)
    response = IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                resource_type=int(resource.type),
                resource_name=resource.name,
                **error_fields(error),
            )
            for resource, error in outcome.items()
        ]
    )
    return Result([] if request.validate_only else result.records, response, atomic=True)


def legacy_alter_configs(
    configs: ConfigControl, request: AlterConfigsRequest, caller: Caller
) -> Steps[Result[VersionedRecord, AlterConfigsResponse]]:
    """AlterConfigs: keys that are not in the request are deleted."""
    check_batch_size(len(request.resources) + sum(len(resource.configs) for resource in request.resources))
    outcome, accepted = yield from _check_resources(request.resources, caller)
    changes = {
        _key(resource): {config.name: config.value for config in resource.configs}
        for resource in request.resources
        if _key(resource) in accepted
    }
    result = yield from configs.legacy_alter(changes, is_forwarded=caller.forwarded_by is not None)
    outcome.update(result.response)
    response = AlterConfigsResponse(
        responses=[
            AlterConfigsResponseAlterConfigsResourceResponse(
                resource_type=int(resource.type),
                resource_name=resource.name,
                **error_fields(error),
            )
            for resource, error in outcome.items()
        ]
    )
    return Result([] if request.validate_only else result.records, response, atomic=True)


def _operations(resource: IncrementalAlterConfigsRequestAlterConfigsResource) -> list[KeyOp]:
    ops: dict[str, KeyOp] = {}
    for config in resource.configs:
        if config.name in ops:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys : {config.name}")
        if config.config_operation not in ConfigOperation.__members__.values():
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Unknown operation {config.config_operation} on config {config.name}"
            )
        ops[config.name] = KeyOp(config.name, ConfigOperation(config.config_operation), config.value)
    return list(ops.values())


def _key(resource: _Named) -> ConfigResource:
    return ConfigResource(resource.resource_type, resource.resource_name)


def _check_resources(resources: Sequence[_Named], caller: Caller) -> Steps[tuple[Outcome, set[ConfigResource]]]:
    """The outcome so far of each resource, with the errors of refused ones, and the resources that are not refused."""
    outcome: Outcome = {}
    accepted: set[ConfigResource] = set()
    for number, resource in enumerate(resources, 1):
        if number % ITEMS_A_STEP == 0:
            yield
        key = _key(resource)
        if key in outcome:
            accepted.discard(key)
            outcome[key] = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
            continue
        outcome[key] = _refusal(key, caller)
        if outcome[key] is None:
            accepted.add(key)
    return outcome, accepted


def _refusal(resource: ConfigResource, caller: Caller) -> ApiError | None:
    """Topics and groups need ALTER_CONFIGS on themselves; brokers and metrics subscriptions need it on the cluster."""
    match resource.type:
        case ConfigResourceType.TOPIC:
            allowed = caller.allows(AclOperation.ALTER_CONFIGS, AclResourceType.TOPIC, resource.name)
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ConfigResourceType.GROUP:
            allowed = caller.allows(AclOperation.ALTER_CONFIGS, AclResourceType.GROUP, resource.name)
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER | ConfigResourceType.CLIENT_METRICS:
            allowed = caller.allows_on_cluster(AclOperation.ALTER_CONFIGS)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        case _:
            return ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {resource.type}.")
    return None if allowed else ApiError(code)
