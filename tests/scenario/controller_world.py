"""Controllers around one log, without a quorum: the test sets the leader and commits.

`World.request` sends a request to the active controller at `World.now_ms`. With `auto_commit` its records are committed
at once, on all controllers. The test sets the time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from by_hand import inline_background

from kalda.base.background import Background
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.controller.config import ControllerConfig, ControllerHost
from kalda.controller.config_schema import NodeConfigSchema
from kalda.controller.quorum_controller import QuorumController
from kalda.metadata.features import LATEST_PRODUCTION, MetadataVersion, VersionRange, default_levels, supported_ranges
from kalda.metadata.formatter import BootstrapMetadata
from kalda.protocol.access import Caller
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
)
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kalda.protocol.record_framing import VersionedRecord, decode_metadata_record, encode_metadata_record

CLUSTER_ID = "kalda-test-cluster"
FOREVER_MS = 10**9


@dataclass(frozen=True)
class Batch:
    base_offset: int
    epoch: int
    records: Sequence[VersionedRecord]
    append_timestamp_ms: int = 0
    size_bytes: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + max(1, len(self.records)) - 1


class QuorumLog:
    """The log of the leader. Appended records are encoded in Kafka's framing and decoded again."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.prepared: Batch
        """the batch that was prepared last"""
        self.committed = 0
        self.leader_epoch = 0
        self.refuse: ApiError | None = None
        """where set, `append` raises it"""
        self.resigned: list[int] = []
        """epochs passed to `resign`"""

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def append(self, epoch: int, records: Sequence[VersionedRecord]) -> int:
        """Prepare and schedule."""
        last = self.prepare_append(epoch, records)
        self.schedule_append()
        return last

    def prepare_append(self, epoch: int, records: Sequence[VersionedRecord]) -> int:
        assert epoch == self.leader_epoch, "only the leader appends"
        if self.refuse is not None:
            raise self.refuse
        framed = [decode_metadata_record(encode_metadata_record(record, version)) for record, version in records]
        self.prepared = Batch(self.log_end_offset, epoch, framed)
        return self.prepared.last_offset

    def schedule_append(self) -> None:
        self.batches.append(self.prepared)

    def resign(self, epoch: int) -> None:
        self.resigned.append(epoch)


class Rights:
    """An `Authorizer` that calls a function of operation, resource type and name."""

    def __init__(self, allows: Callable[[AclOperation, AclResourceType, str], bool]) -> None:
        self._allows = allows

    def allows(self, caller: Caller, operation: AclOperation, resource: AclResourceType, name: str, *_: object) -> bool:
        return self._allows(operation, resource, name)


