"""Faults that take data from one replica, which has to get it back from the others.

- *unsynced*: power is lost where topics do not sync before they acknowledge
- *lie*: a drive whose syncs do nothing, and then loses power. Only that of the data: who forgets a vote or a record of
  the metadata log after it has promised to keep it, breaks what Raft rests on, and no quorum of 2f+1 can bear it. The
  checkpoint of what is synced may be the one thing that it kept: an operator who knows the drive takes that away, so
  that the logs are recovered from their beginnings. And the logs that were compacted: a segment that it lost cannot be
  told from one of which nothing was left
- *rot*: a bit of a segment flips
- *misdirect*: a piece of a batch lands within another one, perhaps of another partition
- *stale*: power is lost while the news that the replica has caught up is under way to the controller (KIP-903)
- *alone*: a leader that its followers cannot reach, though clients and the controller can, is alone in sync, and then
  loses power: what was written to it meanwhile was not acknowledged, and who was in sync before leads (KIP-966)

A record that is acknowledged is on every replica in sync, and `min.insync.replicas` of them. So it must survive where
one replica loses what it had, as long as no other replica of the partition ends before the first has it again. This is
what the checkers may demand, and so a loss falls only upon a node whose partitions all have another replica in sync,
and until all replicas are in sync again, no other node ends (whoever is killed is, to the controller, as good as who
has lost power: both stopped uncleanly, and neither is eligible, KIP-966). Nodes may be paused and cut off meanwhile.

Damage to what is at rest can be demanded to be *noticed*, by the checksum: readers and followers are never given
records that differ from what was written, but may be given none until an operator, who has looked at the disk, takes
the replica's directory away and lets it be filled anew. No more than that: the format has no checksum over the first 17
bytes of a batch (its offset, length and leader's epoch), and nothing in it names the partition, so that a whole batch
on the boundary of another is as good as right, and so is all of one from its checksum on. Damage is therefore done
within what a batch's checksum covers, and not to the checksum.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.metadata.partition import PartitionRegistration
from kalda.records.batch import ATTRIBUTES_POSITION, iter_batches
from kalda.sim.cluster import PORT, SimCluster, SimNode
from kalda.sim.disk import SimDisk
from kalda.sim.network import Address
from kalda.storage.checkpoints import RECOVERY_POINT_FILE
from kalda.storage.naming import FUTURE_DIR_SUFFIX

DATA_DIR = "/data"
"""Where all log directories are."""
KINDS = ("unsynced", "lie", "rot", "misdirect", "stale", "alone")
_COMPACTED = "__consumer_offsets-"
_POLL_S = 0.05
_SESSION_S = 3.0
"""So long does a broker live for the controller, without a heartbeat."""
_MAX_PIECE = 512


class Covered(NamedTuple):
    """Bytes of a file that a batch's checksum covers."""

    partition: TopicPartition
    path: str
    start: int
    end: int


