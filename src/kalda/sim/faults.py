"""The faults of a run: one after another, chosen by the seed, each ended after a while.

Faults overlap. Some are only for clusters that can lose no acknowledged record by them: a power loss destroys what was
not synced, so it is for clusters whose topics sync before they acknowledge; those that lose data hit one replica at a
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
import math
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.controller.quorum_controller import QuorumController
from kalda.metadata.topics import PartitionRegistration
from kalda.records.batch import ATTRIBUTES_POSITION, iter_batches
from kalda.sim.cluster import PORT, SimCluster, SimNode
from kalda.sim.disk import SimDisk
from kalda.sim.network import BACKLOG, SimAddress
from kalda.sim.world import PARTS, raise_once
from kalda.storage.checkpoints import RECOVERY_POINT_FILE
from kalda.storage.file_names import FUTURE_DIR_SUFFIX

# Faults in which one replica loses data, which it has to copy again from the others.
#
# - *unsynced*: a power loss where topics do not sync before they acknowledge
# - *lie*: a drive whose syncs have no effect, and then a power loss. Only the drive of the data: a node that loses a
#   vote or a record of the metadata log that it had acknowledged violates an assumption of Raft, and no quorum of 2f+1
#   tolerates that. The drive may have kept the checkpoint of the recovery point: the operator removes it, so that the
#   logs are recovered from their beginnings. Compacted logs are removed too: there, a lost segment cannot be
#   distinguished from one of which no record was left
# - *rot*: a bit of a segment flips
# - *misdirect*: a piece of a batch is written into another batch, perhaps of another partition
# - *stale*: a power loss while the request that adds the replica to the ISR is on its way to the controller (KIP-903)
# - *alone*: the followers cannot reach their leader, but clients and the controller can; it is alone in the ISR, and
#   then loses power. What was written to it meanwhile was not acknowledged; a replica that was in sync
#   before becomes leader
#   (KIP-966)
#
# An acknowledged record is on every replica in the ISR, and on at least `min.insync.replicas`. So it must survive the
# loss of one replica's data, as long as no other replica of the partition ends before the first has the record again.
# The checkers rely on this: a loss hits only a node whose partitions all have another replica in sync, and until all
# replicas are in sync again, no other node ends. (For the controller a killed node equals one that lost power: both
# stopped uncleanly, and neither is eligible, KIP-966.) Nodes may be paused and cut off meanwhile.
#
# Damage of data on disk must be *detected*, by the checksum: readers and followers never get records that differ from
# those that were written. They may get none until an operator removes the replica's directory and the replica is
# copied again. More is not possible: the format has no checksum over the first 17 bytes of a batch (offset, length
# and leader epoch), and nothing in a batch names its partition. So a whole batch on the boundary of another passes
# all checks, and so does one that is replaced from its checksum on. Damage is therefore done only to bytes that a
# batch's checksum covers, and not to the checksum.

DATA_DIR = "/data"
"""The directory that has all log directories."""
KINDS = ("unsynced", "lie", "rot", "misdirect", "stale", "alone")
_COMPACTED = "__consumer_offsets-"
_POLL_S = 0.05
_SESSION_S = 3.0
"""The time after the last heartbeat at which the controller fences a broker."""
_MAX_PIECE = 512


class Covered(NamedTuple):
    """Bytes of a file that a batch's checksum covers."""

    partition: TopicPartition
    path: str
    start: int
    end: int


