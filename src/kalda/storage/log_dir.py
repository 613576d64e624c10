"""One log directory: its logs, its checkpoints, and whether it can be trusted.

A directory goes offline with the first error of its disk and stays so until the node starts again. Its logs then fail
every call; those of other directories go on.

Checkpoints cover all logs of the directory and are rewritten only when they would say something new.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from kalda.base.disk import Disk, File
from kalda.base.ids import TopicPartition, Uuid, uuid_from_text
from kalda.storage.checkpoint_file import CheckpointFile, leftovers
from kalda.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    read_clean_shutdown,
    read_meta_properties,
    read_offsets,
    write_clean_shutdown,
)
from kalda.storage.job import Job
from kalda.storage.log import Log

_MAX_FORMER = 10_000


class LogDirDescription(NamedTuple):
    """For DescribeLogDirs."""

    path: str
    directory_id: Uuid | None
    online: bool
    total_bytes: int
    usable_bytes: int
    logs: list[Log]
    futures: list[Log]
    """replicas that are moved here"""
    cordoned: bool


class LogDir:
    """A directory on one disk. `directory_id` is None where `meta.properties` gives none."""

    __slots__ = (
        "_any_former",
        "_checkpoints",
        "_former",
        "_lock",
        "_locks",
        "_unopened",
        "_vouches_too_much",
        "cleaner_offsets",
        "cordoned",
        "directory_id",
        "disk",
        "futures",
        "had_clean_shutdown",
        "high_watermarks",
        "log_starts",
        "logs",
        "online",
        "path",
        "previous_broker_epoch",
        "recovery_points",
    )

    def __init__(self, disk: Disk, path: str, *, locks: bool = True) -> None:
        self.disk = disk
        self.path = path
        self.online = True
        self.cordoned = False
        """No new replica comes here, though those that are here go on (`cordoned.log.dirs`, KIP-1066)."""
        self.directory_id: Uuid | None = None
        self.logs: dict[TopicPartition, Log] = {}
        self.futures: dict[TopicPartition, Log] = {}
        """Logs that are to replace those of other directories; a partition has one log of either kind here."""
        self.had_clean_shutdown = False
        self.previous_broker_epoch = -1
        self.recovery_points: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        """Up to where each log has been compacted."""
        names = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE)
        self._checkpoints = {name: CheckpointFile(disk, f"{path}/{name}") for name in names}
        self._locks = locks
        self._lock: File | None = None
        self._unopened: set[TopicPartition] = set()
        self._former: set[TopicPartition] = set()
        """Checkpoints on the disk may still speak of logs of these names, which are gone."""
        self._vouches_too_much = False
        self._any_former = False
        """There were too many names to remember."""

    def prepare(self) -> list[str]:
        """Lock the directory, take the marker of a clean stop away, read the checkpoints; the names that it holds.

        Raises `OSError` where the disk fails, `BlockingIOError` where another process has the directory. A checkpoint
        that cannot be read makes the stop count as unclean.
        """
        disk, path = self.disk, self.path
        disk.make_dirs(path)
        if self._locks:
            self._lock = disk.lock(f"{path}/{LOCK_FILE}")
            if self._lock is None:
                raise BlockingIOError(11, "another process holds this log directory; stop it or use another one", path)
        properties = read_meta_properties(disk, f"{path}/{META_PROPERTIES_FILE}") or {}
        if text := properties.get("directory.id"):
            self.directory_id = uuid_from_text(text)
        marker = f"{path}/{CLEAN_SHUTDOWN_FILE}"
        broker_epoch = read_clean_shutdown(disk, marker)
        if broker_epoch is not None:
            self.had_clean_shutdown, self.previous_broker_epoch = True, broker_epoch
            # Gone before anything is touched: a crash from now on is an unclean stop.
            disk.remove(marker)
        # What is seen now stays so. A log that was moved away might come back when power is lost later on, and be all
        # there is of it where its new directory fails as well.
        disk.sync_dir(path)
        self.recovery_points = self._read(RECOVERY_POINT_FILE)
        self.log_starts = self._read(LOG_START_OFFSET_FILE)
        self.high_watermarks = self._read(HIGH_WATERMARK_FILE)
        was_clean = self.had_clean_shutdown
        self.cleaner_offsets = dict(self._read(CLEANER_OFFSET_FILE))
        self.had_clean_shutdown = was_clean  # without that file everything is dirty again, and no worse
        names = disk.list_dir(path)
        for name in leftovers(names):
            disk.remove(f"{path}/{name}")
        return names

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            offsets = read_offsets(self.disk, f"{self.path}/{name}")
        except ValueError:
            self.had_clean_shutdown = False
            return {}
        self._checkpoints[name].offsets = self._checkpoints[name].durable = offsets
        self._former.update(offsets)
        return offsets

    def compacted_upto(self, topic_partition: TopicPartition) -> int | None:
        """How far compaction may have gone beyond the recovery point; None where nobody knows, without a checkpoint of
        those. A log that it does not know has not been compacted, see `vouching_jobs`."""
        return self.cleaner_offsets.get(topic_partition, 0) if self.recovery_points else None

    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These logs are here, and are still to be opened."""
        self._unopened.update(topic_partitions)

    def opened(self, log: Log) -> None:
        """One of them has been. Where the checkpoint vouches for more than was found, it is replaced before anything is
        appended: it would vouch for that. Raises `OSError`."""
        topic_partition = log.topic_partition
        self._unopened.discard(topic_partition)
        self._former.discard(topic_partition)
        if log.recovery_point < self.recovery_points.get(topic_partition, 0):
            self._vouches_too_much = True
        if self._vouches_too_much and self.may_be_marked:
            self._checkpoints[RECOVERY_POINT_FILE].replace_durably(self._recovery_points())
            self._vouches_too_much = False

    def forget(self, topic_partition: TopicPartition) -> None:
        """Its log is here no more."""
        del self.logs[topic_partition]
        self._note_former(topic_partition)

    def forget_future(self, topic_partition: TopicPartition) -> None:
        """A replica is not moved here any more, or has been."""
        del self.futures[topic_partition]
        self._note_former(topic_partition)

    def _note_former(self, topic_partition: TopicPartition) -> None:
        if len(self._former) >= _MAX_FORMER:
            self._former.clear()
            self._any_former = True
        self._former.add(topic_partition)

    @property
    def may_be_marked(self) -> bool:
        """A marker, and checkpoints written anew, vouch for every log of the directory: not while some are unread."""
        return self.online and not self._unopened

    # Checkpoints

    def _offsets(self) -> dict[str, dict[TopicPartition, int]]:
        """What each file ought to say."""
        return {
            RECOVERY_POINT_FILE: self._recovery_points(),
            HIGH_WATERMARK_FILE: self._high_watermarks(),
            LOG_START_OFFSET_FILE: self._log_starts(),
        }

    def recovery_point_job(self) -> Job[None] | None:
        """A job that writes the recovery points; None where the file says them already."""
        return self._job(RECOVERY_POINT_FILE, self._recovery_points)

    def lower(self, log: Log) -> None:
        """The recovery point of `log` was lowered: the checkpoints say no more than that, here and now, and for good.
        Raises `OSError`."""
        self._checkpoints[RECOVERY_POINT_FILE].replace_durably(self._recovery_points())
        topic_partition, offset = log.topic_partition, log.recovery_point
        if self.logs.get(topic_partition) is log and self.cleaner_offsets.get(topic_partition, 0) > offset:
            self.cleaner_offsets[topic_partition] = offset
            self._checkpoints[CLEANER_OFFSET_FILE].replace_durably(dict(self.cleaner_offsets))

    def vouching_jobs(self, topic_partition: TopicPartition, upto: int) -> list[Job[None]]:
        """Jobs to be done one after the other, after which the recovery point of this log, which is `upto` at least, is
        known after a crash; none where it is. Where another checkpoint came in between, there are some again."""
        checkpoint = self._checkpoints[RECOVERY_POINT_FILE]
        if checkpoint.durable.get(topic_partition, 0) >= upto:
            return []
        return checkpoint.durable_jobs(self._recovery_points())

    def vouch_no_more_for(self, topic_partition: TopicPartition) -> None:
        """A log of this name is made: it must not inherit from a former one what the checkpoints say, where that was
        recovered, committed, deleted or compacted up to. Raises `OSError`."""
        if (self._any_former or topic_partition in self._former) and self.may_be_marked:
            wanted = self._offsets()
            if self.cleaner_offsets:
                self._forget_cleaned()
                wanted[CLEANER_OFFSET_FILE] = dict(self.cleaner_offsets)
            for name, offsets in wanted.items():
                self._checkpoints[name].replace_durably(offsets)
            self._former.clear()
            self._any_former = False

    def _all(self) -> Iterator[tuple[TopicPartition, Log]]:
        return chain(self.logs.items(), self.futures.items())

    def _recovery_points(self) -> dict[TopicPartition, int]:
        return {tp: log.vouched_recovery_point for tp, log in self._all()}

    def rewrite_checkpoints(self) -> None:
        """The next jobs write, whatever was asked for before: jobs of before may never be finished."""
        for checkpoint in self._checkpoints.values():
            checkpoint.offsets = None

    def high_watermark_job(self) -> Job[None] | None:
        return self._job(HIGH_WATERMARK_FILE, self._high_watermarks)

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {tp: log.high_watermark for tp, log in self._all()}

    def log_start_job(self) -> Job[None] | None:
        return self._job(LOG_START_OFFSET_FILE, self._log_starts)

    def replace_log_starts(self) -> None:
        """Write them here and now, and for good. Raises `OSError`."""
        self._checkpoints[LOG_START_OFFSET_FILE].replace_durably(self._log_starts())

    def _log_starts(self) -> dict[TopicPartition, int]:
        """Only starts that the segments' names do not tell."""
        return {
            tp: log.log_start_offset for tp, log in self._all() if log.log_start_offset > log.segments.first.base_offset
        }

    def _forget_cleaned(self) -> None:
        """Logs that are here no more."""
        self.cleaner_offsets = {tp: offset for tp, offset in self.cleaner_offsets.items() if tp in self.logs}

    def cleaned_job(self, topic_partition: TopicPartition, offset: int) -> Job[None] | None:
        """A job that writes up to where logs have been compacted: this one to `offset`."""
        self.cleaner_offsets[topic_partition] = offset
        self._forget_cleaned()
        return self._job(CLEANER_OFFSET_FILE, lambda: dict(self.cleaner_offsets))

    def _job(self, name: str, offsets: Callable[[], dict[TopicPartition, int]]) -> Job[None] | None:
        # A log that its disk has failed may be in the middle of anything, and is not asked.
        return self._checkpoints[name].job(offsets()) if self.may_be_marked else None

    def write_marker(self, broker_epoch: int) -> None:
        """Last of all: whoever finds it trusts everything else."""
        write_clean_shutdown(self.disk, f"{self.path}/{CLEAN_SHUTDOWN_FILE}", broker_epoch)

    # State

    def space(self) -> tuple[int, int]:
        """Total and usable bytes, asked of the file system, on any thread; -1 where it does not say."""
        with contextlib.suppress(OSError):
            return self.disk.total_bytes(self.path), self.disk.usable_bytes(self.path)
        return -1, -1

    def describe(self, space: tuple[int, int]) -> LogDirDescription:
        total, usable = space if self.online else (-1, -1)
        logs, futures = list(self.logs.values()), list(self.futures.values())
        return LogDirDescription(self.path, self.directory_id, self.online, total, usable, logs, futures, self.cordoned)

    def take_offline(self) -> list[Log]:
        """Nothing here is used any more; the logs that were."""
        self.online = False
        logs = list(self.logs.values())
        for log in (*logs, *self.futures.values()):
            log.close(clean=False)
        self.unlock()
        return logs

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