class World:
    """Controllers 1, 2…, of which 1 leads first; brokers exist as requests of the test only."""

    def __init__(
        self,
        controllers: int = 1,
        *,
        version: MetadataVersion = LATEST_PRODUCTION,
        levels: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
        auto_commit: bool = True,
        seed: int = 7,
        lead: bool = True,
        bootstrap: Sequence[VersionedRecord] | None = None,
        voters: Callable[[], Iterable[int]] = tuple,
        background: Background | None = None,
        **settings: Any,
    ) -> None:
        self.background = inline_background() if background is None else background
        self.log = QuorumLog()
        self.now_ms = 1_000
        self.elapsed_ms = 0
        """the clock by which controllers measure how long events take"""
        self.fatal_faults: list[BaseException] = []
        self.auto_commit = auto_commit
        self.epochs: dict[int, int] = {}
        self._ids = itertools.count(1)
        features = default_levels(version) if levels is None else levels
        self._bootstrap = (
            BootstrapMetadata.from_levels(version, features, "the test").records if bootstrap is None else bootstrap
        )
        self._properties = dict(properties or {})
        self._settings = {
            "default_replication_factor": 1,
            "leader_imbalance_check_interval_ms": FOREVER_MS,
            "unclean_leader_election_interval_ms": FOREVER_MS,
            "metadata_max_idle_interval_ms": None,
            **settings,
        }
        self._seed = seed
        self._voters = voters
        self.policies: dict[str, Any] = {}
        self.controllers = {node_id: self.new_controller(node_id) for node_id in range(1, controllers + 1)}
        self._seen = dict.fromkeys(self.controllers, 0)
        if lead:
            self.elect(1)

    def new_controller(self, node_id: int) -> QuorumController:
        return QuorumController(
            ControllerConfig(node_id=node_id, cluster_id=CLUSTER_ID, **self._settings),
            self.log,
            NodeConfigSchema(self._properties),
            ControllerHost(
                new_id=lambda: Uuid(next(self._ids).to_bytes(16, "big").replace(b"\0", b"\x07", 1)),
                rng=random.Random(self._seed),
                background=self.background,
                elapsed_ms=lambda: self.elapsed_ms,
                on_fatal=self.fatal_faults.append,
                on_poll=lambda: self.controllers[node_id].poll(self.now_ms) and None,
                voters=self._voters,
                **self.policies,
            ),
            self._bootstrap,
        )

    # The quorum

    @property
    def active(self) -> QuorumController:
        return next(controller for controller in self.controllers.values() if controller.is_active)

    def elect(self, node_id: int) -> None:
        """Start a new epoch: uncommitted batches are lost, a control batch is appended and committed, `node_id`
        leads."""
        for controller in self.controllers.values():
            controller.on_leader_change(None, self.log.leader_epoch)
        self.log.batches = [batch for batch in self.log.batches if batch.last_offset < self.log.committed]
        self.log.leader_epoch += 1
        self.log.batches.append(Batch(self.log.log_end_offset, self.log.leader_epoch, []))
        self.commit()
        for controller in self.controllers.values():
            controller.on_leader_change(node_id, self.log.leader_epoch)
        if self.auto_commit:
            self.commit()

    def commit(self, up_to: int | None = None) -> None:
        """Commit all batches, or those that end at or before `up_to`."""
        end = self.log.log_end_offset if up_to is None else up_to + 1
        self.log.committed = max(self.log.committed, end)
        for node_id, controller in self.controllers.items():
            batches = self.log.batches[self._seen[node_id] :]
            ready = [batch for batch in batches if batch.last_offset < self.log.committed]
            self._seen[node_id] += len(ready)
            controller.on_commit(ready)

    def replayed(self) -> QuorumController:
        """A new controller that has replayed the committed log."""
        controller = self.new_controller(99)
        controller.on_commit([batch for batch in self.log.batches if batch.last_offset < self.log.committed])
        return controller

    @property
    def records(self) -> list[Any]:
        return [versioned.record for batch in self.log.batches for versioned in batch.records]

    # Requests

    def send(self, api: str, request: Any, *, caller: Caller | None = None) -> Pending[Any]:
        handler = getattr(self.active, f"handle_{api}")
        pending: Pending[Any] = handler(request, caller or Caller(), self.now_ms)
        if self.auto_commit:
            self.commit()
        return pending

    def request(self, api: str, request: Any, *, caller: Caller | None = None) -> Any:
        """The response. Raises the `ApiError` of a failed request."""
        pending = self.send(api, request, caller=caller)
        assert pending.done, "the response waits for a commit"
        if pending.error is not None:
            raise pending.error
        return pending.value

    def failure(self, api: str, request: Any, *, caller: Caller | None = None) -> ApiError:
        error = self.send(api, request, caller=caller).error
        assert error is not None, "the request did not fail"
        return error

    def written_by(self, action: Callable[[], Any]) -> list[Any]:
        """Records that `action` appended."""
        before = self.log.log_end_offset
        action()
        return [v.record for batch in self.log.batches if batch.base_offset >= before for v in batch.records]

    # Brokers

    def register(
        self,
        broker_id: int,
        *,
        incarnation: int = 1,
        rack: str | None = None,
        directories: int = 1,
        features: Mapping[str, VersionRange] | None = None,
        previous_epoch: int = -1,
        cluster_id: str = CLUSTER_ID,
        log_dirs: list[Uuid] | None = None,
    ) -> int:
        """Register a broker. Its later requests carry the epoch that this returns."""
        ranges = supported_ranges() if features is None else features
        response = self.request(
            "broker_registration",
            BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id=cluster_id,
                incarnation_id=Uuid(bytes([broker_id + 1, incarnation]) * 8),
                listeners=[BrokerRegistrationRequestListener(name="PLAINTEXT", host="h", port=9092)],
                features=[
                    BrokerRegistrationRequestFeature(
                        name=name, min_supported_version=levels.min, max_supported_version=levels.max
                    )
                    for name, levels in ranges.items()
                ],
                rack=rack,
                log_dirs=directories_of(broker_id, directories) if log_dirs is None else log_dirs,
                previous_broker_epoch=previous_epoch,
            ),
        )
        self.epochs[broker_id] = response.broker_epoch
        return int(response.broker_epoch)

    def heartbeat(self, broker_id: int, **fields: Any) -> BrokerHeartbeatResponse:
        fields.setdefault("current_metadata_offset", self.log.log_end_offset)
        request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=self.epochs[broker_id], **fields)
        response = self.request("broker_heartbeat", request)
        assert isinstance(response, BrokerHeartbeatResponse)
        return response

    def start_brokers(self, *broker_ids: int, **fields: Any) -> None:
        """Register and unfence brokers."""
        for broker_id in broker_ids:
            self.register(broker_id, **fields)
            self.heartbeat(broker_id)

    def poll_until(self, now_ms: int, step_ms: int = 500) -> None:
        """Advance the time and poll the active controller; no broker sends heartbeats meanwhile."""
        while self.now_ms < now_ms:
            self.now_ms = min(now_ms, self.now_ms + step_ms)
            self.active.poll(self.now_ms)
            if self.auto_commit:
                self.commit()

    # Topics

    def create_topic(
        self,
        name: str,
        assignment: Mapping[int, list[int]] | None = None,
        *,
        partitions: int = -1,
        factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
        caller: Caller | None = None,
    ) -> Any:
        """The topic's result."""
        topic = creatable(name, assignment, partitions=partitions, factor=factor, configs=configs)
        request = CreateTopicsRequest(topics=[topic], validate_only=validate_only)
        return self.request("create_topics", request, caller=caller).topics[0]

    def partition(self, topic: str, partition_id: int = 0) -> Any:
        partitions = self.active.partitions
        return partitions.partition(partitions.topic_ids[topic], partition_id)

    def alter_partition(
        self, topic: str, partition_id: int, isr: list[int], *, broker_id: int | None = None, **fields: Any
    ) -> Any:
        """Send an AlterPartition request of the leader, or of `broker_id`; returns the partition's part of the
        response."""
        partition = self.partition(topic, partition_id)
        leader = partition.leader if broker_id is None else broker_id
        fields.setdefault("leader_epoch", partition.leader_epoch)
        fields.setdefault("partition_epoch", partition.partition_epoch)
        fields.setdefault(
            "new_isr_with_epochs",
            [
                AlterPartitionRequestBrokerState(broker_id=replica, broker_epoch=self.epochs.get(replica, 0))
                for replica in isr
            ],
        )
        data = AlterPartitionRequestPartitionData(partition_index=partition_id, **fields)
        topic_id = self.active.partitions.topic_ids[topic]
        request = AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=self.epochs[leader],
            topics=[AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[data])],
        )
        return self.request("alter_partition", request).topics[0].partitions[0]


