"""Log compaction: which logs are cleaned, in which order, how far; and which cannot be.

A compacted log has a clean part, which was cleaned before, and a dirty one. The log with the largest share of dirty
bytes is cleaned next, once that share passes `min.cleanable.dirty.ratio` or a record has been dirty for
`max.compaction.lag.ms`. Not cleaned are the active segment, what is at or above the last stable offset (an open
transaction may yet abort), what is younger than `min.compaction.lag.ms`, and what has not been synced.

Up to `log.cleaner.threads` logs are cleaned at a time, each with an equal part of `log.cleaner.dedupe.buffer.size`, so
that a huge log does not delay the others.

Compaction harms nothing but itself:

| a cleaning raised | then |
| --- | --- |
| no space, no file descriptors, no memory | what it wrote is removed, and the log is tried again later |
| another error of the disk | the log directory is offline, as with any other use of the disk |
| anything else: damaged records, a batch with too many keys, a defect | that log is not cleaned any more |

Apache Kafka takes the directory offline for want of space, too. But a cleaning needs its space only until it is
complete, and leaves the last of it to appends; every acknowledged record is still there; and the directory's logs can
be served.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode, Portable
from kalda.base.ids import TopicPartition
from kalda.records.key_offsets import ENTRY_BYTES, LOAD_FACTOR, KeyOffsets
from kalda.storage.compaction.passes import (
    CleanedTransactions,
    CleanRules,
    KeyMapping,
    LastRecord,
    Pass,
    ReadAborted,
    Rewriting,
    group_segments,
)
from kalda.storage.config import MAX_INT64
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.file_names import SWAP_SUFFIX
from kalda.storage.job import Job
from kalda.storage.log.deletion import delete_segments
from kalda.storage.log.index import read_waiting
from kalda.storage.log.log import Log
from kalda.storage.log.segment import Segment
from kalda.storage.log.snapshot_jobs import collect_from, snapshots_of_indexes

# One cleaning of one log, as steps that the shell carries out one after the other.
#
# The dirty part is read for the last offset of each key (as far as memory allows), then the log is rewritten from its
# start up to where that map ends, a group of segments at a time; the cleaned segment takes the place of its group.
# Both passes are done in slices, a job each. What is read are snapshots of the segments, so appends and reads go on.
#
# A log that is truncated, deleted or loses segments meanwhile is left as it is: the cleaning is abandoned, whatever
# its passes may have raised over files that were cut or removed under them.

SLICE_BYTES = 16 * 1024 * 1024
"""What a slice reads, decompresses and writes: some 50 ms of work, where a disk does not slow it."""
_MAPPED_AT_ONCE = 16
"""Segments in one pass for the map; each is an open file meanwhile."""


class Cleanable(NamedTuple):
    """A log with something to clean: offsets [first_dirty, first_uncleanable)."""

    log: Log
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    delay_ms: int
    """for how long the oldest dirty record has been dirty beyond `max.compaction.lag.ms`; 0 where it has not"""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


class CleaningFigures(NamedTuple):
    """Of a cleaning that has ended."""

    bytes_read: int
    bytes_written: int
    map_use: float
    """How much of its memory the map of keys used."""
    duration_ms: int


class MapTooSmall(Portable, Exception):
    """One batch has more keys than the map has room for."""

    def __init__(self, topic_partition: TopicPartition, offset: int, memory_bytes: int) -> None:
        super().__init__(
            f"the batch at offset {offset} of {topic_partition} has more keys than a map of {memory_bytes} bytes holds"
        )


class Cleaning:
    """`next_job`, its `run` and its `finish`, until there is none; after a step that raised, `abandon` and its job."""

    def __init__(self, work: Cleanable, directory: LogDir, now_ms: int, memory_bytes: int, secret: bytes) -> None:
        self.log = work.log
        self.end_offset = work.first_dirty
        """Up to where the log is clean once this cleaning is done: where the map of keys ends."""
        self.memory_bytes = memory_bytes
        """How large the map of keys may be."""
        self.bytes_read = self.bytes_written = 0
        """By the passes that are complete."""
        self._work = work
        self._directory = directory
        self._checkpointing: list[Job[None]] = []
        """Jobs still to be done that make the recovery point durable."""
        self.map_use = 0.0
        """How much of `memory_bytes` the map of keys uses, once it is complete."""
        self.began_ms = now_ms
        """Deletions are judged by it."""
        self._secret = secret
        """16 bytes that key the hashes of this cleaning's map."""
        self._offsets: KeyOffsets | None = None
        """None before the recovery point is durable, and once it is not needed any more."""
        self._unmapped: list[Segment] = []
        """Segments whose keys are still to be mapped."""
        self._mapped: dict[int, tuple[Segment, int]] = {}
        """By base offset: the segments as the cleaning found them, with their sizes."""
        self._changes_seen = 0
        """The log's count of removals and cuts when the segments were last found to be those."""
        self._map_transactions = CleanedTransactions()
        self._aborted_in_map: ReadAborted | None = None
        """Of the dirty part, for the first pass for the map."""
        self._pass: Pass | None = None
        """What is under way."""
        self._groups: list[list[Segment]] = []
        """What is still to be rewritten: each group becomes one segment."""
        self._rules: CleanRules | None = None
        """None before the map is complete."""
        self._transactions = CleanedTransactions()
        """Those that are open where the rewriting is."""
        self._abandoned = False
        """The log has changed under the cleaning: no step follows, and the log does not count as cleaned."""
        self._synced = False
        """The last step is done."""

    @property
    def is_preparing(self) -> bool:
        """Whether it still writes checkpoints. Of those that do so at once each would make the others begin anew."""
        return not self._mapped and not self._abandoned

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written so far, including those read for the map."""
        moved = self.bytes_read + self.bytes_written
        return moved if self._pass is None else moved + self._pass.bytes_read + self._pass.bytes_written

    @property
    def done(self) -> bool:
        """Whether everything up to `end_offset` has been cleaned, durably."""
        return self._synced and not self._abandoned

    def is_outdated(self) -> bool:
        """Whether the log has been closed, cut or has lost segments since the cleaning read it; which ends it."""
        if not self._abandoned and (self.log.offline or not self._is_as_mapped()):
            self._abandoned = True
        return self._abandoned

    def next_job(self, most_bytes: int = SLICE_BYTES) -> Job[None] | None:
        """The next step, which moves about `most_bytes` at most; None when the cleaning is over."""
        if self.is_outdated():
            return self.abandon()
        if not self._mapped:
            if min(self.log.checkpoint_recovery_point, self.log.last_stable_offset) < self._work.first_uncleanable:
                return self.abandon()  # the log was truncated since
            job = self._recovery_point_job()
            if job is not None:
                return job
            self._begin()
            if not self._unmapped:
                return self.abandon()  # retention has removed all of the dirty part since
        if self._pass is None:
            if self._rules is None:
                self._pass = self._key_mapping()
            elif self._groups:
                self._pass = self._rewriting()
            elif not self._synced:
                return self._sync_job()
            else:
                return None
        return self._slice_job(self._pass, most_bytes)

    def abandon(self) -> Job[None] | None:
        """End the cleaning: no step follows. A job that closes and removes what it holds; None where that is nothing.
        Not called while a job runs."""
        self._abandoned = True
        begun, offsets = self._pass, self._offsets
        self._pass = self._offsets = None
        if begun is None and offsets is None:
            return None
        has_directory = not self.log.offline

        def work() -> None:
            if begun is not None:
                begun.discard(removes=has_directory)
            if offsets is not None:
                offsets.release()

        return Job(f"discard what was compacted of {self.log.topic_partition}", work, lambda _: None)

    # -- the steps

    def _recovery_point_job(self) -> Job[None] | None:
        """Before anything is cleaned: compaction leaves gaps between segments. Above the recovery point of the
        checkpoint, a start after a crash would take such a gap for lost records."""
        if not self._checkpointing:
            self._checkpointing = self._directory.durable_recovery_point_jobs(
                self.log.topic_partition, self._work.first_uncleanable
            )
        return self._checkpointing.pop(0) if self._checkpointing else None

    def _begin(self) -> None:
        """Note what the log consists of, and make the map: of at most an entry for each offset, as records are fewer
        than offsets."""
        log, start, upto = self.log, self._work.first_dirty, self._work.first_uncleanable
        whole = log.segments.between(log.segments.first.base_offset, upto)
        self._mapped = {segment.base_offset: (segment, segment.size) for segment in whole}
        self._unmapped = log.segments.between(start, upto)
        wanted = (int((upto - start) / LOAD_FACTOR) + 2) * ENTRY_BYTES
        self._offsets = KeyOffsets(min(self.memory_bytes, wanted), self._secret)
        self._aborted_in_map = partial(collect_from, snapshots_of_indexes(log.segments, start), start, upto)

    def _slice_job(self, begun: Pass, most_bytes: int) -> Job[None]:
        verb = "map the keys of" if self._rules is None else "clean"

        def finish(complete: bool) -> None:
            if self.is_outdated():
                return  # the next step discards the pass
            if complete:
                self._complete(begun)

        return Job(f"{verb} {self.log.topic_partition}", lambda: begun.run(most_bytes), finish)

    def _complete(self, ended: Pass) -> None:
        """A pass has read all of its segments."""
        self.bytes_read += ended.bytes_read
        self.bytes_written += ended.bytes_written
        if isinstance(ended, Rewriting):
            replace_segments(self.log, ended.take(), self._groups.pop(0))
            self._changes_seen = self.log.unsynced.truncations
        elif isinstance(ended, KeyMapping) and (ended.is_full or not self._unmapped):
            self._take_map()
        self._pass = None

    def _key_mapping(self) -> KeyMapping:
        assert self._offsets is not None
        segments, self._unmapped = self._unmapped[:_MAPPED_AT_ONCE], self._unmapped[_MAPPED_AT_ONCE:]
        upto = self._unmapped[0].base_offset if self._unmapped else self._work.first_uncleanable
        snapshots = [segment.snapshot() for segment in segments]
        aborted, self._aborted_in_map = self._aborted_in_map, None
        return KeyMapping(self._offsets, snapshots, self._work.first_dirty, upto, self._map_transactions, aborted)

    def _take_map(self) -> None:
        assert self._offsets is not None
        log, work = self.log, self._work
        self.end_offset = max(work.first_dirty, self._offsets.latest_offset + 1)
        self.map_use = self._offsets.size * ENTRY_BYTES / self.memory_bytes
        if self.end_offset == work.first_dirty:
            raise MapTooSmall(log.topic_partition, work.first_dirty, self.memory_bytes)
        assert self.end_offset <= work.first_uncleanable, f"{log.topic_partition} is mapped up to {self.end_offset}"
        segments = log.segments.between(log.segments.first.base_offset, self.end_offset)
        self._groups = group_segments(segments, log.config, work.first_uncleanable)
        clean = [segment for segment in segments if segment.base_offset < work.first_dirty]
        self._rules = CleanRules(
            offsets=self._offsets,
            last_records={s.producer_id: LastRecord(s.last_data_offset, s.epoch) for s in log.producer_states},
            delete_retention_ms=log.config.delete_retention_ms,
            now_ms=self.began_ms,
            round_end=work.first_uncleanable,
            legacy_horizon_ms=clean[-1].modified_ms() - log.config.delete_retention_ms if clean else 0,
        )

    def _rewriting(self) -> Rewriting:
        assert self._rules is not None
        log, group = self.log, self._groups[0]
        following = log.segments.after(group[-1])
        end = self.end_offset if following is None else following.base_offset
        start = group[0].base_offset
        aborted = partial(collect_from, snapshots_of_indexes(log.segments, start), start, end)
        snapshots = [segment.snapshot() for segment in group]
        return Rewriting(log.disk, log.directory, log.config, snapshots, self._rules, self._transactions, aborted)

    def _is_as_mapped(self) -> bool:
        """Whether the segments still to be read are those that the cleaning found. Of a log that was truncated the map
        may hold records that were cut off, and no older record of their keys may be dropped. Where none is left to be
        read, the log must be as the cleaning left it: otherwise it may have been cut, and have grown beyond the cleaned
        part again by records that are not clean."""
        changes = self.log.unsynced.truncations
        if changes == self._changes_seen:
            return True
        segments, mapped = self.log.segments, self._mapped
        left = [segment for group in self._groups for segment in group]
        if self._rules is None:
            left = [segment for segment, _ in mapped.values()]
        elif not left:
            return False
        self._changes_seen = changes
        return all(
            segments.floor(segment.base_offset) is segment
            and mapped.get(segment.base_offset) == (segment, segment.size)
            for segment in left
        )

    def _sync_job(self) -> Job[None]:
        """The last step: sync the names, before the checkpoint calls the segments clean. Otherwise a loss of power
        could bring back old segments that count as clean. The next cleaning would remove a deletion from its segment,
        while the records that it deletes stayed in another."""
        log, offsets = self.log, self._offsets
        job = log.flush_job(log.recovery_point).on_failure(log.on_io_error)
        self._offsets = None

        def work() -> None:
            if offsets is not None:
                offsets.release()
            job.run()

        def finish(_: None) -> None:
            job.finish()
            self._synced = not log.offline

        return Job(f"sync what was cleaned of {log.topic_partition}", work, finish)


def replace_segments(log: Log, new: Segment, old: Sequence[Segment]) -> None:
    """A cleaned segment, synced, takes the place of those that it was made from.

    Its files go from `.cleaned` to `.swap`, which the next start after a crash finishes, before those of the old ones
    are renamed.
    """
    assert new.base_offset == old[0].base_offset, f"segment {new.base_offset} in place of {old[0].base_offset}"
    assert log.segments.active not in old, f"{log.topic_partition}: the active segment is compacted"
    try:
        new.change_suffix(SWAP_SUFFIX)
        delete_segments(log, old, kept_snapshot=new.base_offset)
        new.change_suffix("")
    except OSError as error:
        new.close()
        raise log.failed(error) from error
    log.segments.add(new)


logger = logging.getLogger("kalda.logs")

_MOST_FIGURES = 64
_RETRY_MS = 5 * 60_000
"""How long a log is left alone whose cleaning lacked space, file descriptors or memory."""
_EXHAUSTED = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of a machine that has no more of something, and of no device."""


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
    delay_ms = 0
    if log.config.max_compaction_lag_ms < MAX_INT64:
        late_ms = now_ms - log.config.max_compaction_lag_ms
        dirty_segments = log.segments.between(first_dirty, first_uncleanable)
        firsts = [segment.first_timestamp(read_waiting) for segment in dirty_segments]
        delay_ms = max((late_ms - first for first in firsts if 0 < first < late_ms), default=0)
    return Cleanable(log, first_dirty, first_uncleanable, clean, dirty, delay_ms)


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


