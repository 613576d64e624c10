"""All logs of a node, over one or more log directories.

Start: `load_jobs` opens every log (recovering it where the last stop was not clean); then `get` and
`get_or_create_log`. While running, `maintenance` does what is due. Stop: `close_jobs`, then `marker_jobs`, so that the
marker is written only over directories that are whole. `dirs` are the log directories, and say which are online.

A partition has one log here, in one directory. While its replica is moved it has another one in `futures`.

The shell calls `run` of a job on any thread, then `finish` on the manager's. A failing disk takes its directory offline
in `finish`; neither half raises for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from kalda.base.disk import Disk, NoHandleLeft
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode, UnsupportedFormat
from kalda.base.ids import METADATA_TOPIC_NAME, TopicPartition, Uuid
from kalda.base.sensors import Counter
from kalda.storage.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, stored_topic_id
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.dirs.future_logs import FutureLogs
from kalda.storage.dirs.log_dirs import LogDir, LogDirs
from kalda.storage.dirs.maintenance import Maintenance
from kalda.storage.file_names import (
    DELETE_DIR_SUFFIX,
    FUTURE_DIR_SUFFIX,
    SEGMENT_SUFFIXES,
    STRAY_DIR_SUFFIX,
    dir_name,
    file_name,
    marked_dir_name,
    parse_dir_name,
)
from kalda.storage.job import Job
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.producer_state import ProducerIdLimit, ProducerStates
from kalda.storage.log.state import LogState


class OpenFiles:
    """The files of one manager's logs that stay open, and which of them are closed where descriptors run short.

    A log keeps the file of its active segment open from the first read or append on, and those of a few older segments.
    A node with more partitions in use than descriptors closes the files of logs that rest, and opens them again on a
    thread when they are used.
    """

    def __init__(self, logs: Mapping[TopicPartition, Log]) -> None:
        """`logs`: the manager's own mapping, which changes as logs come and go."""
        self._logs = logs
        self._ends: dict[Log, int] = {}
        """The end of each log whose file was left open by the last `release`."""

    def release(self) -> int:
        """Close the files of all logs that have had no append since the last call; and of others, where fewer than half
        of the open ones would be closed. Returns how many logs that concerns.

        Nothing is lost by that: what was written is in the page cache, and a flush opens the file again.
        """
        in_use = [log for log in self._logs.values() if log.segments.active.is_open]
        resting: list[Log] = []
        busy: list[Log] = []
        for log in in_use:
            (resting if self._ends.get(log) == log.log_end_offset else busy).append(log)
        count = max(len(resting), (len(in_use) + 1) // 2)
        chosen = (resting + busy)[:count]
        for log in chosen:
            log.segments.active.release()
            log.reads.release()
        self._ends = {log: log.log_end_offset for log in busy[count - len(resting) :]}
        return len(chosen)


log = logging.getLogger("kalda.logs")

_LOGS_A_JOB = 8
_FILES_OF_EMPTY_LOG = frozenset(
    (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, *(file_name(0, suffix) for suffix in SEGMENT_SUFFIXES))
)


class NewLog(NamedTuple):
    """A log that `make_logs_job` makes: the arguments of `get_or_create_log`."""

    topic_partition: TopicPartition
    topic_id: Uuid | None
    config: LogConfig
    directory_id: Uuid | None


class Unreadable(NamedTuple):
    """A log of a format that is not known, which is left as it is."""

    topic_partition: TopicPartition
    directory: LogDir
    name: str
    """Of the partition's own directory there."""
    topic_id: Uuid | None
    """None where that cannot be read either."""
    why: str


class LogManager:
    """Belongs to one thread, as its logs do. Implements their hooks."""

    def __init__(
        self,
        dirs: Mapping[str, Disk],
        config_of: Callable[[str], LogConfig],
        *,
        config: LogManagerConfig | None = None,
        unique: Callable[[], str],
        now_ms: Callable[[], int],
        jitter: Callable[[int], int] = lambda bound: 0,
        on_dir_failed: Callable[[LogDir, OSError], None] = lambda directory, error: None,
        locks_dirs: bool = True,
    ) -> None:
        """`dirs`: paths with their disks, in the order of `log.dirs`; `config_of(topic)`: a topic's settings until the
        metadata is loaded; `unique`: 32 new hex digits; `jitter(bound)`: a random number below `bound`;
        `on_dir_failed`: called when a directory has just become offline; `locks_dirs`: false where the caller holds the
        directories' locks.
        """
        self.config = config or LogManagerConfig()
        self._config_of = config_of
        self._unique = unique
        self._now_ms = now_ms
        self._jitter = jitter
        self._on_dir_failed = on_dir_failed
        self.conversions = Counter()
        """Of all logs."""
        self._logs: dict[TopicPartition, Log] = {}
        """The log of each partition. Future logs are not here."""
        self.unreadable: dict[TopicPartition, Unreadable] = {}
        """Partitions whose log cannot be opened: they are offline."""
        self._home: dict[TopicPartition, LogDir] = {}
        """The directory of each of them."""
        self._producer_limit = ProducerIdLimit(self.config.max_producer_ids, self._producers)
        self.dirs = LogDirs(dirs, self._on_failed, locks=locks_dirs, corrupt_bytes=self.config.corrupt_bytes)
        self.maintenance = Maintenance(self.dirs, self._logs, self.config, now_ms)
        self.open_files = OpenFiles(self._logs)
        self.futures = FutureLogs(self, unique, now_ms)
        """Replicas on their way to another directory."""

    # Start

    def load_jobs(self) -> list[Job[None]]:
        """Lock and read every directory. Returns jobs that open the logs: one a directory after a clean stop, one a log
        after any other. A directory whose disk fails is taken offline. Raises `BlockingIOError` where another process
        holds one.
        """
        jobs: list[Job[None]] = []
        now = self._now_ms()
        for directory in self.dirs:
            try:
                found = self._found(directory, directory.prepare(), now)
                directory.expect(tp for tp, _ in found)
            except BlockingIOError:
                raise
            except (OSError, ValueError, UnsupportedFormat) as error:
                self.dirs.fail(directory, error if isinstance(error, OSError) else OSError(5, str(error)))
                continue
            if directory.had_clean_shutdown:
                jobs.append(self._load_job(directory, found))
            else:
                jobs.extend(self._load_job(directory, [one]) for one in found)
        self.maintenance.start(now)
        return jobs

    def _found(self, directory: LogDir, names: list[str], now_ms: int) -> list[tuple[TopicPartition, str]]:
        return [(tp, name) for name in names if (tp := self._partition_of(directory, name, now_ms)) is not None]

    def _partition_of(self, directory: LogDir, name: str, now_ms: int) -> TopicPartition | None:
        topic_partition = parse_dir_name(name)
        if topic_partition is None or topic_partition.topic == METADATA_TOPIC_NAME:
            return None
        path = f"{directory.path}/{name}"
        if name.endswith(DELETE_DIR_SUFFIX):
            self.maintenance.remove_later(directory, now_ms, lambda disk: disk.remove_tree(path))
            return None
        if name.endswith(STRAY_DIR_SUFFIX):
            return None
        if not name.endswith(FUTURE_DIR_SUFFIX) and name != dir_name(topic_partition):
            return None
        found = directory.disk.stat(path)
        return topic_partition if found is not None and found.is_dir else None

    def _load_job(self, directory: LogDir, found: list[tuple[TopicPartition, str]]) -> Job[None]:
        def work() -> list[Log | Unreadable]:
            return [self._open(directory, tp, name, directory.had_clean_shutdown) for tp, name in found]

        def finish(logs: list[Log | Unreadable]) -> None:
            for log in logs:
                if isinstance(log, Unreadable):
                    self._leave(log)
                    continue
                if not directory.online:
                    log.close(clean=False)
                    continue
                log.update_high_watermark(directory.high_watermarks.get(log.topic_partition, 0))
                if log.directory.endswith(FUTURE_DIR_SUFFIX):
                    self.futures.adopt(directory, log)
                elif log.topic_partition in self._home:
                    self.futures.adopt_double(directory, log)
                else:
                    self._add(directory, log)
                try:
                    directory.opened(log)
                except OSError as error:
                    self.dirs.fail(directory, error)
            if directory.may_be_marked and (pruned := directory.corrupt_files.prune()):
                self.maintenance.remove_later(directory, self._now_ms(), lambda disk: _remove(disk, pruned))

        return self.dirs.job(directory, f"open {len(found)} logs of {directory.path}", work, finish)

    def _open(self, directory: LogDir, topic_partition: TopicPartition, name: str, clean: bool) -> Log | Unreadable:
        """On any thread. A log that a clean stop cannot have left like that is recovered."""
        try:
            return self._open_as(directory, topic_partition, name, clean)
        except UnsupportedFormat as error:
            topic_id = None
            with contextlib.suppress(ValueError, UnsupportedFormat):
                topic_id = stored_topic_id(directory.disk, f"{directory.path}/{name}", clean)
            return Unreadable(topic_partition, directory, name, topic_id, error.message)
        except (CorruptRecord, ValueError) as error:
            if not clean:
                raise OSError(5, f"{topic_partition}: {error}", f"{directory.path}/{name}") from error
            log.warning("%s is recovered, although the last stop was clean: %s", topic_partition, error)
        except OSError:
            raise
        except Exception as error:  # an invariant that its files break ends the use of their directory, not the node
            log.exception("%s: %s cannot be opened", topic_partition, f"{directory.path}/{name}")
            raise OSError(5, f"{topic_partition}: {error!r}", f"{directory.path}/{name}") from error
        return self._open(directory, topic_partition, name, clean=False)

    def _leave(self, found: Unreadable) -> None:
        """A log is not opened, and nothing of it is changed."""
        log.error(
            "%s/%s is offline: %s. Its files stay as they are; a version that knows this format can read them",
            found.directory.path,
            found.name,
            found.why,
        )
        found.directory.leave(found.topic_partition)
        if not found.name.endswith(FUTURE_DIR_SUFFIX):
            self.unreadable[found.topic_partition] = found

    def _open_as(self, directory: LogDir, topic_partition: TopicPartition, name: str, clean: bool) -> Log:
        is_future = name.endswith(FUTURE_DIR_SUFFIX)
        return Log.open(
            Unopened(
                directory.disk,
                f"{directory.path}/{name}",
                self._config_of(topic_partition.topic),
                topic_partition=topic_partition,
                now_ms=self._now_ms(),
                clean=clean,
                # The checkpoint's entry may be that of a former log of the partition: a future log is read whole.
                recovery_point=0 if is_future else directory.recovery_points.get(topic_partition, 0),
                log_start_offset=directory.log_starts.get(topic_partition, 0),
                high_watermark=None if is_future else directory.high_watermarks.get(topic_partition),
                corrupt_files=directory.corrupt_files,
                cache_is_unreliable=directory.cache_is_unreliable,
                compacted_upto=0 if is_future else directory.compacted_upto(topic_partition),
                producer_expiration_ms=self.config.producer_expiration_ms,
                verify_transactions=self.config.verify_transactions,
                producer_limit=self._producer_limit,
                jitter=self._jitter,
                segment_disk=directory.segment_disk,
            ),
            hooks=self,
        )

    # Logs

    def configure_producers(self, *, expiration_ms: int, verify_transactions: bool) -> None:
        """`producer.id.expiration.ms` and `transaction.partition.verification.enable` from now on, for every log."""
        config = self.config._replace(producer_expiration_ms=expiration_ms, verify_transactions=verify_transactions)
        if config == self.config:
            return
        self.config = self.maintenance.config = config
        for log in (*self, *self.futures):
            log.verify_transactions = verify_transactions

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def _producers(self) -> Iterator[ProducerStates]:
        return (log.producer_states for logs in (self, self.futures) for log in logs)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self._logs.get(topic_partition)

    def dir_of(self, topic_partition: TopicPartition) -> LogDir | None:
        return self._home.get(topic_partition)

    def get_or_create_log(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        directory_id: Uuid | None,
    ) -> Log:
        """The partition's log with this config. Where there is none, it is made in the directory that an operator
        prefers, else where `LogDirs.choose` says.

        Raises KAFKA_STORAGE_ERROR where that directory is offline, INCONSISTENT_TOPIC_ID where the log is another
        topic's.
        """
        log = self._logs.get(topic_partition)
        if log is not None:
            if log.offline:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {topic_partition} is offline")
            if topic_id is not None:
                log.assign_topic_id(topic_id)
            if log.config != config:
                log.update_config(config)
            return log
        if topic_partition in self.unreadable:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.unreadable[topic_partition].why)
        if self.futures.is_alone(topic_partition, topic_id):
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} may be in a log directory that is offline"
            )
        directory = self.futures.take_preferred(topic_partition) or self.dirs.choose(directory_id)
        if self.futures.dir_of(topic_partition) is directory:
            self.futures.drop(topic_partition)
        log = self.make_log(directory, dir_name(topic_partition), topic_partition, topic_id, config)
        self._add(directory, log)
        self.maintenance.sync_soon(topic_partition)
        return log

    def make_logs_job(self, wanted: Sequence[NewLog]) -> Job[None]:
        """A job that makes the logs of some partitions that have none, so that `get_or_create_log` finds them.

        A log that cannot be made is left out: `get_or_create_log` raises the error.
        """
        planned: list[tuple[LogDir, NewLog]] = []
        more: Tally[str] = Tally()
        for new in wanted:
            if new.topic_partition in self.unreadable or self.futures.is_alone(new.topic_partition, new.topic_id):
                continue
            try:
                directory = self.futures.take_preferred(new.topic_partition) or self.dirs.choose(new.directory_id, more)
                directory.drop_former_entries(new.topic_partition)
            except (ApiError, OSError):
                continue
            if self.futures.dir_of(new.topic_partition) is not directory:
                more[directory.path] += 1
                planned.append((directory, new))

        def work() -> list[Log | OSError | ApiError]:
            return [self._try_to_make(directory, new) for directory, new in planned]

        def finish(made: list[Log | OSError | ApiError]) -> None:
            for (directory, new), log in zip(planned, made, strict=True):
                if isinstance(log, OSError) and not isinstance(log, NoHandleLeft):
                    self.dirs.fail(directory, log)
                elif isinstance(log, Log):
                    if directory.online and new.topic_partition not in self._logs:
                        self._add(directory, log)
                        self.maintenance.sync_soon(new.topic_partition)
                    else:
                        log.close(clean=False)

        return Job(f"make {len(planned)} logs", work, finish)

    def _try_to_make(self, directory: LogDir, new: NewLog) -> Log | OSError | ApiError:
        """On any thread."""
        try:
            return self._make(
                directory, dir_name(new.topic_partition), new.topic_partition, new.topic_id, new.config, self._now_ms()
            )
        except (OSError, ApiError) as error:
            return error

    def make_log(
        self, directory: LogDir, name: str, topic_partition: TopicPartition, topic_id: Uuid | None, config: LogConfig
    ) -> Log:
        """An empty log in that directory. Raises KAFKA_STORAGE_ERROR."""
        try:
            directory.drop_former_entries(topic_partition)
            return self._make(directory, name, topic_partition, topic_id, config, self._now_ms())
        except OSError as error:
            if not isinstance(error, NoHandleLeft):
                self.dirs.fail(directory, error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path}: {error}") from error

    def _make(
        self,
        directory: LogDir,
        name: str,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        now_ms: int,
    ) -> Log:
        return Log.open(
            Unopened(
                directory.disk,
                f"{directory.path}/{name}",
                config,
                topic_partition=topic_partition,
                topic_id=topic_id,
                now_ms=now_ms,
                clean=True,
                producer_expiration_ms=self.config.producer_expiration_ms,
                verify_transactions=self.config.verify_transactions,
                producer_limit=self._producer_limit,
                jitter=self._jitter,
                segment_disk=directory.segment_disk,
            ),
            hooks=self,
        )

    def _add(self, directory: LogDir, log: Log) -> None:
        self._logs[log.topic_partition] = log
        self._home[log.topic_partition] = directory
        directory.logs[log.topic_partition] = log

    def _drop(self, topic_partition: TopicPartition) -> tuple[LogDir, Log] | None:
        log = self._logs.pop(topic_partition, None)
        if log is None:
            return None
        directory = self._home.pop(topic_partition)
        directory.forget(topic_partition)
        self.maintenance.forget(log)
        self._producer_limit.on_released()
        return directory, log

    def replace(self, topic_partition: TopicPartition, directory: LogDir, log: Log) -> None:
        """From now on `log` is the partition's log. The caller closes the one before it."""
        self._drop(topic_partition)
        self._add(directory, log)
        self.maintenance.sync_soon(topic_partition)
        self.maintenance.checkpoint_soon()

    def delete_log(self, topic_partition: TopicPartition) -> None:
        """Drop a log at once; its directory is renamed, and removed after `file.delete.delay.ms`."""
        self.futures.drop(topic_partition)
        self._retire(topic_partition, DELETE_DIR_SUFFIX)

    def set_aside(self, topic_partition: TopicPartition, why: str) -> None:
        """Drop a log that the metadata does not have, and its future log; the directories are kept under names that end
        in `-stray`, for an operator to inspect. A log that was never complete is deleted. `why` goes to the log."""
        self.futures.set_aside(topic_partition)
        found = self._logs.get(topic_partition)
        if found is not None and _was_never_complete(found):
            log.info("%s %s, and it has no record: it is deleted", topic_partition, why)
            self._retire(topic_partition, DELETE_DIR_SUFFIX)
        else:
            log.warning("%s %s: it is set aside", topic_partition, why)
            self.set_log_aside(topic_partition)

    def set_log_aside(self, topic_partition: TopicPartition) -> None:
        """`set_aside`, of the log alone: its future log is to replace it."""
        self._retire(topic_partition, STRAY_DIR_SUFFIX)

    def _retire(self, topic_partition: TopicPartition, suffix: str) -> None:
        left = self.unreadable.pop(topic_partition, None)
        if left is not None:
            self._rename_unreadable(left, suffix)
            return
        dropped = self._drop(topic_partition)
        if dropped is not None:
            self.rename_away(*dropped, suffix)

    def _rename_unreadable(self, left: Unreadable, suffix: str) -> None:
        directory = left.directory
        path = f"{directory.path}/{marked_dir_name(left.topic_partition, self._unique(), suffix)}"
        try:
            directory.disk.rename(f"{directory.path}/{left.name}", path)
        except OSError as error:
            self.dirs.fail(directory, error)
            return
        directory.drop_unreadable(left.topic_partition)
        if suffix == DELETE_DIR_SUFFIX:
            delay_ms = self._config_of(left.topic_partition.topic).file_delete_delay_ms
            self.maintenance.remove_later(directory, self._now_ms() + delay_ms, lambda disk: disk.remove_tree(path))

    def rename_away(self, directory: LogDir, log: Log, suffix: str) -> None:
        """Close a log that is not used any more, and rename its directory to that suffix; one that is to be deleted is
        deleted later. Where the disk fails, its log directory is offline, and the next start finds the log again.
        """
        if log.offline:
            return
        path = f"{directory.path}/{marked_dir_name(log.topic_partition, self._unique(), suffix)}"
        try:
            log.rename_dir(path)
        except ApiError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            return
        log.close(clean=False)
        self.maintenance.forget(log)
        if suffix == DELETE_DIR_SUFFIX:
            self.maintenance.remove_later(
                directory, self._now_ms() + log.config.file_delete_delay_ms, lambda disk: disk.remove_tree(path)
            )
        self.maintenance.checkpoint_soon()

    # Stop

    def close_jobs(self) -> Iterator[Job[None]]:
        """Jobs that close every log as a clean stop does, a few logs each, in any order. No log is used after this.

        Each job is made when the iterator gets to it, as it holds open the files that it is to sync.
        """
        logs = iter([*self, *self.futures])
        while some := list(islice(logs, _LOGS_A_JOB)):
            yield Job.together("close logs", self._close_some(some))

    def _close_some(self, logs: list[Log]) -> list[Job[None]]:
        jobs: list[Job[None]] = []
        for log in logs:
            if not log.offline:
                self.dirs.guard(log, lambda log: jobs.append(log.close_job().on_failure(_failing(log))))
        return jobs

    def marker_jobs(self, broker_epoch: int) -> list[Job[None]]:
        """Jobs for the checkpoints and the marker of a clean stop, one a directory, once all `close_jobs` are finished.

        There is none for a directory with logs that were not opened: these may still need recovery.
        """
        return [self._marker_job(directory, broker_epoch) for directory in self.dirs if directory.may_be_marked]

    def _marker_job(self, directory: LogDir, broker_epoch: int) -> Job[None]:
        directory.rewrite_checkpoints()
        written = (directory.recovery_point_job(), directory.log_start_job(), directory.high_watermark_job())
        jobs = [job for job in written if job is not None]

        def work() -> None:
            for job in jobs:
                job.complete()
            directory.write_marker(broker_epoch)

        return self.dirs.job(directory, f"mark {directory.path}", work, lambda _: directory.unlock())

    def close(self, broker_epoch: int = -1) -> None:
        """`close_jobs` and `marker_jobs`, here and now."""
        for job in self.close_jobs():
            job.complete()
        for job in self.marker_jobs(broker_epoch):
            job.complete()
        for directory in self.dirs:
            directory.unlock()

    # Failures, and the logs' hooks

    def _on_failed(self, directory: LogDir, error: OSError) -> None:
        self.futures.forget_dir(directory)
        self._on_dir_failed(directory, error)

    def on_io_error(self, log: LogState, error: OSError) -> None:
        self.dirs.fail_of(log, error)

    def on_rolled(self, log: LogState) -> None:
        self.maintenance.on_rolled(log)

    def on_recovery_point_lowered(self, log: LogState) -> None:
        directory = self.dirs.holder(log)
        if directory is not None and directory.online:
            directory.lower(log)  # raises where that cannot be written: then nothing is cut

    def lowering_jobs(self, logs: Sequence[LogState]) -> Iterator[Job[None]]:
        for directory in self.dirs:
            there = [log for log in logs if self.dirs.holder(log) is directory]
            jobs = directory.lowering_jobs(there) if there and directory.online else iter(())
            while directory.online:
                try:
                    job = next(jobs, None)
                except OSError as error:
                    self.dirs.fail(directory, error)
                    break
                if job is None:
                    break
                yield self.dirs.whole_job(directory, job)

    def on_log_start_lowered(self, log: LogState) -> None:
        directory = self.dirs.holder(log)
        if directory is not None and directory.online:
            directory.replace_log_starts()

    def delete_later(self, log: LogState, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        directory = self.dirs.holder(log)
        if directory is not None:
            self.maintenance.remove_later(directory, self._now_ms() + delay_ms, remove)


def _was_never_complete(log: Log) -> bool:
    """Whether the process before this one was killed while it made the log. Its topic id is written last, before the
    first record. There is nothing to keep where the directory has the files of an empty log, and no others."""
    if log.topic_id is not None or log.log_end_offset or log.size_bytes:
        return False
    try:
        names = log.disk.list_dir(log.directory)
    except OSError:
        return False
    return all(name in _FILES_OF_EMPTY_LOG for name in names)


def _remove(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        disk.remove(path)


def _failing(log: Log) -> Callable[[OSError], None]:
    """What takes the log offline where it could not be closed cleanly, for whatever reason."""

    def failed(error: OSError) -> None:
        log.failed(error)

    return failed
