"""The log manager from the node's configuration, and its background work: `LogKeeper`.

Retention, checkpoints, flushes, deletions and compaction run as jobs on threads, when the manager or the cleaner finds
them due. Up to `log.cleaner.threads` logs are compacted at a time, step by step. A step takes some 50 ms, less where
the bandwidth of the cleaner is limited: then all of them wait between two steps.

The keeper is a machine: it runs jobs and waits on injected timers. An unexpected exception is logged with its cause and
ends neither the polls nor the compactions: the next one begins later. A log whose compaction failed so is not compacted
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from kalda.base.background import Background, Priority, Steps
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.scheduling import Clock, Jobs, Timer, Timers
from kalda.broker.process.disk import absolute_dir
from kalda.broker.process.shell import Host
from kalda.storage.compaction.cleaner import SLICE_BYTES, CleanerConfig, Cleaning, LogCleaner
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.dirs.maintenance import Maintenance
from kalda.storage.job import Job

log = logging.getLogger("kalda.logs")

_MAX_POLL_INTERVAL_MS = 1_000
_LEAST_SLICE_BYTES = 64 * 1024
_SLICE_S = 0.1
"""A step moves at most what the bandwidth allows in that time, so that a low one is spread evenly."""
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
        dict.fromkeys(map(absolute_dir, config.log_dirs), host.disk),
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


def make_cleaner(config: ServerConfig, host: Host, logs: LogManager) -> LogCleaner:
    """The cleaner of the manager's logs."""
    return LogCleaner(logs, cleaner_config(config), host.new_uuid)


