"""The faults of a run: one after another, chosen by the seed, each ended after a while.

Faults overlap. Some are only for clusters that can lose no acknowledged record by them: a power loss destroys what was
not synced, so it is for clusters whose topics sync before they acknowledge; the faults of `losses` hit one replica at a
time.

- *kill*, *stop*, *pause*: a process is killed, gets SIGTERM, is stopped for a while; *pause-client* is for clients
- *power*, *fuse*: a machine loses power, at once or during a write
- *cut*, *cut-one-way*, *slow*, *loss*, *reset*: links pass nothing, in both directions or one, or are slow; segments
  are lost and sent again; connections break. What was sent before a connection broke may arrive after what was sent
  over the next one, so requests come late, out of order and twice
- *backlog*, *reject*: a node's connections break and no new one is accepted, or something between two hosts refuses
  connections to a live node
- *skew*, *slow-disk*: a wall clock is wrong, a disk is slow
- *disk*, *full*: every write to a disk fails; or it has no more room, and writes a part of the data
- *stall*, *bug*: the node of the active controller is stopped for a while; a request or a task of the controller raises
- *dir*: one of several log directories fails; the node continues without it, and is restarted when the fault ends
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from kalda.controller.quorum_controller import QuorumController
from kalda.sim import controller_faults, losses
from kalda.sim.cluster import SimCluster, SimNode
from kalda.sim.losses import Losses
from kalda.sim.network import BACKLOG

Mend = Callable[[], None]

KILLS = ("kill", "stop", "pause")
POWER = ("power", "fuse")
NETWORK = ("cut", "cut-one-way", "slow", "loss", "reset", "backlog", "reject")
MACHINE = ("skew", "slow-disk")
DISK = ("disk", "full", "dir")
CLIENTS = ("pause-client",)
CONTROLLER = ("stall", "bug")
ALL = (*KILLS, *POWER, *NETWORK, *MACHINE, *DISK, *CLIENTS, *CONTROLLER, *losses.KINDS)
"""Every kind of fault."""
_ENDS = frozenset(("kill", "stop", *POWER, *DISK))
RESTARTS = _ENDS | frozenset(losses.KINDS)
"""After these a process is started again from its disk."""

_SYNCED_BEFORE_ACKNOWLEDGED = frozenset(POWER)
_NOT_SYNCED = frozenset(("unsynced", "stale"))
_REPLICATED = frozenset(losses.KINDS)
_DIR_FAILURES = (("write", "sync", "name"), ("read", "write", "sync", "name"), ("sync",), ("read",), ("name",))


def bearable(kinds: tuple[str, ...], durable: bool, nodes: int, log_dirs: int) -> tuple[str, ...]:
    """Those of `kinds` that the cluster must survive without losing an acknowledged record, and that apply to it."""
    without = set(_NOT_SYNCED if durable else _SYNCED_BEFORE_ACKNOWLEDGED)
    if log_dirs < 2:
        without.add("dir")
    return tuple(kind for kind in kinds if kind not in without and (nodes > 2 or kind not in _REPLICATED))


class SimFaults:
    """Causes faults for a time; then ends them all."""

    def __init__(self, cluster: SimCluster, kinds: tuple[str, ...], clients: list[str], losses: Losses) -> None:
        self._losses = losses
        self._cluster = cluster
        self._world = cluster.world
        self._kinds = kinds
        self._clients = clients
        self._rng = self._world.rng("faults")
        self._mends: dict[int, tuple[float, Mend]] = {}
        """The function that ends each fault that is on, and the virtual time at which it is called."""
        self._count = 0
        self._has_ended = False
        """Whether no further fault may come about."""

    async def run(self, duration_s: float) -> None:
        """Cause faults for `duration_s`, then end them all."""
        rng, until = self._rng, self._world.now_s + duration_s
        pace = rng.choice((0.5, 1.5, 4.0))
        while self._world.now_s < until:
            await asyncio.sleep(rng.uniform(0, pace))
            self._mend_due()
            if self._kinds:
                self._one(rng.choice(self._kinds))
        self.heal()

    def heal(self) -> None:
        """End all faults, and start the nodes that are down."""
        self._world.trace("faults", "all faults are ended")
        self._has_ended = True
        for key in list(self._mends):
            self._mends.pop(key)[1]()
        for node in self._cluster:
            node.machine.fuse = None
            if not node.machine.up:
                node.start()

    def _one(self, kind: str) -> None:
        node = self._rng.choice(list(self._cluster))
        if kind in losses.KINDS:
            self._losses.cause(kind, node)
            return
        if kind in _ENDS and not self._losses.may_end(node):
            return
        if kind in DISK and not self._losses.may_stop(node):
            return  # a node with a failed disk stops with a clean shutdown
        mend: Mend | None = getattr(self, f"_{kind.replace('-', '_')}")(node)
        if mend is not None:
            self._count += 1
            self._mends[self._count] = (
                self._world.now_s + self._rng.choice((0.2, 1, 4, 12)) * self._rng.random(),
                mend,
            )

    def _mend_due(self) -> None:
        for key, (due, mend) in list(self._mends.items()):
            if due <= self._world.now_s:
                del self._mends[key]
                mend()

    # Processes and machines.

    def _again(self, node: SimNode) -> Mend:
        def start() -> None:
            if not node.machine.up:
                node.start()

        return start

    def _kill(self, node: SimNode) -> Mend | None:
        node.kill()
        return self._again(node)

    def _power(self, node: SimNode) -> Mend | None:
        node.lose_power()
        return self._again(node)

    def _fuse(self, node: SimNode) -> Mend | None:
        """Power is lost at one of the node's next operations on its disk."""
        node.machine.fuse = self._rng.randrange(30)
        return self._again(node)

    def _stop(self, node: SimNode) -> Mend | None:
        if self._losses.may_stop(node):
            node.stop()
        return self._again(node)

    def _pause(self, node: SimNode) -> Mend | None:
        if not node.machine.up:
            return None
        self._world.trace(node.name, "is paused")
        node.machine.pause()

        def resume() -> None:
            self._world.trace(node.name, "is resumed")
            node.machine.resume()

        return resume

    def _stall(self, node: SimNode) -> Mend | None:
        """Heartbeats of all other brokers wait meanwhile."""
        active = self._active()
        return None if active is None else self._pause(active[0])

    def _bug(self, node: SimNode) -> Mend | None:
        active = self._active()
        if active is None:
            return None
        part, method = self._rng.choice(controller_faults.PARTS)
        self._world.trace(active[0].name, f"has a controller whose {part}.{method} raises")
        controller_faults.raise_once(active[1], part, method, lambda: not self._has_ended)
        return None

    def _active(self) -> tuple[SimNode, QuorumController] | None:
        """The active controller and its node."""
        for node in self._cluster:
            running = node.node.running if node.node is not None else None
            controller = running.quorum.controller if running is not None else None
            if controller is not None and controller.is_active:
                return node, controller
        return None

    def _pause_client(self, _: SimNode) -> Mend | None:
        machine = self._world.machine(self._rng.choice(self._clients))
        self._world.trace(machine.name, "is paused")
        machine.pause()

        def resume() -> None:
            self._world.trace(machine.name, "is resumed")
            machine.resume()

        return resume

    def _skew(self, node: SimNode) -> Mend | None:
        clock = node.machine.clock
        clock.skew_ms = self._rng.choice((-3_600_000, -900, 700, 60_000))
        self._world.trace(node.name, f"has a clock that is {clock.skew_ms} ms ahead")
        return None

    def _slow_disk(self, node: SimNode) -> Mend | None:
        node.machine.disk_delay_s = self._rng.choice((0.02, 0.2, 1.0))
        self._world.trace(node.name, f"has a disk that takes up to {node.machine.disk_delay_s} s")

        def mend() -> None:
            node.machine.disk_delay_s = 0.002

        return mend

    def _disk(self, node: SimNode) -> Mend | None:
        """All writes to the disk fail, until it is repaired and the node started again."""
        code = self._rng.choice((errno.EIO, errno.ENOSPC))
        node.disk_failed = True
        node.machine.disk.fail("/", code, frozenset(("write", "sync", "name")))
        self._world.trace(node.name, f"has a disk that answers {errno.errorcode[code]}")

        return self._repaired(node)

    def _full(self, node: SimNode) -> Mend | None:
        """The disk is full, until there is room again and the node is started again."""
        disk = node.machine.disk
        node.disk_failed = True
        disk.capacity_bytes = disk.used_bytes + self._rng.randrange(5_000)
        self._world.trace(node.name, f"has a disk with {disk.room()} bytes left")

        return self._repaired(node)

    def _dir(self, node: SimNode) -> Mend | None:
        """A log directory fails, until it is repaired and the node started again."""
        if node.failed_dir:
            return None
        path, operations = self._rng.choice(node.config.log_dirs), self._rng.choice(_DIR_FAILURES)
        node.failed_dir = path
        node.machine.disk.fail(path, errno.EIO, frozenset(operations))
        self._world.trace(node.name, f"has a directory {path} that fails to {', '.join(operations)}")

        def mend() -> None:
            node.kill()
            node.machine.disk.mend(path)
            node.failed_dir = ""
            self._again(node)()

        return mend

    def _repaired(self, node: SimNode) -> Mend:
        def mend() -> None:
            if not node.disk_failed:
                return  # another fault of the disk has ended, and with it this one: the node must not end once more
            node.kill()
            node.machine.disk.mend("/")
            node.machine.disk.capacity_bytes = None
            node.disk_failed = False
            self._again(node)()

        return mend

    # The network.

    def _hosts(self) -> list[str]:
        return [*(node.name for node in self._cluster), *self._clients]

    def _cut(self, node: SimNode) -> Mend | None:
        hosts = self._hosts()
        side = set(self._rng.sample(hosts, self._rng.randint(1, len(hosts) - 1)))
        pairs = {(a, b) for a in hosts for b in hosts if (a in side) != (b in side)}
        self._world.trace("network", f"is cut around {', '.join(sorted(side))}")
        return self._without(pairs)

    def _cut_one_way(self, node: SimNode) -> Mend | None:
        peers = [host for host in self._hosts() if host != node.name]
        others = self._rng.sample(peers, self._rng.randint(1, len(peers)))
        away = self._rng.random() < 0.5
        self._world.trace("network", f"{'from' if away else 'to'} {node.name} nothing passes ({', '.join(others)})")
        return self._without({(node.name, other) if away else (other, node.name) for other in others})

    def _without(self, pairs: set[tuple[str, str]]) -> Mend:
        network = self._world.network
        network.cut |= pairs

        def mend() -> None:
            self._world.trace("network", "a cut has ended")
            network.cut -= pairs

        return mend

    def _slow(self, node: SimNode) -> Mend | None:
        network, seconds = self._world.network, self._rng.choice((0.05, 0.5, 2.0))
        pairs = [(node.name, other) for other in self._hosts()]
        network.slow.update(dict.fromkeys(pairs, seconds))
        self._world.trace("network", f"from {node.name} takes up to {seconds} s")

        def mend() -> None:
            for pair in pairs:
                network.slow.pop(pair, None)

        return mend

    def _loss(self, node: SimNode) -> Mend | None:
        quality = self._world.network.link_quality
        quality.loss = self._rng.choice((0.01, 0.1, 0.3))
        self._world.trace("network", f"loses {quality.loss:.0%}")

        def mend() -> None:
            quality.loss = 0.0

        return mend

    def _reset(self, node: SimNode) -> Mend | None:
        broken = self._world.network.reset_one()
        if broken is not None:
            self._world.trace("network", f"breaks the connection of {broken}")
        return None

    def _backlog(self, node: SimNode) -> Mend | None:
        """All connections of the node break, and its listeners accept no more."""
        listeners = [each for each in self._world.network.listeners.values() if each.address.host == node.name]
        for listener in listeners:
            listener.backlog = -1
        self._world.network.reset_all(node.name)
        self._world.trace("network", f"breaks the connections of {node.name}, whose backlogs are full")

        def mend() -> None:
            for listener in listeners:
                listener.backlog = BACKLOG

        return mend

    def _reject(self, node: SimNode) -> Mend | None:
        """Connections to the node are refused, as by a firewall or by a load balancer without a backend: a probe takes
        the node for dead."""
        peers = [host for host in self._hosts() if host != node.name]
        pairs = {(other, node.name) for other in self._rng.sample(peers, self._rng.randint(1, len(peers)))}
        sources = ", ".join(sorted(source for source, _ in pairs))
        self._world.trace("network", f"refuses connections to {node.name} from {sources}")
        self._world.network.reject(pairs)

        def mend() -> None:
            self._world.network.rejected -= pairs

        return mend