class Losses:
    """Causes one loss at a time, each in a task of its own."""

    def __init__(
        self, cluster: SimCluster, partitions: list[TopicPartition], damaged: set[TopicPartition], limit_s: float
    ) -> None:
        """Damage is done to `partitions`, which are then added to `damaged`. A replica must be complete again `limit_s`
        after the end of all faults."""
        self._cluster = cluster
        self._world = cluster.world
        self._partitions = partitions
        self._damaged = damaged
        self._limit_s = limit_s
        self._rng = self._world.rng("losses")
        self._healing = False
        self._task: asyncio.Task[None] | None = None
        self.victim: SimNode | None = None
        """The node that has lost data, until all replicas are in sync again."""

    def may_end(self, node: SimNode) -> bool:
        """Whether this node may end now: no other node is recovering from a loss."""
        return self.victim is None or self.victim is node

    def may_stop(self, node: SimNode) -> bool:
        """Whether it may stop cleanly. Not with a lying disk, which may keep the mark of the clean stop, but not the
        data."""
        return self.may_end(node) and not node.machine.disk.lie_below

    def cause(self, kind: str, node: SimNode) -> bool:
        """Cause a loss, if the invariants allow it now; returns whether it was caused."""
        if self.victim is not None or self._healing or not self._spares(node):
            return False
        if kind == "stale" and self._follower(node) is None:
            return False
        if kind == "alone" and not self._led(node):
            return False
        case: Callable[[SimNode], Coroutine[Any, Any, None]] = getattr(self, f"_{kind}")
        self.victim = node
        self._task = self._world.loop.create_task(self._run_case(case(node)))
        return True

    async def finish(self) -> None:
        """Wait until all replicas are complete."""
        self._healing = True
        if self._task is not None:
            await self._cluster.wait(self._task.done, "the node that has lost data has it again", self._limit_s)
            if self._task.done():
                self._task.result()

    async def _run_case(self, case: Coroutine[Any, Any, None]) -> None:
        await case
        await self._until(self._is_whole)
        self._world.trace("losses", "all replicas are complete")
        self.victim = None

    # Whether a loss is allowed.

    def _all_serve(self) -> bool:
        """All nodes serve without a fault of their disk, and are unfenced."""
        nodes = list(self._cluster)
        if not all(node.serving and node.machine.fuse is None for node in nodes):
            return False
        if any(node.disk_failed or node.failed_dir for node in nodes):
            return False
        image = self._cluster.image()
        brokers = {} if image is None else image.cluster.brokers
        return all(node.id in brokers and not brokers[node.id].fenced for node in nodes)

    def _registrations(self) -> list[PartitionRegistration]:
        image = self._cluster.image()
        topics = () if image is None else image.topics.by_id.values()
        return [partition for topic in topics for partition in topic.partitions.values()]

    def _spares(self, node: SimNode) -> bool:
        """All nodes serve, and each partition on this node has another replica in sync."""
        return self._all_serve() and all(
            set(partition.isr) - {node.id} for partition in self._registrations() if node.id in partition.replicas
        )

    def _is_whole(self) -> bool:
        """All nodes serve, and all replicas are in sync."""
        return self._all_serve() and all(
            set(partition.isr) == set(partition.replicas) for partition in self._registrations()
        )

    async def _until(self, holds: Callable[[], bool], limit_s: float = math.inf) -> bool:
        until = self._world.now_s + limit_s
        while not holds():
            if self._world.now_s > until:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _restart(self, node: SimNode) -> None:
        await asyncio.sleep(self._rng.choice((0.05, 0.5, 4)) * self._rng.random())
        if not node.machine.up:
            node.start()

    # Power.

    async def _unsynced(self, node: SimNode) -> None:
        node.lose_power()
        await self._restart(node)

    async def _lie(self, node: SimNode) -> None:
        disk = node.machine.disk
        disk.lie_below = DATA_DIR
        self._world.trace(node.name, "has a disk whose syncs have no effect")
        await asyncio.sleep(self._rng.uniform(0.2, 6))
        if node.machine.up:
            node.lose_power()
        else:
            disk.crash()
        disk.lie_below = ""
        for log_dir in node.config.log_dirs:
            disk.remove(f"{log_dir}/{RECOVERY_POINT_FILE}")
            for name in disk.names(log_dir):
                if name.startswith(_COMPACTED):
                    disk.remove_tree(f"{log_dir}/{name}")
            disk.sync_dir(log_dir)
        await self._restart(node)

    # Damage.

    async def _rot(self, node: SimNode) -> None:
        covered = self._covered(node)
        if not covered:
            return
        place = self._rng.choice(covered)
        bit = node.machine.disk.flip_bit(place.path, self._rng.randrange(place.start * 8, place.end * 8))
        self._world.trace(node.name, f"has bit {bit} of {place.path} flipped")
        await self._repair(node, {place.partition})

    async def _misdirect(self, node: SimNode) -> None:
        covered = self._covered(node)
        if len(covered) < 2:
            return
        source, target = self._rng.sample(covered, 2)
        size = min(source.end - source.start, target.end - target.start, self._rng.randint(16, _MAX_PIECE))
        at = self._rng.randint(source.start, source.end - size)
        to = self._rng.randint(target.start, target.end - size)
        node.machine.disk.misdirect(source.path, at, size, target.path, to)
        self._world.trace(node.name, f"has {size} bytes of {source.path} at {at} in {target.path} at {to}")
        await self._repair(node, {source.partition, target.partition})

    def _covered(self, node: SimNode) -> list[Covered]:
        disk, found = node.machine.disk, []
        for partition in self._partitions:
            for directory in (f"{log_dir}/{partition}" for log_dir in node.config.log_dirs):
                for name in disk.names(directory):
                    path = f"{directory}/{name}"
                    if name.endswith(".log"):
                        found += [Covered(partition, path, *span) for span in _spans(disk.peek(path))]
        return found

    async def _repair(self, node: SimNode, partitions: set[TopicPartition]) -> None:
        """Repair the damage as an operator would: stop the node, remove the replicas, and start it, so that they are
        copied from the others. This waits until the others have all records."""
        self._damaged |= partitions
        until = self._world.now_s + self._rng.uniform(0.5, 8)
        await self._until(lambda: self._spares(node) and (self._healing or self._world.now_s >= until))
        node.kill()
        disk = node.machine.disk
        for topic, index in sorted(partitions):
            self._world.trace(node.name, f"has its damaged {topic}-{index} removed")
            for log_dir in node.config.log_dirs:
                _remove_replica(disk, log_dir, f"{topic}-{index}")
        await self._restart(node)

    # A leader without followers.

    async def _alone(self, node: SimNode) -> None:
        led, blocked = self._led(node), self._world.network.blocked
        to_broker = {(other.name, SimAddress(node.name, PORT)) for other in self._cluster if other is not node}
        self._world.trace("network", f"blocks all other nodes from the broker of {node.name}")
        blocked |= to_broker
        try:
            if await self._until(lambda: all(self._is_alone(partition, node) for partition in led), 3 * _SESSION_S):
                await asyncio.sleep(self._rng.uniform(0, 2))
                node.lose_power()
                await self._until(lambda: not any(self._leads(partition, node) for partition in led), 2 * _SESSION_S)
        finally:
            blocked -= to_broker
        await self._restart(node)

    def _led(self, node: SimNode) -> list[TopicPartition]:
        """The partitions that the node leads."""
        return [partition for partition in self._partitions if self._leads(partition, node)]

    def _is_alone(self, partition: TopicPartition, node: SimNode) -> bool:
        registration = self._registration(partition)
        return registration is not None and set(registration.isr) == {node.id}

    # A late change of the ISR.

    async def _stale(self, node: SimNode) -> None:
        """The replica leaves the ISR, catches up, and loses power after its leader has sent the request that adds it to
        the ISR. This request reaches the controller when the replica is running again without its data, and cannot
        fetch it yet. Then the leader is killed.

        From the pause on, no message of the replica reaches the controller, so that its session has ended when it is
        back. The leader's session must not have ended when its request arrives. `replica.lag.time.max.ms` must be
        shorter than the session timeout.
        """
        found = self._follower(node)
        assert found is not None
        partition, leader, controller = found
        cut = self._world.network.cut
        from_leader = {(leader.name, controller.name)}
        from_replica = {(node.name, controller.name)}
        between_replicas = {(leader.name, node.name), (node.name, leader.name)}
        try:
            self._world.trace(node.name, "is paused until it has left the ISR")
            node.machine.pause()
            if not await self._until(lambda: not self._in_sync(partition, node), _SESSION_S):
                return
            self._world.trace("network", f"delays the messages of {leader.name} and {node.name} to {controller.name}")
            cut |= from_leader | from_replica
            node.machine.resume()
            if not await self._until(lambda: self._caught_up(partition, node, leader), 0.5):
                return
            await asyncio.sleep(0.2)
            cut |= between_replicas
            node.lose_power()
            cut -= from_replica
            node.start()
            if not await self._until(lambda: node.serving, _SESSION_S):
                return
            cut -= from_leader
            if await self._until(lambda: self._in_sync(partition, node), 1) and self._leads(partition, leader):
                leader.kill()
                await self._until(lambda: self._leads(partition, node), 8)
        finally:
            node.machine.resume()
            cut -= from_leader | from_replica | between_replicas
        await self._restart(leader)

    def _follower(self, node: SimNode) -> tuple[TopicPartition, SimNode, SimNode] | None:
        """A partition that the node follows and would lead next, its leader, and the active controller, which is on
        neither of the two nodes; None where there is none."""
        controller = next(
            (each for each in self._cluster if each.node is not None and each.node.raft.machine.is_leader), None
        )
        for partition in self._partitions:
            registration = self._registration(partition)
            if controller is None or controller is node or registration is None or len(registration.replicas) < 3:
                continue
            others = [replica for replica in registration.replicas if replica != registration.leader]
            if others[0] == node.id and registration.leader not in (controller.id, -1):
                return partition, self._cluster.nodes[registration.leader], controller
        return None

    def _registration(self, partition: TopicPartition) -> PartitionRegistration | None:
        image = self._cluster.image()
        topic = None if image is None else image.topics.by_name.get(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def _in_sync(self, partition: TopicPartition, node: SimNode) -> bool:
        registration = self._registration(partition)
        return registration is not None and node.id in registration.isr

    def _leads(self, partition: TopicPartition, node: SimNode) -> bool:
        registration = self._registration(partition)
        return registration is not None and registration.leader == node.id

    def _caught_up(self, partition: TopicPartition, node: SimNode, leader: SimNode) -> bool:
        ends = []
        for each in (node, leader):
            replicas = each.node.replicas if each.node is not None else None
            replica = replicas.find(*partition) if replicas is not None else None
            if replica is None:
                return False
            ends.append(replica.log.log_end_offset)
        return ends[0] >= ends[1]


def _remove_replica(disk: SimDisk, log_dir: str, name: str) -> None:
    """Remove the replica's directory, and the copy of an unfinished move."""
    for found in disk.names(log_dir):
        if found == name or (found.startswith(f"{name}.") and found.endswith(FUTURE_DIR_SUFFIX)):
            disk.remove_tree(f"{log_dir}/{found}")
    disk.sync_dir(log_dir)


def _spans(data: bytes) -> list[tuple[int, int]]:
    """The positions in a segment that checksums cover, without the checksums, a pair for each batch."""
    spans = []
    try:
        for position, header in iter_batches(memoryview(data)):
            spans.append((position + ATTRIBUTES_POSITION, position + header.size_bytes))
    except ApiError:
        pass  # only the batches before the damage
    return [span for span in spans if span[1] <= len(data)]


Mend = Callable[[], None]

KILLS = ("kill", "stop", "pause")
POWER = ("power", "fuse")
NETWORK = ("cut", "cut-one-way", "slow", "loss", "reset", "backlog", "reject")
MACHINE = ("skew", "slow-disk")
DISK = ("disk", "full", "dir")
CLIENTS = ("pause-client",)
CONTROLLER = ("stall", "bug")
ALL = (*KILLS, *POWER, *NETWORK, *MACHINE, *DISK, *CLIENTS, *CONTROLLER, *KINDS)
"""Every kind of fault."""
_ENDS = frozenset(("kill", "stop", *POWER, *DISK))
RESTARTS = _ENDS | frozenset(KINDS)
"""After these a process is started again from its disk."""

_SYNCED_BEFORE_ACKNOWLEDGED = frozenset(POWER)
_NOT_SYNCED = frozenset(("unsynced", "stale"))
_REPLICATED = frozenset(KINDS)
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
        if kind in KINDS:
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
        part, method = self._rng.choice(PARTS)
        self._world.trace(active[0].name, f"has a controller whose {part}.{method} raises")
        raise_once(active[1], part, method, lambda: not self._has_ended)
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
