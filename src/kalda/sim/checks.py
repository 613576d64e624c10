"""The invariants of a cluster, checked each `_INTERVAL_S` during a run, and at its end.

During the run: each epoch of the quorum, and each leader epoch of a partition, has at most one leader; epochs and high
watermarks never decrease while a process lives, and a high watermark is not above its log's end; the record that the
quorum committed at an offset is the same on all nodes; the in-sync replicas of a partition are replicas of it.

At the end, when all faults are over: all nodes have the same metadata and the same voters; all replicas of a partition
have the same records and the same high watermark, and no other node has a replica; each replica is in one log directory
of its node, which the metadata names; the final logs fit the history of the clients, of the groups and of the
operators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from kalda.base.ids import TopicPartition
from kalda.broker.process.node import Node
from kalda.metadata.image import MetadataImage
from kalda.metadata.topics import TopicImage
from kalda.protocol.record_framing import encode_metadata_record
from kalda.raft.roles import LeaderRole
from kalda.raft.snapshots import CommittedBatch, SnapshotReader
from kalda.records.batch import check_crc, iter_batches
from kalda.records.builder import Record, read_records
from kalda.replication.partition import Partition
from kalda.sim import admin
from kalda.sim.cluster import SimCluster, SimNode
from kalda.sim.groups import SimGroup
from kalda.sim.groups import judge as groups_judge
from kalda.sim.history import RunHistory

_INTERVAL_S = 0.1
_READ_BYTES = 1 << 20

Log = dict[int, tuple[bytes | None, bytes | None]]
"""Keys and values by offset."""


class _Committed:
    """Listens to the records that the quorum commits, on one node."""

    def __init__(self, observer: ClusterObserver, name: str) -> None:
        self._observer = observer
        self._name = name

    def on_commit(self, batches: list[CommittedBatch]) -> None:
        for batch in batches:
            records = b"".join(encode_metadata_record(record, version) for record, version in batch.records)
            self._observer.committed(self._name, batch.base_offset, (batch.last_offset, batch.epoch, records))

    def on_load_snapshot(self, reader: SnapshotReader) -> None:
        """The records of a snapshot were checked on the nodes that committed them."""

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """`ClusterObserver` checks leaders itself."""


class ClusterObserver:
    """Checks all running nodes."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._registered: dict[Node, None] = {}
        """Nodes with a `_Committed` listener."""
        self._log: dict[int, object] = {}
        """The committed batches of the metadata log, by base offset."""
        self._quorum_leaders: dict[int, str] = {}
        """By epoch."""
        self._leaders: dict[tuple[bytes, int, int], str] = {}
        """By topic id, partition and leader epoch."""
        self._quorum_epochs: dict[str, int] = {}
        """The last epoch of each node; it must not decrease over restarts either."""
        self._marks: dict[tuple[Node, object], tuple[int, int]] = {}
        """The last epoch and high watermark of each log, by process."""
        self._images: dict[str, MetadataImage] = {}
        """The last image of each node, which is not checked again."""
        self.elections = 0
        self.unsettled = ""
        """Why `settled` was False."""

    async def watch(self) -> None:
        """Check until cancelled."""
        while True:
            self.check_now()
            await asyncio.sleep(_INTERVAL_S)

    def check_now(self) -> None:
        """Check the invariants that hold at every moment."""
        for node in self._cluster:
            if node.node is not None and node.serving:
                self._check_quorum(node, node.node)
                self._check_partitions(node, node.node)
                self._check_image(node, node.node.image)

    def committed(self, name: str, offset: int, batch: object) -> None:
        """A node has committed a batch of the metadata log."""
        earlier = self._log.setdefault(offset, batch)
        if earlier != batch:
            self._world.violated(f"{name} commits {batch!r} at {offset} of the metadata log, where {earlier!r} was")

    def _check_quorum(self, sim: SimNode, node: Node) -> None:
        raft = node.raft
        if node not in self._registered:
            self._registered[node] = None
            sim.run(lambda: raft.listeners.register(_Committed(self, sim.name)))
        epoch = raft.machine.epoch
        if epoch < self._quorum_epochs.get(sim.name, 0):
            self._world.violated(f"{sim.name} is back in epoch {epoch} of the quorum")
        self._quorum_epochs[sim.name] = epoch
        if isinstance(raft.machine.role, LeaderRole):
            self._check_single_leader(self._quorum_leaders, epoch, sim.name, f"epoch {epoch} of the quorum")
        self._check_no_decrease(sim, node, "the metadata log", epoch, raft.high_watermark)

    def _check_single_leader(self, leaders: dict[Any, str], key: Any, name: str, what: str) -> None:
        if key not in leaders:
            leaders[key] = name
            self.elections += 1
            self._world.trace(name, f"leads {what}")
        elif leaders[key] != name:
            self._world.violated(f"{what} has two leaders, {leaders[key]} and {name}")

    def _check_no_decrease(
        self, sim: SimNode, node: Node, log: Partition | str, epoch: int, high_watermark: int
    ) -> None:
        last_epoch, last_mark = self._marks.get((node, log), (-1, -1))
        if epoch < last_epoch or high_watermark < last_mark:
            name = log if isinstance(log, str) else log.topic_partition
            self._world.violated(
                f"{sim.name}: {name} goes from epoch {last_epoch} and high watermark {last_mark} "
                f"back to {epoch} and {high_watermark}"
            )
        self._marks[node, log] = (epoch, high_watermark)

    def _check_partitions(self, sim: SimNode, node: Node) -> None:
        for partition in node.replicas or ():
            log, topic_id, index = partition.log, partition.topic_id, partition.topic_partition.partition
            if partition.is_leader:
                key = (topic_id, index, partition.leader_epoch)
                what = f"{partition.topic_partition} in epoch {partition.leader_epoch}"
                self._check_single_leader(self._leaders, key, sim.name, what)
            if log.high_watermark > log.log_end_offset:
                self._world.violated(
                    f"{sim.name}: {partition.topic_partition} ends at {log.log_end_offset}, "
                    f"below its high watermark {log.high_watermark}"
                )
            # The key is the `Partition` object: a replica that was moved away and came back is another one.
            self._check_no_decrease(sim, node, partition, partition.leader_epoch, log.high_watermark)

    def _check_image(self, sim: SimNode, image: MetadataImage) -> None:
        if self._images.get(sim.name) is image:
            return
        self._images[sim.name] = image
        for topic in image.topics.by_id.values():
            for index, partition in topic.partitions.items():
                if not set(partition.isr) <= set(partition.replicas):
                    self._world.violated(
                        f"{topic.name}-{index} has the ISR {partition.isr} and the replicas {partition.replicas}"
                    )

    # At the end.

    def settled(self) -> bool:
        """Whether all nodes have the same metadata, and every replica is in sync and complete."""
        self.unsettled = self._unsettled()
        return not self.unsettled

    def _unsettled(self) -> str:
        nodes = [node.node for node in self._cluster if node.node is not None and node.serving]
        if len(nodes) < len(self._cluster.nodes):
            return "not all nodes serve"
        newest = max(node.image.offset for node in nodes)
        for node in nodes:
            if node.raft.high_watermark <= newest or node.image.offset < newest:
                return f"node {node.config.node_id} has the metadata up to {node.image.offset} of {newest}"
        brokers = nodes[0].image.cluster.brokers
        for broker in self._cluster.nodes:
            if broker not in brokers or brokers[broker].fenced:
                return f"broker {broker} is fenced"
        voters = {tuple(sorted(node.raft.machine.voters.ids)) for node in nodes}
        if len(voters) > 1:
            return f"the nodes have different voters, {voters}"
        topics = nodes[0].image.topics.by_id.values()
        not_in_sync = next((reason for topic in topics for reason in self._not_in_sync(topic)), "")
        image = nodes[0].image
        return not_in_sync or next((reason for node in self._cluster for reason in admin.misplaced(node, image)), "")

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
        """The log end offsets. Requires `settled`."""
        return {
            partition: max(each.log.log_end_offset for each in self._replicas(partition).values())
            for partition in partitions
        }

    def records(self, partition: TopicPartition) -> tuple[int, list[tuple[int, bytes]]]:
        """A partition's log start offset, and its records' offsets and values. Requires `settled`."""
        replica = next(iter(self._replicas(partition).values()))
        return replica.log.log_start_offset, [(at, value or b"") for at, (_, value) in _read_all(replica).items()]

    def written(self, topic: str) -> list[Record]:
        """All records of a topic, by the replicas that have most of them."""
        image = next(node.node.image for node in self._cluster if node.node is not None)
        found = image.topics.by_name.get(topic)
        records: list[Record] = []
        for index in found.partitions if found is not None else ():
            replicas = self._replicas(TopicPartition(topic, index)).values()
            if replicas:
                records += _records_of(max(replicas, key=lambda each: each.log.log_end_offset))
        return records

    def judge(self, history: RunHistory, groups: Sequence[SimGroup] = ()) -> None:
        """Check the invariants of the end. Requires `settled`."""
        self.check_now()
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
                    if difference := _difference(logs[first], log, compacted, start):
                        self._world.violated(f"{partition} on {first} and {name}: {difference}")
                if not topic.name.startswith("__") and topic.name not in history.judged_elsewhere:
                    values = {offset: value or b"" for offset, (_, value) in logs[first].items()}
                    history.judge(partition, values, start)
                    for group in groups:
                        if partition in group.read and (violation := groups_judge(group, partition, values)):
                            self._world.violated(violation)

    def _judge_dirs(self) -> None:
        for node in self._cluster:
            assert node.node is not None
            for violation in admin.judge(node, node.node.image):
                self._world.violated(violation)

    def _judge_metadata(self) -> None:
        images = {}
        for node in self._cluster:
            assert node.node is not None
            records = (encode_metadata_record(record, version) for record, version in node.node.image.records())
            images[node.name] = sorted(records)
        first = next(iter(images))
        for name, records_ in images.items():
            if records_ != images[first]:
                self._world.violated(f"{name} and {first} have different metadata")


def _difference(one: Log, other: Log, compacted: bool, start: int) -> str:
    """How two replicas differ from `start` on; empty where they do not.

    Each replica compacts its log by itself. Then records at an offset that both have must be equal, and so must the
    last value of each key.
    """
    for offset in sorted({*one, *other}):
        cleaned = compacted and (offset not in one or offset not in other)
        if offset >= start and one.get(offset) != other.get(offset) and not cleaned:
            return f"at {offset} are {one.get(offset)!r} and {other.get(offset)!r}"
    if compacted and _state(one) != _state(other):
        return "after compaction, the last values of their keys differ"
    return ""


def _state(log: Log) -> dict[bytes, bytes]:
    last = {key: value for _, (key, value) in sorted(log.items()) if key is not None}
    return {key: value for key, value in last.items() if value is not None}


def _read_all(replica: Partition) -> Log:
    return {record.offset: (record.key, record.value) for record in _records_of(replica)}


def _records_of(replica: Partition) -> Iterator[Record]:
    log = replica.log
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
                    yield record
        offset = info.next_offset


def _joined(records: Any) -> bytes:
    return b"".join(records) if isinstance(records, list) else bytes(records)
