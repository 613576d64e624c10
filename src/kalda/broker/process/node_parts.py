"""What every part of a node is made with: its identity, clocks, threads and locks, its quotas, authorizer and security.

They are made first, since all else takes them; none of them needs a socket or the metadata log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kalda.base.background import Background
from kalda.base.configs.server import ServerConfig
from kalda.base.configs.without_effect import idle_properties
from kalda.base.disk import Disk, File
from kalda.base.ids import Uuid
from kalda.base.sensors import Sensors
from kalda.broker.process.closing import Closing, Part
from kalda.broker.process.disk import absolute_dir
from kalda.broker.process.shell import Host, JobPool, LoopTimers, Watchdog
from kalda.broker.requests.quotas import NodeQuotas
from kalda.metadata.features import VersionRange, supported_ranges
from kalda.metadata.formatter import METADATA_DIR
from kalda.metadata.meta_properties import MetaPropertiesEnsemble, MetaPropertiesError
from kalda.network.server.connection import FrameHandler
from kalda.protocol.access import Authorizer
from kalda.storage.checkpoints import LOCK_FILE
from kalda.storage.file_names import DELETE_DIR_SUFFIX, LOG_SUFFIX, STRAY_DIR_SUFFIX, parse_dir_name

if TYPE_CHECKING:
    from kalda.broker.metrics.request_metrics import RequestMetrics
    from kalda.broker.process.node_security import NodeSecurity
    from kalda.broker.requests.node_authorizer import NodeAuthorizer
    from kalda.broker.requests.pipeline import RequestPipeline
    from kalda.network.client.client import Reach

# A metadata log that was lost while the logs of partitions were not.
#
# The only controller of a cluster whose metadata log is lost would begin an empty cluster: no topic would exist, and
# the broker would set all its logs aside as stray. So such a node does not start. One of several controllers may: it
# copies the log from the others.

_SHOWN = 3


def refuse_lost_metadata(disk: Disk, config: ServerConfig, log_dirs: Iterable[str]) -> None:
    """`log_dirs`: those that can be used. Raises `MetaPropertiesError`, and `OSError`."""
    metadata_log = f"{absolute_dir(config.metadata_log_dir)}/{METADATA_DIR}"
    if not _is_only_controller(config) or _has_records(disk, metadata_log):
        return
    logs = [name for log_dir in log_dirs for name in disk.list_dir(log_dir) if _is_partition(name)]
    if logs:
        more = f" and {len(logs) - _SHOWN} more" if len(logs) > _SHOWN else ""
        raise MetaPropertiesError(
            f"The metadata log {metadata_log} is missing or empty, but the logs of {', '.join(logs[:_SHOWN])}{more} are"
            " here. Without it no topic, config or user of the cluster exists, and this node is its only controller: it"
            " does not start, and nothing is changed. Put that directory back from a backup. To begin an empty cluster,"
            " move the directories of log.dirs away, and format new ones with: kalda storage format"
        )


def _is_only_controller(config: ServerConfig) -> bool:
    """Whether nobody else has the metadata log."""
    if not config.is_controller:
        return False
    if config.voters:
        return [voter.id for voter in config.voters] == [config.node_id]
    own = {(endpoint.host, endpoint.port) for endpoint in config.advertised_controller_listeners}
    return own.issuperset(config.bootstrap_servers)


def _has_records(disk: Disk, metadata_log: str) -> bool:
    """Whether a metadata log has a snapshot, also the first one with the voters, or a segment that is not empty."""
    if disk.stat(metadata_log) is None:
        return False
    for name in disk.list_dir(metadata_log):
        found = disk.stat(f"{metadata_log}/{name}") if name.endswith((LOG_SUFFIX, ".checkpoint")) else None
        if found is not None and found.size_bytes:
            return True
    return False


def _is_partition(name: str) -> bool:
    return (
        name != METADATA_DIR
        and not name.endswith((DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX))
        and parse_dir_name(name) is not None
    )


log = logging.getLogger("kalda.node")
TAKEN = "another process has this directory; stop that one, or give each node a directory of its own"


class DirLocks:
    """The locks on one node's directories: two processes in one directory would destroy it.

    All locks are taken before anything is written, and held until everything is closed. The metadata directory is
    locked too, whatever the node's roles. The operating system releases the locks when the process ends."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._held: dict[str, File] = {}
        """By directory: the lock file, which is locked while it is open."""

    def take(self, directories: Iterable[str]) -> None:
        """Lock the directories that are not locked yet. Raises `BlockingIOError` where another process holds a lock.

        A directory whose disk fails is left out: the log manager takes it offline, or the start fails there.
        """
        for directory in directories:
            if directory in self._held:
                continue
            try:
                lock = self._disk.lock(f"{directory}/{LOCK_FILE}")
            except OSError as error:
                log.warning("%s cannot be locked: %s", directory, error)
                continue
            if lock is None:
                raise BlockingIOError(errno.EAGAIN, TAKEN, directory)
            self._held[directory] = lock

    def release(self) -> None:
        """Release all locks. May be called again."""
        for lock in self._held.values():
            lock.close()
        self._held.clear()


