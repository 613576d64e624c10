"""Partitions and group offsets in memory, and a producer of transactions on them; the errors are those of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kalda.base.ids import TopicPartition
from kalda.cli.verification.clients import ReadBatch
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.records.builder import NewRecord
from kalda.verify.history import FinalLog, FinalOffset, Seen


class ToyCluster:
    """Transactions take effect at once and one after another."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[str | None]] = {}
        """Values by offset; None for a marker."""
        self.aborted: dict[TopicPartition, set[int]] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.now_us = 0

    def clock(self) -> int:
        self.now_us += 1
        return self.now_us

    def final(self, group: str) -> list[FinalLog | FinalOffset]:
        found: list[FinalLog | FinalOffset] = [FinalOffset(group, *each) for each in self.offsets.items()]
        for partition, log in self.logs.items():
            records = tuple(Seen(offset, value) for offset, value in enumerate(log) if value is not None)
            visible = tuple(record for record in records if record.offset not in self.aborted.get(partition, ()))
            found.append(FinalLog(partition, 0, len(log), len(log), records, visible))
        return found


class ToyProducer:
    """`failures`: errors that the named calls raise before they do anything, in their order."""

    def __init__(self, cluster: ToyCluster) -> None:
        self._cluster = cluster
        self._buffered: dict[TopicPartition, list[str]] = {}
        self._written: dict[TopicPartition, list[int]] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.loses_a_partition = False
        """Whether a commit leaves out one partition."""

    def _may_fail(self, name: str) -> None:
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    def begin(self) -> None:
        self._may_fail("begin")
        self._buffered, self._written, self._offsets = {}, {}, {}

    def send(self, topic: str, partition: int, records: Sequence[NewRecord]) -> None:
        for _, _, value, _ in records:
            assert value is not None
            self._buffered.setdefault(TopicPartition(topic, partition), []).append(bytes(value).decode())

    def flush(self) -> dict[TopicPartition, Sequence[int]]:
        self._may_fail("flush")
        written: dict[TopicPartition, Sequence[int]] = {}
        for partition, values in self._buffered.items():
            log = self._cluster.logs.setdefault(partition, [])
            written[partition] = range(len(log), len(log) + len(values))
            self._written.setdefault(partition, []).extend(range(len(log), len(log) + len(values)))
            log.extend(values)
        self._buffered = {}
        return written

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], member: GroupMetadata | None = None
    ) -> None:
        self._may_fail("send_offsets")
        self._offsets |= offsets

    def commit(self) -> None:
        self._may_fail("commit")
        if self.loses_a_partition and len(self._written) > 1:
            self._abort_in(next(iter(self._written)))
        self._cluster.offsets |= self._offsets
        self._mark()

    def abort(self) -> None:
        self._may_fail("abort")
        for partition in self._written:
            self._abort_in(partition)
        self._mark()

    def _abort_in(self, partition: TopicPartition) -> None:
        self._cluster.aborted.setdefault(partition, set()).update(self._written[partition])

    def _mark(self) -> None:
        for partition in self._written:
            self._cluster.logs[partition].append(None)


class ToySource:
    """Input in batches of at most three offsets; `member` is who reads it, where it is a member of a group."""

    def __init__(
        self, cluster: ToyCluster, partitions: Sequence[TopicPartition], member: GroupMetadata | None = None
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._member = member
        self.rewinds = -1
        self.rewind()

    def rewind(self) -> None:
        self.rewinds += 1
        self._committed = {partition: self._cluster.offsets.get(partition, 0) for partition in self._partitions}
        self.positions = dict(self._committed)

    def committed(self, partition: TopicPartition) -> int:
        return self._committed[partition]

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        self._committed |= ends

    def poll(self) -> tuple[list[ReadBatch], GroupMetadata | None]:
        cluster = self._cluster
        for partition, start in self.positions.items():
            log = cluster.logs.get(partition, [])
            end = min(len(log), start + 3)
            if end > start:
                self.positions[partition] = end
                records = tuple(
                    Seen(offset, value)
                    for offset, value in enumerate(log[start:end], start)
                    if value is not None and offset not in cluster.aborted.get(partition, ())
                )
                batch = ReadBatch(partition, start, end, records, cluster.clock(), cluster.clock())
                return [batch], self._member
        return [], self._member
