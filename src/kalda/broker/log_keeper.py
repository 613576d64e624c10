"""The log manager from the node's configuration, and its background work: `LogKeeper`.

Retention, checkpoints, flushes, deletions and compaction run as jobs on threads, when the manager or the cleaner finds
them due. One log is compacted at a time, step by step: requests are served between two steps, and the next step is
delayed where the bandwidth of the cleaner is limited.

The keeper is a machine: it runs jobs and waits on injected timers. An unexpected exception is logged with its cause and
ends neither the polls nor the compactions: the next one begins later. A log whose compaction failed so is not compacted
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from kalda.base.clock import Clock
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.broker.shell import Host
from kalda.storage.cleaner import CleanerConfig, Cleaning, LogCleaner
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.job import Job
from kalda.storage.log_dir import LogDir
from kalda.storage.log_manager import LogManager
from kalda.storage.upkeep import Upkeep

log = logging.getLogger("kalda.logs")

_MAX_POLL_INTERVAL_MS = 1_000
_RETRY_MS = 10_000
"""After an unexpected exception."""
_MAX_STEP_DELAY_MS = 24 * 3_600_000
"""A bandwidth near 0 would otherwise delay a step for longer than a timer can be set."""


def make_log_manager(
    config: ServerConfig,
    host: Host,
    log_config: Callable[[str], LogConfig],
    on_dir_failed: Callable[[LogDir, OSError], None],
) -> LogManager:
    """The manager of all logs in `log.dirs`. `log_config(topic)` is called when a log is opened, also before the first
    image. `on_dir_failed` is called when a disk fails, also in this function."""
    return LogManager(
        dict.fromkeys(config.log_dirs, host.disk),
        log_config,
        config=LogManagerConfig(
            retention_check_interval_ms=config["log.retention.check.interval.ms"],
            flush_check_interval_ms=config["log.flush.scheduler.interval.ms"],
            recovery_point_interval_ms=config["log.flush.offset.checkpoint.interval.ms"],
            log_start_interval_ms=config["log.flush.start.offset.checkpoint.interval.ms"],
            high_watermark_interval_ms=config["replica.high.watermark.checkpoint.interval.ms"],
            initial_delay_ms=config["log.initial.task.delay.ms"],
            producer_expiration_ms=config["producer.id.expiration.ms"],
            producer_check_interval_ms=config["producer.id.expiration.check.interval.ms"],
            corrupt_bytes=config["kalda.corrupt.records.retention.bytes"],
            max_producer_ids=config["kalda.producer.ids.max"],
            verify_transactions=config["transaction.partition.verification.enable"],
        ),
        unique=lambda: host.new_uuid().hex(),
        now_ms=host.clock.wall_ms,
        jitter=lambda bound: host.rng.randrange(bound) if bound > 0 else 0,
        on_dir_failed=on_dir_failed,
        locks_dirs=False,
    )


def make_cleaner(config: ServerConfig, logs: LogManager) -> LogCleaner:
    """The cleaner of the manager's logs."""
    return LogCleaner(logs, cleaner_config(config))


def cleaner_config(config: ServerConfig) -> CleanerConfig:
    """The cleaner's configuration. One log is compacted at a time, with all of the memory."""
    return CleanerConfig(
        enabled=config["log.cleaner.enable"],
        memory_bytes=config["log.cleaner.dedupe.buffer.size"],
        backoff_ms=config["log.cleaner.backoff.ms"],
        max_bytes_per_second=config["log.cleaner.io.max.bytes.per.second"],
    )