log = logging.getLogger("kalda.node")


@dataclass(frozen=True)
class Surroundings:
    """What a node is started with."""

    config: ServerConfig
    host: Host
    sensors: Sensors
    """What the floors of the node count."""
    closing: Closing
    """Whatever is made is added to it."""
    resources: ExitStack
    """Threads, locks and descriptors, which go back last, the one taken last first, whatever could not be closed."""
    on_fatal: Callable[[str], None]
    """Stops the node; called with the reason why it cannot go on."""


@dataclass(frozen=True)
class NodeParts(Surroundings):
    """The parts that the others rest on."""

    cluster_id: str
    directory_id: Uuid
    """Of the directory with the metadata log."""
    incarnation_id: Uuid
    """The id of this process, in the registrations of both roles."""
    supported: Mapping[str, VersionRange]
    """The levels of features that this node can run with."""
    timers: LoopTimers
    background: Background
    jobs: JobPool
    watchdog: Watchdog
    quotas: NodeQuotas
    node_authorizer: NodeAuthorizer | None
    """None where the properties name none: everyone may do everything."""
    security: NodeSecurity | None
    """None where every listener of this node, and of the controllers, is PLAINTEXT."""
    request_metrics: RequestMetrics | None
    """None where `kalda.metrics.listener` is not set."""

    @property
    def authorizer(self) -> Authorizer | None:
        """Decides what callers may do; None where everyone may do everything."""
        return None if self.node_authorizer is None else self.node_authorizer.authorizer

    def to_controllers(self) -> Reach:
        """How controllers are connected to. Raises `ValueError`."""
        security = None if self.security is None else self.security.to_controllers()
        return self.host.reach(security, probes=self.config["kalda.dead.process.detection.enable"])

    def on_frame(self, pipeline: RequestPipeline) -> FrameHandler:
        """The pipeline's frame handler; with a metrics listener, one that measures each request."""
        return pipeline.on_frame if self.request_metrics is None else self.request_metrics.measured(pipeline)


