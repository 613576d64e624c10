"""Creating, growing and removing topics.

Each topic of a request is granted or refused on its own. The records of all granted ones are one batch, so that they
are applied together or not at all.

Not obvious:

- Responses of CreateTopics share their list of default configs, and equal partitions their lists: they are never
  changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.resources import ConfigOperation
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import METADATA_TOPIC_NAME, ZERO_UUID, Uuid, UuidSource, validate_topic_name
from kalda.controller.answers import check_batch_size, error_fields
from kalda.controller.cluster import ClusterControl
from kalda.controller.configs import ConfigControl, EffectiveConfig, KeyOp
from kalda.controller.features import FeatureControl
from kalda.controller.partitions import PartitionControl
from kalda.controller.placement import Random, place_replicas
from kalda.metadata.configs import topic_resource
from kalda.metadata.topics import PartitionRegistration
from kalda.protocol.access import (
    ALTER_TOPIC,
    CLUSTER_RESOURCE_NAME,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CONFIGS_OF_TOPIC,
    DESCRIBE_TOPIC,
    Caller,
)
from kalda.protocol.messages.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kalda.protocol.notation import copier
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result

MAX_PARTITIONS_PER_REQUEST = 10_000
_USE_DEFAULT = -1
_ALL_FENCED = "All brokers are currently fenced or in controlled shutdown."


class TopicDefaults(NamedTuple):
    num_partitions: int
    replication_factor: int


class NewTopic(NamedTuple):
    """The input of a policy: either the two numbers or an assignment (brokers by partition), and the given configs."""

    name: str
    num_partitions: int | None
    replication_factor: int | None
    assignments: Mapping[int, Sequence[int]] | None
    configs: Mapping[str, str | None]


CreateTopicPolicy = Callable[[NewTopic], None]
"""`create.topic.policy.class.name`: raises `ApiError` POLICY_VIOLATION."""


class TopicControl:
    """Requests about topics. `PartitionControl` has the state that they change."""

    def __init__(
        self,
        state: PartitionControl,
        features: FeatureControl,
        cluster: ClusterControl,
        configs: ConfigControl,
        *,
        defaults: TopicDefaults,
        new_id: UuidSource,
        rng: Random,
        policy: CreateTopicPolicy | None = None,
    ) -> None:
        self._state = state
        self._features = features
        self._cluster = cluster
        self._configs = configs
        self._defaults = defaults
        self._new_id = new_id
        self._rng = rng
        self._policy = policy
        self._shown_defaults: tuple[Sequence[EffectiveConfig], list[CreatableTopicConfigs]] | None = None
        """The effective configs of a topic that sets none, and as responses show them. The responses share the list:
        thousands of topics may be created at once."""

    # CreateTopics

    def create(
        self, request: CreateTopicsRequest, caller: Caller
    ) -> Steps[Result[VersionedRecord, CreateTopicsResponse]]:
        check_batch_size(len(request.topics) + sum(len(topic.assignments) for topic in request.topics))
        records: list[VersionedRecord] = []
        results: list[CreatableTopicResult] = []
        names = [topic.name for topic in request.topics]
        duplicates = _duplicates(names)
        if sum(map(self._requested_partitions, request.topics)) > MAX_PARTITIONS_PER_REQUEST:
            too_many = ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
            refused = [CreatableTopicResult(name=name, configs=[], **error_fields(too_many)) for name in names]
            return Result([], CreateTopicsResponse(topics=refused))
        step_ends_at = ITEMS_A_STEP
        for topic in request.topics:
            if topic.name in duplicates:
                continue
            if len(records) + len(results) >= step_ends_at:
                step_ends_at = len(records) + len(results) + ITEMS_A_STEP
                yield
            try:
                self._check_may_create(topic.name, caller)
                topic_records, result = self._create(topic, caller)
            except ApiError as error:
                results.append(CreatableTopicResult(name=topic.name, configs=[], **error_fields(error)))
                continue
            records += topic_records
            check_batch_size(len(records))
            results.append(result)
        results += [
            CreatableTopicResult(name=name, configs=[], **error_fields(_invalid("Duplicate topic name.")))
            for name in duplicates
        ]
        outcome = Result(records, CreateTopicsResponse(topics=results), atomic=True)
        return outcome.without_records() if request.validate_only else outcome

    def _requested_partitions(self, topic: CreatableTopic) -> int:
        """How many partitions the topic would have."""
        count = self._defaults.num_partitions if topic.num_partitions == _USE_DEFAULT else topic.num_partitions
        return len(topic.assignments) or max(0, count)

    def _check_may_create(self, name: str, caller: Caller) -> None:
        if name == METADATA_TOPIC_NAME:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if not _may_on_cluster(caller, AclOperation.CREATE) and not CREATE_TOPIC.holds(caller, name):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
        if name in self._state.topic_ids:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        validate_topic_name(name)
        other = self._state.colliding_topic(name)
        if other is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def _create(self, topic: CreatableTopic, caller: Caller) -> tuple[list[VersionedRecord], CreatableTopicResult]:
        configs = {config.name: config.value for config in topic.configs}
        ops = [KeyOp(key, ConfigOperation.SET, value) for key, value in configs.items() if value is not None]
        nulls = [key for key, value in configs.items() if value is None]
        if nulls:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
        config_records = self._configs.alter_one(topic_resource(topic.name), ops, is_new=True)
        config_records += self._configs.clear_elr_records(config_records)
        if topic.assignments:
            partitions = self._manual_partitions(topic)
            new_topic = NewTopic(
                topic.name, None, None, {part.partition_index: part.broker_ids for part in topic.assignments}, configs
            )
        else:
            partitions = self._placed_partitions(topic)
            new_topic = NewTopic(topic.name, len(partitions), len(partitions[0].replicas), None, configs)
        if self._policy is not None:
            self._policy(new_topic)
        caller.charge_partitions(len(partitions))
        topic_id = self._fresh_topic_id()
        records = [VersionedRecord(TopicRecord(name=topic.name, topic_id=topic_id), 0), *config_records]
        records += self._partition_records(topic_id, 0, partitions)
        return records, self._creation_result(topic.name, topic_id, partitions, configs, caller)

    def _manual_partitions(self, topic: CreatableTopic) -> list[PartitionRegistration]:
        if topic.replication_factor != _USE_DEFAULT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but replication factor was not set to -1.",
            )
        if topic.num_partitions != _USE_DEFAULT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            )
        partitions: dict[int, PartitionRegistration] = {}
        replication_factor: int | None = None
        for assignment in topic.assignments:
            at = assignment.partition_index
            if at in partitions:
                raise _bad_assignment(f"Found multiple manual partition assignments for partition {at}")
            self.check_manual_assignment(assignment.broker_ids, replication_factor)
            replication_factor = len(assignment.broker_ids)
            partitions[at] = self._manual_partition(at, assignment.broker_ids)
        if sorted(partitions) != list(range(len(partitions))):
            raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
        return [partitions[at] for at in range(len(partitions))]

    def _placed_partitions(self, topic: CreatableTopic) -> list[PartitionRegistration]:
        if topic.replication_factor < _USE_DEFAULT or topic.replication_factor == 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.num_partitions < _USE_DEFAULT or topic.num_partitions == 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        count = self._defaults.num_partitions if topic.num_partitions == _USE_DEFAULT else topic.num_partitions
        factor = topic.replication_factor
        if factor == _USE_DEFAULT:
            factor = self._defaults.replication_factor
        return self._place(count, factor)

    def _creation_result(
        self,
        name: str,
        topic_id: Uuid,
        partitions: Sequence[PartitionRegistration],
        configs: Mapping[str, str | None],
        caller: Caller,
    ) -> CreatableTopicResult:
        result = CreatableTopicResult(name=name, topic_id=topic_id, error_message=None)
        if not DESCRIBE_CONFIGS_OF_TOPIC.holds_quietly(caller, name):
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return result
        result.num_partitions = len(partitions)
        result.replication_factor = len(partitions[0].replicas)
        creation = {key: value for key, value in configs.items() if value is not None}
        defaults = self._configs.effective_topic_configs({})
        if self._shown_defaults is None or self._shown_defaults[0] is not defaults:
            self._shown_defaults = (defaults, [_shown(config) for config in defaults])
        result.configs = self._shown_defaults[1]
        if creation:
            shown = {config.name: config for config in result.configs}
            effective = self._configs.effective_topic_configs(creation)
            result.configs = [_shown(each) if each.name in creation else shown[each.name] for each in effective]
        return result

    # CreatePartitions

    def grow(
        self, request: CreatePartitionsRequest, caller: Caller
    ) -> Steps[Result[VersionedRecord, CreatePartitionsResponse]]:
        check_batch_size(len(request.topics) + sum(len(topic.assignments or ()) for topic in request.topics))
        names = [topic.name for topic in request.topics]
        duplicates = _duplicates(names)
        records: list[VersionedRecord] = []
        results: list[CreatePartitionsTopicResult] = []
        results += [
            CreatePartitionsTopicResult(name=name, **error_fields(_invalid("Duplicate topic name.")))
            for name in duplicates
        ]
        step_ends_at = ITEMS_A_STEP
        for topic in request.topics:
            if topic.name in duplicates:
                continue
            if len(records) + len(results) >= step_ends_at:
                step_ends_at = len(records) + len(results) + ITEMS_A_STEP
                yield
            failure: ApiError | None = None
            try:
                if not ALTER_TOPIC.holds(caller, topic.name):
                    raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                records += self._grow(topic, caller)
            except ApiError as error:
                failure = error
            check_batch_size(len(records))
            results.append(CreatePartitionsTopicResult(name=topic.name, **error_fields(failure)))
        outcome = Result(records, CreatePartitionsResponse(results=results), atomic=True)
        return outcome.without_records() if request.validate_only else outcome

    def _grow(self, topic: CreatePartitionsTopic, caller: Caller) -> list[VersionedRecord]:
        topic_id = self._state.topic_ids.get(topic.name)
        if topic_id is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        present = self._state.partition_counts.get(topic_id, 0)
        first = self._state.partition(topic_id, 0)
        assert first is not None, f"topic {topic.name} has no partitions"
        if topic.count == present:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if topic.count < present:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {present} partition(s); {topic.count} would not be an increase.",
            )
        additional = topic.count - present
        if topic.assignments is not None and len(topic.assignments) != additional:
            raise _bad_assignment(
                f"Attempted to add {additional} additional partition(s), but only {len(topic.assignments)} "
                "assignment(s) were specified."
            )
        caller.charge_partitions(additional)
        factor = len(first.replicas)
        if topic.assignments is None:
            partitions = self._place(additional, factor)
        else:
            partitions = []
            for at, assignment in enumerate(topic.assignments):
                self.check_manual_assignment(assignment.broker_ids, factor)
                partitions.append(self._manual_partition(present + at, assignment.broker_ids))
        return self._partition_records(topic_id, present, partitions)

    # DeleteTopics

    def delete(
        self, request: DeleteTopicsRequest, caller: Caller
    ) -> Steps[Result[VersionedRecord, DeleteTopicsResponse]]:
        """Delete topics that are given by name or by id. One that is given twice, in either way, is not deleted."""
        check_batch_size(len(request.topics) + len(request.topic_names))
        results: list[DeletableTopicResult] = []
        chosen = yield from self._chosen_for_deletion(request, caller, results)
        records: list[VersionedRecord] = []
        for number, (topic_id, name) in enumerate(chosen.items(), 1):
            if number % ITEMS_A_STEP == 0:
                yield
            failure: ApiError | None = None
            try:
                caller.charge_partitions(self._state.partition_counts.get(topic_id, 0))
                records.append(VersionedRecord(RemoveTopicRecord(topic_id=topic_id), 0))
            except ApiError as error:
                failure = error
            results.append(_deletion(name, topic_id, failure))
        return Result(records, DeleteTopicsResponse(responses=results), atomic=True)

    def _chosen_for_deletion(
        self, request: DeleteTopicsRequest, caller: Caller, results: list[DeletableTopicResult]
    ) -> Steps[dict[Uuid, str]]:
        """The names of the topics to delete, by id. The errors of refused ones are appended to `results`."""
        names: dict[str, int] = {}
        ids: dict[Uuid, int] = {}
        for name in request.topic_names:
            names[name] = names.get(name, 0) + 1
        for topic in request.topics:
            if topic.name is None and topic.topic_id == ZERO_UUID:
                results.append(_deletion(None, ZERO_UUID, _invalid("Neither topic name nor id were specified.")))
            elif topic.name is None:
                ids[topic.topic_id] = ids.get(topic.topic_id, 0) + 1
            elif topic.topic_id == ZERO_UUID:
                names[topic.name] = names.get(topic.name, 0) + 1
            else:
                both = _invalid("You may not specify both topic name and topic id.")
                results.append(_deletion(topic.name, topic.topic_id, both))
        chosen: dict[Uuid, str] = {}
        for number, (topic_id, count) in enumerate(ids.items(), 1):
            if number % ITEMS_A_STEP == 0:
                yield
            if count > 1:
                results.append(_deletion(None, topic_id, _invalid("Duplicate topic id.")))
                continue
            found = self._state.topic_names.get(topic_id)
            failure = _refusal_by_id(found, caller)
            if found is None or failure is not None:
                shown = found if found and DESCRIBE_TOPIC.holds(caller, found) else None
                results.append(_deletion(shown, topic_id, failure))
            else:
                chosen[topic_id] = found
        for number, (name, count) in enumerate(names.items(), 1):
            if number % ITEMS_A_STEP == 0:
                yield
            self._choose_by_name(name, count, ids, caller, chosen, results)
        return chosen

    def _choose_by_name(
        self,
        name: str,
        count: int,
        ids: Mapping[Uuid, int],
        caller: Caller,
        chosen: dict[Uuid, str],
        results: list[DeletableTopicResult],
    ) -> None:
        if count > 1:
            results.append(_deletion(name, ZERO_UUID, _invalid("Duplicate topic name.")))
            return
        topic_id = self._state.topic_ids.get(name)
        may_delete = _may_on_cluster(caller, AclOperation.DELETE)
        if not may_delete and not DESCRIBE_TOPIC.holds(caller, name):
            results.append(_deletion(name, ZERO_UUID, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
        elif topic_id is None:
            error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
            results.append(_deletion(name, ZERO_UUID, error))
        elif not may_delete and not DELETE_TOPIC.holds(caller, name):
            results.append(_deletion(name, ZERO_UUID, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
        elif topic_id in ids:
            chosen.pop(topic_id, None)
            error = _invalid("The provided topic name maps to an ID that was already supplied.")
            results.append(_deletion(name, topic_id, error))
        else:
            chosen[topic_id] = name

    # Shared

    def check_manual_assignment(self, replicas: Sequence[int], replication_factor: int | None) -> None:
        """Raises `ApiError` INVALID_REPLICA_ASSIGNMENT."""
        if not replicas:
            raise _bad_assignment("The manual partition assignment includes an empty replica list.")
        previous: int | None = None
        for broker_id in sorted(replicas):
            if broker_id not in self._cluster.brokers:
                raise _bad_assignment(
                    f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
                )
            if broker_id == previous:
                raise _bad_assignment(
                    f"The manual partition assignment includes the broker {broker_id} more than once."
                )
            previous = broker_id
        if replication_factor is not None and len(replicas) != replication_factor:
            raise _bad_assignment(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {replication_factor} replica(s)."
            )

    def _manual_partition(self, at: int, replicas: Sequence[int]) -> PartitionRegistration:
        partition = self._new_partition(replicas)
        if partition is None:
            raise _bad_assignment(
                f"All brokers specified in the manual partition assignment for partition {at} are fenced or in "
                "controlled shutdown."
            )
        return partition

    def _place(self, count: int, replication_factor: int) -> list[PartitionRegistration]:
        check_batch_size(count)
        prefix = f"Unable to replicate the partition {replication_factor} time(s): "
        try:
            placed = place_replicas(self._cluster.usable_brokers(), count, replication_factor, self._rng)
        except ApiError as error:
            raise ApiError(error.code, prefix + error.message) from None
        known: dict[tuple[int, ...], PartitionRegistration] = {}
        partitions = []
        for replicas in map(tuple, placed):
            partition = known.get(replicas) or self._new_partition(replicas)
            if partition is None:
                raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, prefix + _ALL_FENCED)
            known[replicas] = partition
            partitions.append(partition)
        return partitions

    def _new_partition(self, replicas: Sequence[int]) -> PartitionRegistration | None:
        """A partition whose ISR is the active ones of `replicas`; None where none is active."""
        isr = tuple(replica for replica in replicas if self._cluster.is_active(replica))
        if not isr:
            return None
        return PartitionRegistration(
            replicas=tuple(replicas),
            directories=tuple(self._cluster.default_directory(replica) for replica in replicas),
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
        )

    def _partition_records(
        self, topic_id: Uuid, first: int, partitions: Sequence[PartitionRegistration]
    ) -> list[VersionedRecord]:
        """The records of new partitions, numbered from `first` on. Those of equal partitions share their lists: a topic
        may have thousands of partitions."""
        version = self._features.metadata_version
        record_version = version.partition_record_version
        models: dict[int, PartitionRecord] = {}
        """By identity: `_place` gives partitions with the same replicas one registration."""
        records = []
        copy = copier(PartitionRecord)
        for at, partition in enumerate(partitions, first):
            model = models.get(id(partition))
            if model is None:
                model = models[id(partition)] = partition.to_record(topic_id, at)
                if not version.is_directory_assignment_supported:
                    model.directories = []
            record = copy(model)
            record.partition_id = at
            records.append(VersionedRecord(record, record_version))
        return records

    def _fresh_topic_id(self) -> Uuid:
        while True:
            topic_id = self._new_id()
            if topic_id not in self._state.topic_names:
                return topic_id


def _shown(config: EffectiveConfig) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=config.name,
        value=None if config.is_sensitive else config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.is_sensitive,
    )


def _duplicates(names: Sequence[str]) -> dict[str, None]:
    """Names that occur more than once, in order."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return {name: None for name, count in counts.items() if count > 1}


def _refusal_by_id(name: str | None, caller: Caller) -> ApiError | None:
    """Why the topic with this name, None for an unknown id, may not be deleted by its id. As in Kafka, the error
    differs from that of an unknown id where the caller may not delete the topic; the response then omits the name
    unless the caller may describe the topic."""
    if name is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if _may_on_cluster(caller, AclOperation.DELETE) or DELETE_TOPIC.holds(caller, name):
        return None
    return ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _may_on_cluster(caller: Caller, operation: AclOperation) -> bool:
    """Whether the caller may do it to all topics. A denial is not logged: the right to the topic is enough."""
    return caller.allows(operation, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False)


def _deletion(name: str | None, topic_id: Uuid, error: ApiError | None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, **error_fields(error))


def _bad_assignment(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
