"""Whole nodes on simulated machines.

The nodes are the real ones: the same code from the frame to the fsync, except for what a host provides to its process.
Each is a broker and a controller. A node that ends because of a disk fault stays down until the fault's end; a node
that ends for any other reason is a violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kalda.base.configs.addresses import CLIENTS, CONTROLLER, PLAIN_LISTENERS
from kalda.base.configs.server import ServerConfig
from kalda.base.ids import Uuid, random_uuid, uuid_to_text
from kalda.broker.process.node import Node, StartError
from kalda.metadata.formatter import FormatRequest, QuorumChoice, format_storage
from kalda.metadata.image import MetadataImage
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.raft.voters import VoterEndpoint
from kalda.replication.replica_manager import RACK_AWARE
from kalda.sim.machine import EPOCH_MS, Machine
from kalda.sim.process import Boot
from kalda.sim.world import World

PORT = 9092
CONTROLLER_PORT = 9093
CLUSTER_ID = "S1mClusterAAAAAAAAAAAA"


class SimNode:
    """A node over all its starts."""

    def __init__(self, world: World, node_id: int, properties: Mapping[str, str]) -> None:
        self.id = node_id
        self.name = f"node-{node_id}"
        self.config = ServerConfig(properties)
        self.machine: Machine = world.machine(self.name)
        self.machine.on_power_loss = self._on_power_loss
        self.node: Node | None = None
        """None while no process runs."""
        self.serving = False
        self.disk_failed = False
        """A disk fault is on, so that this node may end."""
        self.failed_dir = ""
        """The log directory with a fault; the node must not end because of it."""
        self._world = world
        self._boot: Boot | None = None

    # Start and end.

    def start(self) -> None:
        """Start a new process on this machine."""
        world = self._world
        boot, host = self.machine.start()
        world.trace(self.name, f"starts, life {boot.number}")
        self._boot, self.serving = boot, False
        boot.context().run(self._launch, host)

    def _launch(self, host: Any) -> None:
        node = self.node = Node(self.config, host)
        node.on_fatal = self._on_fatal
        loop = self._world.loop
        task = loop.create_task(node.start())
        task.add_done_callback(lambda done: self._started(node, done))

    def _started(self, node: Node, done: asyncio.Task[None]) -> None:
        if self.node is not node:
            return
        error = None if done.cancelled() else done.exception()
        if error is None:
            self.serving = True
            self._world.trace(self.name, "serves")
        elif isinstance(error, StartError) and self.disk_failed:
            self._world.trace(self.name, f"cannot start: {error}")
            self._process_ended()
            self.machine.stopped()
        elif isinstance(error, Exception):
            self._world.violated(f"{self.name} cannot start: {error!r}")

    def _on_fatal(self, reason: str) -> None:
        if not self.disk_failed:
            self._world.violated(f"{self.name} had a fatal error: {reason}")
            return
        self._world.trace(self.name, f"has a fatal error: {reason}")
        self._world.loop.call_soon(self._exit)

    def _exit(self) -> None:
        if self.node is not None:
            self._process_ended()
            self.machine.stopped()

    def _on_power_loss(self) -> None:
        self._world.trace(self.name, "loses power during a write")
        self._process_ended()

    def _process_ended(self) -> None:
        self.node, self.serving, self._boot = None, False, None

    def run(self, step: Callable[[], object]) -> None:
        """Call a function in the context of this node's process."""
        assert self._boot is not None
        self._boot.context().run(step)

    # Faults.

    def kill(self) -> None:
        if self.node is not None:
            self._world.trace(self.name, "is killed")
            self._process_ended()
            self.machine.kill()

    def lose_power(self) -> None:
        if self.node is not None:
            self._world.trace(self.name, "loses power")
            self._process_ended()
            self.machine.lose_power()

    def stop(self) -> None:
        """Stop it as SIGTERM does."""
        if self.node is not None and self.serving and self._boot is not None:
            self._world.trace(self.name, "gets SIGTERM")
            self.serving = False
            self._boot.context().run(self._stop, self.node)

    def _stop(self, node: Node) -> None:
        task = self._world.loop.create_task(node.stop())
        task.add_done_callback(lambda done: self._stopped(node, done))

    def _stopped(self, node: Node, done: asyncio.Task[None]) -> None:
        if self.node is not node:
            return
        if not done.cancelled() and isinstance(done.exception(), Exception):
            self._world.violated(f"{self.name} failed to stop: {done.exception()!r}")
        self._world.trace(self.name, "has stopped")
        self._process_ended()
        self.machine.stopped()