def make_parts(given: Surroundings) -> NodeParts:
    """On the running loop. Raises `MetaPropertiesError`, `OSError`, and `ValueError` for properties."""
    config, host, sensors, closing, resources = given.config, given.host, given.sensors, given.closing, given.resources
    loop = asyncio.get_running_loop()
    locks = DirLocks(host.disk)
    resources.callback(locks.release)
    timers = host.timers(loop)
    closing.add(Part.TIMERS, lambda _: timers.stop())
    background = Background(loop.call_soon, host.work_ns)
    resources.callback(background.close)
    jobs = host.jobs(loop, background, config["background.threads"])
    resources.callback(jobs.close)
    watchdog = Watchdog(host.clock, sensors)
    closing.add(Part.WATCHDOG, lambda _: watchdog.stop())
    watchdog.watch_background(background)
    timers.on_turn = watchdog.on_turn
    identity = _identity(config, host, locks)
    assert identity.cluster_id is not None
    directory_id = identity.properties[absolute_dir(config.metadata_log_dir)].directory_id
    assert directory_id is not None
    _warn_of_properties(config)
    quotas = NodeQuotas(config, host, sensors, timers, jobs, background)
    closing.add(Part.QUOTAS, lambda _: quotas.close())
    return NodeParts(
        config,
        host,
        sensors,
        closing,
        resources,
        given.on_fatal,
        cluster_id=identity.cluster_id,
        directory_id=directory_id,
        incarnation_id=host.new_uuid(),
        supported=supported_ranges(unstable=config["unstable.feature.versions.enable"]),
        timers=timers,
        background=background,
        jobs=jobs,
        watchdog=watchdog,
        quotas=quotas,
        node_authorizer=_authorizer(given, timers, jobs),
        security=_security(given, timers, background),
        request_metrics=_request_metrics(given),
    )


def _identity(config: ServerConfig, host: Host, locks: DirLocks) -> MetaPropertiesEnsemble:
    """Read the identity of this node from its directories, lock these, and complete what is missing there."""
    ensemble = MetaPropertiesEnsemble.load(
        host.disk, map(absolute_dir, config.log_dirs), absolute_dir(config.metadata_log_dir)
    )
    ensemble.verify_for_start(config.node_id)
    locks.take(ensemble.properties)
    refuse_lost_metadata(host.disk, config, ensemble.properties)
    ensemble = ensemble.complete(host.disk, config.node_id, host.new_uuid, host.clock.wall_ms())
    locks.take(ensemble.properties)
    return ensemble


def _authorizer(given: Surroundings, timers: LoopTimers, jobs: JobPool) -> NodeAuthorizer | None:
    if not given.config["authorizer.class.name"]:
        return None
    from kalda.broker.requests.node_authorizer import NodeAuthorizer

    authorizer = NodeAuthorizer.of(given.config, timers, jobs)
    if authorizer is not None:
        given.closing.add(Part.AUTHORIZER, lambda _: authorizer.close())
    return authorizer


def _security(given: Surroundings, timers: LoopTimers, background: Background) -> NodeSecurity | None:
    """None where this node needs none. `ssl` stores and SASL modules are not even imported then."""
    config = given.config
    names = [endpoint.listener for endpoint in config.listeners] + config.controller_listener_names[:1]
    if config.is_broker:
        names.append(config.inter_broker_listener_name)
    is_plain = all(config.protocol_map.get(name, "PLAINTEXT") == "PLAINTEXT" for name in names)
    if is_plain and not any(map(config.principal_builder, names)):
        return None
    from kalda.broker.process.node_security import NodeSecurity

    jobs = given.host.jobs(asyncio.get_running_loop(), background, config["background.threads"])
    given.resources.callback(jobs.close)
    security = NodeSecurity(config, given.host, timers, jobs)
    given.closing.add(Part.SECURITY, lambda _: security.close())
    return security


def _request_metrics(given: Surroundings) -> RequestMetrics | None:
    if not given.config["kalda.metrics.listener"]:
        return None
    from kalda.broker.metrics.request_metrics import RequestMetrics

    metrics = RequestMetrics(given.host.busy_ns)
    given.sensors.add_source(lambda: metrics.sensors(given.host.clock.mono_ms()))
    return metrics


def _warn_of_properties(config: ServerConfig) -> None:
    """Log which properties have no effect. An operator may rely on one of them, for example for security."""
    if config.unknown:
        from kalda.base.configs.broker import BROKER
    for name in config.unknown:
        near = BROKER.near(name)
        log.warning("property %s is not known%s", name, f"; did you mean {near}?" if near else "")
    for why, names in idle_properties(config.properties).items():
        log.warning("%s: no effect, because %s", ", ".join(names), why)
