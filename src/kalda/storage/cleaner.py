"""Log compaction: which log is to be cleaned, how far, and the steps of one cleaning.

A compacted log has a clean part, which was cleaned before, and a dirty one. The log with the largest share of dirty
bytes is cleaned next, once that share passes `min.cleanable.dirty.ratio` or a record has been dirty for
`max.compaction.lag.ms`. Not cleaned are the active segment, what is at or above the last stable offset (an open
transaction may yet abort), what is younger than `min.compaction.lag.ms`, and what has not been synced.

One cleaning builds the offset map from the dirty part (as far as memory allows), then rewrites the log from its start
up to where the map ends, a group of segments at a time. Each step is a job; its finish puts the cleaned segment in the
place of its group. A log that was truncated, deleted or lost its segments meanwhile is left as it is. Between two steps
the shell may wait, so that the bytes that a cleaning has moved stay below `log.cleaner.io.max.bytes.per.second`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.storage.compaction import (
    CleanedTransactions,
    CleanResult,
    CleanRules,
    LastRecord,
    build_map,
    clean_group,
    group_segments,
)
from kalda.storage.config import MAX_INT64
from kalda.storage.index import read_waiting
from kalda.storage.job import Job
from kalda.storage.log import Log
from kalda.storage.log_dir import LogDir
from kalda.storage.log_manager import LogManager
from kalda.storage.naming import SWAP_SUFFIX
from kalda.storage.offset_map import ENTRY_BYTES, LOAD_FACTOR, OffsetMap
from kalda.storage.retention import delete_segments
from kalda.storage.segment import Segment


class Cleanable(NamedTuple):
    """A log with something to clean: offsets [first_dirty, first_uncleanable)."""

    log: Log
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """a record has been dirty for longer than `max.compaction.lag.ms`"""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


def cleanable(log: Log, checkpoint: int | None, now_ms: int) -> Cleanable | None:
    """What of a log may be cleaned; None for nothing. `checkpoint`: where the last cleaning ended."""
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        # Truncated or deleted since the last cleaning: the whole log is dirty.
        first_dirty = log.log_start_offset
    first_uncleanable = _first_uncleanable(log, first_dirty, now_ms)
    clean = sum(segment.size for segment in log.segments if segment.base_offset < first_dirty)
    dirty = sum(segment.size for segment in log.segments.between(first_dirty, first_uncleanable))
    if not dirty or first_dirty >= first_uncleanable:
        return None
    overdue = False
    if log.config.max_compaction_lag_ms < MAX_INT64:
        late_ms = now_ms - log.config.max_compaction_lag_ms
        dirty_segments = log.segments.between(first_dirty, first_uncleanable)
        overdue = any(0 < segment.first_timestamp(read_waiting) < late_ms for segment in dirty_segments)
    return Cleanable(log, first_dirty, first_uncleanable, clean, dirty, overdue)


def _first_uncleanable(log: Log, first_dirty: int, now_ms: int) -> int:
    """The base offset of the first segment that must not be cleaned yet."""
    limit = min(log.last_stable_offset, log.segments.active.base_offset, log.checkpoint_recovery_point)
    lag = log.config.min_compaction_lag_ms
    for segment, following in zip(log.segments, list(log.segments)[1:], strict=False):
        if following.base_offset > limit:
            return segment.base_offset
        if lag > 0 and segment.base_offset >= first_dirty and segment.largest_timestamp() > now_ms - lag:
            return segment.base_offset
    return log.segments.active.base_offset


class Cleaning:
    """One cleaning of one log: `next_job`, its `run` and its `finish`, until there is none."""

    def __init__(self, work: Cleanable, directory: LogDir, now_ms: int, memory_bytes: int) -> None:
        self.log = work.log
        self.end_offset = work.first_dirty
        """Up to where the log is clean once this cleaning is done: where the offset map ends."""
        self.bytes_read = self.bytes_written = 0
        self._work = work
        self._directory = directory
        self._checkpointing: list[Job[None]] = []
        """Jobs still to be done that make the recovery point durable."""
        self._now_ms = now_ms
        """When the cleaning began: deletions are judged by it."""
        self._memory_bytes = memory_bytes
        """How large the offset map may be."""
        self._offsets: OffsetMap | None = None
        """None before the map is built."""
        self._mapped: dict[int, tuple[Segment, int]] = {}
        """By base offset: the segments as the map was built, with their sizes."""
        self._groups: list[list[Segment]] = []
        """What is still to be cleaned: each group becomes one segment."""
        self._rules: CleanRules | None = None
        """None before the map is built."""
        self._transactions = CleanedTransactions()
        """Those that are open where the cleaning is."""
        self._abandoned = False
        """The log has changed under the cleaning: no step follows, and the log does not count as cleaned."""
        self._synced = False
        """The last step is done."""

    def next_job(self) -> Job[None] | None:
        """The next step; None when the cleaning is over."""
        if self._abandoned or self.log.offline:
            return None
        if self._offsets is None:
            if self.log.checkpoint_recovery_point < self._work.first_uncleanable:
                self._abandoned = True  # the log was truncated since
                return None
            return self._recovery_point_job() or self._map_job()
        if not self._groups:
            return None if self._synced else self._sync_job()
        if not self._is_as_mapped():
            self._abandoned = True
            return None
        return self._group_job()

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written so far, including those read for the map."""
        return self.bytes_read + self.bytes_written

    @property
    def done(self) -> bool:
        """Whether everything up to `end_offset` has been cleaned, durably."""
        return self._synced and not self._abandoned

    def _recovery_point_job(self) -> Job[None] | None:
        """Before anything is cleaned: compaction leaves gaps between segments. Above the recovery point of the
        checkpoint, a start after a crash would take such a gap for lost records."""
        if not self._checkpointing:
            self._checkpointing = self._directory.durable_recovery_point_jobs(
                self.log.topic_partition, self._work.first_uncleanable
            )
        return self._checkpointing.pop(0) if self._checkpointing else None

    def _map_job(self) -> Job[None]:
        log, start, upto = self.log, self._work.first_dirty, self._work.first_uncleanable
        views = [segment.view() for segment in log.segments.between(start, upto)]
        whole = log.segments.between(log.segments.first.base_offset, upto)
        self._mapped = {segment.base_offset: (segment, segment.size) for segment in whole}
        aborted = log.aborted_transactions(start, upto)

        def work() -> OffsetMap:
            try:
                count = sum(header.records_count for view in views for _, header in view.headers())
                wanted = (int(count / LOAD_FACTOR) + 2) * ENTRY_BYTES
                offsets = OffsetMap(min(self._memory_bytes, wanted))
                build_map(offsets, views, start, upto, aborted)
                return offsets
            finally:
                _close(views)

        return Job(f"map the keys of {log.topic_partition}", work, self._take_map)

    def _take_map(self, offsets: OffsetMap) -> None:
        self._offsets = offsets
        self.bytes_read += self._work.dirty_bytes
        log, upto = self.log, self._work.first_uncleanable
        self.end_offset = max(self._work.first_dirty, offsets.latest_offset + 1)
        if self.end_offset == self._work.first_dirty:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{log.topic_partition} has a batch with more keys than {self._memory_bytes} bytes of offset map hold: "
                "raise log.cleaner.dedupe.buffer.size",
            )
        segments = log.segments.between(log.segments.first.base_offset, self.end_offset)
        self._groups = group_segments(segments, log.config, upto)
        self._rules = CleanRules(
            offsets=offsets,
            last_records={s.producer_id: LastRecord(s.last_data_offset, s.epoch) for s in log.producer_states},
            delete_retention_ms=log.config.delete_retention_ms,
            now_ms=self._now_ms,
            round_end=upto,
        )

    def _group_job(self) -> Job[None]:
        log, group, rules = self.log, self._groups[0], self._rules
        assert rules is not None
        segments = log.segments
        aborted = {}
        for segment in group:
            following = segments.after(segment)
            end = self.end_offset if following is None else following.base_offset
            aborted[segment.base_offset] = log.aborted_transactions(segment.base_offset, end)
        views = [segment.view() for segment in group]
        modified_ms = group[-1].modified_ms()

        def work() -> CleanResult:
            try:
                return clean_group(
                    log.disk, log.directory, log.config, views, rules, self._transactions, aborted, modified_ms
                )
            finally:
                _close(views)

        return Job(f"clean {log.topic_partition}", work, lambda result: self._swap(result, group))

    def _is_as_mapped(self) -> bool:
        """Whether the segments still to be cleaned are those that the map was built from. Of a log that was truncated
        the map may hold records that were cut off, and no older record of their keys may be dropped."""
        segments, mapped = self.log.segments, self._mapped
        return all(
            segments.floor(segment.base_offset) is segment
            and mapped.get(segment.base_offset) == (segment, segment.size)
            for group in self._groups
            for segment in group
        )

    def _swap(self, result: CleanResult, group: list[Segment]) -> None:
        log = self.log
        if log.offline or not self._is_as_mapped():
            self._abandoned = True
            result.cleaned.close()
            result.cleaned.files()(log.disk)
            return
        replace_segments(log, result.cleaned, group)
        del self._groups[0]
        self.bytes_read += result.bytes_read
        self.bytes_written += result.bytes_written

    def _sync_job(self) -> Job[None]:
        """The last step: sync the names, before the checkpoint calls the segments clean. Otherwise a loss of power
        could bring back old segments that count as clean. The next cleaning would remove a deletion from its segment,
        while the records that it deletes stayed in another."""
        log, end = self.log, self.end_offset
        job = log.flush_job(log.recovery_point)
        edge = log.segments.floor(end)
        size = 0 if edge is None else edge.size

        def finish(_: None) -> None:
            job.finish()
            # After a truncation below `end` the log may have grown beyond it again, by records that are not clean.
            self._abandoned = edge is None or log.segments.floor(end) is not edge or edge.size < size
            self._synced = True

        return Job(f"sync what was cleaned of {log.topic_partition}", job.run, finish)


