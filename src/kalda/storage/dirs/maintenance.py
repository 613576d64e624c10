"""What is due again and again in the logs of a node: retention, expiry of producers, flushes, checkpoints, and the
removal of files whose delay is over.

`poll` gives out as jobs what waits for a device, and visits a bounded number of logs in one call; it is called again at
`next_deadline_ms`. A walk over all logs (retention, producers, flushes) is spread over as many calls as it needs.

Not obvious:

- Checkpoints are written up to a second after a deletion: a new log of a former name drops the former entries.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto

from kalda.base.disk import Disk, NoHandleLeft
from kalda.base.ids import TopicPartition
from kalda.storage.config import MAX_INT64, LogManagerConfig
from kalda.storage.dirs.log_dirs import LogDir, LogDirs
from kalda.storage.job import Job
from kalda.storage.log.deletion import MAX_DELETED, delete_old_segments
from kalda.storage.log.log import Log
from kalda.storage.log.state import LogState

_LOGS_A_POLL = 64
_LOGS_A_DELETION = 12
"""How many of them a log of which segments are deleted counts as: a new segment is made, and files are renamed."""
_PRODUCERS_A_LOG = 32
"""How many producers whose age is checked count as another log."""
_REMOVED_AGAIN_MS = 60_000
_CHECKPOINT_INTERVAL_MS = 1_000
"""Checkpoints that are to be written soon are written together, at most once in that time: each holds all logs."""
_NEW_LOGS_INTERVAL_MS = 20
"""How soon `poll` is called again while new logs are waiting for the job that syncs others."""


class _Task(Enum):
    """What has an interval: the first three log by log, the others once a directory."""

    RETENTION = auto()
    PRODUCERS = auto()
    FLUSHES = auto()
    RECOVERY_POINTS = auto()
    LOG_STARTS = auto()
    HIGH_WATERMARKS = auto()


_WALKS = frozenset((_Task.RETENTION, _Task.PRODUCERS, _Task.FLUSHES))
_CHECKPOINTS = {
    _Task.RECOVERY_POINTS: LogDir.recovery_point_job,
    _Task.LOG_STARTS: LogDir.log_start_job,
    _Task.HIGH_WATERMARKS: LogDir.high_watermark_job,
}


class Maintenance:
    """Of one manager's logs, on its thread."""

    def __init__(
        self,
        dirs: LogDirs,
        logs: Mapping[TopicPartition, Log],
        config: LogManagerConfig,
        now_ms: Callable[[], int],
    ) -> None:
        """`logs`: the manager's own mapping, which changes as logs come and go."""
        self._dirs = dirs
        self._logs = logs
        self.config = config
        self._now_ms = now_ms
        self._due: dict[_Task, int] = {}
        """When each task begins next, ms; empty until `start`."""
        self._walks: dict[_Task, deque[TopicPartition]] = {}
        """Partitions that a walk under way has still to visit."""
        self._rolled: dict[LogState, None] = {}
        """Logs whose segments before the active one are to be flushed, oldest roll first."""
        self._new: dict[TopicPartition, None] = {}
        """Logs whose directory and topic id have not been synced yet, oldest first."""
        self._syncing_new = False
        """A job for some of them is under way: the next one waits for it, so that they do not multiply."""
        self._removals: list[tuple[int, int, LogDir, Callable[[Disk], None]]] = []
        """A heap of (due time ms, number, directory, what removes files there)."""
        self._removals_made = 0
        self._polled_ms = 0
        """The time of the last `poll`."""

    def start(self, now_ms: int) -> None:
        """Begin each task for the first time after the initial delay; that of producers after its interval, as in
        Apache Kafka."""
        first = now_ms + self.config.initial_delay_ms
        self._due = {task: first for task, _ in self._tasks()}
        self._due[_Task.PRODUCERS] = now_ms + self.config.producer_check_interval_ms

    # What is to be done

    def on_rolled(self, log: LogState) -> None:
        """Flush what is before its active segment soon."""
        self._rolled[log] = None

    def sync_soon(self, topic_partition: TopicPartition) -> None:
        """Sync the names of a log that was just made."""
        self._new[topic_partition] = None

    def forget(self, log: LogState) -> None:
        """The log is closed, or about to be."""
        self._rolled.pop(log, None)

    def checkpoint_soon(self) -> None:
        """Write checkpoints within `_CHECKPOINT_INTERVAL_MS`: after a crash, a new log must not get the offsets of a
        former one of its name. A log of that name that is made sooner has them written first
        (`LogDir.drop_former_entries`)."""
        due_ms = self._now_ms() + _CHECKPOINT_INTERVAL_MS
        for task in (_Task.RECOVERY_POINTS, _Task.LOG_STARTS):
            self._due[task] = min(due_ms, self._due.get(task, due_ms))

    def remove_later(self, directory: LogDir, due_ms: int, remove: Callable[[Disk], None]) -> None:
        """Have `remove` run on some thread once it is `due_ms`, if the directory is online then."""
        self._removals_made += 1
        heapq.heappush(self._removals, (due_ms, self._removals_made, directory, remove))

    # Doing it

    def poll(self, now_ms: int) -> list[Job[None]]:
        """What is due, bounded: call again at `next_deadline_ms`. The jobs may run in any order."""
        self._follow_clock(now_ms)
        jobs: list[Job[None]] = []
        while self._removals and self._removals[0][0] <= now_ms:
            _, _, directory, remove = heapq.heappop(self._removals)
            if directory.online:
                jobs.append(self._removal_job(directory, remove))
        for log in list(self._rolled)[:_LOGS_A_POLL]:
            del self._rolled[log]
            if not log.offline:
                if (snapshot := log.snapshot_job()) is not None:
                    jobs.append(snapshot)
                self._dirs.guard(log, lambda log: jobs.append(_flush(log, now_ms, log.segments.active.base_offset)))
        if self._new and not self._syncing_new:
            jobs.append(self._sync_new_job(now_ms))
        for task, interval_ms in self._tasks():
            if self._due.get(task, now_ms) <= now_ms:
                self._due[task] = now_ms + interval_ms
                if task in _WALKS:
                    self._walks[task] = deque(self._logs)
                else:
                    jobs.extend(self._checkpoint_jobs(task))
        for task in list(self._walks):
            jobs.extend(self._walk(task, now_ms))
        return jobs

    def _follow_clock(self, now_ms: int) -> None:
        """Where the clock was set back, so is everything that is due: retention and checkpoints do not pause until the
        clock has caught up."""
        back_ms, self._polled_ms = self._polled_ms - now_ms, now_ms
        if back_ms > 0:
            self._due = {task: due_ms - back_ms for task, due_ms in self._due.items()}
            self._removals = [
                (due_ms - back_ms, number, directory, remove) for due_ms, number, directory, remove in self._removals
            ]

    def next_deadline_ms(self, now_ms: int) -> int:
        """When `poll` has something to do again."""
        if self._walks or self._rolled:
            return now_ms
        if self._new:
            return now_ms + (_NEW_LOGS_INTERVAL_MS if self._syncing_new else 0)
        deadlines = list(self._due.values())
        if self._removals:
            deadlines.append(self._removals[0][0])
        return max(now_ms, min(deadlines, default=MAX_INT64))

    def _tasks(self) -> tuple[tuple[_Task, int], ...]:
        """Each with its interval, ms."""
        config = self.config
        return (
            (_Task.RETENTION, config.retention_check_interval_ms),
            (_Task.PRODUCERS, config.producer_check_interval_ms),
            (_Task.FLUSHES, config.flush_check_interval_ms),
            (_Task.RECOVERY_POINTS, config.recovery_point_interval_ms),
            (_Task.LOG_STARTS, config.log_start_interval_ms),
            (_Task.HIGH_WATERMARKS, config.high_watermark_interval_ms),
        )

    def _checkpoint_jobs(self, task: _Task) -> list[Job[None]]:
        make, dirs = _CHECKPOINTS[task], self._dirs
        return [dirs.checkpoint_job(directory, job) for directory in dirs if (job := make(directory)) is not None]

    def _walk(self, task: _Task, now_ms: int) -> list[Job[None]]:
        """A bounded number of logs of a walk over all. A log with very many producers or segments to delete is visited
        several times, in one `poll` each."""
        jobs: list[Job[None]] = []
        left = self._walks[task]
        unfinished: list[TopicPartition] = []
        room = _LOGS_A_POLL

        def visit(log: Log) -> None:
            nonlocal room
            if task is _Task.RETENTION:
                deleted = delete_old_segments(log, now_ms)
                if deleted:
                    room -= _LOGS_A_DELETION
                if deleted >= MAX_DELETED:
                    unfinished.append(log.topic_partition)
            elif task is _Task.PRODUCERS:
                room -= len(log.producer_states) // _PRODUCERS_A_LOG
                if log.producer_states.expire(now_ms, self.config.producer_expiration_ms) is None:
                    unfinished.append(log.topic_partition)
            elif log.log_end_offset > log.recovery_point and now_ms - log.unsynced.last_flush_ms >= log.config.flush_ms:
                jobs.append(_flush(log, now_ms))

        while left and room > 0:
            room -= 1
            log = self._logs.get(left.popleft())
            if log is not None and not log.offline:
                self._dirs.guard(log, visit)
            if unfinished:
                left.extendleft(unfinished)
                break
        if not left:
            del self._walks[task]
        return jobs

    def _sync_new_job(self, now_ms: int) -> Job[None]:
        """Syncs the topic ids and the names of some new logs, one after another: a topic may have thousands."""
        jobs: list[Job[None]] = []
        for topic_partition in list(self._new)[:_LOGS_A_POLL]:
            del self._new[topic_partition]
            log = self._logs.get(topic_partition)
            if log is not None and not log.offline:
                self._dirs.guard(log, lambda log: jobs.append(_flush(log, now_ms, log.recovery_point)))
        self._syncing_new = True
        together = Job.together(f"sync {len(jobs)} new logs", jobs)

        def finish(_: None) -> None:
            self._syncing_new = False
            together.finish()

        return Job(together.description, together.run, finish)

    def _removal_job(self, directory: LogDir, remove: Callable[[Disk], None]) -> Job[None]:
        """A job that removes files; where it runs out of descriptors, another one does the rest later."""

        def failed(error: OSError) -> None:
            if isinstance(error, NoHandleLeft):
                self.remove_later(directory, self._now_ms() + _REMOVED_AGAIN_MS, remove)
            else:
                self._dirs.fail(directory, error)

        description = f"delete files of {directory.path}"
        return Job(description, lambda: remove(directory.disk), _nothing).on_failure(failed)


def _flush(log: LogState, now_ms: int, upto: int | None = None) -> Job[None]:
    return log.flush_job(upto, now_ms).on_failure(log.on_io_error)


def _nothing(_: None) -> None:
    pass
