"""Gauges of a node, of its controller, its quorum and its process, under Kafka's names. Each is computed when it is
read.

Kafka has pools of network threads and of request handlers, and dashboards show how idle these are. Here one event loop
does the work of both, so both names have the same value. Memory, CPU time, descriptors and start have the names that
Prometheus has given them for processes of all languages.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from kalda.base.scheduling import Clock
from kalda.base.sensors import (
    NO_TAGS,
    Counter,
    Durations,
    Measurable,
    SensorName,
    Sensors,
    counted,
    gauged,
    quantile_sensors,
)
from kalda.broker.quorum.quorum_side import QuorumSide
from kalda.broker.quorum.raft_driver import RAFT
from kalda.metadata.features import FEATURE_NAME, KRAFT_VERSION, supported_ranges
from kalda.metadata.image import MetadataImage
from kalda.raft.roles import LeaderRole, Role

if TYPE_CHECKING:
    from kalda.controller.quorum_controller import QuorumController


CONTROLLER = "kafka.controller:type=KafkaController"
STATS = "kafka.controller:type=ControllerStats"
EVENTS = "kafka.controller:type=ControllerEventManager"
LOADER = "kafka.server:type=MetadataLoader"
NODE = "kafka.server:type=node-metrics"
_FENCED, _SHUTTING_DOWN, _ACTIVE = 10, 20, 30


def add_quorum_gauges(sensors: Sensors, quorum: QuorumSide, clock: Clock) -> None:
    """Of the node's replica of the metadata log, and of what is loaded from it."""
    loader, raft = quorum.loader, quorum.raft

    def level() -> float:
        version = loader.image.features.metadata_version
        return 0 if version is None else int(version)

    _add(
        sensors,
        LOADER,
        {
            "CurrentMetadataVersion": level,
            "CurrentControllerId": lambda: -1 if raft.machine.leader_id is None else raft.machine.leader_id,
            "HandleLoadSnapshotCount": lambda: loader.snapshots_loaded,
        },
    )
    _add(
        sensors,
        RAFT,
        {
            "current-leader": lambda: -1 if raft.machine.leader_id is None else raft.machine.leader_id,
            "current-epoch": lambda: raft.machine.epoch,
            "current-vote": lambda: _voted(raft.machine.role),
            "high-watermark": lambda: raft.machine.high_watermark,
            "log-end-offset": lambda: raft.machine.log.end_offset,
            "log-end-epoch": lambda: raft.machine.log.last_epoch,
            "number-of-voters": lambda: len(list(raft.machine.voters.ids)),
            "number-of-observers": lambda: _observers(raft.machine.role),
            "uncommitted-voter-change": lambda: _changes_voters(raft.machine.role),
        },
    )
    sensors.add_source(lambda: _levels(loader.image, raft.kraft_version))
    for feature, levels in supported_ranges().items():
        tags = (("feature-name", feature),)
        sensors.gauge(NODE, "minimum-supported-level", tags, partial(float, levels.min))
        sensors.gauge(NODE, "maximum-supported-level", tags, partial(float, levels.max))
    _add(
        sensors,
        "kafka.server:type=SnapshotEmitter",
        {
            "LatestSnapshotGeneratedBytes": lambda: quorum.metadata_log.latest_snapshot_bytes,
            "LatestSnapshotGeneratedAgeMs": lambda: clock.mono_ms() - quorum.snapshot_written_ms,
        },
    )
    sensors.add_source(raft.times.sensors)
    _add(
        sensors,
        "kafka.server:type=broker-metadata-metrics",
        {
            "last-applied-record-offset": lambda: loader.image.offset,
            "last-applied-record-timestamp": lambda: loader.image.provenance.last_contained_log_time_ms,
            "last-applied-record-lag-ms": lambda: _lag_ms(loader.image, clock),
            "ignored-static-voters": lambda: raft.kraft_version > 0,
        },
    )


def _levels(image: MetadataImage, kraft_version: int) -> Iterator[tuple[SensorName, Measurable]]:
    """The finalized level of each feature that is on, and of kraft.version, which no record of the image has."""
    features = image.features
    levels = {**features.levels, KRAFT_VERSION: kraft_version}
    if features.metadata_version is not None:
        levels[FEATURE_NAME] = int(features.metadata_version)
    for feature, level in levels.items():
        yield SensorName(LOADER, "FinalizedLevel", (("featureName", feature),)), gauged(level)


