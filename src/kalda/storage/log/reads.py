"""Reading batches out of a log, wherever they are.

A read (`Log.read_nowait`, `Log.read_later`) has one of these outcomes. Callers distinguish two kinds: a `FetchInfo` is
the result; any other outcome is a `SnapshotJob`, for `run_snapshots`.

| outcome | when | what waits for the device |
| --- | --- | --- |
| `FetchInfo` with bytes | the page cache has the index entries and the batches | nothing |
| `FetchInfo` with a `FileSlice` | likewise, and it is so much that it is read while it is sent | nothing |
| `ColdRead` (`snapshot_jobs.py`) | a file has to be opened, or a device has to be read | a thread |

A `ColdRead` may find a `FileSlice` as well: then it has read the index alone, and a thread reads the batches while they
are sent, a piece at a time.

Not obvious:

- A frame's memory is not written to after its records were appended: followers may read them from there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from kalda.base.disk import Buffer, FileSlice
from kalda.base.scheduling import Jobs
from kalda.storage.log.index import Reader, read_cached, read_waiting
from kalda.storage.log.offsets import LogOffsets
from kalda.storage.log.segment import Segment, Segments
from kalda.storage.values import FetchInfo

SLICED_BYTES = 128 * 1024
"""The least size of a slice: less is sent in one write anyway."""
_HOT_BYTES = 1 << 20
"""So much of what this process has appended last is taken to be in the page cache."""
_REMEMBERED = 32
_OPEN_SEGMENTS = 4


class Reads:
    """The reads of one log, and what they leave for later ones: positions, so that a read that begins where another has
    ended needs no index; and the files of the older segments that were read last, which stay open."""

    __slots__ = ("_opened", "_segments", "positions")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        """The log's own."""
        self.positions: dict[int, tuple[Segment, int]] = {}
        """By offset: segment and position of the batch that holds it, or of the first one after it. The oldest entry
        goes where there are more than `_REMEMBERED`."""
        self._opened: list[Segment] = []
        """Segments before the active one whose files are open, the one that was opened first in front."""

    def here(
        self, offset: int, max_bytes: int, end_offset: int, log_end_offset: int, min_one: bool, read: Reader
    ) -> FetchInfo:
        """A read of [offset, end_offset) by means of `read`. Raises `WouldWait` where that does."""
        place = self.positions.get(offset)
        if place is None or place[1] >= place[0].size:
            place = self._find(offset, read)
            if place is None:
                return FetchInfo(offset, offset, b"")
        segment, position = place
        if position >= segment.hot_from and position >= segment.size - _HOT_BYTES:
            read = read_waiting  # this process has just written it: it is in the page cache
        if end_offset < log_end_offset:
            max_bytes = segment.bound(position, end_offset, max_bytes, read)
        found = segment.read_slice(position, max_bytes, end_offset, min_one, read)
        if found.next_offset >= 0:
            self._note(found.next_offset, segment, found.end_position)
        else:
            self.positions.pop(offset, None)  # stray bytes may end the segment: the index finds what follows it
        return found.info(offset)

    def slice(
        self, offset: int, max_bytes: int, end_offset: int, jobs: Jobs, on_error: Callable[[BaseException], None]
    ) -> FetchInfo | None:
        """A large part of the file, cut by the index; None where it would not be large. Raises `WouldWait` where that
        cannot be found in the page cache. Then the batches are not read here either: as much of them as is cached would
        be copied in vain, up to a whole segment."""
        place = self.positions.get(offset)
        if place is None or place[1] >= place[0].size:
            place = self._find(offset, read_cached)
            if place is None:
                return None
        sliced = find_slice(*place, max_bytes, end_offset, jobs, read_cached, on_error)
        if sliced is None:
            return None
        part, next_offset, end = sliced
        self._note(next_offset, place[0], end)
        return FetchInfo(offset, next_offset, cast(Buffer, part))

    def _find(self, offset: int, read: Reader) -> tuple[Segment, int] | None:
        """Where a read at `offset` begins, by the index; None where there is no batch for it."""
        place = find_place(self._segments, offset, read)
        if place is not None:
            self._note(offset, *place)
            if place[0] is not self._segments.active:
                self.keep_open(place[0])
        return place

    def _note(self, offset: int, segment: Segment, position: int) -> None:
        """Remember that a read at `offset` begins at that position."""
        positions = self.positions
        positions[offset] = (segment, position)
        if len(positions) > _REMEMBERED:
            del positions[next(iter(positions))]

    def keep_open(self, segment: Segment) -> None:
        """A segment before the active one was opened to be read, or has just been the active one."""
        if segment not in self._opened:
            self._opened.append(segment)
            if len(self._opened) > _OPEN_SEGMENTS:
                oldest = self._opened.pop(0)
                if oldest is not self._segments.active:  # which it may have become by a truncation
                    oldest.close()

    def release(self) -> None:
        """Close the files of the segments before the active one."""
        for segment in self._opened:
            segment.close()
        self._opened.clear()

    def adopt(self, segment: Segment, view: Segment) -> None:
        """Keep the files open that a cold read has opened, where its segment is still the log's."""
        if view.is_open and self._segments.floor(segment.base_offset) is segment:
            segment.adopt(view)
            if segment is not self._segments.active:
                self.keep_open(segment)

    def forget(self) -> None:
        """Segments were removed or cut: no position is valid any more. The other segments stay as they are."""
        self.positions.clear()
        self._opened = [each for each in self._opened if self._segments.floor(each.base_offset) is each]


