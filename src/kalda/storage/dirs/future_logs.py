"""Replicas on their way to another log directory (KIP-113).

A replica is moved by a second log of the same partition, in a directory `topic-partition.unique-future` of the target,
to which `replication.dir_moves` copies the first one's records. When it has all of them, `swap` exchanges the two.
After a crash at any moment `settle` decides by what is found:

| found | what happened | then |
| --- | --- | --- |
| the log and a future one | the move was under way | it goes on |
| a future log alone | the log had been renamed for deletion | the future log gets the log's name |
| the same, but a directory is offline | the log may be there, with more records | the replica is offline |
| two logs | a loss of power undid the renaming of the log alone | the one in the metadata is served |
| two logs | one was made anew while the directory of the other was offline | the same |

The log is renamed for deletion before the future log gets its name. So a future log that is found without the log has
all records: only a synced future log is swapped, and whatever is synced after the swap syncs the new name too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from kalda.base.disk import Disk
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, is_reserved
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_dirs import LogDir, LogDirs
from kalda.storage.dirs.maintenance import Maintenance
from kalda.storage.file_names import DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX, dir_name, marked_dir_name
from kalda.storage.job import Job
from kalda.storage.log.log import Log

logger = logging.getLogger("kalda.logs")

_MAX_NAME = 255
_UNIQUE_DIGITS = 32
_MAX_PREFERRED = 100_000

Placed = Callable[[TopicPartition, Uuid | None], Uuid | None]
"""The directory in which the metadata places this node's replica of a partition with that topic id; None where it
places none here."""


def future_name_fits(topic_partition: TopicPartition) -> bool:
    """Whether the name of its future directory is short enough for file systems: otherwise its log cannot be moved."""
    return len(dir_name(topic_partition)) + 1 + _UNIQUE_DIGITS + len(FUTURE_DIR_SUFFIX) <= _MAX_NAME


class Logs(Protocol):
    """What the future logs need of the manager of all logs."""

    dirs: LogDirs
    maintenance: Maintenance

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log that is served, or None."""
        ...

    def dir_of(self, topic_partition: TopicPartition) -> LogDir | None:
        """Its directory."""
        ...

    def make_log(
        self, directory: LogDir, name: str, topic_partition: TopicPartition, topic_id: Uuid | None, config: LogConfig
    ) -> Log:
        """An empty log in a directory of that name. Raises KAFKA_STORAGE_ERROR."""
        ...

    def replace(self, topic_partition: TopicPartition, directory: LogDir, log: Log) -> None:
        """From now on `log` is served. The caller closes the one before it."""
        ...

    def set_log_aside(self, topic_partition: TopicPartition) -> None:
        """Drop the log, and keep its files for an operator to inspect."""
        ...

    def rename_away(self, directory: LogDir, log: Log, suffix: str) -> None:
        """Close a log that is not used any more, and rename its directory to that suffix."""
        ...