def _voted(role: object) -> int:
    """The candidate that this node has voted for in its epoch; -1 where there is none."""
    voted = getattr(role, "voted", None)
    return -1 if voted is None else int(voted.id)


def _observers(role: Role) -> int:
    """As the leader counts them; 0 elsewhere."""
    return len(role.observers) if isinstance(role, LeaderRole) else 0


def _changes_voters(role: Role) -> bool:
    """Whether this node, as the leader, has a change of the voters that is not committed."""
    return isinstance(role, LeaderRole) and role.pending_change is not None


def _lag_ms(image: MetadataImage, clock: Clock) -> float:
    """How old the last applied record is."""
    return max(0, clock.wall_ms() - image.provenance.last_contained_log_time_ms)


def add_controller_gauges(
    sensors: Sensors, controller: QuorumController, image: Callable[[], MetadataImage], quorum: QuorumSide, clock: Clock
) -> None:
    """Of the cluster, as a controller counts it. Counts of partitions visit all of them."""
    machine = quorum.raft.machine

    def brokers(fenced: bool) -> float:
        return sum(broker.fenced is fenced for broker in image().cluster.brokers.values())

    def partitions(wanted: Callable[[int, tuple[int, ...]], bool]) -> float:
        return sum(
            wanted(partition.leader, partition.replicas)
            for topic in image().topics.by_id.values()
            for partition in topic.partitions.values()
        )

    _add(
        sensors,
        CONTROLLER,
        {
            "ActiveControllerCount": lambda: int(controller.is_active),
            "NewActiveControllersCount": lambda: controller.cluster.activations,
            "TimedOutBrokerHeartbeatCount": lambda: controller.cluster.timed_out_sessions,
            "EventQueueOperationsStartedCount": lambda: controller.event_times.started,
            "EventQueueOperationsTimedOutCount": lambda: controller.event_times.timed_out,
            "MetadataErrorCount": lambda: controller.faults.count,
            "LastAppliedRecordOffset": lambda: image().offset,
            "LastAppliedRecordTimestamp": lambda: image().provenance.last_contained_log_time_ms,
            "LastAppliedRecordLagMs": lambda: _lag_ms(image(), clock),
            "LastCommittedRecordOffset": lambda: machine.high_watermark - 1,
            "ActiveBrokerCount": lambda: brokers(False),
            "FencedBrokerCount": lambda: brokers(True),
            "ControlledShutdownBrokerCount": lambda: sum(
                broker.in_controlled_shutdown for broker in image().cluster.brokers.values()
            ),
            "IgnoredStaticVoters": lambda: quorum.raft.kraft_version > 0,
            "GlobalTopicCount": lambda: len(image().topics.by_id),
            "GlobalPartitionCount": lambda: sum(len(topic.partitions) for topic in image().topics.by_id.values()),
            "OfflinePartitionsCount": lambda: partitions(lambda leader, _: leader < 0),
            "PreferredReplicaImbalanceCount": lambda: partitions(lambda leader, replicas: leader != replicas[0]),
        },
    )
    sensors.add_source(lambda: _heartbeats(controller, clock))
    sensors.add_source(lambda: _registrations(image()))
    elected = controller.partitions
    sensors.add_source(
        lambda: (
            (SensorName(STATS, "UncleanLeaderElectionsPerSec"), counted(elected.unclean_elections)),
            (SensorName(STATS, "ElectionFromEligibleLeaderReplicasPerSec"), counted(elected.elections_of_eligible)),
        )
    )
    events = controller.event_times
    sensors.add_source(lambda: quantile_sensors(EVENTS, "EventQueueTimeMs", NO_TAGS, events.queued))
    sensors.add_source(lambda: quantile_sensors(EVENTS, "EventQueueProcessingTimeMs", NO_TAGS, events.durations))


def _heartbeats(controller: QuorumController, clock: Clock) -> Iterator[tuple[SensorName, Measurable]]:
    """Of each broker, while this controller is active."""
    if not controller.is_active:
        return
    now_ms = clock.mono_ms()
    for broker_id, contact_ms in controller.cluster.heartbeats.contacts():
        tags = (("broker", str(broker_id)),)
        yield SensorName(CONTROLLER, "TimeSinceLastHeartbeatReceivedMs", tags), gauged(max(0, now_ms - contact_ms))


