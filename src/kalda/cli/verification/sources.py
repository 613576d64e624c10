"""read_committed consumers of a cluster, over which loops read their input: partitions of their own, or those that a
group assigns to its member. And samples of the last stable offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from kalda.base.configs.consumer import CONSUMER
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.verification.loops import ReadBatch
from kalda.cli.verification.processes import now_us
from kalda.client.consumer.consumer import Consumer
from kalda.client.transport.config_files import keys_of
from kalda.clientcore.consuming.commits import GroupMetadata
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.consuming import Record
from kalda.verify.history import OffsetSample, Read, Seen

_POLL_S = 0.2
_MAX_RECORDS = 20
_SESSION_MS = 6_000
"""Shorter than most pauses of members; brokers accept no shorter one by default."""
_MAX_BATCH_BYTES = 16 * 1024
"""Small, so that a consumer stops between two transactions, and within one."""


def seen(records: Iterable[Record]) -> tuple[Seen, ...]:
    """Records of one partition, as the history has them."""
    return tuple(
        Seen(record.offset, (record.value if isinstance(record.value, bytes) else b"").decode("utf-8", "replace"))
        for record in records
    )


def consumer_of(config: Mapping[str, object], *, read_committed: bool) -> Consumer:
    """A consumer without a group, whose partitions are assigned and positioned by the caller."""
    return Consumer(
        {
            **keys_of(CONSUMER, config),
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "auto.offset.reset": "none",
            "max.partition.fetch.bytes": _MAX_BATCH_BYTES,
            "fetch.max.wait.ms": int(_POLL_S * 1_000),
        }
    )


class CommittedReader:
    """Reads partitions from given offsets on."""

    def __init__(self, config: Mapping[str, object], starts: Mapping[TopicPartition, int]) -> None:
        self._consumer = consumer_of(config, read_committed=True)
        self._consumer.assign(starts)
        for partition, start in starts.items():
            self._consumer.seek(partition, start)
        self._positions = dict(starts)
        self._ready: deque[ReadBatch] = deque()
        """What the last poll has returned, one batch a partition."""

    def poll(self) -> ReadBatch | None:
        """The next records of a partition, or None. A batch without records has passed markers or aborted records.
        Raises `ApiError`."""
        if not self._ready:
            begun_us = now_us()
            by_partition: dict[TopicPartition, list[Record]] = {}
            for record in self._consumer.poll(_POLL_S):
                by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
            for partition, (end, _, _) in self._consumer.positions().items():
                start = self._positions[partition]
                if end > start:
                    found = seen(by_partition.get(partition, ()))
                    self._ready.append(ReadBatch(partition, start, end, found, begun_us, now_us()))
                    self._positions[partition] = end
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        self._consumer.close()


def read_of(reader: str, batch: ReadBatch) -> Read:
    """A read without a transaction."""
    return Read(reader, batch.partition, batch.start, batch.end, batch.begun_us, batch.ended_us, batch.records)


def sample(admin: CommandAdmin, partitions: Collection[TopicPartition]) -> list[OffsetSample]:
    """The last stable offset and then the high watermark of each partition. Raises `ApiError`."""
    at_us = now_us()
    stable = admin.offsets_at(partitions, OffsetSpec.LATEST, read_committed=True)
    ends = admin.offsets_at(partitions, OffsetSpec.LATEST)
    return [OffsetSample(partition, stable[partition], ends[partition], at_us) for partition in partitions]


class GroupSource:
    """Partitions of the loop's own: a `Source` over the offsets of a group without members."""

    def __init__(self, admin: CommandAdmin, group: str, partitions: Collection[TopicPartition]) -> None:
        self._admin = admin
        self._group = group
        self._partitions = partitions
        self._reader: CommittedReader | None = None
        self._committed: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}

    def poll(self) -> tuple[list[ReadBatch], None]:
        """A batch, which may be without records; before the first one, it waits as `rewind`. Raises `ApiError`."""
        if self._reader is None:
            self.rewind()
        assert self._reader is not None, "`rewind` has made it"
        batch = self._reader.poll()
        if batch is None:
            return [], None
        self.positions[batch.partition] = batch.end
        return [batch], None

    def rewind(self) -> None:
        """Waits until no transaction of the group is open. Raises `ApiError`."""
        if self._reader is not None:
            self._reader.close()
        found = self._admin.list_group_offsets(self._group, self._partitions, require_stable=True).check().succeeded
        self._committed = {each: found[each].offset if each in found else 0 for each in self._partitions}
        self.positions = dict(self._committed)
        self._reader = CommittedReader(self._admin.config, self._committed)

    def committed(self, partition: TopicPartition) -> int:
        return self._committed[partition]

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        self._committed |= ends


class MemberSource:
    """A member of a group: a `Source` over the client's own consumer. It leaves the group by `close`."""

    def __init__(self, config: Mapping[str, object], group: str, topics: Collection[str]) -> None:
        """`config` is that of a client of the cluster."""
        self._consumer = Consumer(
            {
                **keys_of(CONSUMER, config),
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _SESSION_MS // 6,
                "metadata.max.age.ms": 5_000,
            }
        )
        self._committed: dict[TopicPartition, int] = {}
        """The group's offsets of the partitions that were read since they were assigned."""
        self._positions: dict[TopicPartition, int] = {}
        self._consumer.subscribe(list(topics), on_assigned=self._forget, on_revoked=self._forget, on_lost=self._forget)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._committed.pop(partition, None)
            self._positions.pop(partition, None)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return self._consumer.assignment()

    def poll(self) -> tuple[list[ReadBatch], GroupMetadata]:
        begun_us = now_us()
        records = self._consumer.poll(_POLL_S, _MAX_RECORDS)
        member = self._consumer.group_metadata()
        found: dict[TopicPartition, list[Record]] = {}
        for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        batches = []
        for partition, read in found.items():
            start = self._positions.get(partition, -1)
            if start < 0:
                start = self.committed(partition)
            end = self._positions[partition] = read[-1].offset + 1
            batches.append(ReadBatch(partition, start, end, seen(read), begun_us, now_us()))
        return batches, member

    def committed(self, partition: TopicPartition) -> int:
        known = self._committed.get(partition)
        if known is None:
            found = self._consumer.committed(partition, timeout=_SESSION_MS / 1_000)[partition]
            known = self._committed[partition] = 0 if found is None else found.offset
        return known

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        self._committed |= ends

    def rewind(self) -> None:
        self._committed.clear()
        self._positions.clear()
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, self.committed(partition))

    def close(self) -> None:
        self._consumer.close(1.0)
