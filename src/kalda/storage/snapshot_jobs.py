"""Reads of a log's files on another thread, from a snapshot; begun again while files are renamed, removed or replaced
under them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from kalda.base.disk import Buffer
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Jobs
from kalda.storage.index import read_waiting
from kalda.storage.reading import SLICED_BYTES, find_place, find_slice
from kalda.storage.segment import Segment
from kalda.storage.segments import Segments
from kalda.storage.state import LogState
from kalda.storage.values import FetchInfo

_ATTEMPTS = 5
"""How often a read whose files change under it is run. Each attempt takes a new snapshot of what the log has."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Read(Protocol[T_co]):
    """A read of a snapshot of the log."""

    def finish(self, last: bool = False) -> T_co | ApiError | None:
        """On the log's thread, after a run: its outcome; None where the read has taken a new snapshot and must run
        again, or an error instead with `last`."""
        ...


def start_repeated(
    jobs: Jobs,
    reads: Sequence[Read[T]],
    run: Callable[[Sequence[int], Sequence[T | ApiError | None]], None],
    done: Callable[[list[T | ApiError]], None],
) -> None:
    """Run reads by one job, one after another; `done` gets their results, in the same order, on the log's thread.

    `run(unread, results)` runs, on any thread, those reads whose indexes are `unread`; `results` has what the others
    have found."""
    results: list[T | ApiError | None] = [None] * len(reads)
    attempts_left = _ATTEMPTS

    def start() -> None:
        unread = [at for at, result in enumerate(results) if result is None]

        def finish(_: None, error: BaseException | None) -> None:
            nonlocal attempts_left
            attempts_left -= 1
            for at in unread:
                if error is None:
                    results[at] = reads[at].finish(last=not attempts_left)
                else:
                    results[at] = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            if None in results:
                start()
            else:
                done([result for result in results if result is not None])

        jobs.run(lambda: run(unread, results), finish)

    start()


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
        self, log: LogState, offset: int, max_bytes: int, end_offset: int, min_one: bool, slices: Jobs | None = None
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
            sliced = find_slice(
                segment, position, max_bytes, end_offset, self._slices, read_waiting, self._log.on_io_error
            )
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
