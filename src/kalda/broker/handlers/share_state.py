"""The share coordinator: the state of share groups, in `__share_group_state` (KIP-932).

InitializeShareGroupState (83), ReadShareGroupState (84), WriteShareGroupState (85), DeleteShareGroupState (86) and
ReadShareGroupStateSummary (87): of brokers alone, so the caller needs CLUSTER_ACTION. Each share partition belongs to
one partition of the topic, and the leader of that partition coordinates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.base.scheduling import Clock
from kalda.base.sensors import Measurable, SensorName, gauged
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.coordinators import Coordinators, add_load_times
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import MAX_ELEMENTS_BETWEEN_NODES, QuotaClass, Row, message_of, on_cluster
from kalda.coordinator.internal_topics import SHARE_STATE
from kalda.coordinator.runtime import LoadState
from kalda.coordinator.share.shard import ShareCoordinatorConfig
from kalda.coordinator.share.share_coordinator import (
    DELETE,
    INITIALIZE,
    READ,
    SUMMARIZE,
    WRITE,
    Answered,
    Shape,
    ShareCoordinator,
    StateRequest,
    failed_state,
)
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import AclOperation
from kalda.protocol.messages.share import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from kalda.replication.replica_manager import ReplicaManager

_METRICS = "kafka.server:type=share-coordinator-metrics"


class ShareStateHandlers:
    """Requests of brokers about the state of share partitions."""

    def __init__(self, coordinator: ShareCoordinator, clock: Clock, on_handled: Callable[[], None]) -> None:
        """`on_handled` is called after each request: the coordinator's next deadline may be nearer than its timer."""
        self._coordinator = coordinator
        self._clock = clock
        self._on_handled = on_handled

    def rows(self) -> list[Row]:
        """One row an API."""
        coordinator = self._coordinator
        return [
            self._row(ApiKey.INITIALIZE_SHARE_GROUP_STATE, INITIALIZE, coordinator.initialize),
            self._row(ApiKey.READ_SHARE_GROUP_STATE, READ, coordinator.read),
            self._row(ApiKey.WRITE_SHARE_GROUP_STATE, WRITE, coordinator.write),
            self._row(ApiKey.DELETE_SHARE_GROUP_STATE, DELETE, coordinator.delete),
            self._row(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, SUMMARIZE, coordinator.summarize),
        ]

    def _row(self, key: ApiKey, shape: Shape, handle: Callable[[Any, int], Answered]) -> Row:
        def handler(context: RequestContext, request: Any) -> Answered:
            reply = yield from handle(request, self._clock.mono_ms())
            self._on_handled()
            return reply

        def failed(request: Any, version: int, error: ApiError) -> Any:
            return failed_state(shape, request.topics, error.code, message_of(error))

        return Row(
            key,
            handler,
            failed,
            on_cluster(AclOperation.CLUSTER_ACTION),
            QuotaClass.EXEMPT,
            max_elements=MAX_ELEMENTS_BETWEEN_NODES,
        )


class ShareStateModule(Module):
    """Rests on the table of coordinators, to which it adds its own; on the replicas, whose redundant records of the
    topic it has deleted."""

    def __init__(self, context: BrokerContext, coordinators: Coordinators, replicas: ReplicaManager) -> None:
        cache, clock, sensors = context.cache, context.host.clock, context.sensors

        def has_partition(topic_id: Uuid, partition: int) -> bool:
            topic = cache.topic_by_id(topic_id)
            return topic is not None and partition in topic.partitions

        def prune(index: int, offset: int) -> None:
            replicas.get(SHARE_STATE.name, index).delete_records(offset)

        coordinator = ShareCoordinator(
            ShareCoordinatorConfig.from_properties(context.config.values),
            coordinators.log(SHARE_STATE),
            has_partition,
            prune,
            lambda: coordinators.partition_count(SHARE_STATE),
            clock.wall_ms,
        )
        stats = (
            (SensorName(_METRICS, "write-rate"), coordinator.writes.rate),
            (SensorName(_METRICS, "write-total"), coordinator.writes.total),
            (SensorName(_METRICS, "write-latency-avg"), coordinator.write_latency_avg),
            (SensorName(_METRICS, "write-latency-max"), coordinator.write_latency_max),
        )
        sensors.add_source(lambda: stats)
        sensors.add_source(lambda: _pruned(coordinator))
        for state in LoadState:
            tags = (("state", state.value),)
            sensors.gauge(_METRICS, "num-partitions", tags, partial(coordinator.runtime.count, state))
        add_load_times(sensors, _METRICS, coordinator.runtime)
        shell = coordinators.add(SHARE_STATE, coordinator.runtime)
        self._coordinator, self._clock, self._arm = coordinator, clock, shell.arm
        self._handlers = ShareStateHandlers(coordinator, clock, shell.arm)

    def handle(self, request: StateRequest) -> Any:
        """A request of this very broker, for share partitions that it coordinates: the response now or later."""
        coordinator, now_ms = self._coordinator, self._clock.mono_ms()
        match request:
            case InitializeShareGroupStateRequest():
                answered = coordinator.initialize(request, now_ms)
            case ReadShareGroupStateRequest():
                answered = coordinator.read(request, now_ms)
            case WriteShareGroupStateRequest():
                answered = coordinator.write(request, now_ms)
            case DeleteShareGroupStateRequest():
                answered = coordinator.delete(request, now_ms)
            case ReadShareGroupStateSummaryRequest():
                answered = coordinator.summarize(request, now_ms)
        response = run_to_end(answered)
        self._arm()
        return response

    def rows(self) -> list[Row]:
        """The APIs of the coordinator."""
        return self._handlers.rows()


def _pruned(coordinator: ShareCoordinator) -> Iterator[tuple[SensorName, Measurable]]:
    """Up to which offset the partitions of the topic that are led here were pruned."""
    for shard in coordinator.runtime.active_shards():
        if shard.pruned_to:
            tags = (("topic", SHARE_STATE.name), ("partition", str(shard.partition.index)))
            yield SensorName(_METRICS, "last-pruned-offset", tags), gauged(shard.pruned_to)