def _registrations(image: MetadataImage) -> Iterator[tuple[SensorName, Measurable]]:
    """Of each broker, by Kafka's numbers."""
    for broker_id, broker in image.cluster.brokers.items():
        state = _FENCED if broker.fenced else _SHUTTING_DOWN if broker.in_controlled_shutdown else _ACTIVE
        yield SensorName(CONTROLLER, "BrokerRegistrationState", (("broker", str(broker_id)),)), gauged(state)


def _add(sensors: Sensors, group: str, gauges: dict[str, Callable[[], float]]) -> None:
    for name, read in gauges.items():
        sensors.gauge(group, name, read=read)


PROCESS: Final = "process"

_FLUSHES: Final = "kafka.log:type=LogFlushStats"
_SERVERS: Final = {"broker": "KafkaServer", "controller": "ControllerServer"}
_IO_FILE: Final = "/proc/self/io"
_WINDOW_NS: Final = 30_000_000_000


class IdleShare:
    """The share of time in which the event loop's thread did not run, of the last one to two windows of 30 s. Measured
    on that thread."""

    def __init__(self, now_ns: Callable[[], int], cpu_ns: Callable[[], int]) -> None:
        """`cpu_ns` is the CPU time of the calling thread."""
        self._now_ns = now_ns
        self._cpu_ns = cpu_ns
        self._before = self._then = (now_ns(), cpu_ns())
        """Times and CPU times when two windows began: `_before` one to two windows ago, `_then` at most one."""

    def __call__(self) -> float:
        now = self._now_ns(), self._cpu_ns()
        if now[0] - self._then[0] >= _WINDOW_NS:
            self._before, self._then = self._then, now
        elapsed_ns = now[0] - self._before[0]
        return max(0.0, 1 - (now[1] - self._before[1]) / elapsed_ns) if elapsed_ns else 1.0


def add_process_gauges(
    sensors: Sensors, node_id: int, roles: Iterable[str], clock: Clock, flushes: Durations | None
) -> None:
    """Called on the thread of the event loop. `roles` are `process.roles`; `flushes`: how long files were synced, None
    where that is not measured."""
    idle = IdleShare(time.monotonic_ns, time.thread_time_ns)
    sensors.gauge("kafka.server:type=KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", read=idle)
    sensors.gauge("kafka.network:type=SocketServer", "NetworkProcessorAvgIdlePercent", read=idle)
    started_ms = clock.wall_ms()
    sensors.gauge("kafka.server:type=app-info", "start-time-ms", (("id", str(node_id)),), lambda: started_ms)
    for role in roles if _io_bytes() else ():
        for name in ("read", "write"):
            read = partial(_io_bytes_of, f"{name}_bytes")
            sensors.gauge(f"kafka.server:type={_SERVERS[role]}", f"linux-disk-{name}-bytes", read=read)
    sensors.add_source(_process)
    if flushes is not None:
        sensors.add_source(lambda: _flush_times(flushes))


class _CpuSeconds(Counter):
    __slots__ = ()

    def measure(self, now_ms: int) -> float:
        """User and system time of all threads."""
        return time.process_time()


def _process() -> Iterator[tuple[SensorName, Measurable]]:
    """Nothing of what the system does not say: all but the CPU time is of Linux."""
    yield SensorName(PROCESS, "cpu_seconds"), _CpuSeconds()
    for name, read in (
        ("resident_memory_bytes", _resident_bytes),
        ("start_time_seconds", _start_s),
        ("open_fds", lambda: len(os.listdir("/proc/self/fd"))),
        ("max_fds", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        try:
            yield SensorName(PROCESS, name), gauged(read())
        except (OSError, ValueError):
            continue


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _start_s() -> float:
    """Seconds since 1970."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime", encoding="ascii") as file:
        up_s = float(file.read().split()[0])
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")


def _flush_times(flushes: Durations) -> Iterator[tuple[SensorName, Measurable]]:
    return quantile_sensors(_FLUSHES, "LogFlushRateAndTimeMs", NO_TAGS, flushes)


def _io_bytes_of(name: str) -> int:
    return _io_bytes().get(name, 0)


def _io_bytes() -> dict[str, int]:
    """What this process has read from its disks and written to them; empty where the system does not say."""
    try:
        with open(_IO_FILE, encoding="ascii") as file:
            return {name: int(value) for name, value in (line.split(":") for line in file)}
    except (OSError, ValueError):
        return {}
