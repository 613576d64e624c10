"""Reading batches out of segments, here or on another thread."""

from __future__ import annotations

from collections.abc import Sequence

from kalda.base.disk import File
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.storage.index import Reader, read_nowait, read_waiting
from kalda.storage.segment import Segment
from kalda.storage.segments import Segments
from kalda.storage.txn_index import AbortedTxn
from kalda.storage.values import FetchInfo

SLICED_BYTES = 128 * 1024
"""What is less goes out in one write anyway."""
_REMEMBERED = 32
_OPEN_SEGMENTS = 4


class Places:
    """Where a log's readers began and will go on, so that the next one there needs no index; and the old segments that
    were read last, whose files stay open for it."""

    __slots__ = ("_opened", "_segments", "known")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.known: dict[int, tuple[Segment, int]] = {}
        """Segment and position of the batch that holds an offset, or of the first one after it."""
        self._opened: list[Segment] = []

    def find(self, offset: int, read: Reader) -> tuple[Segment, int] | None:
        """Where a reader at `offset` begins; None where there is nothing for it."""
        place = self.known.get(offset)
        if place is None or place[1] >= place[0].size:
            place = find_place(self._segments, offset, read)
            if place is not None:
                self.note(offset, *place)
                if place[0] is not self._segments.active:
                    self.keep_open(place[0])
        return place

    def slice(self, offset: int, max_bytes: int, end_offset: int) -> tuple[File, int, int, int] | None:
        """A large part for a reader at `offset`, cut by the index: a handle of its own on the file, position and size,
        and the offset after it. None where it would not be large. Raises `WouldWait`."""
        place = self.find(offset, read_nowait)
        if place is None:
            return None
        segment, position = place
        if segment.size - position < SLICED_BYTES:
            return None
        cut = segment.cut(position, max_bytes, end_offset, read_nowait)
        if cut is None or cut[0] - position < SLICED_BYTES:
            return None
        end, next_offset = cut
        self.note(next_offset, segment, end)
        return segment.reading(read_nowait).share(), position, end - position, next_offset

    def note(self, offset: int, segment: Segment, position: int) -> None:
        """That is where a reader at `offset` begins."""
        known = self.known
        known[offset] = (segment, position)
        if len(known) > _REMEMBERED:
            del known[next(iter(known))]

    def keep_open(self, segment: Segment) -> None:
        """One that is not appended to any more was read, or has just been the active one."""
        if segment not in self._opened:
            self._opened.append(segment)
            if len(self._opened) > _OPEN_SEGMENTS:
                self._opened.pop(0).close()

    def take_over(self, read: ColdRead) -> None:
        """Keep open what a reader by name has opened of segments that are still there."""
        for segment, view in read.opened():
            if view.is_open and self._segments.floor(segment.base_offset) is segment:
                segment.adopt(view)
                if segment is not self._segments.active:
                    self.keep_open(segment)
            view.close()

    def forget(self) -> None:
        """Positions are not what they were."""
        self.known.clear()
        self._opened.clear()


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
        segment, position = following, 0 if following.size else None
    return segment, position


class ColdRead:
    """A read for another thread: `Log.read`'s arguments, on a snapshot of the log with file handles of its own.

    To be called once; raises `ApiError`. `origins` are the log's own segments where the views are snapshots of them:
    what has been renamed or removed before it is opened is not there then, and reads as nothing. Whoever has called it
    gives it to `Log.take_over` afterwards, on the log's thread, so that the next reader finds the files open, and a
    disk that failed is not trusted any more.
    """

    __slots__ = ("_log_end_offset", "_topic_partition", "_views", "failure", "origins")

    def __init__(
        self,
        topic_partition: TopicPartition,
        views: Sequence[Segment],
        log_end_offset: int,
        origins: Sequence[Segment] = (),
    ) -> None:
        self.origins = origins
        self.failure: OSError | None = None
        """What the disk said, where it failed."""
        self._topic_partition = topic_partition
        self._views = Segments(views)
        self._log_end_offset = log_end_offset

    def opened(self) -> list[tuple[Segment, Segment]]:
        """Segments of the log, each with its view."""
        return list(zip(self.origins, self._views, strict=True)) if self.origins else []

    def __call__(self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool) -> FetchInfo:
        end_offset = min(end_offset, self._log_end_offset)
        if offset >= end_offset:
            return FetchInfo(offset, offset, b"")
        try:
            place = find_place(self._views, offset, read_waiting)
            if place is None:
                return FetchInfo(offset, offset, b"")
            segment, position = place
            max_bytes = segment.bound(position, end_offset, max_bytes, read_waiting)
            return segment.read_slice(position, max_bytes, end_offset, min_one_message, read_waiting).info(offset)
        except OSError as error:
            if self.origins and isinstance(error, FileNotFoundError):
                return FetchInfo(offset, offset, b"")
            self.failure = error
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._topic_partition}: {error}") from error
        finally:
            if not self.origins:
                for view in self._views:
                    view.close()


def collect_aborted(segments: Segments, first_offset: int, upto: int) -> list[AbortedTxn]:
    """Aborted transactions that overlap [first_offset, upto), by first offset."""
    found: list[AbortedTxn] = []
    for segment in segments.from_floor(first_offset):
        if segment.txn_index.collect(first_offset, upto, found):
            break
    if len(found) > 1:
        found.sort(key=lambda txn: txn.first_offset)
    return found
