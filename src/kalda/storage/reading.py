"""Reading batches out of a log, wherever they are: the one place that decides how.

A read has one of these outcomes. Callers distinguish two kinds: a `FetchInfo` is the result; any other outcome is given
to `start_reads`, which calls back with a `FetchInfo` or an `ApiError`.

| outcome | when | what waits for the device |
| --- | --- | --- |
| `FetchInfo` with bytes | the page cache has the index entries and the batches | nothing |
| `FetchInfo` with a `FileSlice` | likewise, and it is so much that it is read while it is sent | nothing |
| `ColdRead` | a file has to be opened, or a device has to be read | a thread |

A `ColdRead` may find a `FileSlice` as well: then it has read the index alone, and a thread reads the batches while they
are sent, a piece at a time.

This is where reads of remote storage (tiered segments) belong: one more outcome of `Reads.nowait` and `Log.read_later`,
for an offset below the first local segment, which `start_reads` starts beside the job of the cold reads. No caller
changes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from kalda.base.disk import Buffer
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.file_slice import FileSlice
from kalda.base.scheduling import Jobs
from kalda.storage.index import Reader, WouldWait, read_cached, read_waiting
from kalda.storage.repeated_reads import start_repeated
from kalda.storage.segment import Segment
from kalda.storage.segments import Segments
from kalda.storage.values import FetchInfo

if TYPE_CHECKING:
    from kalda.storage.log import Log

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

    def nowait(
        self, log: Log, offset: int, max_bytes: int, end_offset: int, min_one: bool, slices: Jobs | None
    ) -> FetchInfo | ColdRead:
        """The outcome of a read of [offset, end_offset), both within the log, offset first."""
        try:
            if slices is not None and max_bytes >= SLICED_BYTES:
                sliced = self._slice(log, offset, max_bytes, end_offset, slices)
                if sliced is not None:
                    return sliced
            return self.here(offset, max_bytes, end_offset, log.log_end_offset, min_one, read_cached)
        except WouldWait:
            return ColdRead(log, offset, max_bytes, end_offset, min_one, slices)

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

    def _slice(self, log: Log, offset: int, max_bytes: int, end_offset: int, jobs: Jobs) -> FetchInfo | None:
        """A large part of the file, cut by the index; None where it would not be large. Raises `WouldWait` where that
        cannot be found in the page cache. Then the batches are not read here either: as much of them as is cached would
        be copied in vain, up to a whole segment."""
        place = self.positions.get(offset)
        if place is None or place[1] >= place[0].size:
            place = self._find(offset, read_cached)
            if place is None:
                return None
        sliced = _sliced(log, *place, max_bytes, end_offset, jobs, read_cached)
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


def _sliced(
    log: Log, segment: Segment, position: int, max_bytes: int, end_offset: int, jobs: Jobs, read: Reader
) -> tuple[FileSlice, int, int] | None:
    """The slice of a segment from `position` on, the offset after it and the position of its end, found by means of
    `read`. None where it would not be large."""
    if segment.size - position < SLICED_BYTES:
        return None
    cut = segment.cut(position, max_bytes, end_offset, read)
    if cut is None or cut[0] - position < SLICED_BYTES:
        return None
    end, next_offset = cut
    part = FileSlice(segment.reading(read).share(), position, end - position, jobs, log.on_io_error)
    return part, next_offset, end


class ColdRead:
    """A read that may wait for a device: `run` does it on another thread, on a snapshot of the log; `finish` follows on
    the log's own thread.

    No file is opened to make the snapshot, so `run` opens by name what was closed. A file that was renamed or removed
    before that, or replaced by compaction, belongs to another state of the log: then `finish` takes a new snapshot, for
    another `run`. Likewise where a read fails in a file that was cut, and perhaps written anew, meanwhile.
    """

    __slots__ = (
        "_by_name", "_changes", "_end_offset", "_failure", "_found", "_log", "_max_bytes", "_min_one", "_offset",
        "_slices", "_views",
    )  # fmt: skip

    def __init__(
        self, log: Log, offset: int, max_bytes: int, end_offset: int, min_one: bool, slices: Jobs | None = None
    ) -> None:
        """`offset` and `end_offset` are within the log. `slices`: as of `Log.read_nowait`."""
        self._log = log
        self._offset = offset
        self._max_bytes = max_bytes
        self._end_offset = end_offset
        self._min_one = min_one
        self._slices = slices
        self._views: list[tuple[Segment, Segment]] = []
        """Segments of the log, each with the snapshot of it that `run` reads."""
        self._by_name: list[tuple[Segment, Segment]] = []
        """Those of them whose file was closed when the snapshot was made."""
        self._found: FetchInfo | None = None
        """What `run` has read; None before it, or where it failed."""
        self._failure: ApiError | OSError | None = None
        """What was raised in `run`."""
        self._changes = 0
        """The log's count of removals and cuts at the snapshot."""
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        """Take a snapshot of the segments that the read needs."""
        self._changes = self._log.unsynced.truncations
        self._views = [(segment, segment.snapshot()) for segment in self._log.segments.for_read(self._offset)]
        self._by_name = [pair for pair in self._views if not pair[1].is_open]
        self._found = self._failure = None

    def run(self, min_one: bool = True) -> bool:
        """Read, on any thread. Whether a batch was found. With `min_one` false the first batch must fit, too."""
        try:
            self._found = self._read(self._min_one and min_one)
        except (OSError, ApiError) as error:
            self._failure = error
            return False
        return self._found.size_bytes > 0

    def _read(self, min_one: bool) -> FetchInfo:
        offset, max_bytes, end_offset = self._offset, self._max_bytes, self._end_offset
        if offset >= end_offset:
            return FetchInfo(offset, offset, b"")
        place = find_place(Segments([view for _, view in self._views]), offset, read_waiting)
        if place is None:
            return FetchInfo(offset, offset, b"")
        segment, position = place
        if self._slices is not None and max_bytes >= SLICED_BYTES:
            sliced = _sliced(self._log, segment, position, max_bytes, end_offset, self._slices, read_waiting)
            if sliced is not None:
                return FetchInfo(offset, sliced[1], cast(Buffer, sliced[0]))
        max_bytes = segment.bound(position, end_offset, max_bytes, read_waiting)
        return segment.read_slice(position, max_bytes, end_offset, min_one, read_waiting).info(offset)

    def result(self) -> FetchInfo:
        """What `run` has found, for callers that do not `finish`: no batch where the files were renamed or removed.
        Raises `ApiError`."""
        if self._found is not None:
            return self._found
        if isinstance(self._failure, FileNotFoundError):
            return FetchInfo(self._offset, self._offset, b"")
        raise self._error()

    @property
    def is_outdated(self) -> bool:
        """Whether the log has been cut, or has lost segments, since the snapshot; true before any file changes."""
        return self._changes != self._log.unsynced.truncations

    def finish(self, last: bool = False) -> FetchInfo | ApiError | None:
        """On the log's thread: what `run` has found; None where it must `run` again, or an error instead with `last`.
        An `OSError` of the disk takes the log offline."""
        log, views = self._log, self._views
        self._views = []
        replaced = any(
            view.is_open and log.segments.floor(segment.base_offset) is not segment for segment, view in self._by_name
        )
        if isinstance(self._failure, FileNotFoundError) or (self._failure is not None and self.is_outdated):
            replaced = True
        elif isinstance(self._failure, OSError):
            log.on_io_error(self._failure)
        for segment, view in views:
            if not log.offline and not self.is_outdated:
                log.reads.adopt(segment, view)
            view.close()
        if not replaced:
            return self._error() if self._found is None else self._found
        try:
            log.check_range(self._offset)
            if last:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"segments of {log.topic_partition} change while read")
            self._end_offset = min(self._end_offset, log.log_end_offset)
            self._take_snapshot()
        except ApiError as error:
            return error
        except OSError as error:
            return log.refused(error)
        return None

    def _error(self) -> ApiError:
        if isinstance(self._failure, ApiError):
            return self._failure
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._log.topic_partition}: {self._failure}")


def start_reads(jobs: Jobs, reads: Sequence[ColdRead], done: Callable[[list[FetchInfo | ApiError]], None]) -> None:
    """Run reads by one job, one after another; `done` gets their results, in the same order, on the log's thread. A
    batch larger than its limit is only returned where no batch was found before it (KIP-74).

    A read whose files were renamed or removed meanwhile is done again.
    """

    def run(unread: Sequence[int], results: Sequence[FetchInfo | ApiError | None]) -> None:
        found = any(isinstance(result, FetchInfo) and result.size_bytes for result in results)
        for at in unread:
            found = reads[at].run(min_one=not found) or found

    start_repeated(jobs, reads, run, done)