def creatable(
    name: str,
    assignment: Mapping[int, list[int]] | None = None,
    *,
    partitions: int = -1,
    factor: int = -1,
    configs: Mapping[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=at, broker_ids=replicas)
            for at, replicas in (assignment or {}).items()
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def directories_of(broker_id: int, count: int = 1) -> list[Uuid]:
    return [Uuid(bytes([0xD0, broker_id, at]) + bytes(12) + b"\1") for at in range(count)]


def result(answer: Any) -> tuple[ErrorCode, str | None]:
    """Error code and message of a part of a response."""
    return ErrorCode(answer.error_code), answer.error_message


def state(controller: QuorumController) -> dict[str, Any]:
    """All replayed state, as comparable values."""
    partitions = controller.partitions
    members = sorted(controller.cluster.brokers)
    return {
        "features": controller.features.finalized_levels(),
        "brokers": dict(controller.cluster.brokers.items()),
        "controllers": dict(controller.cluster.controllers.items()),
        "topics": dict(partitions.topic_ids.items()),
        "partitions": dict(partitions.partitions.items()),
        "counts": dict(partitions.partition_counts.items()),
        "configs": dict(controller.configs.values.items()),
        "producer ids": controller.producer_ids.next_producer_id,
        "quotas": dict(controller.client_quotas.quotas.items()),
        "scram": dict(controller.scram.credentials.items()),
        "acls": dict(controller.acls.by_id.items()),
        "in isr": {broker: set(partitions.index.with_in_isr(broker)) for broker in members},
        "in elr": {broker: set(partitions.index.with_in_elr(broker)) for broker in members},
        "leads": {broker: partitions.index.leads_any(broker) for broker in members},
        "leaderless": set(partitions.index.leaderless),
        "imbalanced": set(partitions.index.imbalanced),
        "reassigning": set(partitions.index.reassigning),
    }
