"""The group coordinator: consumer groups and their committed offsets, in `__consumer_offsets`.

Serves the group APIs. Each group belongs to one partition of the topic, and the leader of that partition coordinates
it: the module `partitions` calls the table of coordinators when this broker starts or stops to lead one.
"""

from __future__ import annotations

from functools import partial

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.pending import Pending
from kalda.base.sensors import Sensors
from kalda.base.topic_names import OFFSETS_TOPIC
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.modules.coordinator_table import Coordinators, add_load_times
from kalda.broker.modules.metadata_cache import MetadataCache
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.requests.rows import Row
from kalda.coordinator.groups.classic_group import GroupState
from kalda.coordinator.groups.config import GroupCoordinatorConfig
from kalda.coordinator.groups.counters import GROUP_METRICS
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.coordinator.internal_topics import GROUPS
from kalda.coordinator.runtime import LoadState
from kalda.protocol.messages.transactions import TxnOffsetCommitRequest
from kalda.records.batch import NO_SEQUENCE
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.verification import ClientSupport, Errors, TransactionVerifier
from kalda.storage.log.producer_state import Verification

_MANAGER = "kafka.coordinator.group:type=GroupMetadataManager"
_COUNTED_STATES = {
    GroupState.PREPARING_REBALANCE: "NumGroupsPreparingRebalance",
    GroupState.COMPLETING_REBALANCE: "NumGroupsCompletingRebalance",
    GroupState.STABLE: "NumGroupsStable",
    GroupState.EMPTY: "NumGroupsEmpty",
    GroupState.DEAD: "NumGroupsDead",
}


class GroupsModule(Module):
    """Rests on the table of coordinators, to which it adds its own; on the replicas and the verifier, for transactions
    that commit offsets."""

    def __init__(
        self,
        context: BrokerContext,
        coordinators: Coordinators,
        replicas: ReplicaManager,
        verifier: TransactionVerifier,
    ) -> None:
        clock = context.host.clock
        self._coordinator = coordinator = GroupCoordinator(
            GroupCoordinatorConfig.from_properties(context.config.values),
            coordinators.log(GROUPS),
            TopicNames(context.cache),
            context.host.new_uuid,
            lambda: coordinators.partition_count(GROUPS),
            clock.wall_ms,
            self._verify,
        )
        self._clock = clock
        self._replicas = replicas
        self._verifier = verifier
        self._shell = shell = coordinators.add(GROUPS, coordinator.runtime)
        self._handlers = GroupHandlers(coordinator, clock, shell.arm, context.cache.topic_name)
        _add_gauges(context.sensors, coordinator)

    def rows(self) -> list[Row]:
        """The group APIs."""
        return self._handlers.rows()

    def _verify(
        self, index: int, request: TxnOffsetCommitRequest, version: int
    ) -> Verification | Pending[Verification | None] | None:
        """As `VerifyTransaction` of the coordinator says."""
        support = ClientSupport.of_offset_commit(version)
        if not self._verifier.applies_to(support):
            return None
        producer_id, epoch = request.producer_id, request.producer_epoch
        guard = self._replicas.get(OFFSETS_TOPIC, index).start_verification(
            producer_id, NO_SEQUENCE, epoch, self._clock.wall_ms(), supports_epoch_bump=support.adds
        )
        if guard is None:
            return None
        at = TopicPartition(OFFSETS_TOPIC, index)
        verified: Pending[Verification | None] = Pending()

        def on_verified(errors: Errors | None, _: ApiError | None) -> None:
            assert errors is not None, "a verification completes"
            self._coordinator.runtime.advance(self._clock.mono_ms())
            if at in errors:
                verified.fail(ApiError(errors[at]))
            else:
                verified.complete(guard)
            self._shell.arm()

        self._verifier.verify(request.transactional_id, producer_id, epoch, [at], support).then(on_verified)
        return verified


def _add_gauges(sensors: Sensors, coordinator: GroupCoordinator) -> None:
    """Groups that this broker coordinates, in all and by state. Reading a count by state visits all groups."""

    def count(state: GroupState | None = None) -> float:
        return sum(
            len(shard.groups) if state is None else sum(group.state is state for group in shard.groups.values())
            for shard in coordinator.runtime.active_shards()
        )

    sensors.gauge(_MANAGER, "NumGroups", read=count)
    sensors.gauge(
        _MANAGER, "NumOffsets", read=lambda: sum(each.offsets.count for each in coordinator.runtime.active_shards())
    )
    add_load_times(sensors, GROUP_METRICS, coordinator.runtime)
    sensors.gauge(GROUP_METRICS, "group-count", (("protocol", "classic"),), count)
    for partition_state in LoadState:
        tags = (("state", partition_state.value),)
        sensors.gauge(GROUP_METRICS, "num-partitions", tags, partial(coordinator.runtime.count, partition_state))
    sensors.add_source(coordinator.counters.sensors)
    for state, name in _COUNTED_STATES.items():
        sensors.gauge(_MANAGER, name, read=partial(count, state))


class TopicNames:
    """Topic ids and names, as the coordinator looks them up."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def id_of(self, name: str) -> Uuid | None:
        """The id of a topic; None where the topic does not exist."""
        return self._cache.topic_id(name)

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of a topic; None where the topic does not exist."""
        return self._cache.topic_name(topic_id)

    def has_partition(self, name: str, partition: int) -> bool:
        """Whether the topic exists and has that partition."""
        topic = self._cache.topic(name)
        return topic is not None and partition in topic.partitions
