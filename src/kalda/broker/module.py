"""What a module of a broker is, and what modules share. This page is the manual for whoever adds one.

A module serves one area of what a broker does for its clients (replication, groups, configs …): the rows of its APIs,
and what else it does. `Services` makes the modules in order, and that list is the only place that names them all. To
add one, say share groups:

1. Write `share_groups.py` in `kalda.broker.handlers`, with handlers and a class `ShareGroupsModule(Module)`. Its
   constructor takes the `BrokerContext`, and what it needs of the modules before it; what it offers to those after it
   are its attributes. The constructor starts nothing: no timer, no task, no request. Handlers that do nothing but
   answer are a `Module` themselves.
2. Override the methods below that it needs.
3. Add it to the list in `handlers/services.py`, after all that its constructor takes. Where it follows metadata itself,
   add it to `process/publishers.py`.

Calls come in this order, all on the event loop:

    constructor -> rows -> on_config (first image) -> start -> on_config (each change) ... -> close

`rows` is called once, when all modules have been made. In `on_config`, `start` and what publishers do nothing may wait:
the loader, and all else that follows metadata, goes on when they return. An exception in `on_config` or `start` stops
the node, except one in `on_config` after the first image: it is logged and counted, and the other modules are called
all the same (`kalda.broker.replicas.publishing_faults`). `on_config` must be harmless where nothing has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kalda.base.background import Background
    from kalda.base.configs.server import ServerConfig
    from kalda.base.scheduling import Jobs, Timers
    from kalda.base.sensors import Sensors
    from kalda.broker.channels.controller_channel import ControllerChannel
    from kalda.broker.channels.lifecycle import BrokerLifecycle
    from kalda.broker.metadata_cache import MetadataCache
    from kalda.broker.process.dynamic_configs import DynamicConfigs
    from kalda.broker.process.node_security import NodeSecurity
    from kalda.broker.process.shell import Host
    from kalda.broker.replicas.opening import OpeningPartitions
    from kalda.broker.replicas.publishing_faults import PublishingFaults
    from kalda.broker.requests.quotas import NodeQuotas
    from kalda.broker.requests.rows import Row
    from kalda.metadata.image import MetadataImage
    from kalda.network.client.client import Reach
    from kalda.network.server.server import Server
    from kalda.protocol.caller import Authorizer
    from kalda.storage.dirs.log_manager import LogManager


class BrokerContext(NamedTuple):
    """What all modules of a broker may use. Made once, before the first module."""

    config: ServerConfig
    """The properties file and the defaults; `Module.on_config` receives what dynamic configs make of them."""
    cluster_id: str
    host: Host
    timers: Timers
    jobs: Jobs
    background: Background
    """Work of the loop that takes long, or that one event causes by the thousand."""
    server: Server
    """The listeners of the node, of which those of the broker role refuse connections until it is registered."""
    channel: ControllerChannel
    lifecycle: BrokerLifecycle
    cache: MetadataCache
    """Holds the newest image. In the publishers of a module it is the image that they are called with."""
    logs: LogManager
    dynamic_configs: DynamicConfigs
    sensors: Sensors
    """What the node counts; every module may add its own."""
    quotas: NodeQuotas
    """What requests of clients are charged to."""
    authorizer: Authorizer | None
    """Decides what callers may do; None where everyone may do everything."""
    opening: OpeningPartitions
    """Requests for partitions that are being opened wait here."""
    security: NodeSecurity | None
    """None where all listeners of the cluster are PLAINTEXT."""
    faults: PublishingFaults
    """Contains exceptions while an image is applied."""
    on_fatal: Callable[[str], None]
    """Stops the node; called with the reason why this broker cannot go on."""

    @property
    def to_brokers(self) -> Reach:
        """How other brokers are connected to. Raises `ValueError`."""
        security = None if self.security is None else self.security.to_brokers()
        return self.host.reach(security, probes=self.config["kalda.dead.process.detection.enable"])

    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before the first."""
        return self.lifecycle.broker_epoch


class Module:
    """One area of a broker. Every method may be left out."""

    def rows(self) -> Sequence[Row]:
        """The row of each API that the module serves on the broker's listeners. No API has two modules."""
        return ()

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Take over new values of dynamic configs.

        Called with the first image, and when dynamic configs of this broker or of all brokers, or levels of features,
        have changed; before any publisher of a module is called with that image. `current` is the effective
        configuration. Must be harmless when nothing has changed.
        """

    def start(self) -> None:
        """Start timers and background work.

        Called once: the logs are recovered and the first image is applied, so every partition of this broker is open.
        The broker is still fenced, and no client is served yet. Not called where the start of the node fails.
        """

    def close(self) -> Awaitable[None] | None:
        """Stop timers, tasks and background work; what is returned is awaited. The logs are still open, the listeners
        still answer.

        Called once, in the reverse order of the list, also where `start` was not.
        """
