"""The next block of producer ids. The record of a block also names the broker that got it; no code reads that."""

from __future__ import annotations

from typing import NamedTuple

from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import ProducerIdsRecord


class ProducerIdsImage(NamedTuple):
    """The first id that is in no allocated block; -1 before the first block was allocated."""

    next_producer_id: int

    @property
    def is_empty(self) -> bool:
        return self.next_producer_id < 0

    def write(self, writer: ImageWriter) -> None:
        if not self.is_empty:
            record = ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)
            writer.write(record)


EMPTY = ProducerIdsImage(-1)


class ProducerIdsDelta:
    """The next producer id after the last replayed record; None where no block was allocated in this delta."""

    __slots__ = ("image", "next_producer_id")

    def __init__(self, image: ProducerIdsImage) -> None:
        self.image = image
        self.next_producer_id: int | None = None

    @classmethod
    def of_whole(cls, image: ProducerIdsImage) -> ProducerIdsDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.next_producer_id = image.next_producer_id
        return delta

    def replay(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def finish_snapshot(self) -> None:
        if self.next_producer_id is None:
            self.next_producer_id = EMPTY.next_producer_id

    def apply(self) -> ProducerIdsImage:
        return self.image if self.next_producer_id is None else ProducerIdsImage(self.next_producer_id)