def cleaner_config(config: ServerConfig) -> CleanerConfig:
    """The cleaner's configuration. The steps of its cleanings run on the threads of `background.threads`, of which half
    are left to others: reads and flushes wait for a thread, too."""
    return CleanerConfig(
        enabled=config["log.cleaner.enable"],
        threads=max(1, min(config["log.cleaner.threads"], config["background.threads"] // 2)),
        memory_bytes=config["log.cleaner.dedupe.buffer.size"],
        backoff_ms=config["log.cleaner.backoff.ms"],
        max_bytes_per_second=config["log.cleaner.io.max.bytes.per.second"],
    )


class Throttle:
    """Limits the bytes a second of all cleanings together: what they have moved beyond that is owed, and no step begins
    while anything is. The rate may change at any time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed_bytes = 0.0
        self._settled_ms = clock.mono_ms()
        """Up to when the passing of time has been subtracted from what is owed."""

    def settle(self, bytes_per_second: float) -> None:
        """Subtract the time since the last call. Called where a step begins, and before the rate changes."""
        now_ms = self._clock.mono_ms()
        elapsed_ms, self._settled_ms = now_ms - self._settled_ms, now_ms
        if elapsed_ms > 0:
            self._owed_bytes = max(0.0, self._owed_bytes - bytes_per_second * elapsed_ms / 1000)

    def moved(self, size_bytes: int, bytes_per_second: float) -> None:
        """A step has ended. The time that it has taken counts."""
        self._owed_bytes += size_bytes
        self.settle(bytes_per_second)

    def delay_ms(self, bytes_per_second: float) -> int:
        """How long the next step has to wait."""
        self.settle(bytes_per_second)
        return int(min(1000 * self._owed_bytes / bytes_per_second, _MAX_STEP_DELAY_MS))


class LogKeeper:
    """Polls the logs' maintenance and the cleaner from `start` until `close`. No error of theirs ends that."""

    def __init__(
        self,
        maintenance: Maintenance,
        cleaner: LogCleaner,
        clock: Clock,
        timers: Timers,
        jobs: Jobs,
        background: Background,
    ) -> None:
        self._maintenance = maintenance
        self._cleaner = cleaner
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._background = background
        self._poll_timer: Timer | None = None
        """For the next polls of the maintenance; None before `start`."""
        self._choice_timer: Timer | None = None
        """For the next choice of logs to compact; None before `start`."""
        self._throttle = Throttle(clock)
        self.compaction_bytes = 0
        """Read and written by compactions so far."""
        self._cleanings: dict[Cleaning, Timer | None] = {}
        """The compactions under way, each with the timer of its next step; None while a step runs."""
        self._closed = False

    def start(self) -> None:
        """Begin to poll. The logs must have been loaded."""
        self._poll()
        self._choose_later()

    def configure(self, config: CleanerConfig) -> None:
        """Set the limits of the cleaner. They hold at once, also for what waits by former ones. More threads begin more
        compactions; with fewer, those under way are completed first."""
        former = self._cleaner.config
        if config == former:
            return
        self._throttle.settle(_rate(former))
        self._cleaner.config = config
        if self._choice_timer is None or self._closed:
            return
        self._choose_later()
        for cleaning, timer in list(self._cleanings.items()):
            if timer is not None:
                timer.cancel()
                self._continue(cleaning)
        if config.threads > former.threads:
            self._choose()

    def close(self) -> None:
        """Start no more jobs. A job that runs is completed; what a compaction has written so far is removed when the
        log is opened again."""
        self._closed = True
        for timer in (self._poll_timer, self._choice_timer, *self._cleanings.values()):
            if timer is not None:
                timer.cancel()
        self._cleanings.clear()

    # -- maintenance

    def _poll(self) -> None:
        if not self._closed:
            self._background.run(self._run_what_is_due(), Priority.MAINTENANCE).then(self._on_polled)

    def _run_what_is_due(self) -> Steps[int]:
        """Run the jobs that are due. Returns when the next ones will be."""
        while not self._closed:
            for job in self._maintenance.poll(self._clock.wall_ms()):
                self._jobs.run(job.run, partial(_finish, job))
            now_ms = self._clock.wall_ms()
            delay_ms = self._maintenance.next_deadline_ms(now_ms) - now_ms
            if delay_ms > 0:
                return delay_ms
            yield
        return _MAX_POLL_INTERVAL_MS

    def _on_polled(self, delay_ms: int | None, error: ApiError | None) -> None:
        if error is not None:
            log.error(
                "the maintenance of the logs failed; it goes on in %d ms",
                _MAX_POLL_INTERVAL_MS,
                exc_info=error.__cause__ or error,
            )
        if not self._closed:
            wait_ms = min(delay_ms or _MAX_POLL_INTERVAL_MS, _MAX_POLL_INTERVAL_MS)
            self._poll_timer = self._timers.call_later_ms(wait_ms, self._poll)

    # -- compaction

    def _choose_later(self) -> None:
        if self._choice_timer is not None:
            self._choice_timer.cancel()
        self._choice_timer = self._timers.call_later_ms(self._cleaner.config.backoff_ms, self._choose_again)

    def _choose_again(self) -> None:
        if not self._closed:
            self._choose()
            self._choose_later()

    def _choose(self) -> None:
        """Compact the logs that have most to compact, as many as there are threads for."""
        for _ in range(self._cleaner.config.threads - len(self._cleanings)):
            if self._closed:
                return
            try:
                cleaning = self._cleaner.choose(self._clock.wall_ms())
            except Exception:
                log.exception("no log could be chosen to be compacted; the next attempt is made as if there were none")
                return
            if cleaning is None:
                return
            self._cleanings[cleaning] = None
            self._next_step(cleaning)

    def _continue(self, cleaning: Cleaning) -> None:
        """Run the next step as soon as the bytes that were moved have taken the time that the bandwidth allows."""
        delay_ms = self._throttle.delay_ms(_rate(self._cleaner.config))
        if delay_ms > 0:
            self._cleanings[cleaning] = self._timers.call_later_ms(delay_ms, partial(self._continue, cleaning))
        else:
            self._next_step(cleaning)

    def _next_step(self, cleaning: Cleaning) -> None:
        """Run the next step of a compaction; after the last one, write the cleaner's checkpoint."""
        if self._closed:
            return
        self._cleanings[cleaning] = None
        rate = _rate(self._cleaner.config)
        was_preparing = cleaning.is_preparing
        try:
            job = cleaning.next_job(int(max(_LEAST_SLICE_BYTES, min(SLICE_BYTES, rate * _SLICE_S))))
        except Exception as failure:
            self._give_up(cleaning, failure)
            return
        if job is None:
            self._end(cleaning)
            return
        self._throttle.settle(rate)
        self._jobs.run(job.run, partial(self._finish_step, cleaning, job, cleaning.bytes_moved))
        if was_preparing and not cleaning.is_preparing:
            self._choose()  # the next one may begin

    def _finish_step(
        self, cleaning: Cleaning, job: Job[None], moved_before: int, _: None, error: BaseException | None
    ) -> None:
        """`moved_before`: the bytes that the compaction had read and written when the step began."""
        if self._closed:
            return
        try:
            job.finish()
            moved_bytes = cleaning.bytes_moved - moved_before
            self.compaction_bytes += moved_bytes
            self._throttle.moved(moved_bytes, _rate(self._cleaner.config))
        except Exception as failure:
            self._give_up(cleaning, failure)
            return
        self._continue(cleaning)

    def _end(self, cleaning: Cleaning) -> None:
        """The compaction is complete, or its log has changed."""
        del self._cleanings[cleaning]
        try:
            checkpoint = self._cleaner.finished(cleaning, self._clock.wall_ms())
        except Exception:
            log.exception("the compaction of %s could not be completed", cleaning.log.topic_partition)
            return
        if checkpoint is not None:
            log.info("compacted %s up to %d", cleaning.log.topic_partition, cleaning.end_offset)
            self._jobs.run(checkpoint.run, partial(self._finish_checkpoint, checkpoint))

    def _give_up(self, cleaning: Cleaning, failure: Exception) -> None:
        """A step raised. What follows for the log, the cleaner decides; the next log is chosen after the backoff."""
        del self._cleanings[cleaning]
        try:
            job = self._cleaner.failed(cleaning, failure, self._clock.wall_ms())
        except Exception:
            log.exception("the compaction of %s failed, and was not ended", cleaning.log.topic_partition)
            return
        if job is not None:
            self._jobs.run(job.run, partial(_finish, job))

    def _finish_checkpoint(self, checkpoint: Job[None], _: None, error: BaseException | None) -> None:
        _finish(checkpoint, None, error)
        self._choose()


def _rate(config: CleanerConfig) -> float:
    """Bytes a second; at least one."""
    return max(1.0, config.max_bytes_per_second)


def _finish(job: Job[Any], _: None, error: BaseException | None) -> None:
    """Finish a job on the loop. Where a disk failed, the manager has taken its directory offline."""
    try:
        job.finish()
    except (ApiError, OSError) as failure:
        log.error("%s failed: %s", job.description, failure)
    except Exception:
        log.exception("%s failed", job.description)
