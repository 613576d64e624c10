"""A coordinator that sums numbers: the least that a shard can be, and a log for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.partition import CoordinatorPartition, TransactionalProducer
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.protocol.record_framing import UnknownRecordType, UnknownRecordVersion
from kalda.records.builder import build_batch
from kalda.statemachine.timeline import TimelineDict
from kalda.storage.values import TransactionEnd

KEY, LATER_KEY, LATER_VALUE = b"n", b"later", b"of a later version"


class CountingShard:
    """The sum of all numbers in the log; those of open transactions count when they are committed."""

    def __init__(self, partition: CoordinatorPartition[int], runtime: CoordinatorRuntime[CountingShard]) -> None:
        self.partition = partition
        self.sums: TimelineDict[int, int] = TimelineDict(partition.registry)
        """By producer id; -1 has what counts."""
        self.replayed: list[tuple[int, int]] = []
        """(offset, number) in the order of their replay."""
        self.events: list[str] = []
        self.deleted: list[str] = []

    @property
    def total(self) -> int:
        return self.sums.get(-1, 0)

    def committed_total(self) -> int:
        return self.sums.get(-1, 0, self.partition.committed_epoch())

    def encode(self, record: int) -> tuple[bytes, bytes | None]:
        return KEY, str(record).encode()

    def decode(self, key: bytes, value: bytes | None) -> int:
        if key == LATER_KEY:
            raise UnknownRecordType("record type later is unknown")
        if value == LATER_VALUE:
            raise UnknownRecordVersion("Counter version 9 is unknown")
        if value is None or not value.isdigit():
            raise InvalidRequest("not a number")
        return int(value)

    def replay(self, record: int, offset: int, producer_id: int) -> None:
        self.replayed.append((offset, record))
        self.sums[producer_id] = self.sums.get(producer_id, 0) + record

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        pending = self.sums.pop(producer_id, 0)
        if committed:
            self.replay(pending, 0, -1)

    def on_loaded(self) -> None:
        self.events.append("loaded")

    def on_unloaded(self) -> None:
        self.events.append("unloaded")

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        self.deleted += topics


class FakeLog:
    """Takes batches without keeping them. `replicated`: an append moves the high watermark before it returns."""

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self.replicated = True
        self.failure: ErrorCode | None = None
        self.on_high_watermark: Callable[[int, int], None] = lambda partition, offset: None

    def append(
        self,
        partition: int,
        records: list[tuple[bytes, bytes | None]],
        now_ms: int,
        producer: TransactionalProducer | None = None,
    ) -> int:
        if self.failure is not None:
            raise ApiError(self.failure)
        self.end += len(records)
        if self.replicated:
            self.on_high_watermark(partition, self.end)
        return self.end

    def append_marker(self, partition: int, end: TransactionEnd, now_ms: int) -> int:
        return self.append(partition, [(b"", None)], now_ms)


def counter_batch(base_offset: int, *numbers: int, **more: Any) -> bytes:
    """A batch of the counting coordinator."""
    return batch_of(base_offset, *((KEY, str(number).encode()) for number in numbers), **more)


def batch_of(base_offset: int, *records: tuple[bytes | None, bytes | None], **more: Any) -> bytes:
    return bytes(build_batch([(0, key, value, ()) for key, value in records], base_offset=base_offset, **more))


def error_of(pending: Pending[Any]) -> str | None:
    """The error's name; None where the pending answer has none, or is not there yet."""
    return None if pending.error is None else pending.error.code.name
