"""A node: one process of a cluster, broker or controller or both.

`Node(config)` reads nothing and opens nothing. Its start makes each part after all that the part takes, in this order:
the identity in the directories; the sockets of the listeners; the metadata log and the controller; with the broker role
the logs, whose broker registers, applies the first image, and at last answers clients. `kalda.broker.process.closing`
has the order of the stop.

A start that fails raises `StartError` with what to do about it; `stop` then closes what was opened.

Not obvious:

- `Listener.handler` changes when the gate opens: a connection keeps the handler it was made with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.sensors import Sensors
from kalda.broker.channels.lifecycle import BrokerLifecycle
from kalda.broker.channels.node_channels import ControllerChannel, RaftChannel
from kalda.broker.process.closing import Closing, Ending, Part
from kalda.broker.process.listeners import NodeListeners
from kalda.broker.process.loggers import started_ms_ago
from kalda.broker.process.node_parts import NodeParts, Surroundings, make_parts
from kalda.broker.process.publishers import publishers_of_node
from kalda.broker.process.shell import Host, wait_settled
from kalda.broker.quorum.quorum_side import QuorumSide
from kalda.metadata.image import MetadataImage
from kalda.metadata.meta_properties import MetaPropertiesError
from kalda.network.client.client import RpcPolicy

if TYPE_CHECKING:
    from kalda.broker.metrics.metrics_export import MetricsListener
    from kalda.broker.process.broker_side import BrokerSide
    from kalda.broker.process.controller_side import ControllerSide
    from kalda.broker.quorum.raft_driver import RaftDriver
    from kalda.replication.replica_manager import ReplicaManager
    from kalda.storage.dirs.log_manager import LogManager

log = logging.getLogger("kalda.node")

_NO_TIMEOUT_MS = 2**53
"""From this `server.max.startup.time.ms` on, a start has no time limit; the default of the key is the largest long."""


class StartError(Exception):
    """The node cannot start. The message says why, and what to do."""


class Node:
    """One process of a cluster: broker, controller, or both."""

    def __init__(self, config: ServerConfig, host: Host | None = None) -> None:
        """`host` is the machine that the node runs on; None for the real one."""
        self.config = config
        self.failed = False
        """Whether `on_fatal` was called. A node that failed does not hand over leaderships when it stops."""
        self.on_fatal: Callable[[str], object] = lambda why: None
        """Called once, with the reason, when the node cannot go on: the caller should stop it."""
        self.sensors = Sensors()
        """What the floors of this node count."""
        self._host = host if host is not None else Host()
        self._closing = Closing()
        self._resources = ExitStack()
        self._resources.callback(self._host.close)
        self.running: RunningNode | None = None
        """The parts of this node; None until it takes part in the quorum."""
        self._stopping = False
        """Whether the part of the stop that cannot be interrupted has begun."""
        self._skips_handover = False
        """Whether a stop does not wait until leaderships have moved."""
        self._handing_over: BrokerLifecycle | None = None
        """While a stop waits for that."""

    def port(self, listener: str) -> int:
        """The port that a listener is bound to."""
        return self._started.listeners.ports[listener]

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image of this node."""
        return self._started.quorum.loader.image

    @property
    def raft(self) -> RaftDriver:
        """This node's replica of the metadata log."""
        return self._started.quorum.raft

    @property
    def replicas(self) -> ReplicaManager | None:
        """This broker's partitions; None without the broker role, and before the start."""
        broker = None if self.running is None else self.running.broker
        return None if broker is None else broker.services.replicas

    @property
    def logs(self) -> LogManager | None:
        """This broker's logs; None as with `replicas`."""
        broker = None if self.running is None else self.running.broker
        return None if broker is None else broker.logs

    @property
    def _started(self) -> RunningNode:
        assert self.running is not None, "the node has not been started"
        return self.running

    # -- start

    async def start(self) -> None:
        """Return when clients are served. Raises `StartError`.

        Without `server.max.startup.time.ms` there is no time limit: after a loss of power all logs are read, and a node
        that gave up would have to read them again.
        """
        limit_ms = self.config["server.max.startup.time.ms"]
        try:
            async with asyncio.timeout(None if limit_ms > _NO_TIMEOUT_MS else limit_ms / 1000):
                await self._start()
        except (MetaPropertiesError, ValueError) as error:
            raise StartError(str(error)) from error
        except TimeoutError:
            raise StartError(f"the node did not come up within {limit_ms} ms; see the lines above") from None
        except OSError as error:
            raise StartError(f"{error.filename or 'the node'}: {error.strerror or error}") from error
        except ApiError as error:
            raise StartError(error.message or error.code.name) from error  # the metadata log's disk
        except Exception as error:
            log.exception("the start failed")
            raise StartError(f"the node cannot start, by an error that was not foreseen: {error!r}") from error

    async def _start(self) -> None:
        given = Surroundings(self.config, self._host, self.sensors, self._closing, self._resources, self._fatal)
        self.running = await start_node(given)
        await self.running.serve()
        # Test suites of other clients wait for exactly this line.
        log.info("[KafkaRaftServer nodeId=%d] Kafka Server started", self.config.node_id)
        cluster_id = self.running.parts.cluster_id
        log.info("node %d of cluster %s serves after %d ms", self.config.node_id, cluster_id, started_ms_ago())

    def _fatal(self, why: str) -> None:
        if not self.failed and not self._stopping:
            self.failed = True
            log.critical("node %d stops: %s", self.config.node_id, why)
            self.skip_handover()
            self.on_fatal(why)

    # -- stop

    async def stop(self, *, clean: bool = True) -> None:
        """Hand leaderships over, finish the requests under way, close. Does nothing when called again, and closes what
        a failed start has opened.

        With `clean` false nothing is handed over and nothing is flushed, and no marker of a clean stop is written.
        """
        if self._stopping:
            return
        log.info("node %d is stopping", self.config.node_id)
        broker = None if self.running is None else self.running.broker
        if clean and broker is not None and not self.failed and self.config["controlled.shutdown.enable"]:
            await self._hand_over(broker.lifecycle)
        self._stopping = True
        with self._resources:
            await self._closing.run(Ending(clean, self.failed))
        log.info("node %d has stopped", self.config.node_id)

    def skip_handover(self) -> None:
        """A `stop` under way, or a later one, does not wait until leaderships have moved. Logs are closed as ever."""
        self._skips_handover = True
        if self._handing_over is not None:
            self._handing_over.close()

    async def _hand_over(self, lifecycle: BrokerLifecycle) -> None:
        """Have the controller move this broker's leaderships away. The lifecycle limits how long that may take."""
        lifecycle.begin_controlled_shutdown()
        if not self._skips_handover:
            self._handing_over = lifecycle
            await wait_settled(lifecycle.milestones.may_shut_down)
            self._handing_over = None