def replace_segments(log: Log, new: Segment, old: Sequence[Segment]) -> None:
    """A cleaned segment, synced, takes the place of those that it was made from.

    Its files go from `.cleaned` to `.swap`, which the next start after a crash finishes, before those of the old ones
    are renamed.
    """
    try:
        new.change_suffix(SWAP_SUFFIX)
        delete_segments(log, old, kept_snapshot=new.base_offset)
        new.change_suffix("")
    except OSError as error:
        raise log.failed(error) from error
    log.segments.add(new)


def _close(views: Iterable[Segment]) -> None:
    for view in views:
        view.close()


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """Broker settings, by Kafka's defaults; comments name the keys."""

    enabled: bool = True  # log.cleaner.enable
    memory_bytes: int = 128 * 1024 * 1024  # log.cleaner.dedupe.buffer.size
    backoff_ms: int = 15_000  # log.cleaner.backoff.ms
    max_bytes_per_second: float = inf  # log.cleaner.io.max.bytes.per.second


class LogCleaner:
    """Chooses what to clean among a manager's logs, one at a time.

    The shell calls `choose`, then runs each `next_job` of the cleaning on a thread with its `finish` here, then calls
    `finished` and runs its job; where `choose` finds nothing, again after `backoff_ms`. It calls `failed` with a
    cleaning that has raised an error: a damaged batch, or a failing disk.
    """

    def __init__(self, manager: LogManager, config: CleanerConfig | None = None) -> None:
        self._manager = manager
        self.config = CleanerConfig() if config is None else config
        """May be replaced at any time."""
        self.uncleanable: set[TopicPartition] = set()
        """Partitions in whose logs a batch is damaged: they are not chosen until the node starts again."""

    def choose(self, now_ms: int) -> Cleaning | None:
        """The cleaning to do next; None for none."""
        if not self.config.enabled:
            return None
        best: Cleanable | None = None
        for log in self._manager:
            directory = self._manager.dir_of(log.topic_partition)
            if not log.config.compacts or log.offline or directory is None or log.topic_partition in self.uncleanable:
                continue
            if log.topic_partition in self._manager.futures:
                continue  # it is being copied
            try:
                found = cleanable(log, directory.cleaner_offsets.get(log.topic_partition), now_ms)
            except (ApiError, OSError) as error:
                if isinstance(error, OSError):
                    log.on_io_error(error)
                continue
            if found is None or not (found.overdue or found.dirty_ratio > log.config.min_cleanable_dirty_ratio):
                continue
            if best is None or found.dirty_ratio > best.dirty_ratio:
                best = found
        if best is None:
            return None
        directory = self._manager.dir_of(best.log.topic_partition)
        assert directory is not None
        return Cleaning(best, directory, now_ms, self.config.memory_bytes)

    def finished(self, cleaning: Cleaning) -> Job[None] | None:
        """A job that writes up to where the log is clean; None where the cleaning was abandoned."""
        topic_partition = cleaning.log.topic_partition
        directory = self._manager.dir_of(topic_partition)
        if not cleaning.done or directory is None or not directory.online:
            return None
        if self._manager.get(topic_partition) is not cleaning.log:
            return None  # moved to another directory meanwhile
        job = directory.cleaned_job(topic_partition, cleaning.end_offset)
        return None if job is None else self._manager.dirs.checkpoint_job(directory, job)

    def failed(self, cleaning: Cleaning, error: BaseException) -> None:
        """A step raised: a failing disk takes its directory offline, a damaged log is not cleaned any more."""
        if isinstance(error, OSError):
            cleaning.log.on_io_error(error)
        elif not isinstance(error, ApiError) or error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            self.uncleanable.add(cleaning.log.topic_partition)

    def clean(self, now_ms: int) -> int:
        """Everything that there is to clean, here and now; the number of cleanings. For tools and tests."""
        count = 0
        while (cleaning := self.choose(now_ms)) is not None:
            try:
                while (job := cleaning.next_job()) is not None:
                    job.complete()
            except (ApiError, OSError) as error:
                self.failed(cleaning, error)
                continue
            checkpoint = self.finished(cleaning)
            if checkpoint is None:
                break
            checkpoint.complete()
            count += 1
        return count
