"""read_committed consumers of a cluster, and samples of the last stable offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from kalda.base.configs.consumer import CONSUMER
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.verification.loops import ReadBatch
from kalda.cli.verification.recording import now_us
from kalda.client.consumer.consumer import Consumer
from kalda.client.transport.config_files import keys_of
from kalda.protocol.messages.fetch import OffsetSpec
from kalda.records.consuming import Record
from kalda.verify.history import OffsetSample, Read, Seen

_POLL_S = 0.2
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