_LAST_STEP_TIMEOUT_S = 5
"""How long a stop waits for the last snapshot, and then for the quorum."""


class RunningNode(NamedTuple):
    """One that takes part in the quorum. Its controller answers; its broker does after `serve`."""

    parts: NodeParts
    listeners: NodeListeners
    quorum: QuorumSide
    channel: ControllerChannel
    """For all requests to the active controller but registrations and heartbeats of the broker."""
    broker: BrokerSide | None
    """None without that role, as is `controller`."""
    controller: ControllerSide | None
    metrics_listener: MetricsListener | None
    """None where `kalda.metrics.listener` is not set."""

    async def serve(self) -> None:
        """Return when clients are served: at once without the broker role."""
        if self.broker is not None:
            await self.broker.start()


async def start_node(given: Surroundings) -> RunningNode:
    """Make all parts. Whatever was made when one fails is in `given.closing` and `given.resources`. Raises
    `MetaPropertiesError`, `OSError`, `ApiError` for the disk of the metadata log, and `ValueError` for properties."""
    parts = make_parts(given)
    config, host = parts.config, parts.host
    listeners = NodeListeners(parts)
    await listeners.bind(parts)
    quorum = _quorum(parts, listeners)
    if parts.security is not None:
        parts.security.image = lambda: quorum.loader.image
    channel = ControllerChannel(
        quorum.leader_address,
        f"broker-{config.node_id}-channel",
        config["request.timeout.ms"],
        parts.to_controllers(),
    )
    parts.closing.add(Part.CHANNELS, lambda _: channel.close())
    broker, controller = None, None
    if config.is_broker:
        from kalda.broker.process.broker_side import BrokerSide

        broker = BrokerSide(parts, listeners, quorum, channel)
    if quorum.controller is not None:
        from kalda.broker.process.controller_side import ControllerSide

        controller = ControllerSide(parts, listeners, quorum, quorum.controller, channel)

    def on_loaded() -> None:
        channel.on_controller_change()
        if broker is not None:
            broker.on_metadata()

    quorum.on_loaded = on_loaded
    registration = None if controller is None else controller.registration
    quorum.loader.install_publishers(
        publishers_of_node(parts.node_authorizer, quorum.snapshots, parts.quotas, registration)
    )
    if parts.node_authorizer is not None:
        parts.node_authorizer.start()
    quorum.start()
    parts.quotas.start()
    if controller is not None:
        controller.start()
    parts.timers.start()
    host.watch(parts.watchdog)
    if parts.security is not None:
        parts.security.start()
    metrics_listener = await _open_metrics(parts, quorum, broker)
    return RunningNode(parts, listeners, quorum, channel, broker, controller, metrics_listener)


