"""The large batches that leaders have appended last, in memory: their followers fetch them a moment later.

From there a fetch gets the bytes that were received. From the page cache each follower's fetch would copy them once
more. All logs of a node share the memory: the oldest batch goes first, whoever has not read it yet reads the file.

Only a fetch that the file would not answer with more gets a batch from here, so no fetch returns less because of it.

Invariant: what is kept is in the log. A log that is cut, or whose segments are removed, is forgotten before.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

from kalda.base.disk import Buffer
from kalda.storage.offsets import LogOffsets
from kalda.storage.values import FetchInfo

LEAST_BYTES = 128 * 1024
"""Of a batch that is kept. Several smaller ones come in one read of the file; and their memory may be a part of an
arena that they would keep."""
_LIMIT_BYTES = 8 * 1024 * 1024
_MEMORY_RATIO = 8
"""A batch is a part of its request's memory, all of which stays for as long as the batch does. One with more than that
many times the bytes of the batch is not kept: so all that is kept holds at most 64 MiB."""


class RecentAppends:
    """Of all logs that are led here and followed elsewhere."""

    __slots__ = ("_bytes", "_kept", "_limit_bytes")

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        """Size of the batches that are kept."""
        self._kept: OrderedDict[tuple[LogOffsets, int], tuple[int, Buffer]] = OrderedDict()
        """By log and first offset: the offset after the batch, and the batch. In the order of their appends."""

    def put(self, log: LogOffsets, first_offset: int, next_offset: int, batch: Buffer) -> None:
        """A batch of at least `LEAST_BYTES` was appended, whose memory is not written to any more."""
        if isinstance(batch, memoryview) and len(cast(bytearray, batch.obj)) > _MEMORY_RATIO * len(batch):
            return
        self._kept[log, first_offset] = next_offset, batch
        self._bytes += len(batch)
        while self._bytes > self._limit_bytes:
            self._bytes -= len(self._kept.popitem(last=False)[1][1])

    def find(self, log: LogOffsets, offset: int, max_bytes: int, end_offset: int) -> FetchInfo | None:
        """The batch that begins at `offset`, where no second one ends below `end_offset` and within `max_bytes`; else
        None."""
        found = self._kept.get((log, offset))
        if found is None or len(found[1]) > max_bytes or found[0] > end_offset:
            return None
        next_offset, batch = found
        if next_offset != end_offset:
            following = self._kept.get((log, next_offset))
            if following is None or len(batch) + len(following[1]) <= max_bytes:
                return None
        return FetchInfo(offset, next_offset, batch)

    def forget(self, log: LogOffsets) -> None:
        """Keep nothing of this log."""
        for key in [key for key in self._kept if key[0] is log]:
            self._bytes -= len(self._kept.pop(key)[1])