class CleanerConfig(NamedTuple):
    """Broker settings, by Kafka's defaults; comments name the keys."""

    enabled: bool = True  # log.cleaner.enable
    threads: int = 1  # log.cleaner.threads
    memory_bytes: int = 128 * 1024 * 1024  # log.cleaner.dedupe.buffer.size
    backoff_ms: int = 15_000  # log.cleaner.backoff.ms
    max_bytes_per_second: float = inf  # log.cleaner.io.max.bytes.per.second

    @property
    def memory_of_one(self) -> int:
        """How much of the memory one cleaning may use."""
        return self.memory_bytes // max(1, self.threads)


class Uncleanable(NamedTuple):
    """A log that is not cleaned any more."""

    log: Log
    memory_bytes: int
    """The map that was too small for it; -1 where that was not the reason."""


class LogCleaner:
    """Chooses what to clean among a manager's logs.

    The shell calls `choose`, then runs each `next_job` of the cleaning on a thread with its `finish` here, then calls
    `finished` and runs its job; where `choose` finds nothing, again after `backoff_ms`. Where a step raises, it calls
    `failed` and runs its job. Several cleanings may be under way, of different logs.
    """

    def __init__(self, manager: LogManager, config: CleanerConfig, secret: Callable[[], bytes]) -> None:
        """`secret`: 16 random bytes for the hashes of one cleaning."""
        self._manager = manager
        self.config = config
        """May be replaced at any time. A cleaning that has begun goes on with the memory that it has."""
        self.uncleanable: dict[TopicPartition, Uncleanable] = {}
        """Partitions whose logs are not chosen until the node starts again, their replica is made anew, or the memory
        is raised where that was too little."""
        self.last_run_ms = -1
        """When `choose` was called last; -1: never."""
        self.max_dirty_ratio = 0.0
        """Of the logs that the last call of `choose` found to be cleaned."""
        self.max_delay_ms = 0
        """Likewise, `Cleanable.delay_ms`."""
        self._figures: deque[CleaningFigures] = deque(maxlen=_MOST_FIGURES)
        """Of the last cleanings."""
        self._secret = secret
        self._under_way: dict[TopicPartition, Cleaning] = {}
        self._retry_ms: dict[TopicPartition, int] = {}
        """When a log is tried again that lacked space, file descriptors or memory."""

    def choose(self, now_ms: int) -> Cleaning | None:
        """The cleaning to do next, of a log that is not being cleaned; None for none, and while another writes the
        checkpoints with which a cleaning begins."""
        self._forget(now_ms)
        self.last_run_ms = now_ms
        if not self.config.enabled or any(cleaning.is_preparing for cleaning in self._under_way.values()):
            return None
        best: Cleanable | None = None
        self.max_dirty_ratio, self.max_delay_ms = 0.0, 0
        for log in self._manager:
            found = self._cleanable(log, now_ms)
            if found is not None:
                self.max_delay_ms = max(self.max_delay_ms, found.delay_ms)
            if found is not None and (best is None or found.dirty_ratio > best.dirty_ratio):
                best = found
        if best is None:
            return None
        self.max_dirty_ratio = best.dirty_ratio
        topic_partition = best.log.topic_partition
        directory = self._manager.dir_of(topic_partition)
        assert directory is not None
        cleaning = Cleaning(best, directory, now_ms, self.config.memory_of_one, self._secret())
        self._under_way[topic_partition] = cleaning
        return cleaning

    def _forget(self, now_ms: int) -> None:
        """Drop what is noted of logs that may be tried again."""
        for topic_partition, (log, memory_bytes) in list(self.uncleanable.items()):
            if self._manager.get(topic_partition) is not log or 0 <= memory_bytes < self.config.memory_of_one:
                del self.uncleanable[topic_partition]
        for topic_partition, retry_ms in list(self._retry_ms.items()):
            if not now_ms < retry_ms <= now_ms + _RETRY_MS:  # later where the clock was set back
                del self._retry_ms[topic_partition]

    def _cleanable(self, log: Log, now_ms: int) -> Cleanable | None:
        """What is to be cleaned of a log; None for nothing, and where it is not to be cleaned now."""
        topic_partition = log.topic_partition
        directory = self._manager.dir_of(topic_partition)
        if not log.config.compacts or log.offline or directory is None:
            return None
        if topic_partition in self._under_way or topic_partition in self.uncleanable:
            return None
        if topic_partition in self._retry_ms or topic_partition in self._manager.futures:
            return None  # tried again later; or being copied
        try:
            found = cleanable(log, directory.cleaner_offsets.get(topic_partition), now_ms)
        except Exception as error:
            self._cannot_clean(log, error, now_ms)
            return None
        if found is None or not (found.delay_ms or found.dirty_ratio > log.config.min_cleanable_dirty_ratio):
            return None
        return found

    def uncleanable_in(self, directory: LogDir) -> list[Log]:
        """The logs in a directory that are not cleaned any more."""
        return [each.log for at, each in self.uncleanable.items() if self._manager.dir_of(at) is directory]

    def uncleanable_bytes(self, directory: LogDir, now_ms: int) -> int:
        """What of these logs would be cleaned; of a log whose damage hides that, all of it."""
        total = 0
        for log in self.uncleanable_in(directory):
            try:
                found = cleanable(log, directory.cleaner_offsets.get(log.topic_partition), now_ms)
            except Exception:
                total += log.size_bytes
            else:
                total += 0 if found is None else found.dirty_bytes
        return total

    @property
    def last_figures(self) -> list[CleaningFigures]:
        """Of the last cleaning of each thread."""
        return list(self._figures)[-self.config.threads :]

    def finished(self, cleaning: Cleaning, now_ms: int) -> Job[None] | None:
        """A job that writes up to where the log is clean; None where the cleaning was abandoned."""
        topic_partition = cleaning.log.topic_partition
        self._ended(cleaning)
        if cleaning.done:
            moved, duration_ms = (cleaning.bytes_read, cleaning.bytes_written), max(0, now_ms - cleaning.began_ms)
            self._figures.append(CleaningFigures(*moved, cleaning.map_use, duration_ms))
        directory = self._manager.dir_of(topic_partition)
        if not cleaning.done or directory is None or not directory.online:
            return None
        if self._manager.get(topic_partition) is not cleaning.log:
            return None  # moved to another directory meanwhile
        job = directory.cleaned_job(topic_partition, cleaning.end_offset)
        return None if job is None else self._manager.dirs.checkpoint_job(directory, job)

    def failed(self, cleaning: Cleaning, error: Exception, now_ms: int) -> Job[None] | None:
        """A step raised. Returns a job that closes and removes what the cleaning holds; None where that is nothing."""
        self._ended(cleaning)
        if not cleaning.is_outdated():
            self._cannot_clean(cleaning.log, error, now_ms)
        return cleaning.abandon()

    def _ended(self, cleaning: Cleaning) -> None:
        topic_partition = cleaning.log.topic_partition
        if self._under_way.get(topic_partition) is cleaning:
            del self._under_way[topic_partition]

    def _cannot_clean(self, log: Log, error: Exception, now_ms: int) -> None:
        """Decide what follows from an error, and log it, once."""
        topic_partition = log.topic_partition
        if isinstance(error, ApiError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            return  # the directory was taken offline where the disk failed
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _EXHAUSTED):
            self._retry_ms[topic_partition] = now_ms + _RETRY_MS
            logger.warning(
                "the compaction of %s was given up: %s. What it had written was removed, and the log is served as "
                "before. It is tried again in %d minutes; it needs up to the size of a segment on the disk",
                topic_partition,
                error,
                _RETRY_MS // 60_000,
            )
        elif isinstance(error, OSError):
            logger.error("the compaction of %s failed: %s", topic_partition, error)
            log.on_io_error(error)
        elif isinstance(error, MapTooSmall):
            self.uncleanable[topic_partition] = Uncleanable(log, self.config.memory_of_one)
            logger.error(
                "%s is not compacted any more: %s. It is tried again once log.cleaner.dedupe.buffer.size is raised, of "
                "which each of %d log.cleaner.threads has an equal part",
                topic_partition,
                error,
                self.config.threads,
            )
        else:
            self.uncleanable[topic_partition] = Uncleanable(log, -1)
            logger.error(
                "%s is not compacted any more: %s. Its records are served as before, and its size grows. If other "
                "brokers have sound replicas, move this one to another broker and back. Otherwise delete the records "
                "up to the damage, and restart this node",
                topic_partition,
                error,
                exc_info=None if isinstance(error, ApiError) else error,
            )