def _quorum(parts: NodeParts, listeners: NodeListeners) -> QuorumSide:
    config = parts.config
    # It reconnects often, so that a node that was down is found soon.
    policy = RpcPolicy(
        client_id=f"raft-client-{config.node_id}",
        connect_timeout_ms=config["controller.quorum.request.timeout.ms"],
        backoff_max_ms=200,
        probes=True,
    )
    channel = RaftChannel(policy, parts.to_controllers())
    parts.closing.add(Part.RAFT_CHANNEL, lambda _: channel.close())
    quorum = QuorumSide(parts, listeners.controller_endpoints, channel)
    parts.closing.add(Part.QUORUM, partial(_close_quorum, quorum))
    return quorum


async def _close_quorum(quorum: QuorumSide, ending: Ending) -> None:
    if ending.is_clean and not ending.has_failed:
        for last_step in (quorum.snapshot_before_stop, quorum.shutdown):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_STEP_TIMEOUT_S):
                    await wait_settled(last_step())
    try:
        quorum.close(ending.is_clean)
    except (OSError, ApiError) as error:
        log.error("the metadata log could not be closed cleanly: %s", error)


async def _open_metrics(parts: NodeParts, quorum: QuorumSide, broker: BrokerSide | None) -> MetricsListener | None:
    """Add the gauges of the node, and push or serve its metrics where the configuration says so."""
    from kalda.broker.metrics.node_gauges import add_controller_gauges, add_process_gauges, add_quorum_gauges
    from kalda.broker.process.disk import RealDisk

    config, sensors, clock, disk = parts.config, parts.sensors, parts.host.clock, parts.host.disk
    flushes = disk.syncs if isinstance(disk, RealDisk) else None
    add_process_gauges(sensors, config.node_id, config["process.roles"], clock, flushes)
    add_quorum_gauges(sensors, quorum, clock)
    if quorum.controller is not None:
        add_controller_gauges(sensors, quorum.controller, lambda: quorum.loader.image, quorum, clock)
    if endpoint := config["kalda.metrics.otlp.endpoint"]:
        from kalda.broker.metrics.metrics_export import MetricsPush

        push = MetricsPush(
            config.node_id,
            parts.cluster_id,
            endpoint,
            config["kalda.metrics.otlp.interval.ms"],
            sensors,
            clock,
            parts.timers,
            parts.jobs,
            parts.background,
        )
        parts.closing.add(Part.METRICS, lambda _: push.close())
        push.start()
    address = config["kalda.metrics.listener"]
    if not address:
        return None
    from kalda.broker.metrics.metrics_export import MetricsListener

    listener = MetricsListener(
        config.node_id,
        sensors,
        parts.quotas.managers,
        clock,
        lambda: None if broker is None else broker.services.client_metrics.series,
        config["kalda.metrics.names"],
        None if broker is None else lambda group, now_ms: broker.services.groups().explain_rebalance(group, now_ms),
        None if broker is None else lambda group: broker.services.share().explain_locks(group),
        parts.authorizer,
    )
    parts.closing.add(Part.METRICS, lambda _: listener.close())
    await listener.open(address)
    return listener
