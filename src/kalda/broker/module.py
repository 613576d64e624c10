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
   add it to `process/publishers.py`. What most nodes do without for long is made `AtFirstUse`: the list has that, and a
   function at the end of the file imports and makes the module.

Calls come in this order, all on the event loop:

    constructor -> rows -> on_config (first image) -> start -> on_config (each change) ... -> close

`rows` is called once, when all modules have been made. In `on_config`, `start` and what publishers do nothing may wait:
the loader, and all else that follows metadata, goes on when they return. An exception in `on_config` or `start` stops
the node, except one in `on_config` after the first image: it is logged and counted, and the other modules are called
all the same (`kalda.broker.replicas.publishing_faults`). `on_config` must be harmless where nothing has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.requests.rows import LateRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from kalda.base.background import Background
    from kalda.base.configs.server import ServerConfig
    from kalda.base.scheduling import Jobs, Timers
    from kalda.base.sensors import Sensors
    from kalda.broker.channels.lifecycle import BrokerLifecycle
    from kalda.broker.channels.node_channels import ControllerChannel
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
    from kalda.protocol.access import Authorizer
    from kalda.protocol.apis import ApiKey
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

    def rows(self) -> Sequence[Row | LateRow]:
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


M = TypeVar("M", bound=Module)


class AtFirstUse(Module, Generic[M]):
    """A module that is made, and whose files are imported, when it is needed for the first time: for a request of one
    of its APIs, for a partition that it is to coordinate, or because the sensors of the node are listed.

    So a start does not pay for what the node may never do. The event loop is held once for it, by some 30 ms. What
    `make` imports is imported by `tests/unit/broker/test_first_use.py` too, so a file that cannot be is found there.
    """

    def __init__(self, apis: Iterable[ApiKey], make: Callable[[], M], sensors: Sensors) -> None:
        """`apis` are those of all rows of the module."""
        self._apis = tuple(apis)
        self._make = make
        self.made: M | None = None
        """None before the first use."""
        self._config: tuple[ServerConfig, MetadataImage] | None = None
        """The latest one, None before the first image."""
        self._has_started = False
        self._is_closed = False
        self._rows: dict[ApiKey, Row] = {}
        """Of the module that was made."""
        sensors.add_late(lambda: None if self._is_closed else self())

    def __call__(self) -> M:
        """The module. Raises BROKER_NOT_AVAILABLE where it was not needed before `close`."""
        if self.made is not None:
            return self.made
        if self._is_closed:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "this broker is stopping")
        self.made = made = self._make()
        for row in made.rows():
            assert not isinstance(row, LateRow), "a module that is made late has no rows that are made later"
            self._rows[row.key] = row
        assert self._rows.keys() == set(self._apis), f"the APIs of {type(made).__name__} are others"
        if self._config is not None:
            made.on_config(*self._config)
        if self._has_started:
            made.start()
        return made

    def rows(self) -> Sequence[LateRow]:
        return [LateRow(key, lambda key=key: self._row(key)) for key in self._apis]  # type: ignore[misc]

    def _row(self, key: ApiKey) -> Row:
        self()
        return self._rows[key]

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        self._config = current, image
        if self.made is not None:
            self.made.on_config(current, image)

    def start(self) -> None:
        self._has_started = True
        if self.made is not None:
            self.made.start()

    def close(self) -> Awaitable[None] | None:
        self._is_closed = True
        return None if self.made is None else self.made.close()
