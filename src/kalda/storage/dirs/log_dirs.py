"""The log directories of a node: which there are, which of them are online, and where a new log goes.

A directory goes offline with the first error of its disk, and the node goes on with the others. The error may come up
in a job, in a log, or in the directory's own files: each way ends in `fail`, which acts once. A file that could merely
not be opened (`NoHandleLeft`) is no error of the disk where the same is done again later, as checkpoints are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from kalda.base.disk import Disk, File, NoHandleLeft
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, is_reserved, uuid_from_text
from kalda.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    DISK_FAILED_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    CheckpointFile,
    leftovers,
    mark_failed,
    read_clean_shutdown,
    read_meta_properties,
    read_offsets,
    write_clean_shutdown,
)
from kalda.storage.job import Job
from kalda.storage.log.corrupt_files import KEPT_BYTES, CorruptFiles
from kalda.storage.log.log import Log
from kalda.storage.log.state import LogState

# One log directory: its logs, its checkpoints, its marker of a clean stop, and whether it is online.
#
# A directory goes offline with the first error of its disk and stays so until the node starts again. Its logs then
# fail every call; those of other directories go on.
#
# Checkpoints cover all logs of the directory and are written only where their contents have changed.
#
# Not obvious:
#
# - `.kalda_disk_failed` makes the next start treat the stop as unclean and the page cache as untrue, until all logs are
#   open. A file that is replaced meanwhile is synced at once: the former one may be on the device.

_ATTEMPTS = 5
"""How often a checkpoint is written by jobs while other jobs write it too; after that, here and now."""
_MAX_FORMER = 10_000
"""So many names of logs that were removed are kept apart; with more, any name may be one of them."""


class LogDirDescription(NamedTuple):
    """For DescribeLogDirs."""

    path: str
    directory_id: Uuid | None
    online: bool
    total_bytes: int
    usable_bytes: int
    logs: list[Log]
    futures: list[Log]
    """replicas on their way to this directory"""
    cordoned: bool


class LogDir:
    """A directory on one disk."""

    __slots__ = (
        "_any_former",
        "_checkpoint_too_high",
        "_checkpoints",
        "_former",
        "_lock",
        "_locks",
        "_unopened",
        "cache_is_unreliable",
        "cleaner_offsets",
        "cordoned",
        "corrupt_files",
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
        "segment_disk",
        "unreadable",
    )

    def __init__(self, disk: Disk, path: str, *, locks: bool = True, corrupt_bytes: int = KEPT_BYTES) -> None:
        self.disk = disk
        self.segment_disk = disk.without_reserve
        """The same disk, for what may be very many open files."""
        self.path = path
        self.online = True
        """No error of the disk has come up."""
        self.cordoned = False
        """It gets no new replica, though those that it has go on (`cordoned.log.dirs`, KIP-1066)."""
        self.directory_id: Uuid | None = None
        """From `meta.properties`; None where that has none."""
        self.logs: dict[TopicPartition, Log] = {}
        self.futures: dict[TopicPartition, Log] = {}
        """Logs that are to replace those of other directories; a partition has one log of either kind here."""
        self.had_clean_shutdown = False
        """`prepare` found the marker of a clean stop, and checkpoints that can be read."""
        self.cache_is_unreliable = False
        """The disk failed when the directory was in use last: recovery reads what the device has."""
        self.previous_broker_epoch = -1
        """The broker epoch in that marker; -1 for none."""
        self.recovery_points: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        """These three are as `prepare` has read them, for the opening of logs."""
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        """Up to where each log has been compacted."""
        self.corrupt_files = CorruptFiles(corrupt_bytes)
        """What recoveries have cut off."""
        names = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE)
        self._checkpoints = {name: CheckpointFile(disk, f"{path}/{name}") for name in names}
        self._locks = locks
        """`prepare` takes the directory's lock. Otherwise the caller holds it."""
        self._lock: File | None = None
        self._unopened: set[TopicPartition] = set()
        """Logs that were found and are still to be opened."""
        self.unreadable: set[TopicPartition] = set()
        """Logs of a format that is not known: they stay as they are, and so do their entries in the checkpoints."""
        self._former: set[TopicPartition] = set()
        """Names of logs that were removed, for which the checkpoints on the disk may still have entries."""
        self._any_former = False
        """There were too many of them: the checkpoints may have an entry for a removed log of any name."""
        self._checkpoint_too_high = False
        """The recovery point checkpoint on the disk has a higher one than was found: it has to be replaced."""

    def prepare(self) -> list[str]:
        """Lock the directory, remove the marker of a clean stop, read the checkpoints; the names that it holds.

        Raises `OSError` where the disk fails, `BlockingIOError` where another process has the directory. A checkpoint
        that cannot be read makes the stop count as unclean, one of an unknown version raises `UnsupportedFormat`.
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
        if disk.stat(f"{path}/{DISK_FAILED_FILE}") is not None:
            logger.warning("%s failed when it was used last: what was not synced is read from the device", path)
            self.cache_is_unreliable, broker_epoch = True, None
            disk.remove(marker)
        if broker_epoch is not None:
            self.had_clean_shutdown, self.previous_broker_epoch = True, broker_epoch
            # Removed before anything else is changed: a crash from now on is an unclean stop.
            disk.remove(marker)
        # The names that are found now outlive a loss of power. Otherwise a log that was moved to another directory
        # could come back later, and be served where that directory has failed.
        disk.sync_dir(path)
        self.recovery_points = self._read(RECOVERY_POINT_FILE)
        self.log_starts = self._read(LOG_START_OFFSET_FILE)
        self.high_watermarks = self._read(HIGH_WATERMARK_FILE)
        was_clean = self.had_clean_shutdown
        self.cleaner_offsets = dict(self._read(CLEANER_OFFSET_FILE))
        self.had_clean_shutdown = was_clean  # without that file all logs are compacted again, and nothing is lost
        names = disk.list_dir(path)
        if not was_clean and self.recovery_points:
            logger.info("%s has no marker of a clean stop, or it cannot be trusted: its logs are recovered", path)
        for name in leftovers(names):
            disk.remove(f"{path}/{name}")
        return names

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            offsets = read_offsets(self.disk, f"{self.path}/{name}")
        except ValueError as error:
            logger.warning(
                "%s; %s",
                error,
                "all logs are compacted from their beginning"
                if name == CLEANER_OFFSET_FILE
                else "all logs of this directory are recovered, as after an unclean stop",
            )
            self.had_clean_shutdown = False
            return {}
        self._checkpoints[name].offsets = self._checkpoints[name].durable = offsets
        self._former.update(offsets)
        return offsets

    def compacted_upto(self, topic_partition: TopicPartition) -> int | None:
        """How far compaction may have come beyond the recovery point; None where it is unknown, as there is no recovery
        point checkpoint. A log without an entry in that has not been compacted, see `durable_recovery_point_jobs`."""
        return self.cleaner_offsets.get(topic_partition, 0) if self.recovery_points else None

    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These logs were found, and are about to be opened."""
        self._unopened.update(topic_partitions)
        self._clear_failure()

    @property
    def unopened_count(self) -> int:
        """How many of the logs that were found are not open yet."""
        return len(self._unopened)

    def _clear_failure(self) -> None:
        """Once all logs have been recovered from the device."""
        if self.cache_is_unreliable and self.may_be_marked:
            self.disk.remove(f"{self.path}/{DISK_FAILED_FILE}")
            self.cache_is_unreliable = False

    def opened(self, log: Log) -> None:
        """One of them has been opened. Where the checkpoint has a higher recovery point than was found, it is replaced
        before anything is appended there, which would be taken for synced. Raises `OSError`."""
        topic_partition = log.topic_partition
        self._unopened.discard(topic_partition)
        self._former.discard(topic_partition)
        if log.recovery_point < self.recovery_points.get(topic_partition, 0):
            self._checkpoint_too_high = True
        if self._checkpoint_too_high and self.may_be_marked:
            self._checkpoints[RECOVERY_POINT_FILE].replace_durably(self._recovery_points())
            self._checkpoint_too_high = False
        self._clear_failure()

    def leave(self, topic_partition: TopicPartition) -> None:
        """One of them cannot be opened, as it is of a format that is not known."""
        self._unopened.discard(topic_partition)
        self._former.discard(topic_partition)
        self.unreadable.add(topic_partition)

    def drop_unreadable(self, topic_partition: TopicPartition) -> None:
        """It was removed from this directory."""
        self.unreadable.discard(topic_partition)
        self._note_former(topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Its log was removed from this directory."""
        del self.logs[topic_partition]
        self._note_former(topic_partition)

    def forget_future(self, topic_partition: TopicPartition) -> None:
        """The move of a replica to this directory was given up, or is complete."""
        del self.futures[topic_partition]
        self._note_former(topic_partition)

    def _note_former(self, topic_partition: TopicPartition) -> None:
        if len(self._former) >= _MAX_FORMER:
            self._former.clear()
            self._any_former = True
        self._former.add(topic_partition)

    @property
    def may_be_marked(self) -> bool:
        """Whether a marker and checkpoints may be written. They cover every log of the directory, so all must be
        open."""
        return self.online and not self._unopened

    # Checkpoints

    def _offsets(self) -> dict[str, dict[TopicPartition, int]]:
        """The contents that each file ought to have."""
        return {
            RECOVERY_POINT_FILE: self._recovery_points(),
            HIGH_WATERMARK_FILE: self._high_watermarks(),
            LOG_START_OFFSET_FILE: self._log_starts(),
        }

    def recovery_point_job(self) -> Job[None] | None:
        """A job that writes the recovery points; None where the file has them already."""
        return self._job(RECOVERY_POINT_FILE, self._recovery_points)

    def lower(self, log: LogState) -> None:
        """The recovery point of `log` was lowered: replace checkpoints with higher offsets, here and now, durably.
        Raises `OSError`."""
        self._checkpoints[RECOVERY_POINT_FILE].replace_durably(self._recovery_points())
        topic_partition, offset = log.topic_partition, log.recovery_point
        if self.logs.get(topic_partition) is log and self.cleaner_offsets.get(topic_partition, 0) > offset:
            self.cleaner_offsets[topic_partition] = offset
            self._checkpoints[CLEANER_OFFSET_FILE].replace_durably(dict(self.cleaner_offsets))

    def lowering_jobs(self, logs: Sequence[LogState]) -> Iterator[Job[None]]:
        """`lower`, of several logs, as jobs to be run and finished one after another. They raise `OSError`."""
        lowered = [log for log in logs if self.logs.get(log.topic_partition) is log]
        cleaned = {
            log.topic_partition: log.recovery_point
            for log in lowered
            if self.cleaner_offsets.get(log.topic_partition, 0) > log.recovery_point
        }
        self.cleaner_offsets.update(cleaned)
        contents = {RECOVERY_POINT_FILE: self._recovery_points}
        if cleaned:
            contents[CLEANER_OFFSET_FILE] = lambda: dict(self.cleaner_offsets)
        for name, current in contents.items():
            checkpoint = self._checkpoints[name]
            for _ in range(_ATTEMPTS):
                offsets = current()
                yield from checkpoint.durable_jobs(offsets)
                if checkpoint.durable is offsets or not self.online:
                    break  # otherwise another job has written the checkpoint meanwhile
            else:
                checkpoint.replace_durably(current())

    def durable_recovery_point_jobs(self, topic_partition: TopicPartition, upto: int) -> list[Job[None]]:
        """Jobs to be done one after the other that make the checkpoint name a recovery point of this log of at least
        `upto`, durably; none where it does. The log's recovery point is that high. Where another checkpoint job was
        made between them, the next call returns some again."""
        checkpoint = self._checkpoints[RECOVERY_POINT_FILE]
        if checkpoint.durable.get(topic_partition, 0) >= upto:
            return []
        return checkpoint.durable_jobs(self._recovery_points())

    def drop_former_entries(self, topic_partition: TopicPartition) -> None:
        """A log of this name is about to be made: it must not inherit the offsets that the checkpoints have for a
        former one. Raises `OSError`."""
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
        return self._left(self.recovery_points) | {tp: log.checkpoint_recovery_point for tp, log in self._all()}

    def _left(self, found: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The entries of logs that are left as they are, among those that were found."""
        return {tp: found[tp] for tp in self.unreadable if tp in found}

    def rewrite_checkpoints(self) -> None:
        """Let the next jobs write even unchanged contents: jobs that were made before may never be finished."""
        for checkpoint in self._checkpoints.values():
            checkpoint.offsets = None

    def high_watermark_job(self) -> Job[None] | None:
        return self._job(HIGH_WATERMARK_FILE, self._high_watermarks)

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return self._left(self.high_watermarks) | {tp: log.high_watermark for tp, log in self._all()}

    def log_start_job(self) -> Job[None] | None:
        return self._job(LOG_START_OFFSET_FILE, self._log_starts)

    def replace_log_starts(self) -> None:
        """Write them here and now, durably. Raises `OSError`."""
        self._checkpoints[LOG_START_OFFSET_FILE].replace_durably(self._log_starts())

    def _log_starts(self) -> dict[TopicPartition, int]:
        """Of logs that start within a segment: the others start where their first segment does."""
        return self._left(self.log_starts) | {
            tp: log.log_start_offset for tp, log in self._all() if log.log_start_offset > log.segments.first.base_offset
        }

    def _forget_cleaned(self) -> None:
        """Drop the entries of logs that were removed."""
        known = self.logs.keys() | self.unreadable
        self.cleaner_offsets = {tp: offset for tp, offset in self.cleaner_offsets.items() if tp in known}

    def cleaned_job(self, topic_partition: TopicPartition, offset: int) -> Job[None] | None:
        """A job that writes up to where the logs have been compacted; this one up to `offset`."""
        self.cleaner_offsets[topic_partition] = offset
        self._forget_cleaned()
        return self._job(CLEANER_OFFSET_FILE, lambda: dict(self.cleaner_offsets))

    def _job(self, name: str, offsets: Callable[[], dict[TopicPartition, int]]) -> Job[None] | None:
        # Not in a directory that is offline: its logs may have stopped in the middle of a change.
        return self._checkpoints[name].job(offsets()) if self.may_be_marked else None

    def write_marker(self, broker_epoch: int) -> None:
        """The last file that a clean stop writes: where it is found, all other files are complete. It is not written
        where a log was left as it is: that may still need recovery."""
        if self.unreadable:
            return
        write_clean_shutdown(self.disk, f"{self.path}/{CLEAN_SHUTDOWN_FILE}", broker_epoch)

    # State

    def space(self) -> tuple[int, int]:
        """Total and usable bytes of the file system, on any thread; -1 where it does not name them."""
        with contextlib.suppress(OSError):
            return self.disk.total_bytes(self.path), self.disk.usable_bytes(self.path)
        return -1, -1

    def describe(self, space: tuple[int, int]) -> LogDirDescription:
        total, usable = space if self.online else (-1, -1)
        logs, futures = list(self.logs.values()), list(self.futures.values())
        return LogDirDescription(self.path, self.directory_id, self.online, total, usable, logs, futures, self.cordoned)

    def take_offline(self) -> list[Log]:
        """Close everything; the logs that were served."""
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


logger = logging.getLogger("kalda.logs")

T = TypeVar("T")
LogT = TypeVar("LogT", bound=LogState)


def _nothing(_: object) -> None:
    pass


class LogDirs:
    """In the order of `log.dirs`."""

    def __init__(
        self,
        disks: Mapping[str, Disk],
        on_failed: Callable[[LogDir, OSError], None],
        *,
        locks: bool,
        corrupt_bytes: int,
    ) -> None:
        """`disks`: by the directories' paths; `on_failed`: called when a directory has just been taken offline;
        `corrupt_bytes`: of what recoveries have cut off, so much is kept in each."""
        self._dirs = [LogDir(disk, path, locks=locks, corrupt_bytes=corrupt_bytes) for path, disk in disks.items()]
        self._on_failed = on_failed

    def __iter__(self) -> Iterator[LogDir]:
        return iter(self._dirs)

    def __getitem__(self, at: int) -> LogDir:
        return self._dirs[at]

    def __len__(self) -> int:
        return len(self._dirs)

    @property
    def all_online(self) -> bool:
        """Whether no directory has failed: where one has, a log that is not found may be in it."""
        return all(directory.online for directory in self._dirs)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last clean stop; -1 where it was not clean everywhere."""
        epochs = {directory.previous_broker_epoch for directory in self._dirs if directory.online}
        return epochs.pop() if len(epochs) == 1 else -1

    def holder(self, log: LogState) -> LogDir | None:
        """The directory that holds the files of `log`, by their path."""
        return next((each for each in self._dirs if log.directory.startswith(each.path + "/")), None)

    def choose(self, directory_id: Uuid | None, planned: Mapping[str, int] = MappingProxyType({})) -> LogDir:
        """Where a new log goes: to the directory of that id; where the id is none or reserved, to the one with the
        fewest logs of those that are not cordoned. `planned`: how many more logs each path is about to get.

        Raises KAFKA_STORAGE_ERROR where that directory is offline, or all are.
        """
        online = [directory for directory in self._dirs if directory.online]
        if directory_id is not None and not is_reserved(directory_id):
            for directory in online:
                if directory.directory_id == directory_id:
                    return directory
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory with id {directory_id.hex()} is online")
        if not online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
        # The controller gives no replica to a broker whose directories are all cordoned; a replica that it gave before
        # that has to be somewhere.
        free = [directory for directory in online if not directory.cordoned] or online
        return min(free, key=lambda directory: len(directory.logs) + planned.get(directory.path, 0))

    # Failures

    def fail(self, directory: LogDir, error: OSError) -> None:
        """The disk failed: the directory is offline from now on."""
        if directory.online:
            directory.take_offline()
            mark_failed(directory.disk, directory.path)
            self._on_failed(directory, error)

    def fail_of(self, log: LogState, error: OSError) -> None:
        """The disk failed under `log`."""
        directory = self.holder(log)
        if directory is not None:
            self.fail(directory, error)

    def guard(self, log: LogT, visit: Callable[[LogT], object]) -> None:
        """Call `visit`. A disk that fails under one log takes its directory offline, and raises nothing: the other logs
        are still to be visited. Where no file can be opened, the next visit is to do what this one could not."""
        try:
            visit(log)
        except NoHandleLeft as error:
            logger.warning("%s: %s", log.topic_partition, error)
        except OSError as error:
            self.fail_of(log, error)  # raised where a visit reads files itself, as retention does
        except ApiError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise

    def job(
        self, directory: LogDir, description: str, work: Callable[[], T], finish: Callable[[T], None] = _nothing
    ) -> Job[None]:
        """A job whose `OSError` takes the directory offline, and raises nothing."""
        return Job(description, work, finish).on_failure(lambda error: self.fail(directory, error))

    def whole_job(self, directory: LogDir, job: Job[None]) -> Job[None]:
        """`job`, of that directory, whose `OSError` in either half takes the directory offline, and raises nothing."""

        def finish(_: None) -> None:
            try:
                job.finish()
            except OSError as error:
                self.fail(directory, error)

        return self.job(directory, job.description, job.run, finish)

    def checkpoint_job(self, directory: LogDir, job: Job[None]) -> Job[None]:
        """`job`, of that directory, likewise; and what its `finish` raises. Where no file can be opened, the next one
        writes the checkpoint."""

        def failed(error: OSError) -> None:
            if isinstance(error, NoHandleLeft):
                logger.warning("%s: %s", job.description, error)
            else:
                self.fail(directory, error)

        def finish(_: None) -> None:
            if directory.online:
                try:
                    job.finish()
                except OSError as error:
                    failed(error)

        return Job(job.description, job.run, finish).on_failure(failed)

    def describe_job(self) -> Job[list[LogDirDescription]]:
        """A job that asks the file systems for space, and describes every directory."""
        asked = [directory for directory in self._dirs if directory.online]
        return Job(
            "describe the log directories",
            lambda: {directory.path: directory.space() for directory in asked},
            lambda spaces: [each.describe(spaces.get(each.path, (-1, -1))) for each in self._dirs],
        )
