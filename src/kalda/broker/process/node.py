"""A node: one process of a cluster, broker or controller or both.

`Node(config)` reads nothing and opens nothing. `start` does, in this order: the identity in the directories; the
sockets of the listeners; the metadata log and the controller; with the broker role the registration, the logs, the
first image, and at last the answers to clients. A controller's listener accepts connections at once; their requests
wait in a `Gate` until the controller can answer. A broker's listener refuses connections until the broker is
registered: from a refused connection the controller infers that the predecessor with this id is dead, and need not wait
for the end of its session. `stop` undoes all of it in reverse.

A start that fails raises `StartError` with what to do about it; `stop` then closes what was opened.

Not obvious:

- `Listener.handler` changes when the gate opens: a connection keeps the handler it was made with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kalda.base.background import Background
from kalda.base.configs.listeners import ListenerEndpoint
from kalda.base.configs.server import ServerConfig
from kalda.base.configs.without_effect import idle_properties
from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.base.scheduling import Jobs, Timers
from kalda.base.sensors import Sensors
from kalda.broker.channels.controller_channel import ControllerChannel
from kalda.broker.channels.lifecycle import BrokerIdentity
from kalda.broker.process.dir_locks import DirLocks
from kalda.broker.process.disk import absolute_dir
from kalda.broker.process.gate import Gate
from kalda.broker.process.logs import started_ms_ago
from kalda.broker.process.shell import Host, JobPool, LoopTimers, wait_settled
from kalda.broker.process.watchdog import Watchdog
from kalda.broker.quorum.quorum_side import QuorumSide
from kalda.broker.quorum.raft_channel import RaftChannel
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.quotas import NodeQuotas
from kalda.metadata.features import KRAFT_VERSION, NOT_SERVED, VersionRange, supported_ranges
from kalda.metadata.image import MetadataImage
from kalda.metadata.meta_properties import MetaPropertiesEnsemble, MetaPropertiesError
from kalda.network.client import RpcClient
from kalda.network.connection import Connection, FrameHandler
from kalda.network.limits import Limits, NodeLimits, by_address
from kalda.network.server import Peers, Server
from kalda.protocol.messages.brokers import (
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    ControllerRegistrationRequest,
    ControllerRegistrationRequestFeature,
    ControllerRegistrationRequestListener,
)
from kalda.raft.values import VoterEndpoint as QuorumEndpoint

if TYPE_CHECKING:
    from kalda.broker.channels.controller_registration import ControllerRegistrationManager
    from kalda.broker.handlers.controller import ControllerHandlers
    from kalda.broker.metrics.metrics_listener import MetricsListener
    from kalda.broker.metrics.metrics_push import MetricsPush
    from kalda.broker.metrics.request_metrics import RequestMetrics
    from kalda.broker.modules.broker_side import BrokerSide
    from kalda.broker.process.node_security import NodeSecurity
    from kalda.broker.quorum.raft_driver import RaftDriver
    from kalda.broker.requests.authorization import NodeAuthorizer
    from kalda.broker.requests.pipeline import RequestPipeline
    from kalda.network.client_security import ClientSecurity
    from kalda.replication.replica_manager import ReplicaManager
    from kalda.storage.dirs.log_manager import LogManager

log = logging.getLogger("kalda.node")
T = TypeVar("T")

PROTOCOL_IDS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_NO_TIMEOUT_MS = 2**53
"""From this `server.max.startup.time.ms` on, a start has no time limit; the default of the key is the largest long."""
_MIN_HEARTBEAT_SILENCE_MS = 1_000
_MIN_HEARTBEAT_TIMEOUT_MS = 2_000
"""However short the session is: a controller with a slow disk takes long to commit a registration, and would be sent
another one before the first is committed, and another after that."""
_LAST_STEP_TIMEOUT_S = 5
"""How long a stop waits for the last snapshot, and then for the quorum."""


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
        self._supported = supported_ranges(unstable=config["unstable.feature.versions.enable"])
        self._host = host if host is not None else Host()
        self.sensors = Sensors()
        """What the floors of this node count."""
        self._disk = self._host.disk
        self._clock = self._host.clock
        self._gates: dict[str, Gate] = {}
        """By the name of the listener, as is `_ports`."""
        self._ports: dict[str, int] = {}
        self._incarnation = self._host.new_uuid()
        """The id of this process, in the registrations of both roles."""
        self._locks = DirLocks(self._host.disk)

        # All made by `start`, in this order; None until then. A start that fails leaves the later ones None.
        self._timers: LoopTimers | None = None
        self._background: Background | None = None
        self._jobs: JobPool | None = None
        self._watchdog: Watchdog | None = None
        self._server: Server | None = None
        self._security: NodeSecurity | None = None
        self._security_jobs: JobPool | None = None
        """None where every listener of this node, and of the controllers, is PLAINTEXT."""
        self._quotas: NodeQuotas | None = None
        self._authorizer: NodeAuthorizer | None = None
        """None also where the properties name none."""
        self._raft_channel: RaftChannel | None = None
        self._quorum: QuorumSide | None = None
        self._channel: ControllerChannel | None = None
        """For all requests to the active controller but registrations and heartbeats of the broker."""
        self._heartbeats: ControllerChannel | None = None
        """For these; None without the broker role."""
        self._registration: ControllerRegistrationManager | None = None
        """None without the controller role."""
        self._broker: BrokerSide | None = None
        """None without the broker role."""
        self._controller_handlers: ControllerHandlers | None = None
        """None without the controller role."""

        self.metrics_listener: MetricsListener | None = None
        """None where `kalda.metrics.listener` is not set."""

        self._metrics_push: MetricsPush | None = None
        """None where `kalda.metrics.otlp.endpoint` is not set."""
        self._request_metrics: RequestMetrics | None = None
        """None where `kalda.metrics.listener` is not set."""

        self._stopping = False
        """Whether the part of the stop that cannot be interrupted has begun."""
        self._skips_handover = False
        """Whether a stop does not wait until leaderships have moved."""
        self._hands_over = False
        """Whether a stop waits for that."""

    def port(self, listener: str) -> int:
        """The port that a listener is bound to."""
        return self._ports[listener]

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image of this node."""
        assert self._quorum is not None, "the node has not been started"
        return self._quorum.loader.image

    @property
    def raft(self) -> RaftDriver:
        """This node's replica of the metadata log."""
        assert self._quorum is not None, "the node has not been started"
        return self._quorum.raft

    @property
    def replicas(self) -> ReplicaManager | None:
        """This broker's partitions; None without the broker role."""
        return self._broker.services.replicas if self._broker is not None else None

    @property
    def logs(self) -> LogManager | None:
        """This broker's logs; None without the broker role."""
        return self._broker.logs if self._broker is not None else None

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
        config = self.config
        loop = asyncio.get_running_loop()
        timers = self._timers = self._host.timers(loop)
        self._background = Background(loop.call_soon, self._host.work_ns)
        self._jobs = self._host.jobs(loop, self._background, config["background.threads"])
        self._watchdog = Watchdog(self._clock, self.sensors)
        self._watchdog.watch_background(self._background)
        timers.on_turn = self._watchdog.on_turn
        ensemble = self._identity()
        cluster_id = ensemble.cluster_id
        assert cluster_id is not None
        _warn_of_properties(config)
        self._quotas = NodeQuotas(config, self._host, self.sensors, timers, self._jobs, self._background)
        self._authorizer = self._make_authorizer(timers, self._jobs)
        self._security = self._make_security(timers)
        await self._bind()
        directory_id = ensemble.properties[absolute_dir(config.metadata_log_dir)].directory_id
        assert directory_id is not None
        self._raft_channel = RaftChannel(
            self._raft_client, self._host.is_refused if config["kalda.dead.process.detection.enable"] else None
        )
        self._quorum = QuorumSide(
            config,
            self._host,
            cluster_id=cluster_id,
            directory_id=directory_id,
            incarnation_id=self._incarnation,
            controller_endpoints=self._controller_endpoints(),
            timers=timers,
            jobs=self._jobs,
            background=self._background,
            send=self._raft_channel.send,
            on_fatal=lambda error: self._fatal(f"the metadata quorum failed: {error!r}"),
        )
        self._channel = ControllerChannel(
            self._controller_address,
            f"broker-{config.node_id}-channel",
            config["request.timeout.ms"],
            security=self._to_controllers(),
        )
        if config.is_broker:
            self._heartbeats = self._heartbeat_channel(self._channel)
            self._broker = self._make_broker(cluster_id, timers)
        self._quorum.on_loaded = self._on_metadata
        if self._authorizer is not None:
            self._quorum.loader.install_publishers([self._authorizer])
            self._authorizer.start()
        self._quorum.start()
        self._quorum.loader.install_publishers([self._quotas])
        self._quotas.start()
        if config.is_controller:
            self._open_controller(cluster_id)
        timers.start()
        self._host.watch(self._watchdog)
        if self._security is not None:
            self._security.start()
        await self._open_metrics(cluster_id)
        if self._broker is not None:
            self._watchdog.watch(self._broker.services.pipeline)
            await self._broker.start(self._accept)
            on_frame = self._measured(self._broker.services.pipeline)
            for endpoint in config.broker_listeners:
                self._open_gate(endpoint.listener, on_frame)
        # Test suites of other clients wait for exactly this line.
        log.info("[KafkaRaftServer nodeId=%d] Kafka Server started", config.node_id)
        log.info("node %d of cluster %s serves after %d ms", config.node_id, cluster_id, started_ms_ago())

    def _make_authorizer(self, timers: Timers, jobs: Jobs) -> NodeAuthorizer | None:
        if not self.config["authorizer.class.name"]:
            return None
        from kalda.broker.requests.authorization import NodeAuthorizer

        return NodeAuthorizer.of(self.config, timers, jobs)

    def _on_metadata(self) -> None:
        """The loader has applied records, or the quorum has another leader."""
        assert self._channel is not None
        self._channel.on_controller_change()
        if self._heartbeats is not None:
            self._heartbeats.on_controller_change()
        if self._broker is not None:
            self._broker.lifecycle.on_metadata_offset()

    def _controller_address(self) -> tuple[str, int] | None:
        """Where the active controller is reached; None while the quorum has no leader."""
        assert self._quorum is not None, "made before the channels"
        address = self._quorum.leader_address()
        return None if address is None else self._host.route(*address)

    def _raft_client(self, host: str, port: int) -> RpcClient:
        """The client of another controller. It reconnects often, so that a node that was down is found soon."""
        return RpcClient(
            *self._host.route(host, port),
            rng=self._host.rng.random,
            client_id=f"raft-client-{self.config.node_id}",
            connect_timeout_ms=self.config["controller.quorum.request.timeout.ms"],
            backoff_max_ms=200,
            security=self._to_controllers(),
        )

    def _make_security(self, timers: Timers) -> NodeSecurity | None:
        """None where this node needs none. `ssl` stores and SASL modules are not even imported then."""
        config = self.config
        names = [endpoint.listener for endpoint in config.listeners] + config.controller_listener_names[:1]
        if config.is_broker:
            names.append(config.inter_broker_listener_name)
        is_plain = all(config.protocol_map.get(name, "PLAINTEXT") == "PLAINTEXT" for name in names)
        if is_plain and not any(map(config.principal_builder, names)):
            return None
        from kalda.broker.process.node_security import NodeSecurity

        assert self._background is not None
        loop = asyncio.get_running_loop()
        self._security_jobs = self._host.jobs(loop, self._background, config["background.threads"])
        return NodeSecurity(config, self._host, timers, self._security_jobs, lambda: self.image)

    def _to_controllers(self) -> ClientSecurity | None:
        """The security of connections to controllers. Raises `ValueError`."""
        return None if self._security is None else self._security.to_controllers()

    def _identity(self) -> MetaPropertiesEnsemble:
        """Read the identity of this node from its directories, lock these, and complete what is missing there."""
        config = self.config
        ensemble = MetaPropertiesEnsemble.load(
            self._disk, map(absolute_dir, config.log_dirs), absolute_dir(config.metadata_log_dir)
        )
        ensemble.verify_for_start(config.node_id)
        self._locks.take(ensemble.properties)
        ensemble = ensemble.complete(self._disk, config.node_id, self._host.new_uuid, self._clock.wall_ms())
        self._locks.take(ensemble.properties)
        return ensemble

    async def _bind(self) -> None:
        """Bind every port. Requests wait in the gate of their listener."""
        config = self.config
        limits = NodeLimits.of(config, by_address(config.connections_per_ip_overrides()))
        server = self._server = Server(self._clock, limits, self._host.work_ns)
        self.sensors.add_source(server.measured)
        assert self._quotas is not None, "made before the server"
        self._quotas.managers.on_ip_rate = server.set_ip_rate
        for endpoint in config.listeners:
            gate = self._gates[endpoint.listener] = Gate()
            security = None if self._security is None else self._security.of_listener(endpoint)
            is_controller = endpoint.listener in config.controller_listener_names
            is_inter_broker = endpoint.listener == config.inter_broker_listener_name
            listener = await self._server.listen(
                endpoint.listener,
                endpoint.host or None,
                endpoint.port,
                gate,
                Limits.of(config, endpoint.listener),
                security_protocol=endpoint.security_protocol,
                security=security,
                peers=Peers.CONTROLLERS if is_controller else Peers.BROKERS if is_inter_broker else Peers.CLIENTS,
                on_admitted=None if security is None else security.on_admitted,
                on_close=self._on_controller_connection_closed if is_controller else None,
                accepts=is_controller,
            )
            self._ports[endpoint.listener] = listener.port
            log.info("listening on %s://%s:%d", endpoint.listener, endpoint.host or "*", listener.port)

    def _open_gate(self, listener: str, on_frame: FrameHandler) -> None:
        """Answer the requests that wait; those of connections that are made from now on do not pass the gate."""
        assert self._server is not None
        self._gates[listener].open(on_frame)
        self._server.listeners[listener].handler = on_frame

    def _address(self, endpoint: ListenerEndpoint) -> tuple[str, int]:
        """The advertised host and port. Port 0 in the properties stands for the port that was bound."""
        host = endpoint.host or socket.getfqdn()
        return host, endpoint.port or self._ports[endpoint.listener]

    def _controller_endpoints(self) -> tuple[QuorumEndpoint, ...]:
        return tuple(
            QuorumEndpoint(endpoint.listener, *self._address(endpoint))
            for endpoint in self.config.advertised_controller_listeners
        )

    def _controller_features(self) -> Features:
        """What ApiVersions announces on the controllers' listeners. As in Apache Kafka, the ranges there follow the key
        of unstable APIs."""
        supported = supported_ranges(unstable=self.config["unstable.api.versions.enable"])
        return self._features(supported)

    def _features(self, supported: Mapping[str, VersionRange] | None = None) -> Features:
        """What ApiVersions announces."""
        if supported is None:
            supported = self._supported
        assert self._quorum is not None
        image = self._quorum.loader.image
        finalized = dict(image.features.all_levels)
        if kraft_version := self._quorum.raft.kraft_version:
            # The quorum finalizes kraft.version itself, in a control record; no image holds it.
            finalized[KRAFT_VERSION] = kraft_version
        return Features(
            {name: (levels.min, levels.max) for name, levels in supported.items() if name not in NOT_SERVED},
            finalized,
            image.offset,
        )

    def _measured(self, pipeline: RequestPipeline) -> FrameHandler:
        """The pipeline's frame handler; with a metrics listener, one that measures each request."""
        if not self.config["kalda.metrics.listener"]:
            return pipeline.on_frame
        if self._request_metrics is None:
            from kalda.broker.metrics.request_metrics import RequestMetrics

            self._request_metrics = metrics = RequestMetrics(self._host.busy_ns)
            self.sensors.add_source(lambda: metrics.sensors(self._clock.mono_ms()))
        return self._request_metrics.measured(pipeline)

    async def _open_metrics(self, cluster_id: str) -> None:
        """Add the gauges of the node, and serve its metrics where the configuration says so."""
        from kalda.broker.metrics.node_gauges import add_controller_gauges, add_quorum_gauges
        from kalda.broker.metrics.process_gauges import add_process_gauges
        from kalda.broker.process.disk import RealDisk

        disk = self._host.disk
        flushes = disk.syncs if isinstance(disk, RealDisk) else None
        add_process_gauges(self.sensors, self.config.node_id, self.config["process.roles"], self._clock, flushes)
        quorum = self._quorum
        assert quorum is not None
        add_quorum_gauges(self.sensors, quorum, self._clock)
        controller = quorum.controller
        if controller is not None:
            add_controller_gauges(self.sensors, controller, lambda: quorum.loader.image, quorum, self._clock)
        if self._broker is not None:
            lifecycle = self._broker.lifecycle
            self.sensors.gauge("kafka.server:type=KafkaServer", "BrokerState", read=lambda: lifecycle.state)
        if endpoint := self.config["kalda.metrics.otlp.endpoint"]:
            from kalda.broker.metrics.metrics_push import MetricsPush

            assert self._timers is not None
            assert self._jobs is not None
            assert self._background is not None
            interval_ms = self.config["kalda.metrics.otlp.interval.ms"]
            self._metrics_push = MetricsPush(
                self.config.node_id,
                cluster_id,
                endpoint,
                interval_ms,
                self.sensors,
                self._clock,
                self._timers,
                self._jobs,
                self._background,
            )
            self._metrics_push.start()
        address = self.config["kalda.metrics.listener"]
        if address:
            from kalda.broker.metrics.metrics_listener import MetricsListener

            assert self._quotas is not None
            broker = self._broker
            self.metrics_listener = MetricsListener(
                self.config.node_id,
                self.sensors,
                self._quotas.managers,
                self._clock,
                lambda: None if broker is None else broker.services.client_metrics.series,
                self.config["kalda.metrics.names"],
                None if self._authorizer is None else self._authorizer.authorizer,
            )
            await self.metrics_listener.open(address)

    # -- controller

    def _open_controller(self, cluster_id: str) -> None:
        from kalda.broker.handlers.configs import ConfigHandlers
        from kalda.broker.handlers.controller import ControllerHandlers

        quorum = self._quorum
        assert quorum is not None
        assert quorum.controller is not None
        assert self._quotas is not None
        assert self._background is not None
        configs = ConfigHandlers(self.config.node_id, self.config, quorum.loader)
        handlers = self._controller_handlers = ControllerHandlers(
            quorum.raft, quorum.controller, quorum.loader, self._clock, cluster_id, configs, quorum.arm
        )
        pipeline = handlers.pipeline(
            self._controller_features,
            self._background,
            unstable_versions=self.config["unstable.api.versions.enable"],
            authorizer=None if self._authorizer is None else self._authorizer.authorizer,
            throttle=self._quotas.throttle,
        )
        self._quotas.add_pipeline(pipeline)
        assert self._watchdog is not None, "made before any listener is opened"
        self._watchdog.watch(pipeline)
        on_frame = self._measured(pipeline)
        early = self.config.early_start_listeners
        for name in self.config.controller_listener_names:
            open_gate = partial(self._open_gate, name, on_frame)
            if self._authorizer is None or name in early:
                open_gate()
            else:
                self._authorizer.when_loaded(open_gate)
        self._registration = self._controller_registration()
        quorum.loader.install_publishers([self._registration])

    def _on_controller_connection_closed(self, connection: Connection) -> None:
        if self._controller_handlers is not None and not self._stopping:
            self._controller_handlers.on_close(connection)

    def _controller_registration(self) -> ControllerRegistrationManager:
        from kalda.broker.channels.controller_registration import ControllerRegistrationManager

        assert self._channel is not None
        assert self._timers is not None
        request = ControllerRegistrationRequest(
            controller_id=self.config.node_id,
            incarnation_id=self._incarnation,
            listeners=[
                ControllerRegistrationRequestListener(name=endpoint.name, host=endpoint.host, port=endpoint.port)
                for endpoint in self._controller_endpoints()
            ],
            features=[
                ControllerRegistrationRequestFeature(
                    name=name, min_supported_version=levels.min, max_supported_version=levels.max
                )
                for name, levels in self._supported.items()
            ],
        )
        return ControllerRegistrationManager(request, self._channel.send, self._timers)

    # -- broker

    def _heartbeat_channel(self, others: ControllerChannel) -> ControllerChannel:
        """`others` is the channel for all other requests. A request fails within half a session, as in Kafka. After a
        third of the session it is sent over a new connection, which leaves time for its response."""
        config = self.config
        session_ms = config["broker.session.timeout.ms"]
        silence_ms = max(_MIN_HEARTBEAT_SILENCE_MS, session_ms // 3)
        return ControllerChannel(
            self._controller_address,
            f"broker-{config.node_id}-heartbeat",
            max(_MIN_HEARTBEAT_TIMEOUT_MS, session_ms // 2),
            silence_ms,
            partial(others.drop_silent_connection, silence_ms),
            self._to_controllers(),
        )

    def _make_broker(self, cluster_id: str, timers: Timers) -> BrokerSide:
        from kalda.broker.modules.broker_side import BrokerSide

        config, quorum, channel, heartbeats = self.config, self._quorum, self._channel, self._heartbeats
        jobs, background, server = self._jobs, self._background, self._server
        assert quorum is not None
        assert channel is not None
        assert heartbeats is not None
        assert jobs is not None
        assert background is not None
        assert server is not None
        assert self._quotas is not None
        identity = partial(self._broker_identity, cluster_id)
        return BrokerSide(
            config,
            self._host,
            timers,
            jobs,
            background,
            server,
            quorum,
            channel,
            heartbeats,
            self.sensors,
            self._quotas,
            None if self._authorizer is None else self._authorizer.authorizer,
            identity,
            self._features,
            self._fatal,
            self._security,
        )

    def _broker_identity(
        self, cluster_id: str, log_dirs: Callable[[], list[Uuid]], previous_broker_epoch: int
    ) -> BrokerIdentity:
        config = self.config
        return BrokerIdentity(
            broker_id=config.node_id,
            cluster_id=cluster_id,
            incarnation_id=self._incarnation,
            listeners=[
                BrokerRegistrationRequestListener(
                    name=endpoint.listener,
                    host=self._address(endpoint)[0],
                    port=self._address(endpoint)[1],
                    security_protocol=PROTOCOL_IDS[endpoint.security_protocol],
                )
                for endpoint in config.advertised_listeners
            ],
            features=[
                BrokerRegistrationRequestFeature(
                    name=name, min_supported_version=levels.min, max_supported_version=levels.max
                )
                for name, levels in self._supported.items()
            ],
            rack=config.rack,
            log_dirs=log_dirs,
            previous_broker_epoch=previous_broker_epoch,
        )

    async def _accept(self) -> None:
        """Accept connections of clients. Their requests wait in the gate."""
        assert self._server is not None
        for endpoint in self.config.broker_listeners:
            await self._server.listeners[endpoint.listener].accept()

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
        if clean and self._broker is not None and not self.failed and self.config["controlled.shutdown.enable"]:
            await self._hand_over(self._broker)
        self._stopping = True
        try:
            await self._close(clean)
        finally:
            # Threads, locks and descriptors go back, whatever could not be closed.
            for jobs in (self._jobs, self._security_jobs):
                if jobs is not None:
                    jobs.close()
            if self._background is not None:
                self._background.close()
            self._locks.release()
            self._host.close()
        log.info("node %d has stopped", self.config.node_id)

    async def _close(self, clean: bool) -> None:
        """Close each part that was made, the last of these lines first. Where one fails, the others are closed, and
        this raises what it raised."""
        async with contextlib.AsyncExitStack() as parts:
            parts.push_async_callback(self._close_quorum, clean)
            if self._broker is not None:
                parts.push_async_callback(self._broker.close_logs, clean)
            if self._server is not None:
                parts.push_async_callback(self._server.stop, 1_000 if clean else 0)
            for channel in (self._channel, self._heartbeats):
                if channel is not None:
                    parts.push_async_callback(channel.close)
            if self._registration is not None:
                parts.callback(self._registration.close)
            if self._broker is not None:
                parts.push_async_callback(self._broker.close)
            if self._quorum is not None:
                parts.callback(self._quorum.stop_probing)
            for part in (self._authorizer, self._quotas, self._metrics_push):
                if part is not None:
                    parts.callback(part.close)
            if self.metrics_listener is not None:
                parts.push_async_callback(self.metrics_listener.close)
            if self._security is not None:
                parts.callback(self._security.close)
            if self._timers is not None:
                parts.callback(self._timers.stop)
            if self._watchdog is not None:
                parts.callback(self._watchdog.stop)

    def skip_handover(self) -> None:
        """A `stop` under way, or a later one, does not wait until leaderships have moved. Logs are closed as ever."""
        self._skips_handover = True
        if self._hands_over and self._broker is not None:
            self._broker.lifecycle.close()

    async def _hand_over(self, broker: BrokerSide) -> None:
        """Have the controller move this broker's leaderships away. The lifecycle limits how long that may take."""
        broker.lifecycle.begin_controlled_shutdown()
        if not self._skips_handover:
            self._hands_over = True
            await wait_settled(broker.lifecycle.milestones.may_shut_down)
            self._hands_over = False

    async def _close_quorum(self, clean: bool) -> None:
        if self._quorum is None:
            return
        if clean and not self.failed:
            for last_step in (self._quorum.snapshot_before_stop, self._quorum.shutdown):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_STEP_TIMEOUT_S):
                        await wait_settled(last_step())
        try:
            self._quorum.close(clean)
        except (OSError, ApiError) as error:
            log.error("the metadata log could not be closed cleanly: %s", error)
        if self._raft_channel is not None:
            await self._raft_channel.close()


def _warn_of_properties(config: ServerConfig) -> None:
    """Log which properties have no effect. An operator may rely on one of them, for example for security."""
    for name in config.unknown:
        log.warning("property %s is not known", name)
    for why, names in idle_properties(config.properties).items():
        log.warning("%s: no effect, because %s", ", ".join(names), why)
