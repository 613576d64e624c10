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
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.storage.compaction.cleaning_run import Cleanable, Cleaning, CleaningFigures, MapTooSmall
from kalda.storage.config import MAX_INT64
from kalda.storage.dirs.log_dir import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.job import Job
from kalda.storage.log.index import read_waiting
from kalda.storage.log.log import Log

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