class FutureLogs:
    """The future logs of one manager, and the directories that operators prefer for logs that do not exist yet."""

    def __init__(self, manager: Logs, unique: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._manager = manager
        self._unique = unique
        self._now_ms = now_ms
        self._logs: dict[TopicPartition, Log] = {}
        """The future log of each partition that is moved."""
        self._home: dict[TopicPartition, LogDir] = {}
        """The directory of each of them."""
        self._doubles: list[tuple[LogDir, Log]] = []
        """Logs that were found at the start, of partitions with another log; `settle` decides."""
        self._spare: list[tuple[LogDir, Log]] = []
        """Future logs that were found at the start, of partitions with another future log; likewise."""
        self._preferred: dict[TopicPartition, str] = {}
        """By partition: the path of the directory in which its log is to be made; the oldest first."""

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._logs

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self._logs.get(topic_partition)

    def dir_of(self, topic_partition: TopicPartition) -> LogDir | None:
        return self._home.get(topic_partition)

    def is_alone(self, topic_partition: TopicPartition, topic_id: Uuid | None) -> bool:
        """Whether there is a future log and no other, while a directory is offline. The metadata may name the future
        log's directory long before that has all acknowledged records, so it must neither be served nor be dropped."""
        future = self._logs.get(topic_partition)
        return (
            future is not None
            and topic_id in (None, future.topic_id)
            and self._manager.get(topic_partition) is None
            and not self._manager.dirs.all_online
        )

    # Preferred directories

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """If a log of this partition is made, it is made there."""
        self._preferred.pop(topic_partition, None)
        if len(self._preferred) >= _MAX_PREFERRED:
            del self._preferred[next(iter(self._preferred))]
        self._preferred[topic_partition] = path

    def take_preferred(self, topic_partition: TopicPartition) -> LogDir | None:
        """The preferred directory, if it is online; the preference is dropped."""
        path = self._preferred.pop(topic_partition, None)
        return next((each for each in self._manager.dirs if each.path == path and each.online), None)

    # Life

    def create(self, topic_partition: TopicPartition, directory: LogDir) -> Log:
        """Make an empty future log. Raises KAFKA_STORAGE_ERROR."""
        current = self._manager.get(topic_partition)
        assert current is not None, f"{topic_partition} has no log to move"
        assert topic_partition not in self._logs, f"{topic_partition} is moved already"
        assert current not in directory.logs.values(), f"{topic_partition} is in {directory.path}"
        name = marked_dir_name(topic_partition, self._unique(), FUTURE_DIR_SUFFIX)
        future = self._manager.make_log(directory, name, topic_partition, current.topic_id, current.config)
        self.adopt(directory, future)
        return future

    def adopt(self, directory: LogDir, log: Log) -> None:
        """Take in a future log that was made or found."""
        topic_partition = log.topic_partition
        if topic_partition in self._logs:
            # One of the two moves had been given up before the power failed: `settle` finds out which.
            self._spare.append((directory, log))
            return
        self._logs[topic_partition] = log
        self._home[topic_partition] = directory
        directory.futures[topic_partition] = log

    def adopt_double(self, directory: LogDir, log: Log) -> None:
        """Take in a log whose partition has another one, until `settle` decides by the metadata which is served."""
        self._doubles.append((directory, log))

    def drop(self, topic_partition: TopicPartition) -> None:
        """Give up a move: the future log's files are deleted later."""
        self._retire(topic_partition, DELETE_DIR_SUFFIX)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """The metadata does not have the replica: its files are kept, for an operator to inspect."""
        self._retire(topic_partition, STRAY_DIR_SUFFIX)

    def _retire(self, topic_partition: TopicPartition, suffix: str) -> None:
        log = self._logs.get(topic_partition)
        if log is not None:
            directory = self._forget(topic_partition)
            self._manager.rename_away(directory, log, suffix)

    def _forget(self, topic_partition: TopicPartition) -> LogDir:
        del self._logs[topic_partition]
        directory = self._home.pop(topic_partition)
        directory.forget_future(topic_partition)
        return directory

    def forget_dir(self, directory: LogDir) -> None:
        """The disk of `directory` failed: drop what it holds."""
        for topic_partition in list(directory.futures):
            self._forget(topic_partition)
        self._doubles = [(home, log) for home, log in self._doubles if home is not directory]
        self._spare = [(home, log) for home, log in self._spare if home is not directory]

    # Swapping

    def is_as_durable(self, topic_partition: TopicPartition) -> bool:
        """Whether the future log has synced all that the log has."""
        current, future = self._manager.get(topic_partition), self._logs[topic_partition]
        return current is not None and future.recovery_point >= current.recovery_point

    def align_epochs(self, topic_partition: TopicPartition) -> None:
        """Give the future log the epochs that its records did not bring: those without a record, or with none left
        after compaction."""
        current, future = self._manager.get(topic_partition), self._logs[topic_partition]
        assert current is not None
        entries = [entry for entry in current.leader_epochs.entries if entry[1] <= future.log_end_offset]
        if entries and entries != future.leader_epochs.entries:
            future.leader_epochs.replace(entries)
            future.assign_leader_epoch(*entries[-1])

    def swap(self, topic_partition: TopicPartition) -> Log:
        """The future log, which has all that the log has, becomes the log; the old one is deleted later.

        Nothing may be flushed to the new log before `names_job` is done: a loss of power could bring back the name of
        the old one, which would be served without the flushed records where the new one's directory fails as well.

        Raises KAFKA_STORAGE_ERROR: then the log is still the same one, unless its own disk failed.
        """
        current, future = self._manager.get(topic_partition), self._logs[topic_partition]
        home, target = self._manager.dir_of(topic_partition), self._home[topic_partition]
        assert current is not None
        assert home is not None
        assert current.truncation is None, f"{topic_partition} is being truncated"
        assert future.log_end_offset == current.log_end_offset, f"{topic_partition} is not moved whole"
        assert self.is_as_durable(topic_partition), f"{topic_partition} is less durable where it is moved to"
        self.align_epochs(topic_partition)
        before = current.directory
        away = f"{home.path}/{marked_dir_name(topic_partition, self._unique(), DELETE_DIR_SUFFIX)}"
        current.rename_dir(away)
        try:
            future.rename_dir(f"{target.path}/{dir_name(topic_partition)}")
        except ApiError:
            current.rename_dir(before)
            raise
        # All producers, with those whose records were deleted, which the future log cannot have.
        states, taken = current.producer_states, future.producer_states.snapshot_offset
        future.producer_states, states.snapshot_offset = states, taken
        future.update_high_watermark(current.high_watermark)
        if (latest := future.leader_epochs.latest_entry()) is not None:
            future.assign_leader_epoch(*latest)  # which derives the first unstable offset from the producers
        # Until the new name is synced, a loss of power leaves the old log: its recovery point counts.
        future.recovery_point = min(future.recovery_point, current.recovery_point)
        self._forget(topic_partition)
        self._manager.replace(topic_partition, target, future)
        current.close(clean=False)

        def remove(disk: Disk) -> None:
            try:
                target.disk.sync_dir(target.path)  # first the new name must outlive a loss of power
            except OSError:
                return  # a failure of the target, not of this directory: the next write there raises it
            disk.remove_tree(away)

        now_ms = self._now_ms()
        self._manager.maintenance.remove_later(home, now_ms + current.config.file_delete_delay_ms, remove)
        return future

    def names_job(self, home: LogDir, target: LogDir) -> Job[None]:
        """A job that syncs what `swap` has renamed, in both directories. One that fails is offline then."""
        dirs = self._manager.dirs
        return Job.together(
            f"sync the names in {home.path} and {target.path}",
            [
                dirs.job(each, f"sync the names in {each.path}", partial(each.disk.sync_dir, each.path))
                for each in (target, home)
            ],
        )

    # Start

    def settle(self, placed: Placed) -> None:
        """All logs are open and the metadata is loaded: decide which of two logs or future logs of a partition is used,
        and what becomes of future logs. A log that is not used is kept for an operator to inspect; a mere copy of one
        is deleted."""
        doubles, self._doubles = self._doubles, []
        for directory, log in doubles:
            self._choose_double(directory, log, placed)
        spare, self._spare = self._spare, []
        for directory, log in spare:
            self._choose_copy(directory, log, placed)
        for future in self:
            self._settle_one(future, placed)

    def _choose_double(self, directory: LogDir, log: Log, placed: Placed) -> None:
        topic_partition = log.topic_partition
        other, other_home = self._manager.get(topic_partition), self._manager.dir_of(topic_partition)
        if other is None or other_home is None:  # its disk failed meanwhile
            self._manager.replace(topic_partition, directory, log)
            return
        known, other_known = placed(topic_partition, log.topic_id), placed(topic_partition, other.topic_id)
        if _is_likelier((other, other_home, other_known), (log, directory, known)):
            stray, stray_home = log, directory
        else:
            stray, stray_home = other, other_home
            self._manager.replace(topic_partition, directory, log)
        logger.warning(
            "%s is in two log directories; it is served from %s, and what is in %s is set aside",
            topic_partition,
            directory.path if stray is other else other_home.path,
            stray_home.path,
        )
        self._manager.rename_away(stray_home, stray, STRAY_DIR_SUFFIX)

    def _choose_copy(self, directory: LogDir, log: Log, placed: Placed) -> None:
        """Of two future logs keep the one in the directory where the metadata places the replica, unless the log is
        there already."""
        topic_partition = log.topic_partition
        other_home = self._home.get(topic_partition)
        if other_home is None:
            self.adopt(directory, log)
            return
        home, where = self._manager.dir_of(topic_partition), placed(topic_partition, log.topic_id)
        if other_home is home or (directory is not home and where == directory.directory_id):
            other = self._logs[topic_partition]
            self._manager.rename_away(self._forget(topic_partition), other, DELETE_DIR_SUFFIX)
            self.adopt(directory, log)
        else:
            self._manager.rename_away(directory, log, DELETE_DIR_SUFFIX if home is not None else STRAY_DIR_SUFFIX)

    def _settle_one(self, future: Log, placed: Placed) -> None:
        topic_partition = future.topic_partition
        if self._logs.get(topic_partition) is not future:
            return  # its disk has failed meanwhile
        where = None if future.topic_id is None else placed(topic_partition, future.topic_id)
        if future.topic_id is None and self._manager.get(topic_partition) is not None:
            self.drop(topic_partition)  # nothing of it was synced: the log has all records
            return
        if where is None:
            logger.warning("%s is not known to the cluster: it is set aside", future.directory)
            self.set_aside(topic_partition)
            return
        current, home = self._manager.get(topic_partition), self._home[topic_partition]
        if current is not None and current.topic_id not in (None, future.topic_id):
            logger.warning("%s is the log of a former topic of that name: it is set aside", current.directory)
            self._manager.set_log_aside(topic_partition)
            current = None
        if current is not None:
            if self._manager.dir_of(topic_partition) is home:
                self.drop(topic_partition)  # the move had been given up before the power failed
            return
        if self.is_alone(topic_partition, future.topic_id):
            logger.warning(
                "%s is not served while a log directory is offline: the log that it copies may be there",
                topic_partition,
            )
            return
        if where == home.directory_id or is_reserved(where):
            logger.info("%s takes the place of the log that it was to replace", future.directory)
            try:
                future.rename_dir(f"{home.path}/{dir_name(topic_partition)}")
            except ApiError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                return  # the directory is offline now: the next start tries again
            self._forget(topic_partition)
            self._manager.replace(topic_partition, home, future)


def _is_likelier(one: tuple[Log, LogDir, Uuid | None], other: tuple[Log, LogDir, Uuid | None]) -> bool:
    """Of two logs of one partition in two directories, whether the first one is to be served: that of the topic id in
    the metadata, before one of a former topic of that name; then that in the directory which the metadata names. Where
    the metadata names none of the two, the replica was made anew while the directory of the other was offline: then the
    one with the later epoch, or the more records."""
    ranks = [
        (placed is not None, placed == directory.directory_id, log.leader_epochs.latest or 0, log.log_end_offset)
        for log, directory, placed in (one, other)
    ]
    return ranks[0] >= ranks[1]