class LogKeeper:
    """Polls the logs' upkeep and the cleaner from `start` until `close`."""

    def __init__(self, upkeep: Upkeep, cleaner: LogCleaner, clock: Clock, timers: Timers, jobs: Jobs) -> None:
        self._upkeep = upkeep
        self._cleaner = cleaner
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._poll_timer: Timer | None = None
        """For the next poll of the upkeep; None before `start`."""
        self._clean_timer: Timer | None = None
        """For the next choice of a log to compact, or the next step; None before `start`."""
        self._closed = False

    def start(self) -> None:
        """Begin to poll. The logs must have been loaded."""
        self._poll()
        self._clean_later()

    def close(self) -> None:
        """Start no more jobs. A job that runs is completed."""
        self._closed = True
        for timer in (self._poll_timer, self._clean_timer):
            if timer is not None:
                timer.cancel()

    # -- upkeep

    def _poll(self) -> None:
        """Run the jobs that are due, and set the timer for the next ones."""
        if self._closed:
            return
        delay_ms = _RETRY_MS
        try:
            for job in self._upkeep.poll(self._clock.wall_ms()):
                self._jobs.run(job.run, partial(_finish, job))
            now_ms = self._clock.wall_ms()
            delay_ms = min(max(1, self._upkeep.next_deadline_ms(now_ms) - now_ms), _MAX_POLL_INTERVAL_MS)
        except Exception:
            log.exception("the upkeep of the logs failed; it goes on in %d ms", delay_ms)
        self._poll_timer = self._timers.call_later_ms(delay_ms, self._poll)

    # -- compaction

    def _clean_later(self, least_ms: int = 0) -> None:
        if not self._closed:
            delay_ms = max(self._cleaner.config.backoff_ms, least_ms)
            self._clean_timer = self._timers.call_later_ms(delay_ms, self._clean)

    def _clean(self) -> None:
        """Compact the log that has most to compact, then the next, until none has enough."""
        try:
            cleaning = None if self._closed else self._cleaner.choose(self._clock.wall_ms())
        except Exception:
            log.exception("no log could be chosen for compaction; the next attempt is in %d ms", _RETRY_MS)
            self._clean_later(_RETRY_MS)
            return
        if cleaning is None:
            self._clean_later()
        else:
            self._next_step(cleaning)

    def _next_step(self, cleaning: Cleaning) -> None:
        """Run the next step of a compaction; after the last one, write the cleaner's checkpoint."""
        try:
            job = cleaning.next_job()
            checkpoint = self._cleaner.finished(cleaning) if job is None else None
        except Exception as failure:
            self._give_up(cleaning, f"compacting {cleaning.log.topic_partition}", failure)
            return
        if job is not None:
            finish = partial(self._finish_step, cleaning, job, self._clock.mono_ms(), cleaning.bytes_moved)
            self._jobs.run(job.run, finish)
            return
        if checkpoint is None:
            self._clean_later()
            return
        log.info("compacted %s up to %d", cleaning.log.topic_partition, cleaning.end_offset)
        self._jobs.run(checkpoint.run, partial(self._finish_checkpoint, checkpoint))

    def _finish_step(
        self,
        cleaning: Cleaning,
        job: Job[None],
        began_ms: int,
        moved_before: int,
        _: None,
        error: BaseException | None,
    ) -> None:
        """`began_ms` is when the step began, `moved_before` the bytes that the compaction had read and written then.
        The next step begins when the bytes of this one have taken the time that the bandwidth allows."""
        if self._closed:
            return
        try:
            job.finish()
        except Exception as failure:
            self._give_up(cleaning, job.description, failure)
            return
        moved = cleaning.bytes_moved - moved_before
        allowed_ms = 1000 * moved / max(1, self._cleaner.config.max_bytes_per_second)
        delay_ms = int(min(allowed_ms, _MAX_STEP_DELAY_MS)) - (self._clock.mono_ms() - began_ms)
        if delay_ms > 0:
            self._clean_timer = self._timers.call_later_ms(delay_ms, partial(self._next_step, cleaning))
        else:
            self._next_step(cleaning)

    def _give_up(self, cleaning: Cleaning, what: str, failure: Exception) -> None:
        _log_failure(what, failure)
        self._cleaner.failed(cleaning, failure)
        self._clean_later()

    def _finish_checkpoint(self, checkpoint: Job[None], _: None, error: BaseException | None) -> None:
        _finish(checkpoint, None, error)
        self._clean()


def _finish(job: Job[Any], _: None, error: BaseException | None) -> None:
    """Finish a job on the loop. Where a disk failed, the manager has taken its directory offline."""
    try:
        job.finish()
    except Exception as failure:
        _log_failure(job.description, failure)


def _log_failure(what: str, failure: Exception) -> None:
    """Log it, with its stack where it is neither a disk's nor a log's."""
    expected = isinstance(failure, ApiError | OSError)
    log.error("%s failed: %s", what, failure, exc_info=None if expected else failure)
