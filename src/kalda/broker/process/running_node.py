"""The parts of a node that has started, and the start: each part is made after all that it takes.

In this order: the identity in the directories; the sockets of the listeners; the metadata log and the controller; with
the broker role the logs, whose broker registers, applies the first image, and at last answers clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kalda.base.errors import ApiError
from kalda.broker.channels.controller_channel import ControllerChannel
from kalda.broker.process.closing import Ending, Part
from kalda.broker.process.listeners import NodeListeners
from kalda.broker.process.node_parts import NodeParts, Surroundings, make_parts
from kalda.broker.process.publishers import publishers_of_node
from kalda.broker.process.shell import wait_settled
from kalda.broker.quorum.quorum_side import QuorumSide
from kalda.broker.quorum.raft_channel import RaftChannel
from kalda.network.client.client import RpcPolicy

if TYPE_CHECKING:
    from kalda.broker.metrics.metrics_listener import MetricsListener
    from kalda.broker.process.broker_side import BrokerSide
    from kalda.broker.process.controller_side import ControllerSide

log = logging.getLogger("kalda.node")

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
        from kalda.broker.metrics.metrics_push import MetricsPush

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
    from kalda.broker.metrics.metrics_listener import MetricsListener

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
