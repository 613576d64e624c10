"""The half of a node that every node has: the metadata log, its loader, and with the controller role a controller.

At the start the log is opened, the replica takes part in the quorum, committed batches go to the controller and to the
loader, and the loader's publishers receive images as soon as it has caught up. A node without the controller role is
an observer of the quorum: it follows the same log and runs the same loader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kalda.base.background import Background, Priority, Steps
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending, Timer
from kalda.broker.channels.node_channels import RaftChannel
from kalda.broker.process.disk import absolute_dir
from kalda.broker.process.node_parts import NodeParts
from kalda.broker.quorum.raft_driver import RaftDriver
from kalda.broker.quorum.raft_listeners import Listener, RaftListeners, Registration
from kalda.broker.requests.api_versions import Features
from kalda.metadata.features import KRAFT_VERSION, VersionRange
from kalda.metadata.formatter import METADATA_DIR, read_bootstrap
from kalda.metadata.image import MetadataImage
from kalda.metadata.loader import MetadataLoader
from kalda.metadata.publisher import SnapshotGenerator
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.metadata_log import MetadataLog, MetadataLogConfig
from kalda.raft.snapshots import CommittedBatch, SnapshotReader
from kalda.raft.voters import RaftConfig, ReplicaKey, VoterEndpoint, VoterSet

if TYPE_CHECKING:
    from kalda.broker.policies import Policies
    from kalda.controller.liveness import Probe
    from kalda.controller.quorum_controller import QuorumController

# The catch-up of a controller that is far behind: it is made from the loader's image, and does not replay the log.
#
# A node that comes back may have a million records to replay. Where both its loader and its controller replayed them,
# the node would take twice as long to be ready. So a controller that lags more than `MAX_REPLAYED_RECORDS` behind is
# suspended as a listener. Once the loader has nearly caught up, the controller's state is made from the loader's
# image, in steps, and the controller goes on with the batches after it.
#
# The image is immutable, and the steps are run in the background: the loader may receive more batches in between,
# which the controller then receives from the log.

MAX_REPLAYED_RECORDS = 20_000
"""Some 0.2 s of replay."""


class ControllerCatchUp:
    """Registers the controller's listener, and resumes it where it was suspended."""

    def __init__(
        self,
        controller: QuorumController,
        listener: Listener,
        loader: MetadataLoader,
        listeners: RaftListeners,
        background: Background,
        *,
        leader_high_watermark: Callable[[], int | None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`listener` feeds `controller`. `leader_high_watermark` is where the loader's replay ends."""
        self._controller = controller
        self._loader = loader
        self._listeners = listeners
        self._background = background
        self._leader_high_watermark = leader_high_watermark
        self._on_fatal = on_fatal
        self._loading: Pending[None] | None = None
        """The load of an image. While it is set the registration is suspended, so that no batch changes the
        controller."""
        self.steps_taken = 0
        self._registration: Registration = listeners.register(listener, suspend_beyond_lag=self._max_lag)

    @property
    def is_suspended(self) -> bool:
        """Whether the controller lacks what the loader may have."""
        return self._registration.is_suspended

    def on_loaded(self, next_offset: int) -> None:
        """The loader has received everything before `next_offset`. Begins to load its image where that pays."""
        if not self.is_suspended or self._loading is not None:
            return
        if (self._leader_high_watermark() or next_offset) - next_offset > MAX_REPLAYED_RECORDS // 2:
            return
        image = self._loader.image
        if image.provenance.is_batch_aligned and image.offset >= self._registration.next_offset:
            log.info("the controller is made from the image at %s", image.provenance)
            self._loading = self._background.run(self._load(image), Priority.MAINTENANCE)
            self._loading.then(partial(self._on_image_loaded, image.provenance.snapshot_offset))
        else:
            # The image ends in the middle of a batch, where a metadata transaction began that is still open.
            self._listeners.resume(self._registration, None)

    def close(self) -> None:
        """Take no more steps."""
        if self._loading is not None:
            self._loading.abandon()

    def _max_lag(self) -> int:
        """As many records as take as long to replay as an image takes to load."""
        return max(MAX_REPLAYED_RECORDS, len(self._loader.image.topics.by_id))

    def _load(self, image: MetadataImage) -> Steps[None]:
        for _ in self._controller.load_image(image):
            self.steps_taken += 1
            yield

    def _on_image_loaded(self, end_offset: int, _: None, error: ApiError | None) -> None:
        self._loading = None
        if error is None:
            self._listeners.resume(self._registration, end_offset)
        else:
            self._on_fatal(error.__cause__ or error)


log = logging.getLogger("kalda.quorum")


_RECORDS_PER_PAUSE = 256
_PAUSE_MS = 2
"""About as long as it takes to write `_RECORDS_PER_PAUSE` records."""
_MIN_RECORDS_AT_STOP = 1_000
"""Records since the last snapshot: replaying fewer takes no longer than writing a snapshot."""
_MAX_PARTITIONS_AT_STOP = 50_000
"""The snapshot of a larger cluster takes longer than about a second, and a stop does not wait for it."""


class LoadedSnapshot(NamedTuple):
    """A snapshot of the metadata log as the loader and the controller receive it: without its control records."""

    reader: SnapshotReader

    @property
    def last_contained_offset(self) -> int:
        """The offset of the last record whose effect it has."""
        return self.reader.last_contained_offset

    @property
    def last_contained_epoch(self) -> int:
        """That record's epoch."""
        return self.reader.epoch

    @property
    def last_contained_log_time_ms(self) -> int:
        """When that record was appended."""
        return self.reader.last_contained_timestamp_ms()

    @property
    def records(self) -> Iterator[VersionedRecord]:
        """All metadata records."""
        for batch in self.reader:
            yield from batch.records


class _SnapshotListener(Protocol):
    """The loader, or the controller."""

    def on_commit(self, batches: list[CommittedBatch]) -> None: ...

    def load_snapshot(self, snapshot: LoadedSnapshot) -> Iterator[None]: ...

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None: ...


class SnapshotAdapter:
    """A `Listener` that hands snapshots on as records. `after_each` is called after each call of the inner listener."""

    def __init__(self, listener: _SnapshotListener, after_each: Callable[[], None]) -> None:
        self._listener = listener
        self._after_each = after_each

    def on_commit(self, batches: list[CommittedBatch]) -> None:
        self._listener.on_commit(batches)
        self._after_each()

    def on_load_snapshot(self, reader: SnapshotReader) -> Iterator[None]:
        yield from self._listener.load_snapshot(LoadedSnapshot(reader))
        self._after_each()

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self._listener.on_leader_change(leader_id, epoch)
        self._after_each()


class _KraftVersion:
    """`kraft.version`, which the quorum finalizes for the controller."""

    def __init__(self, raft: RaftDriver) -> None:
        self._raft = raft

    @property
    def level(self) -> int:
        return self._raft.kraft_version

    def upgrade(self, level: int, *, validate_only: bool) -> None:
        """Finalize `level`. Raises `ApiError`."""
        self._raft.upgrade_kraft_version(level, validate_only=validate_only)


class QuorumSide:
    """The metadata log of one node, its loader and its controller."""

    def __init__(self, parts: NodeParts, controller_endpoints: tuple[VoterEndpoint, ...], channel: RaftChannel) -> None:
        """Opens the metadata log. `controller_endpoints`: this node's own. Raises `OSError`; `ValueError` where the log
        cannot be read."""
        config, host = parts.config, parts.host
        self._config = config
        self._controller_endpoints = controller_endpoints
        self._clock = clock = host.clock
        self._timers = parts.timers
        self._background = parts.background
        self._parts = parts
        self._timer: Timer | None = None
        """Set for the controller's next deadline."""
        self._due_ms = 0
        """That deadline."""
        self._host = host
        self._is_writing_snapshot = False
        """At most one snapshot is being written."""
        self.snapshot_written_ms = host.clock.mono_ms()
        """When this node has written its last snapshot; before the first, when it was started."""
        self._loader_registration: Registration | None = None
        """None until `start`."""
        self._catch_up: ControllerCatchUp | None = None
        """None until `start`, and without a controller."""
        metadata_dir = absolute_dir(config.metadata_log_dir)
        self.metadata_log = MetadataLog.open(
            host.disk, f"{metadata_dir}/{METADATA_DIR}", _log_config(config), now_ms=clock.wall_ms()
        )
        self.raft = RaftDriver(
            _raft_config(config, parts.cluster_id, parts.directory_id, controller_endpoints),
            self.metadata_log,
            VoterSet.static(config.controller_listener_names[0], config.voters),
            clock=clock,
            timers=parts.timers,
            jobs=parts.jobs,
            background=parts.background,
            send=channel.send,
            random_below=host.rng.randrange,
            on_fatal=self._on_fatal,
        )
        self.loader = MetadataLoader(config.node_id, lambda: self.raft.leader_high_watermark or None)
        self.on_loaded: Callable[[], None] = _nothing
        """Called after the loader has received batches, a snapshot or a leader."""
        self.controller: QuorumController | None = None
        """None without the controller role."""
        self._policies: Policies | None = None
        self._probe = channel.probe
        self._is_probing = True
        """Until `stop_probing`."""
        if config.is_controller:
            self.controller = self._make_controller(metadata_dir)
        self.snapshots = SnapshotGenerator(
            config.node_id,
            self._write_snapshot,
            clock.mono_ms,
            max_bytes=config["metadata.log.max.record.bytes.between.snapshots"],
            max_interval_ms=config["metadata.log.max.snapshot.interval.ms"],
        )

    def _make_controller(self, metadata_dir: str) -> QuorumController:
        from kalda.controller.config import ControllerConfig, ControllerHost
        from kalda.controller.config_schema import NodeConfigSchema
        from kalda.controller.credentials import TokenConfig
        from kalda.controller.quorum_controller import QuorumController
        from kalda.network.named_files import refusal

        config = self._config
        if config["create.topic.policy.class.name"] or config["alter.config.policy.class.name"]:
            from kalda.broker.policies import Policies

            self._policies = Policies(config.properties)
        balances = config["auto.leader.rebalance.enable"]
        interval_ms = config["leader.imbalance.check.interval.seconds"] * 1000
        return QuorumController(
            ControllerConfig(
                node_id=config.node_id,
                cluster_id=self._parts.cluster_id,
                default_replication_factor=config["default.replication.factor"],
                num_partitions=config["num.partitions"],
                broker_session_timeout_ms=config["broker.session.timeout.ms"],
                leader_imbalance_check_interval_ms=interval_ms if balances else None,
                metadata_max_idle_interval_ms=config["metadata.max.idle.interval.ms"] or None,
                unclean_leader_election_interval_ms=config["unclean.leader.election.interval.ms"],
                delete_topic_enable=config["delete.topic.enable"],
                incarnation_id=self._parts.incarnation_id,
                tokens=TokenConfig(
                    config["delegation.token.secret.key"],
                    config["delegation.token.max.lifetime.ms"],
                    config["delegation.token.expiry.time.ms"],
                    config["delegation.token.expiry.check.interval.ms"],
                ),
                supported_features=self._parts.supported,
                inter_broker_listener_name=config.inter_broker_listener_name,
                dead_process_detection_enable=config["kalda.dead.process.detection.enable"],
                performance_sample_period_ms=config["controller.performance.sample.period.ms"],
                performance_always_log_threshold_ms=config["controller.performance.always.log.threshold.ms"],
            ),
            self.raft,
            NodeConfigSchema(config.properties, refusal),
            ControllerHost(
                new_id=self._host.new_uuid,
                rng=self._host.rng,
                background=self._background,
                elapsed_ms=self._clock.mono_ms,
                on_fatal=self._on_fatal,
                on_poll=self.arm,
                wall_ms=self._clock.wall_ms,
                kraft_version=_KraftVersion(self.raft),
                voters=lambda: [node_id for node_id, _ in self.raft.node_endpoints],
                create_topic_policy=self._policies.check_new_topic if self._policies is not None else None,
                alter_config_policy=self._policies.check_configs if self._policies is not None else None,
            ),
            read_bootstrap(self._host.disk, metadata_dir).records,
        )

    def _on_fatal(self, error: BaseException) -> None:
        self._parts.on_fatal(f"the metadata quorum failed: {error!r}")

    def start(self) -> None:
        """Take part in the quorum, and follow the log."""
        listeners = self.raft.listeners
        if self.controller is not None:
            self._catch_up = ControllerCatchUp(
                self.controller,
                SnapshotAdapter(self.controller, self.arm),
                self.loader,
                listeners,
                self._background,
                leader_high_watermark=lambda: self.raft.leader_high_watermark,
                on_fatal=self._on_fatal,
            )
        self._loader_registration = listeners.register(SnapshotAdapter(self.loader, self._loaded))
        self.raft.start()

    def _loaded(self) -> None:
        if self.loader.is_waiting:
            # It waits for the high watermark, which may have moved without a batch for the loader.
            self.loader.poll()
        if self._catch_up is not None and self._loader_registration is not None:
            self._catch_up.on_loaded(self._loader_registration.next_offset)
        self.on_loaded()

    def replayed(self) -> int | None:
        """How far the replay of what was committed before the start is, as a number that grows; None once it is done
        for the loader and the controller."""
        registration, catch_up = self._loader_registration, self._catch_up
        if registration is None:
            return 0
        if self.loader.catching_up or (catch_up is not None and catch_up.is_suspended):
            return registration.next_offset + (catch_up.steps_taken if catch_up is not None else 0)
        return None

    def leader_address(self) -> tuple[str, int] | None:
        """The address of the active controller; None while there is none.

        This node's own is that of its properties: a lone voter whose ports were changed is in the voter set with the
        former ones."""
        leader_id = self.raft.leader_and_epoch().leader_id
        if leader_id is None:
            return None
        if leader_id == self._config.node_id and self._controller_endpoints:
            return self._controller_endpoints[0].host, self._controller_endpoints[0].port
        for node_id, endpoints in self.raft.node_endpoints:
            if node_id == leader_id and endpoints:
                return endpoints[0].host, endpoints[0].port
        registered = self.loader.image.cluster.controllers.get(leader_id)
        for endpoint in registered.listeners.values() if registered is not None else ():
            return endpoint.host, endpoint.port
        return None

    def features(self, supported: Mapping[str, VersionRange]) -> Features:
        """What ApiVersions announces, with these ranges."""
        image = self.loader.image
        finalized = dict(image.features.all_levels)
        if kraft_version := self.raft.kraft_version:
            # The quorum finalizes kraft.version itself, in a control record; no image holds it.
            finalized[KRAFT_VERSION] = kraft_version
        return Features(
            {name: (levels.min, levels.max) for name, levels in supported.items()},
            finalized,
            image.offset,
        )

    # -- time

    def arm(self) -> None:
        """Poll the controller, and set the timer for its next deadline. The controller raises nothing here: an event
        that fails ends its leadership, and the next claim arms the timer again."""
        if self.controller is None:
            return
        now_ms = self._clock.mono_ms()
        probes = self.controller.probes_due(now_ms)
        deadline_ms = self.controller.poll(now_ms)
        self._disarm()
        if deadline_ms is not None:
            self._due_ms = max(now_ms + 1, deadline_ms)
            self._timer = self._timers.call_later_ms(self._due_ms - now_ms, self._on_due)
        for probe in probes:
            self._probe(probe.addresses).then(partial(self._on_probed, probe))

    def _on_due(self) -> None:
        assert self.controller is not None
        self.controller.event_times.queued.add_us((self._clock.mono_ms() - self._due_ms) * 1000)
        self.arm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_probed(self, probe: Probe, refused: bool | None, error: ApiError | None) -> None:
        """A probe that failed proves nothing."""
        if self.controller is not None and self._is_probing:
            self.controller.on_probed(probe, bool(refused))
            self.arm()

    def stop_probing(self) -> None:
        """Probe no broker any more: this node stops, so a refused connection may be its own doing."""
        self._is_probing = False

    # -- snapshots

    def _write_snapshot(self, image: MetadataImage) -> bool:
        if self._is_writing_snapshot:
            return False
        self._begin_snapshot(image)
        return True

    def _begin_snapshot(self, image: MetadataImage) -> Pending[bool]:
        provenance = image.provenance
        # The image is immutable, so the thread that writes its records can make them.
        done = self.raft.create_snapshot(
            provenance.snapshot_offset,
            provenance.last_contained_epoch,
            _with_pauses(image.records(), self._host.pause_thread),
            provenance.last_contained_log_time_ms,
        )

        def written(made: bool | None, error: ApiError | None) -> None:
            self._is_writing_snapshot = False
            if made:
                self.snapshot_written_ms = self._host.clock.mono_ms()
                log.info("snapshot %s is written", provenance)

        self._is_writing_snapshot = True
        done.then(written)
        return done

    def snapshot_before_stop(self) -> Pending[bool]:
        """Write a snapshot, so that the next start need not replay what was written since the last one: a restart of a
        broker alone writes two records for each of its partitions. Whether one was written."""
        image, latest = self.loader.image, self.metadata_log.latest_snapshot
        provenance = image.provenance
        since = provenance.snapshot_offset - (latest.offset if latest is not None else 0)
        if (
            since < _MIN_RECORDS_AT_STOP
            or self._is_writing_snapshot
            or self.loader.catching_up
            or not provenance.is_batch_aligned
            or self.snapshots.disabled_reason is not None
            or sum(len(topic.partitions) for topic in image.topics.by_id.values()) > _MAX_PARTITIONS_AT_STOP
        ):
            done: Pending[bool] = Pending()
            done.complete(False)
            return done
        log.info("snapshot %s, because %d records were written since the last", provenance, since)
        return self._begin_snapshot(image)

    # -- the end

    def shutdown(self) -> Pending[None]:
        """Stop taking part in the quorum; settles when the log is synced."""
        self._disarm()
        return self.raft.shutdown()

    def close(self, clean: bool = True) -> None:
        """Close the files; with `clean` false leave them as they are."""
        if self._catch_up is not None:
            self._catch_up.close()
        self.stop_probing()
        self._disarm()
        if self._policies is not None:
            self._policies.close()
        self.raft.close(clean)


def _with_pauses(records: Iterator[VersionedRecord], pause: Callable[[int], None]) -> Iterator[VersionedRecord]:
    """The same records, with pauses of the thread that draws them. Without pauses a million records would hold the
    interpreter lock half the time for seconds, and the event loop would wait for it again and again."""
    while chunk := list(islice(records, _RECORDS_PER_PAUSE)):
        yield from chunk
        if len(chunk) == _RECORDS_PER_PAUSE:
            pause(_PAUSE_MS)


def _nothing() -> None:
    return None


def _log_config(config: ServerConfig) -> MetadataLogConfig:
    return MetadataLogConfig(
        segment_bytes=config["internal.metadata.log.segment.bytes"] or config["metadata.log.segment.bytes"],
        segment_ms=config["metadata.log.segment.ms"],
        retention_bytes=config["metadata.max.retention.bytes"],
        retention_ms=config["metadata.max.retention.ms"],
    )


def _raft_config(
    config: ServerConfig, cluster_id: str, directory_id: Uuid, endpoints: tuple[VoterEndpoint, ...]
) -> RaftConfig:
    return RaftConfig(
        local=ReplicaKey(config.node_id, directory_id),
        cluster_id=cluster_id,
        listener=config.controller_listener_names[0],
        endpoints=endpoints,
        bootstrap_servers=tuple(config.bootstrap_servers),
        can_be_voter=config.is_controller,
        auto_join=config["controller.quorum.auto.join.enable"],
        election_timeout_ms=config["controller.quorum.election.timeout.ms"],
        election_backoff_max_ms=config["controller.quorum.election.backoff.max.ms"],
        fetch_timeout_ms=config["controller.quorum.fetch.timeout.ms"],
        request_timeout_ms=config["controller.quorum.request.timeout.ms"],
        retry_backoff_ms=config["controller.quorum.retry.backoff.ms"],
        fetch_max_bytes=config["controller.quorum.fetch.max.bytes"],
        fetch_snapshot_max_bytes=config["controller.quorum.fetch.snapshot.max.bytes"],
    )