class SimCluster:
    """Nodes numbered from 1."""

    def __init__(
        self,
        world: World,
        nodes: int,
        overrides: Mapping[str, str] | None = None,
        *,
        voters: int | None = None,
        racks: int = 0,
    ) -> None:
        """The first `voters` nodes (with None all) are the initial voters of the quorum, the others its observers.
        Nodes are assigned to `racks` racks in turn; 0: none."""
        self.world = world
        rng = world.rng("identities")
        first = {i: random_uuid(rng.randbytes) for i in range(1, (nodes if voters is None else voters) + 1)}
        self.nodes = {
            i: SimNode(world, i, _properties(i, nodes, {**_rack(i, racks), **(overrides or {})}))
            for i in range(1, nodes + 1)
        }
        self.directory_ids = {node.id: _format(node, first, rng.randbytes) for node in self.nodes.values()}
        """Ids of the directories with the metadata logs, by node."""

    def __iter__(self) -> Iterator[SimNode]:
        return iter(self.nodes.values())

    def image(self) -> MetadataImage | None:
        """The newest image of all nodes that serve; None where none serves."""
        images = [node.node.image for node in self if node.node is not None and node.serving]
        return max(images, key=lambda image: image.offset, default=None)

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(node.name, PORT) for node in self]

    async def start(self, limit_s: float = 60) -> None:
        """Start all and wait until they serve."""
        for node in self:
            node.start()
        await self.wait(lambda: all(node.serving for node in self), "all nodes serve", limit_s)

    def all_serve(self) -> bool:
        """Whether all nodes serve; one that was stopping when the faults ended is started."""
        for node in self:
            if not node.machine.up:
                node.start()
        return all(node.serving for node in self)

    async def wait(self, holds: Callable[[], bool], description: str | Callable[[], str], limit_s: float) -> None:
        """Wait for a condition. It is a violation if it does not hold within `limit_s`."""
        until = self.world.now_s + limit_s
        while not holds():
            if self.world.now_s > until:
                text = description if isinstance(description, str) else description()
                self.world.violated(f"not within {limit_s:.0f} s: {text}")
                return
            await asyncio.sleep(0.05)


def _rack(node_id: int, racks: int) -> dict[str, str]:
    return {"broker.rack": rack_name(node_id % racks), "replica.selector.class": RACK_AWARE} if racks else {}


def rack_name(number: int) -> str:
    """The name of a rack."""
    return f"rack-{number}"


def _properties(node_id: int, nodes: int, overrides: Mapping[str, str]) -> dict[str, str]:
    name = f"node-{node_id}"
    listeners = f"{CLIENTS}://{name}:{PORT},{CONTROLLER}://{name}:{CONTROLLER_PORT}"
    replicas = str(min(3, nodes))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.bootstrap.servers": ",".join(f"node-{i}:{CONTROLLER_PORT}" for i in range(1, nodes + 1)),
        "listeners": listeners,
        "advertised.listeners": listeners,
        **PLAIN_LISTENERS,
        "log.dirs": "/data",
        "default.replication.factor": replicas,
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": replicas,
        "group.initial.rebalance.delay.ms": "0",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        "replica.lag.time.max.ms": "3000",
        "replica.high.watermark.checkpoint.interval.ms": "1000",
        "log.flush.offset.checkpoint.interval.ms": "2000",
        "log.initial.task.delay.ms": "500",
        "controller.quorum.request.timeout.ms": "1500",
        "request.timeout.ms": "5000",
        **overrides,
    }


def _format(node: SimNode, directory_ids: Mapping[int, Uuid], entropy: Any) -> Uuid:
    """Format the node's log directories; returns the id of the one with the metadata log."""
    config, disk = node.config, node.machine.disk
    is_voter = node.id in directory_ids
    request = FormatRequest(
        cluster_id=CLUSTER_ID,
        node_id=node.id,
        log_dirs=config.log_dirs,
        metadata_log_dir=config.metadata_log_dir,
        is_controller=True,
        controller_endpoint=VoterEndpoint(CONTROLLER, node.name, CONTROLLER_PORT),
        quorum=QuorumChoice.INITIAL_CONTROLLERS if is_voter else QuorumChoice.NO_INITIAL_CONTROLLERS,
        initial_controllers=",".join(
            f"{i}@node-{i}:{CONTROLLER_PORT}:{uuid_to_text(directory_id)}" for i, directory_id in directory_ids.items()
        ),
    )
    format_storage(
        disk, request, new_id=lambda: random_uuid(entropy), entropy=entropy, now_ms=EPOCH_MS, say=lambda _: None
    )
    properties = MetaPropertiesEnsemble.load(disk, config.log_dirs, config.metadata_log_dir).properties
    directory_id = properties[config.metadata_log_dir].directory_id
    assert directory_id is not None
    return directory_id
