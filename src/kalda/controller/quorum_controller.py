"""The active controller, or a standby: the metadata log's replayed state, and the requests that write to it.

The leader of the metadata log is the active controller. A request to it gives records: they are applied and appended at
once, and the response is sent when they are committed. Standbys apply committed records. So a new active controller
loads nothing: it has the same state already, and starts writing at the end of the log.

A request, a step of a periodic task and the outcome of a probe are *events*, which run one at a time
(`event_queue.py`). An event that raises before it has records has changed nothing: its request fails with
UNKNOWN_SERVER_ERROR, a task runs again one period later, and the leadership goes on. Otherwise one request that the
program did not foresee would leave the cluster without a controller, again and again. Where a record cannot be applied
or appended, the node stops. So no method but those that the quorum calls lets an exception out.

The managers decide what one request does. This class connects them:

- The quorum calls `on_commit`, `load_snapshot` and `on_leader_change`. `load_image` replaces a long replay.
- `handle_<api>` answers a request. On a standby it fails with NOT_CONTROLLER. A request about many things is decided in
  steps, and is not begun after its timeout.
- `poll` runs the tasks that are due, and returns when to call it again. Where events wait it waits behind them, and is
  asked for by `on_poll` when its turn comes.
- `probes_due` returns the brokers that may be dead, with the addresses to probe; `on_probed` takes the outcomes.

Each call that needs the time gets it as `now_ms`, from any clock in milliseconds that never goes back.

Not obvious:

- An operation of the controller changes nothing before it returns its records: where it raises, the leadership goes
  on with the state that it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending
from kalda.controller.acls import AclControl
from kalda.controller.broker_changes import BrokerChangeControl
from kalda.controller.client_quotas import ClientQuotaControl
from kalda.controller.cluster import ClusterControl
from kalda.controller.config import ControllerConfig, ControllerHost
from kalda.controller.configs import (
    AlterConfigPolicy,
    ConfigControl,
    ConfigSchema,
    incremental_alter_configs,
    legacy_alter_configs,
)
from kalda.controller.credentials import EVENTS, DelegationTokenControl, ScramControl, TokenRequest
from kalda.controller.elections import ElectionControl
from kalda.controller.event_queue import (
    RERUN_MS,
    Decide,
    Decision,
    EventQueue,
    EventTimes,
    Faults,
    PeriodicTask,
    PeriodicTasks,
    activation_records,
)
from kalda.controller.features import FeatureControl
from kalda.controller.liveness import CONTINUE_SHUTDOWN, FENCE_STALE, BrokerLiveness, Probe
from kalda.controller.partitions import PartitionControl
from kalda.controller.producer_ids import ProducerIdControl
from kalda.controller.reassignment import ReassignmentControl
from kalda.controller.replay import other_records, replay_run, replay_table
from kalda.controller.replica_reports import AlterPartitionControl, DirectoryControl
from kalda.controller.topics import TopicControl, TopicDefaults
from kalda.metadata.configs import ConfigResource
from kalda.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from kalda.metadata.image import MetadataImage
from kalda.metadata.publisher import CommittedSnapshot, ReplayedBatch
from kalda.protocol.access import Caller
from kalda.protocol.messages import metadata_records as records
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kalda.protocol.messages.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from kalda.protocol.messages.security import (
    AclOperation,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.offsets import NO_TRANSACTION
from kalda.statemachine.runtime import Prepared, ReplayFault, ReplicatedRuntime, Result
from kalda.statemachine.timeline import LATEST, SnapshotRegistry

log = logging.getLogger(__name__)

R = TypeVar("R")

_ALTER, _CLUSTER_ACTION = AclOperation.ALTER, AclOperation.CLUSTER_ACTION
_POLL_RETRY_MS = 1_000
"""When to poll again after a failure outside of the tasks."""


class QuorumClient(Protocol):
    """The operations of the quorum that the controller uses."""

    @property
    def log_end_offset(self) -> int: ...

    def prepare_append(self, epoch: int, records: Sequence[VersionedRecord]) -> int:
        """Prepare one batch as the leader of `epoch`; returns the offset that its last record will have. Raises
        `ApiError` where this node does not lead, or too many records are not committed yet."""
        ...

    def schedule_append(self) -> None:
        """Append the batch that was prepared last."""
        ...

    def resign(self, epoch: int) -> None: ...


class QuorumController:
    """One node's controller."""

    def __init__(
        self,
        config: ControllerConfig,
        quorum: QuorumClient,
        schema: ConfigSchema,
        host: ControllerHost,
        bootstrap: Sequence[VersionedRecord],
    ) -> None:
        """`bootstrap`: records that the first active controller writes to an empty log."""
        self.config = config
        self._quorum = quorum
        self._bootstrap = tuple(bootstrap)
        self._leader_id: int | None = None
        self.faults = Faults(host.on_fatal, host.elapsed_ms)
        self.event_times = EventTimes(config.performance_sample_period_ms, config.performance_always_log_threshold_ms)
        self._awaits_first_poll = False  # this controller is active, but no call has passed the time yet
        registry = SnapshotRegistry()
        self.runtime = self._make_runtime(registry)
        self._events = self._make_events(host)
        self.features = FeatureControl(
            registry, config.node_id, config.supported_features, voters=host.voters, kraft_version=host.kraft_version
        )
        self.cluster = ClusterControl(registry, config.cluster_id, self.features, config.incarnation_id)
        self.features.attach_nodes(
            lambda: ((node, one.supported_features) for node, one in self.cluster.brokers.items()),
            lambda: ((node, one.supported_features) for node, one in self.cluster.controllers.items()),
        )
        self.configs = self._make_configs(registry, schema, host.alter_config_policy)
        self.partitions = PartitionControl(registry, self.features, self.cluster, self.configs)
        self.topics = TopicControl(
            self.partitions,
            self.features,
            self.cluster,
            self.configs,
            defaults=TopicDefaults(config.num_partitions, config.default_replication_factor),
            new_id=host.new_id,
            rng=host.rng,
            policy=host.create_topic_policy,
        )
        self.broker_changes = BrokerChangeControl(self.partitions, self.features, self.cluster)
        self.alter_partitions = AlterPartitionControl(self.partitions, self.cluster)
        self.elections = ElectionControl(self.partitions)
        self.reassignments = ReassignmentControl(self.partitions, self.configs, self.topics.check_manual_assignment)
        self.directories = DirectoryControl(self.partitions, self.features, self.cluster)
        self.producer_ids = ProducerIdControl(registry, self.cluster)
        self.client_quotas = ClientQuotaControl(registry)
        self.scram = ScramControl(registry)
        self.acls = AclControl(registry, host.new_id)
        self.tokens = DelegationTokenControl(registry, config.tokens, host.new_id, host.wall_ms or host.elapsed_ms)
        self._replays = replay_table(self)
        self._liveness = self._make_liveness()
        self._periodic = self._periodic_tasks()

    def _make_runtime(self, registry: SnapshotRegistry) -> ReplicatedRuntime[VersionedRecord]:
        return ReplicatedRuntime(
            registry,
            self._prepare,
            self._replay,
            replay_run=lambda batch, first: replay_run(self, batch, first),
            schedule=self._quorum.schedule_append,
            not_leader=ErrorCode.NOT_CONTROLLER,
            max_records_per_batch=self.config.max_records_per_batch,
        )

    def _make_events(self, host: ControllerHost) -> EventQueue:
        return EventQueue(
            host.background,
            host.elapsed_ms,
            self.event_times,
            write=lambda result: self.runtime.write(lambda: result),
            refusal=lambda: None if self.is_active else self._wrong_controller(),
            failure=self._event_failed,
            on_poll=host.on_poll,
        )

    def _make_configs(
        self, registry: SnapshotRegistry, schema: ConfigSchema, policy: AlterConfigPolicy | None
    ) -> ConfigControl:
        return ConfigControl(
            registry,
            schema,
            node_id=self.config.node_id,
            is_elr_enabled=lambda: self.features.is_elr_enabled,
            can_cordon=lambda: self.features.metadata_version.is_cordoned_log_dirs_supported,
            require_exists=self._require_exists,
            policy=policy,
        )

    def _make_liveness(self) -> BrokerLiveness:
        config = self.config
        return BrokerLiveness(
            self.cluster,
            self.broker_changes,
            self.elections,
            self._write_records,
            lambda: self.runtime.offsets.next_write_offset,
            session_timeout_ms=config.broker_session_timeout_ms,
            inter_broker_listener_name=config.inter_broker_listener_name,
            probes_brokers=config.dead_process_detection_enable,
        )

    # Leadership

    @property
    def is_active(self) -> bool:
        return self.runtime.active

    @property
    def leader_id(self) -> int | None:
        """The id of the leader after the last `on_leader_change`; None for none."""
        return self._leader_id

    # Called by the quorum

    def on_commit(self, batches: Sequence[ReplayedBatch]) -> None:
        """The active controller has applied its batches when it wrote them; a standby applies them now."""
        runtime, applied = self.runtime, 0
        while runtime.active and applied < len(batches):  # an answer's callback may end the leadership
            runtime.on_commit(batches[applied].last_offset)
            applied += 1
        if applied == len(batches):
            return
        runtime.offsets.begin_replay()
        for batch in batches[applied:]:
            runtime.replay_some(batch.records, batch.base_offset)
        runtime.on_commit(batches[-1].last_offset)

    def load_snapshot(self, snapshot: CommittedSnapshot) -> Steps[None]:
        """The log no longer has the next records: build the state anew from a snapshot. Before the last step the only
        call allowed is `on_leader_change` with another leader than this node."""
        self.runtime.offsets.begin_load_snapshot()
        offset = snapshot.last_contained_offset
        for step, record in enumerate(snapshot.records, 1):
            self._replay(record, offset)
            if step % ITEMS_A_STEP == 0:
                yield
        self.runtime.offsets.end_load_snapshot(offset)

    def load_image(self, image: MetadataImage) -> Steps[None]:
        """Build the state anew from the image of this node's loader; in steps, as `load_snapshot`.

        The result is the state after a replay of the same records, at a fraction of the cost: only the last of many
        changes is loaded. The controller and the image share the objects of partitions and configs."""
        offsets = self.runtime.offsets
        offsets.begin_load_snapshot()
        for step, versioned in enumerate(other_records(image), 1):
            self._replay(versioned, image.offset)
            if step % ITEMS_A_STEP == 0:
                yield
        self.configs.load(image.configs)
        yield from self.partitions.load(image.topics)
        offsets.end_load_snapshot(image.offset)

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """`on_commit` was called with all records that were committed before this change."""
        self._leader_id = leader_id
        if self.runtime.active and (leader_id != self.config.node_id or epoch != self.runtime.claimed_epoch):
            self._renounce()
        if leader_id == self.config.node_id and not self.runtime.active:
            self._claim(epoch)

    def resign(self) -> None:
        """Give up the leadership: this node stops, or cannot go on."""
        epoch = self.runtime.claimed_epoch
        if epoch is not None:
            self._renounce()
            self._quorum.resign(epoch)

    def _claim(self, epoch: int) -> None:
        log.info(
            "Becoming the active controller at epoch %d, next write offset %d.", epoch, self._quorum.log_end_offset
        )
        self.cluster.activations += 1
        self.runtime.claim(epoch, self._quorum.log_end_offset)
        self._awaits_first_poll = True
        transaction_start = self.runtime.offsets.transaction_start_offset
        before = LATEST if transaction_start == NO_TRANSACTION else transaction_start - 1
        activation = activation_records(
            is_transaction_open=transaction_start != NO_TRANSACTION,
            bootstrap=self._bootstrap,
            metadata_version=self.features.metadata_version_at(before),
            min_insync_replicas=self.configs.static_min_insync_replicas,
        )
        self._events.run("completeActivation", lambda: Result(activation, None, atomic=True)).then(self._on_activated)

    def _on_activated(self, _none: None, error: ApiError | None) -> None:
        if error is not None and self.is_active:
            self._fail_over("completeActivation", error)

    def _renounce(self) -> None:
        log.info("Renouncing the leadership of epoch %s.", self.runtime.claimed_epoch)
        self._awaits_first_poll = False
        self._periodic.deactivate()
        self._liveness.deactivate()
        self.runtime.renounce(self._wrong_controller())
        self._events.drop_all(self._wrong_controller())

    def _wrong_controller(self) -> ApiError:
        """The error of an event on a node that is not the active controller, in Kafka's words."""
        leader = self._leader_id
        if leader is None or leader == self.config.node_id:
            return ApiError(ErrorCode.NOT_CONTROLLER, "No controller appears to be active.")
        return ApiError(ErrorCode.NOT_CONTROLLER, f"The active controller appears to be node {leader}.")

    def _observe_time(self, now_ms: int) -> None:
        """Every event with the time begins with this. The first one after the claim starts sessions and periodic
        tasks."""
        if not self._awaits_first_poll:
            return
        self._liveness.activate(now_ms)
        self._periodic.activate(now_ms)
        self._awaits_first_poll = False

    # Faults

    def _fail_over(self, event: str, error: Exception) -> None:
        """The records of its activation cannot be written. Give up the leadership."""
        self.faults.non_fatal(
            f"{event}: event failed with {type(error).__name__} at epoch {self.runtime.claimed_epoch}. Renouncing "
            f"leadership and reverting to the last committed offset {self.runtime.offsets.last_committed_offset}.",
            error,
        )
        try:
            self.resign()
        except Exception as second:
            self.faults.fatal(f"{event}: the leadership could not be given up.", second)

    def _event_failed(self, event: str, error: Exception) -> ApiError:
        """The error of the answer to an event that has raised."""
        if isinstance(error, ReplayFault):
            self._stop_node(event, error)
        elif not isinstance(error, ApiError):
            self.faults.on_failure(event, error)
        return as_api_error(error)

    def _stop_node(self, event: str, fault: ReplayFault) -> None:
        """A record cannot be applied: no node could. Its batch was not written."""
        try:
            self.resign()
        finally:
            self.faults.fatal(f"{event}: {fault}: {fault.__cause__!r}", fault)

    # Brokers that may be dead

    def on_broker_disconnected(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A connection broke on which the broker had sent heartbeats in this epoch."""
        with self.faults.contained("brokerDisconnected"):
            self._liveness.on_disconnected(broker_id, broker_epoch, now_ms)

    def probes_due(self, now_ms: int) -> list[Probe]:
        """The probes to make now. For each of them `on_probed` must be called."""
        probes: list[Probe] = []
        with self.faults.contained("probesDue"):
            probes += self._liveness.probes_due(now_ms)
        return probes

    def on_probed(self, probe: Probe, refused: bool) -> None:
        """The outcome of a probe; `refused` where every address refused the connection."""

        def probed(_epoch: int) -> None:
            self._liveness.on_probed(probe, refused)
            if self._liveness.is_fencing_dead:
                self._periodic.hasten(FENCE_STALE, 0)

        self._events.run("probed", lambda: self.runtime.read(probed))

    # Periodic tasks

    def poll(self, now_ms: int) -> int | None:
        """Run the tasks that are due. Returns when to poll again, None while this controller is not active, and where
        events wait."""
        if self._events.is_busy:
            self._events.poll_later()
            return None
        deadline_ms: int | None = now_ms + _POLL_RETRY_MS
        with self.faults.contained("poll"):
            self._observe_time(now_ms)
            deadline_ms = self._periodic.poll(now_ms)
            probe_deadline_ms = self._liveness.probe_deadline_ms
            if deadline_ms is not None and probe_deadline_ms is not None:
                deadline_ms = min(deadline_ms, probe_deadline_ms)
        return deadline_ms if self.is_active else None

    def _periodic_tasks(self) -> PeriodicTasks:
        config, tasks, sample_ms = self.config, PeriodicTasks(self.faults.on_failure), self._liveness.sample_ms
        tasks.add(PeriodicTask(FENCE_STALE, sample_ms, self._liveness.fence_next))
        tasks.add(PeriodicTask(CONTINUE_SHUTDOWN, sample_ms, self._liveness.continue_shutdown))
        tasks.add(PeriodicTask("electUncleanAfterSession", sample_ms, self._liveness.elect_after_hold))
        tasks.add(
            PeriodicTask(
                "generatePeriodicPerformanceMessage", config.performance_sample_period_ms, self._log_event_times
            )
        )
        if config.leader_imbalance_check_interval_ms is not None:
            tasks.add(
                PeriodicTask(
                    "electPreferred",
                    config.leader_imbalance_check_interval_ms,
                    lambda _: self._write_step("electPreferred", self.elections.balance),
                )
            )
        tasks.add(
            PeriodicTask(
                "electUnclean",
                config.unclean_leader_election_interval_ms,
                lambda _: self._write_step("electUnclean", self.elections.elect_unclean),
            )
        )
        if config.tokens.secret is not None:
            tasks.add(
                PeriodicTask(
                    "expireDelegationTokens",
                    config.tokens.expiry_check_interval_ms,
                    lambda _: self._write_step("sweepExpiredDelegationTokens", self.tokens.remove_expired),
                )
            )
        if config.metadata_max_idle_interval_ms:
            no_op = VersionedRecord(records.NoOpRecord(), 0)
            tasks.add(
                PeriodicTask(
                    "writeNoOpRecord",
                    config.metadata_max_idle_interval_ms,
                    lambda _: self._write_step("writeNoOpRecord", lambda: ([no_op], False)),
                )
            )
        return tasks

    def _log_event_times(self, _now_ms: int) -> bool:
        self.event_times.log_period()
        return False

    def _write_step(self, event: str, step: Callable[[], tuple[list[VersionedRecord], bool]]) -> bool:
        """Write the records of one step of a task. Returns whether there is more to do; False where the records could
        not be appended, so that the task runs again one period later."""
        more = False

        def records_of_step() -> list[VersionedRecord]:
            nonlocal more
            step_records, more = step()
            return step_records

        return self._write_records(event, records_of_step) and more

    def _write_records(self, event: str, records_of: Callable[[], list[VersionedRecord]]) -> bool:
        """Write the records of an event that has no response. Whether they were appended."""
        return self._events.run_inside(event, lambda: Result(records_of(), None)).error is None

    # Requests about topics

    def handle_create_topics(
        self, request: CreateTopicsRequest, caller: Caller, now_ms: int
    ) -> Pending[CreateTopicsResponse]:
        return self._write(
            "createTopics", now_ms, lambda: self.topics.create(request, caller), timeout_ms=request.timeout_ms
        )

    def handle_delete_topics(
        self, request: DeleteTopicsRequest, caller: Caller, now_ms: int
    ) -> Pending[DeleteTopicsResponse]:
        if self.config.delete_topic_enable:
            return self._write(
                "deleteTopics", now_ms, lambda: self.topics.delete(request, caller), timeout_ms=request.timeout_ms
            )
        code = ErrorCode.INVALID_REQUEST if caller.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        return _failed(ApiError(code, "Topic deletion is disabled."))

    def handle_create_partitions(
        self, request: CreatePartitionsRequest, caller: Caller, now_ms: int
    ) -> Pending[CreatePartitionsResponse]:
        return self._write(
            "createPartitions", now_ms, lambda: self.topics.grow(request, caller), timeout_ms=request.timeout_ms
        )

    def handle_elect_leaders(
        self, request: ElectLeadersRequest, caller: Caller, now_ms: int
    ) -> Pending[ElectLeadersResponse]:
        return self._write(
            "electLeaders", now_ms, lambda: self.elections.elect(request), caller, _ALTER, request.timeout_ms
        )

    def handle_alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, caller: Caller, now_ms: int
    ) -> Pending[AlterPartitionReassignmentsResponse]:
        return self._write(
            "alterPartitionReassignments",
            now_ms,
            lambda: self.reassignments.alter(request),
            caller,
            _ALTER,
            request.timeout_ms,
        )

    def handle_list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, caller: Caller, now_ms: int
    ) -> Pending[ListPartitionReassignmentsResponse]:
        def operation(epoch: int) -> ListPartitionReassignmentsResponse:
            caller.require_on_cluster(AclOperation.DESCRIBE)
            return self.reassignments.list_ongoing(request, epoch)

        return self._events.run("listPartitionReassignments", lambda: self.runtime.read(operation))

    # Requests about configs, quotas, credentials, ACLs, features

    def handle_alter_configs(
        self, request: AlterConfigsRequest, caller: Caller, now_ms: int
    ) -> Pending[AlterConfigsResponse]:
        return self._write("legacyAlterConfigs", now_ms, lambda: legacy_alter_configs(self.configs, request, caller))

    def handle_incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, caller: Caller, now_ms: int
    ) -> Pending[IncrementalAlterConfigsResponse]:
        return self._write(
            "incrementalAlterConfigs", now_ms, lambda: incremental_alter_configs(self.configs, request, caller)
        )

    def handle_alter_client_quotas(
        self, request: AlterClientQuotasRequest, caller: Caller, now_ms: int
    ) -> Pending[AlterClientQuotasResponse]:
        return self._write(
            "alterClientQuotas", now_ms, lambda: self.client_quotas.alter(request), caller, AclOperation.ALTER_CONFIGS
        )

    def handle_alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest, caller: Caller, now_ms: int
    ) -> Pending[AlterUserScramCredentialsResponse]:
        return self._write(
            "alterUserScramCredentials",
            now_ms,
            lambda: self.scram.alter(request, self.features.metadata_version),
            caller,
            _ALTER,
        )

    def handle_create_acls(
        self, request: CreateAclsRequest, caller: Caller, now_ms: int
    ) -> Pending[CreateAclsResponse]:
        return self._write(
            "createAcls", now_ms, lambda: self.acls.create(request, self.features.metadata_version), caller, _ALTER
        )

    def handle_delete_acls(
        self, request: DeleteAclsRequest, caller: Caller, now_ms: int
    ) -> Pending[DeleteAclsResponse]:
        return self._write("deleteAcls", now_ms, lambda: self.acls.delete(request), caller, _ALTER)

    def handle_delegation_token(self, request: TokenRequest, caller: Caller, now_ms: int) -> Pending[Any]:
        """CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken."""
        version = self.features.metadata_version
        return self._write(EVENTS[type(request)], now_ms, lambda: self.tokens.handle(request, caller, version))

    def handle_update_features(
        self, request: UpdateFeaturesRequest, caller: Caller, now_ms: int
    ) -> Pending[UpdateFeaturesResponse]:
        return self._write("updateFeatures", now_ms, lambda: self._update_features(request), caller, _ALTER)

    def _update_features(self, request: UpdateFeaturesRequest) -> Result[VersionedRecord, UpdateFeaturesResponse]:
        updates = request.feature_updates
        try:
            changes = self.features.update(updates, validate_only=request.validate_only)
        except ApiError as error:
            response = UpdateFeaturesResponse(
                error_code=error.code,
                error_message="The update failed for all features since the following feature had an error: "
                + error.message,
            )
            return Result([], response)
        if any(one.feature == ELIGIBLE_LEADER_REPLICAS_VERSION and one.max_version_level > 0 for one in updates):
            changes += self.configs.elr_safety_records()
            if not self.features.is_elr_enabled:
                changes += self.partitions.former_elr_records()
        results = [
            UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.name) for update in updates
        ]
        response = UpdateFeaturesResponse(error_message=None, results=results)
        return Result([] if request.validate_only else changes, response, atomic=True)

    # Requests from nodes

    def handle_broker_registration(
        self, request: BrokerRegistrationRequest, caller: Caller, now_ms: int
    ) -> Pending[BrokerRegistrationResponse]:
        def operation() -> Result[VersionedRecord, BrokerRegistrationResponse]:
            new_epoch = self.runtime.offsets.next_write_offset
            assert new_epoch is not None, "only the active controller registers brokers"
            try:
                return self.cluster.register_broker(request, new_epoch, self.broker_changes.clean_up, now_ms)
            except ApiError as error:
                if error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    self._liveness.on_duplicate_registration(request.broker_id, now_ms)
                raise

        return self._write("registerBroker", now_ms, operation, caller, _CLUSTER_ACTION)

    def handle_broker_heartbeat(
        self, request: BrokerHeartbeatRequest, caller: Caller, now_ms: int
    ) -> Pending[BrokerHeartbeatResponse]:
        def operation() -> Pending[BrokerHeartbeatResponse]:
            registration = self.cluster.check_broker_epoch(request.broker_id, request.broker_epoch)
            # Before what may raise: the broker lives, whatever becomes of its request. And before a shutdown may begin:
            # this ends the fencing that was under way.
            self._liveness.on_heartbeat(request.broker_id, request.broker_epoch, now_ms)
            result, is_shutting_down = self.broker_changes.heartbeat(request, registration)
            answer = self.runtime.write(lambda: result)
            next_write = self.runtime.offsets.next_write_offset
            if is_shutting_down and answer.error is None and next_write is not None:
                self.cluster.heartbeats.set_shutdown_offset(request.broker_id, next_write - 1)
                if self.broker_changes.departures.is_under_way(request.broker_id):
                    self._periodic.hasten(CONTINUE_SHUTDOWN, now_ms + RERUN_MS)
            return answer

        return self._write("processBrokerHeartbeat", now_ms, operation, caller, _CLUSTER_ACTION)

    def handle_unregister_broker(
        self, request: UnregisterBrokerRequest, caller: Caller, now_ms: int
    ) -> Pending[UnregisterBrokerResponse]:
        def operation() -> Result[VersionedRecord, UnregisterBrokerResponse]:
            return Result(
                self.broker_changes.unregister(request.broker_id), UnregisterBrokerResponse(error_message=None)
            )

        return self._write("unregisterBroker", now_ms, operation, caller, _ALTER)

    def handle_unregister_controller(
        self, request: UnregisterControllerRequest, caller: Caller, now_ms: int
    ) -> Pending[UnregisterControllerResponse]:
        def operation() -> Result[VersionedRecord, UnregisterControllerResponse]:
            if request.controller_id == self.config.node_id:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Controller cannot unregister itself while it is active.")
            return self.cluster.unregister_controller(request.controller_id)

        return self._write("unregisterController", now_ms, operation, caller, _ALTER)

    def handle_controller_registration(
        self, request: ControllerRegistrationRequest, caller: Caller, now_ms: int
    ) -> Pending[ControllerRegistrationResponse]:
        return self._write(
            "registerController", now_ms, lambda: self.cluster.register_controller(request), caller, _CLUSTER_ACTION
        )

    def handle_alter_partition(
        self, request: AlterPartitionRequest, caller: Caller, now_ms: int
    ) -> Pending[AlterPartitionResponse]:
        return self._write(
            "alterPartition", now_ms, lambda: self.alter_partitions.alter(request), caller, _CLUSTER_ACTION
        )

    def handle_allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, caller: Caller, now_ms: int
    ) -> Pending[AllocateProducerIdsResponse]:
        return self._write(
            "allocateProducerIds", now_ms, lambda: self.producer_ids.allocate(request), caller, _CLUSTER_ACTION
        )

    def handle_assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest, caller: Caller, now_ms: int
    ) -> Pending[AssignReplicasToDirsResponse]:
        return self._write(
            "assignReplicasToDirs", now_ms, lambda: self.directories.assign(request), caller, _CLUSTER_ACTION
        )

    def _write(
        self,
        event: str,
        now_ms: int,
        operation: Decide[R],
        caller: Caller | None = None,
        needs: AclOperation | None = None,
        timeout_ms: int = 0,
    ) -> Pending[R]:
        """Run a request's operation and write its records. Fails where the caller lacks the right `needs` on the
        cluster."""
        if caller is not None and needs is not None:
            try:
                caller.require_on_cluster(needs)
            except ApiError as error:
                return _failed(error)

        def decide() -> Decision[R] | Steps[Decision[R]]:
            self._observe_time(now_ms)
            return operation()

        return self._events.run(event, decide, timeout_ms)

    def _require_exists(self, resource: ConfigResource) -> None:
        if resource.type == ConfigResourceType.TOPIC and resource.name not in self.partitions.topic_ids:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")
        if resource.type != ConfigResourceType.BROKER or not resource.name:
            return
        if not resource.name.isascii() or not resource.name.isdigit():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid broker name {resource.name}")
        node_id = int(resource.name)
        if node_id not in self.cluster.brokers and node_id not in self.cluster.controllers:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {node_id} found.")

    # The log

    def _prepare(self, epoch: int, batch: Sequence[VersionedRecord]) -> Prepared:
        last_offset = self._quorum.prepare_append(epoch, batch)
        return Prepared(last_offset - len(batch) + 1, last_offset)

    def _replay(self, versioned: VersionedRecord, offset: int) -> None:
        """An unknown type is fatal: the state of a controller that skipped the record would differ from the others'."""
        record = versioned.record
        handler = self._replays.get(type(record))
        if handler is None:
            raise ValueError(f"cannot replay {type(record).__name__} at offset {offset}: the record type is unknown")
        handler(record, offset)


def _failed(error: ApiError) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.fail(error)
    return pending
