"""What must hold of a cluster: looked at every little while, and once more in the end.

Meanwhile: an epoch of the quorum has one leader, and so has a leader epoch of a partition; epochs and high watermarks
do not go back while a process lives, and a high watermark is within its log; what the quorum has committed at an offset
is the same wherever it is learned; a partition's in-sync replicas are replicas of it.

In the end, when everything works again: all nodes have the same metadata and the same voters, all replicas of a
partition the same records and the same high watermark, and nobody else has a replica; a replica is in one directory of
its node, which the metadata names; the clients' history holds, that of the groups and what operators asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from kalda.base.ids import TopicPartition
from kalda.broker.node import Node
from kalda.metadata.image import MetadataImage
from kalda.metadata.topics import TopicImage
from kalda.protocol.record_framing import encode_metadata_record
from kalda.raft.batches import CommittedBatch
from kalda.raft.leader import LeaderRole
from kalda.raft.snapshots import SnapshotReader
from kalda.records.batch import check_crc, iter_batches
from kalda.records.builder import read_records
from kalda.replication.partition import Partition
from kalda.sim import dirs
from kalda.sim.cluster import SimCluster, SimNode
from kalda.sim.groups import Group
from kalda.sim.groups import judge as groups_judge
from kalda.sim.history import History

_LOOK_S = 0.1
_READ_BYTES = 1 << 20

Log = dict[int, tuple[bytes | None, bytes | None]]
"""Keys and values by offset."""


class _Committed:
    """Hears what the quorum commits, at one node."""

    def __init__(self, observer: Observer, name: str) -> None:
        self._observer = observer
        self._name = name

    def on_commit(self, batches: list[CommittedBatch]) -> None:
        for batch in batches:
            records = b"".join(encode_metadata_record(record, version) for record, version in batch.records)
            self._observer.committed(self._name, batch.base_offset, (batch.last_offset, batch.epoch, records))

    def on_load_snapshot(self, reader: SnapshotReader) -> None:
        """A snapshot stands for records that others have told."""

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """Looked at elsewhere."""


class Observer:
    """Looks at all nodes that live."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._heard: dict[Node, None] = {}
        self._log: dict[int, object] = {}
        self._quorum_leaders: dict[int, str] = {}
        self._leaders: dict[tuple[bytes, int, int], str] = {}
        self._quorum_epochs: dict[str, int] = {}
        self._marks: dict[tuple[Node, object], tuple[int, int]] = {}
        self._images: dict[str, MetadataImage] = {}
        self.elections = 0
        self.unsettled = ""
        """What is missing yet."""

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """All that can be seen now."""
        for node in self._cluster:
            if node.node is not None and node.serving:
                self._look_at_quorum(node, node.node)
                self._look_at_partitions(node, node.node)
                self._look_at_image(node, node.node.image)

    def committed(self, name: str, offset: int, batch: object) -> None:
        """A node has learned what is committed."""
        known = self._log.setdefault(offset, batch)
        if known != batch:
            self._world.violated(f"{name} learns {batch!r} at {offset} of the metadata log, where {known!r} was")

    def _look_at_quorum(self, sim: SimNode, node: Node) -> None:
        raft = node.raft
        if node not in self._heard:
            self._heard[node] = None
            sim.run(lambda: raft.listeners.register(_Committed(self, sim.name)))
        epoch = raft.machine.epoch
        if epoch < self._quorum_epochs.get(sim.name, 0):
            self._world.violated(f"{sim.name} is back in epoch {epoch} of the quorum")
        self._quorum_epochs[sim.name] = epoch
        if isinstance(raft.machine.role, LeaderRole):
            self._one(self._quorum_leaders, epoch, sim.name, f"epoch {epoch} of the quorum")
        self._forward(sim, node, "the metadata log", epoch, raft.high_watermark)

    def _one(self, leaders: dict[Any, str], key: Any, name: str, what: str) -> None:
        if key not in leaders:
            leaders[key] = name
            self.elections += 1
            self._world.tell(name, f"leads {what}")
        elif leaders[key] != name:
            self._world.violated(f"{what} has two leaders, {leaders[key]} and {name}")

    def _forward(self, sim: SimNode, node: Node, what: Partition | str, epoch: int, high_watermark: int) -> None:
        last_epoch, last_mark = self._marks.get((node, what), (-1, -1))
        if epoch < last_epoch or high_watermark < last_mark:
            name = what if isinstance(what, str) else what.topic_partition
            self._world.violated(
                f"{sim.name}: {name} goes from epoch {last_epoch} and high watermark {last_mark} "
                f"back to {epoch} and {high_watermark}"
            )
        self._marks[node, what] = (epoch, high_watermark)

    def _look_at_partitions(self, sim: SimNode, node: Node) -> None:
        for partition in node.replicas or ():
            log, topic_id, index = partition.log, partition.topic_id, partition.topic_partition.partition
            if partition.is_leader:
                key = (topic_id, index, partition.leader_epoch)
                self._one(
                    self._leaders, key, sim.name, f"{partition.topic_partition} in epoch {partition.leader_epoch}"
                )
            if log.high_watermark > log.log_end_offset:
                self._world.violated(
                    f"{sim.name}: {partition.topic_partition} ends at {log.log_end_offset}, "
                    f"below its high watermark {log.high_watermark}"
                )
            # A replica that was moved away and came back is another one.
            self._forward(sim, node, partition, partition.leader_epoch, log.high_watermark)

    def _look_at_image(self, sim: SimNode, image: MetadataImage) -> None:
        if self._images.get(sim.name) is image:
            return
        self._images[sim.name] = image
        for topic in image.topics.by_id.values():
            for index, partition in topic.partitions.items():
                if not set(partition.isr) <= set(partition.replicas):
                    self._world.violated(
                        f"{topic.name}-{index} has the ISR {partition.isr} and the replicas {partition.replicas}"
                    )

    # In the end.

    def settled(self) -> bool:
        """Whether everybody knows the same, and every replica is in sync and complete."""
        self.unsettled = self._unsettled()
        return not self.unsettled

    def _unsettled(self) -> str:
        nodes = [node.node for node in self._cluster if node.node is not None and node.serving]
        if len(nodes) < len(self._cluster.nodes):
            return "not all nodes serve"
        newest = max(node.image.offset for node in nodes)
        for node in nodes:
            if node.raft.high_watermark <= newest or node.image.offset < newest:
                return f"node {node.config.node_id} knows the metadata up to {node.image.offset} of {newest}"
        brokers = nodes[0].image.cluster.brokers
        for broker in self._cluster.nodes:
            if broker not in brokers or brokers[broker].fenced:
                return f"broker {broker} is fenced"
        voters = {tuple(sorted(node.raft.machine.voters.ids)) for node in nodes}
        if len(voters) > 1:
            return f"the nodes know different voters, {voters}"
        topics = nodes[0].image.topics.by_id.values()
        late = next((why for topic in topics for why in self._not_in_sync(topic)), "")
        image = nodes[0].image
        return late or next((why for node in self._cluster for why in dirs.misplaced(node, image)), "")

    def _not_in_sync(self, topic: TopicImage) -> Iterator[str]:
        for index, registration in topic.partitions.items():
            replicas = self._replicas(TopicPartition(topic.name, index))
            ends = {name: (each.log.high_watermark, each.log.log_end_offset) for name, each in replicas.items()}
            places = {end for both in ends.values() for end in both}
            if registration.adding_replicas or registration.removing_replicas:
                yield f"{topic.name}-{index} is being moved"
            elif set(registration.isr) != set(registration.replicas) or registration.leader < 0:
                yield f"{topic.name}-{index} has leader {registration.leader}, ISR {registration.isr}, ends {ends}"
            elif len(replicas) != len(registration.replicas) or len(places) > 1:
                yield f"{topic.name}-{index} has replicas that end at {ends}"

    def _replicas(self, partition: TopicPartition) -> dict[str, Partition]:
        found: dict[str, Partition] = {}
        for node in self._cluster:
            replicas = node.node.replicas if node.node is not None else None
            replica = replicas.find(*partition) if replicas is not None else None
            if replica is not None:
                found[node.name] = replica
        return found

    def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where logs end. `settled` holds."""
        return {
            partition: max(each.log.log_end_offset for each in self._replicas(partition).values())
            for partition in partitions
        }

    def records(self, partition: TopicPartition) -> tuple[int, list[tuple[int, bytes]]]:
        """Where a partition begins, and the values of its records. `settled` holds."""
        replica = next(iter(self._replicas(partition).values()))
        return replica.log.log_start_offset, [(at, value or b"") for at, (_, value) in _read_all(replica).items()]

    def judge(self, history: History, groups: Sequence[Group] = ()) -> None:
        """Hold the end against the promises. `settled` holds."""
        self.look()
        self._judge_metadata()
        self._judge_dirs()
        topics = next(node.node.image.topics for node in self._cluster if node.node is not None)
        for topic in topics.by_id.values():
            for index in topic.partitions:
                partition = TopicPartition(topic.name, index)
                replicas = self._replicas(partition)
                logs = {name: _read_all(replica) for name, replica in replicas.items()}
                first = next(iter(logs))
                compacted = replicas[first].log.config.compacts
                start = max(replica.log.log_start_offset for replica in replicas.values())
                for name, log in logs.items():
                    if why := _difference(logs[first], log, compacted, start):
                        self._world.violated(f"{partition} on {first} and {name}: {why}")
                if not topic.name.startswith("__") and topic.name not in history.judged_elsewhere:
                    values = {offset: value or b"" for offset, (_, value) in logs[first].items()}
                    history.judge(partition, values, start)
                    for group in groups:
                        if partition in group.read and (why := groups_judge(group, partition, values)):
                            self._world.violated(why)

    def _judge_dirs(self) -> None:
        for node in self._cluster:
            assert node.node is not None
            for why in dirs.judge(node, node.node.image):
                self._world.violated(why)

    def _judge_metadata(self) -> None:
        images = {}
        for node in self._cluster:
            assert node.node is not None
            records = (encode_metadata_record(record, version) for record, version in node.node.image.records())
            images[node.name] = sorted(records)
        first = next(iter(images))
        for name, records_ in images.items():
            if records_ != images[first]:
                self._world.violated(f"{name} and {first} know different metadata")


def _difference(one: Log, other: Log, compacted: bool, start: int) -> str:
    """How two replicas differ from `start` on; empty where they do not. Each replica compacts by itself: then their
    records agree where both have them, and so does what they say in the end of each key."""
    for offset in sorted({*one, *other}):
        cleaned = compacted and (offset not in one or offset not in other)
        if offset >= start and one.get(offset) != other.get(offset) and not cleaned:
            return f"at {offset} are {one.get(offset)!r} and {other.get(offset)!r}"
    if compacted and _state(one) != _state(other):
        return "they have come to differ by compaction"
    return ""


def _state(log: Log) -> dict[bytes, bytes]:
    last = {key: value for _, (key, value) in sorted(log.items()) if key is not None}
    return {key: value for key, value in last.items() if value is not None}


def _read_all(replica: Partition) -> Log:
    log = replica.log
    found: Log = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        info = log.read(offset, _READ_BYTES, log.log_end_offset, True)
        if not info.size_bytes:
            break
        buffer = _joined(info.records)
        for position, header in iter_batches(buffer):
            check_crc(buffer, position, header)
            for record in read_records(buffer, position):
                if record.offset >= offset:
                    found[record.offset] = (record.key, record.value)
        offset = info.next_offset
    return found


def _joined(records: Any) -> bytes:
    return b"".join(records) if isinstance(records, list) else bytes(records)
