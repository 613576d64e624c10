"""The segments of one log, sorted by base offset.

Never empty once a log is open. The last one is the active one, the only one that is appended to.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from kalda.storage.log.segment import Segment


class Segments:
    """A sorted list with look-ups by offset."""

    __slots__ = ("_bases", "_items")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self._items = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._items]
        """The base offset of each, for bisection."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(list(self._items))

    def __getitem__(self, at: int) -> Segment:
        return self._items[at]

    @property
    def active(self) -> Segment:
        return self._items[-1]

    @property
    def first(self) -> Segment:
        return self._items[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._items)

    def add(self, segment: Segment) -> None:
        at = bisect_left(self._bases, segment.base_offset)
        assert at == len(self._bases) or self._bases[at] != segment.base_offset, f"segment {segment.base_offset} twice"
        self._bases.insert(at, segment.base_offset)
        self._items.insert(at, segment)

    def remove(self, segment: Segment) -> None:
        at = bisect_left(self._bases, segment.base_offset)
        assert self._items[at] is segment, f"segment {segment.base_offset} is not this log's"
        del self._bases[at], self._items[at]

    def floor(self, offset: int) -> Segment | None:
        """The segment that would hold `offset`; None below the first one."""
        at = bisect_right(self._bases, offset)
        return self._items[at - 1] if at else None

    def from_floor(self, offset: int) -> list[Segment]:
        """The segment that would hold `offset`, or the first one, and those after it."""
        return self._items[max(0, bisect_right(self._bases, offset) - 1) :]

    def for_read(self, offset: int) -> list[Segment]:
        """The segment that would hold `offset`, or the first one; and the next one that is not empty, which the read
        needs where compaction has left nothing from `offset` on in the former."""
        at = max(0, bisect_right(self._bases, offset) - 1)
        for after in range(at + 1, len(self._items)):
            if self._items[after].size:
                return [self._items[at], self._items[after]]
        return [self._items[at]]

    def after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self._bases, segment.base_offset)
        return self._items[at] if at < len(self._items) else None

    def between(self, first: int, upto: int) -> list[Segment]:
        """Those that may hold an offset in [first, upto)."""
        start = max(0, bisect_right(self._bases, first) - 1)
        return self._items[start : bisect_left(self._bases, upto)]

    def above(self, offset: int) -> list[Segment]:
        """Those whose base offset is larger than `offset`."""
        return self._items[bisect_right(self._bases, offset) :]
