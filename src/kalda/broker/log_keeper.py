"""Keeps a broker's logs: makes their manager, and does in the background what the manager and the cleaner find due.

Retention, checkpoints, flushes, deletions and compaction run as jobs; one log is compacted at a time, and each step of
a compaction lets everything else have its turn, and waits for its share of the disk's bandwidth where that is limited.
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

_LONGEST_WAIT_MS = 1_000
_LONGEST_STEP_MS = 24 * 3_600_000
"""A limit near nothing puts a compaction's next step off, not beyond what a timer can hold."""


def make_log_manager(
    config: ServerConfig,
    host: Host,
    log_config: Callable[[str], LogConfig],
    on_dir_failed: Callable[[LogDir, OSError], None],
) -> LogManager:
    """Over all of `log.dirs`; `log_config(topic)` is what is known of a topic when its log is opened."""
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
            verify_transactions=config["transaction.partition.verification.enable"],
        ),
        unique=lambda: host.new_uuid().hex(),
        now_ms=host.clock.wall_ms,
        jitter=lambda bound: host.rng.randrange(bound) if bound > 0 else 0,
        on_dir_failed=on_dir_failed,
        locks_dirs=False,
    )


def make_cleaner(config: ServerConfig, logs: LogManager) -> LogCleaner:
    """The cleaner of those logs."""
    return LogCleaner(logs, cleaner_config(config))


def cleaner_config(config: ServerConfig) -> CleanerConfig:
    """What the node's configuration says to the cleaner. One log is compacted at a time, with all the memory."""
    return CleanerConfig(
        enabled=config["log.cleaner.enable"],
        memory_bytes=config["log.cleaner.dedupe.buffer.size"],
        backoff_ms=config["log.cleaner.backoff.ms"],
        max_bytes_per_second=config["log.cleaner.io.max.bytes.per.second"],
    )


class LogKeeper:
    """Polls the logs' upkeep and the cleaner until it is closed."""

    def __init__(self, upkeep: Upkeep, cleaner: LogCleaner, clock: Clock, timers: Timers, jobs: Jobs) -> None:
        self._upkeep = upkeep
        self._cleaner = cleaner
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._polling: Timer | None = None
        self._cleaning: Timer | None = None
        self._closed = False

    def start(self) -> None:
        """Begin, when the logs are loaded."""
        self._poll()
        self._clean_later()

    def close(self) -> None:
        """Start nothing more; what runs is finished by its thread."""
        self._closed = True
        for timer in (self._polling, self._cleaning):
            if timer is not None:
                timer.cancel()

    # -- upkeep

    def _poll(self) -> None:
        """What is due now, and again when more is."""
        if self._closed:
            return
        for job in self._upkeep.poll(self._clock.wall_ms()):
            self._jobs.run(job.run, partial(_finish, job))
        now_ms = self._clock.wall_ms()
        delay_ms = min(max(1, self._upkeep.next_deadline_ms(now_ms) - now_ms), _LONGEST_WAIT_MS)
        self._polling = self._timers.call_later_ms(delay_ms, self._poll)

    # -- compaction

    def _clean_later(self) -> None:
        if not self._closed:
            self._cleaning = self._timers.call_later_ms(self._cleaner.config.backoff_ms, self._clean)

    def _clean(self) -> None:
        """Clean the log that needs it most, then the next, until none does."""
        cleaning = None if self._closed else self._cleaner.choose(self._clock.wall_ms())
        if cleaning is None:
            self._clean_later()
        else:
            self._next_step(cleaning)

    def _next_step(self, cleaning: Cleaning) -> None:
        try:
            job = cleaning.next_job()
        except (ApiError, OSError) as failure:
            self._give_up(cleaning, f"compacting {cleaning.log.topic_partition}", failure)
            return
        if job is not None:
            pace = (self._clock.mono_ms(), cleaning.bytes_moved)
            self._jobs.run(job.run, partial(self._finish_step, cleaning, job, pace))
            return
        checkpoint = self._cleaner.finished(cleaning)
        if checkpoint is None:
            self._clean_later()
            return
        log.info("compacted %s up to %d", cleaning.log.topic_partition, cleaning.end_offset)
        self._jobs.run(checkpoint.run, partial(self._finish_checkpoint, checkpoint))

    def _finish_step(
        self, cleaning: Cleaning, job: Job[None], pace: tuple[int, int], _: None, error: BaseException | None
    ) -> None:
        """`pace`: when the step began, and what had been moved by then."""
        if self._closed:
            return
        try:
            job.finish()
        except (ApiError, OSError) as failure:
            self._give_up(cleaning, job.description, failure)
            return
        began_ms, moved = pace
        worth_ms = 1000 * (cleaning.bytes_moved - moved) / max(1, self._cleaner.config.max_bytes_per_second)
        wait_ms = int(min(worth_ms, _LONGEST_STEP_MS)) - (self._clock.mono_ms() - began_ms)
        if wait_ms > 0:
            self._cleaning = self._timers.call_later_ms(wait_ms, partial(self._next_step, cleaning))
        else:
            self._next_step(cleaning)

    def _give_up(self, cleaning: Cleaning, what: str, failure: ApiError | OSError) -> None:
        log.error("%s failed: %s", what, failure)
        self._cleaner.failed(cleaning, failure)
        self._clean_later()

    def _finish_checkpoint(self, checkpoint: Job[None], _: None, error: BaseException | None) -> None:
        _finish(checkpoint, None, error)
        self._clean()


def _finish(job: Job[Any], _: None, error: BaseException | None) -> None:
    """The owner's half of a job. A failing disk has told the manager, which has taken its directory offline."""
    try:
        job.finish()
    except (ApiError, OSError) as failure:
        log.error("%s failed: %s", job.description, failure)