class Losses:
    """One after another, each in a task of its own."""

    def __init__(
        self, cluster: SimCluster, partitions: list[TopicPartition], damaged: set[TopicPartition], limit_s: float
    ) -> None:
        """Damage is done to `partitions`, and told in `damaged`. A replica must have got back what it lost `limit_s`
        after the weather is good again."""
        self._cluster = cluster
        self._world = cluster.world
        self._partitions = partitions
        self._damaged = damaged
        self._limit_s = limit_s
        self._rng = self._world.rng("losses")
        self._healing = False
        self._task: asyncio.Task[None] | None = None
        self.victim: SimNode | None = None
        """Who has lost something, and may not have it back."""

    def may_end(self, node: SimNode) -> bool:
        """Whether the others can do without this node now."""
        return self.victim is None or self.victim is node

    def may_stop(self, node: SimNode) -> bool:
        """Whether it may stop in good order. Not on a lying disk: the clean stop would be on it, and the data not."""
        return self.may_end(node) and not node.machine.disk.lie_below

    def befall(self, kind: str, node: SimNode) -> bool:
        """Let it happen, where the cluster can bear it."""
        if self.victim is not None or self._healing or not self._spares(node):
            return False
        if kind == "stale" and self._follower(node) is None:
            return False
        if kind == "alone" and not self._led(node):
            return False
        case: Callable[[SimNode], Coroutine[Any, Any, None]] = getattr(self, f"_{kind}")
        self.victim = node
        self._task = self._world.loop.create_task(self._whole_again(case(node)))
        return True

    async def finish(self) -> None:
        """Wait until everybody has everything."""
        self._healing = True
        if self._task is not None:
            await self._cluster.wait(self._task.done, "who has lost something has it again", self._limit_s)
            if self._task.done():
                self._task.result()

    async def _whole_again(self, case: Coroutine[Any, Any, None]) -> None:
        await case
        await self._until(self._is_whole)
        self._world.tell("losses", "all replicas are whole")
        self.victim = None

    # What the cluster can bear.

    def _all_well(self) -> bool:
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
        """Nobody else is missing, and what is here is elsewhere too."""
        return self._all_well() and all(
            set(partition.isr) - {node.id} for partition in self._registrations() if node.id in partition.replicas
        )

    def _is_whole(self) -> bool:
        return self._all_well() and all(
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
        self._world.tell(node.name, "has a disk that lies about what it has synced")
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
        self._world.tell(node.name, f"has the bit {bit} of {place.path} turned over")
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
        self._world.tell(node.name, f"has {size} bytes of {source.path} at {at} in {target.path} at {to}")
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
        """Somebody has seen it: the node is stopped, the replicas are taken away and copied anew from the others. Not
        before the others have all there is."""
        self._damaged |= partitions
        until = self._world.now_s + self._rng.uniform(0.5, 8)
        await self._until(lambda: self._spares(node) and (self._healing or self._world.now_s >= until))
        node.kill()
        disk = node.machine.disk
        for topic, index in sorted(partitions):
            self._world.tell(node.name, f"its damaged {topic}-{index} is taken away")
            for log_dir in node.config.log_dirs:
                _take_away(disk, log_dir, f"{topic}-{index}")
        await self._restart(node)

    # Nobody follows.

    async def _alone(self, node: SimNode) -> None:
        led, blocked = self._led(node), self._world.network.blocked
        deaf = {(other.name, Address(node.name, PORT)) for other in self._cluster if other is not node}
        self._world.tell("network", f"lets no other node reach the broker of {node.name}")
        blocked |= deaf
        try:
            if await self._until(lambda: all(self._is_alone(partition, node) for partition in led), 3 * _SESSION_S):
                await asyncio.sleep(self._rng.uniform(0, 2))
                node.lose_power()
                await self._until(lambda: not any(self._leads(partition, node) for partition in led), 2 * _SESSION_S)
        finally:
            blocked -= deaf
        await self._restart(node)

    def _led(self, node: SimNode) -> list[TopicPartition]:
        """What it leads."""
        return [partition for partition in self._partitions if self._leads(partition, node)]

    def _is_alone(self, partition: TopicPartition, node: SimNode) -> bool:
        registration = self._registration(partition)
        return registration is not None and set(registration.isr) == {node.id}

    # Old news.

    async def _stale(self, node: SimNode) -> None:
        """It falls behind, catches up, and loses power when its leader has told the controller so; and the controller
        hears of it when the replica, back again without what it had, is not yet able to fetch it. Who leads then, ends.

        It is not heard of by the controller from when it is paused, so that its session has ended when it is back, and
        the leader's has not when its news arrive. Replicas must be out of sync sooner than sessions end.
        """
        found = self._follower(node)
        assert found is not None
        partition, leader, controller = found
        cut = self._world.network.cut
        told = {(leader.name, controller.name)}
        alive = {(node.name, controller.name)}
        apart = {(leader.name, node.name), (node.name, leader.name)}
        try:
            self._world.tell(node.name, "is paused until it is not in sync")
            node.machine.pause()
            if not await self._until(lambda: not self._in_sync(partition, node), _SESSION_S):
                return
            self._world.tell("network", f"what {leader.name} and {node.name} tell {controller.name} is held up")
            cut |= told | alive
            node.machine.resume()
            if not await self._until(lambda: self._caught_up(partition, node, leader), 0.5):
                return
            await asyncio.sleep(0.2)
            cut |= apart
            node.lose_power()
            cut -= alive
            node.start()
            if not await self._until(lambda: node.serving, _SESSION_S):
                return
            cut -= told
            if await self._until(lambda: self._in_sync(partition, node), 1) and self._leads(partition, leader):
                leader.kill()
                await self._until(lambda: self._leads(partition, node), 8)
        finally:
            node.machine.resume()
            cut -= told | alive | apart
        await self._restart(leader)

    def _follower(self, node: SimNode) -> tuple[TopicPartition, SimNode, SimNode] | None:
        """A partition that the node follows and would lead after its leader, who is not where the controller is."""
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


def _take_away(disk: SimDisk, log_dir: str, name: str) -> None:
    """The replica, and a copy that may have been made of it."""
    for found in disk.names(log_dir):
        if found == name or (found.startswith(f"{name}.") and found.endswith(FUTURE_DIR_SUFFIX)):
            disk.remove_tree(f"{log_dir}/{found}")
    disk.sync_dir(log_dir)


def _spans(data: bytes) -> list[tuple[int, int]]:
    """What checksums cover in a segment."""
    spans = []
    try:
        for position, header in iter_batches(memoryview(data)):
            spans.append((position + ATTRIBUTES_POSITION, position + header.size_bytes))
    except ApiError:
        pass  # as far as it can be read
    return [span for span in spans if span[1] <= len(data)]