def find_place(segments: Segments, offset: int, read: Reader) -> tuple[Segment, int] | None:
    """Segment and position of the batch that holds `offset`, or of the first one after it; None where there is none.

    A compacted segment may have nothing at or after `offset`: then the next is tried.
    """
    segment = segments.floor(offset) or segments.first
    position = segment.locate(offset, read) if segment.size else None
    while position is None:
        following = segments.after(segment)
        if following is None:
            return None
        segment, position = following, following.locate(offset, read) if following.size else None
    return segment, position


def find_slice(
    segment: Segment,
    position: int,
    max_bytes: int,
    end_offset: int,
    jobs: Jobs,
    read: Reader,
    on_error: Callable[[BaseException], None],
) -> tuple[FileSlice, int, int] | None:
    """The slice of a segment from `position` on, the offset after it and the position of its end, found by means of
    `read`. None where it would not be large. `on_error` gets what is raised when `jobs` read the slice."""
    if segment.size - position < SLICED_BYTES:
        return None
    cut = segment.cut(position, max_bytes, end_offset, read)
    if cut is None or cut[0] - position < SLICED_BYTES:
        return None
    end, next_offset = cut
    part = FileSlice(segment.reading(read).share(), position, end - position, jobs, on_error)
    return part, next_offset, end


LEAST_BYTES = 128 * 1024
"""Of a batch that is kept. Several smaller ones come in one read of the file; and their memory may be a part of an
arena that they would keep."""
_LIMIT_BYTES = 8 * 1024 * 1024
_MEMORY_RATIO = 8
"""A batch is a part of its request's memory, all of which stays for as long as the batch does. One with more than that
many times the bytes of the batch is not kept: so all that is kept holds at most 64 MiB."""


class RecentAppends:
    """The large batches that leaders have appended last, in memory: their followers fetch them a moment later.

    From there a fetch gets the bytes that were received. From the page cache each follower's fetch would copy them once
    more. All logs of a node that are led here and followed elsewhere share the memory: the oldest batch goes first,
    whoever has not read it yet reads the file.

    Only a fetch that the file would not answer with more gets a batch from here, so no fetch returns less because of
    it. What is kept is in the log: a log that is cut, or whose segments are removed, is forgotten before.
    """

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
