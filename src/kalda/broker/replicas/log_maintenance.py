"""Retention, checkpoints, flushes, deletions and compaction, in the background. Serves no API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

from kalda.base.configs.server import ServerConfig
from kalda.base.scheduling import Clock
from kalda.base.sensors import Measurable, SensorName, counted, gauged
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.log_keeper import LogKeeper, cleaner_config, make_cleaner
from kalda.metadata.image import MetadataImage
from kalda.storage.compaction.cleaner import LogCleaner
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.log import Log

log = logging.getLogger("kalda.logs")

_LOG_MANAGER = "kafka.log:type=LogManager"
_RELEASE_INTERVAL_MS = 100
"""At least so long lies between two walks over all logs that close files."""


class LogMaintenanceModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        self._logs = context.logs
        self._cleaner = make_cleaner(context.config, context.host, context.logs)
        self._host, self._timers, self._logs = context.host, context.timers, context.logs
        self._loop = asyncio.get_running_loop()
        self._releasing = False
        """Files are being closed, or were a moment ago."""
        cleaner, clock = self._cleaner, context.host.clock
        sensors = context.sensors
        manager = "kafka.log:type=LogCleanerManager"
        sensors.gauge(manager, "max-dirty-percent", read=lambda: cleaner.max_dirty_ratio * 100)
        for directory in context.logs.dirs:
            tags = (("logDirectory", directory.path),)
            sensors.gauge(_LOG_MANAGER, "LogDirectoryOffline", tags, partial(_is_offline, directory))
            sensors.gauge(_LOG_MANAGER, "LogDirectoryCordoned", tags, partial(getattr, directory, "cordoned"))
            unopened = partial(getattr, directory, "unopened_count")
            sensors.gauge(_LOG_MANAGER, "remainingLogsToRecover", (("dir", directory.path),), unopened)
            count, size = (
                partial(_uncleanable, cleaner, directory),
                partial(_uncleanable_bytes, cleaner, directory, clock),
            )
            sensors.gauge(manager, "uncleanable-partitions-count", tags, count)
            sensors.gauge(manager, "uncleanable-bytes", tags, size)
        sensors.gauge(
            manager,
            "time-since-last-run-ms",
            read=lambda: -1 if cleaner.last_run_ms < 0 else clock.wall_ms() - cleaner.last_run_ms,
        )
        logs = context.logs
        sensors.gauge(
            _LOG_MANAGER,
            "OfflineLogDirectoryCount",
            read=lambda: sum(not directory.online for directory in logs.dirs),
        )
        sensors.gauge(
            _LOG_MANAGER,
            "CordonedLogDirectoryCount",
            read=lambda: sum(directory.cordoned for directory in logs.dirs),
        )
        most: int = context.config["kalda.metrics.logs.max"]
        sensors.add_source(lambda: _log_metrics(logs, most))
        self._keeper = LogKeeper(
            context.logs.maintenance,
            self._cleaner,
            context.host.clock,
            context.timers,
            context.jobs,
            context.background,
        )
        sensors.add_source(self._compaction_metrics)

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the limits of the cleaner, and what the logs demand of producers; both hold at once."""
        self._keeper.configure(cleaner_config(current))
        self._logs.configure_producers(
            expiration_ms=current["producer.id.expiration.ms"],
            verify_transactions=current["transaction.partition.verification.enable"],
        )

    def start(self) -> None:
        """Begin with the recovered logs."""
        self._keeper.start()
        self._host.disk.when_many_are_open(self._release_soon)

    def _compaction_metrics(self) -> Iterator[tuple[SensorName, Measurable]]:
        """Of the last compaction of each thread, as Kafka has them."""
        figures = self._cleaner.last_figures
        read = sum(each.bytes_read for each in figures)
        for name, value in (
            ("cleaner-recopy-percent", 100 * sum(each.bytes_written for each in figures) / max(read, 1)),
            ("max-buffer-utilization-percent", 100 * max((each.map_use for each in figures), default=0)),
            ("max-clean-time-secs", max((each.duration_ms for each in figures), default=0) / 1000),
            ("max-compaction-delay-secs", self._cleaner.max_delay_ms / 1000),
        ):
            yield SensorName("kafka.log:type=LogCleaner", name), gauged(value)
        yield SensorName("kafka.utils:type=Throttler", "cleaner-io"), counted(self._keeper.compaction_bytes)

    def _release_soon(self) -> None:
        """Few descriptors are left. On any thread."""
        if not self._releasing:
            self._releasing = True
            self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        """Close the files of logs that rest. Not again at once: where connections have the descriptors, it helps
        little."""
        released = self._logs.open_files.release()
        log.info("few descriptors are left: closed the files of %d partitions that rest", released)
        self._timers.call_later_ms(_RELEASE_INTERVAL_MS, self._permit_release)

    def _permit_release(self) -> None:
        self._releasing = False

    async def close(self) -> None:
        """Start no more jobs; those that run are finished by their threads."""
        self._host.disk.when_many_are_open(None)
        self._keeper.close()


def _is_offline(directory: LogDir) -> bool:
    return not directory.online


def _uncleanable(cleaner: LogCleaner, directory: LogDir) -> int:
    return len(cleaner.uncleanable_in(directory))


def _uncleanable_bytes(cleaner: LogCleaner, directory: LogDir, clock: Clock) -> int:
    return cleaner.uncleanable_bytes(directory, clock.wall_ms())


def _retention_percent(log_of_partition: Log) -> float:
    """How much of `retention.bytes` the log has; 0 where there is no such limit."""
    limit = log_of_partition.config.retention_bytes
    return 100 * log_of_partition.size_bytes / limit if limit > 0 and log_of_partition.config.deletes else 0


def _log_metrics(logs: LogManager, most: int) -> Iterator[tuple[SensorName, Measurable]]:
    """Size and ends of each log; nothing where there are more than `most`: they would hold the event loop."""
    if len(logs) > most:
        return
    for log_of_partition in list(logs):
        partition = log_of_partition.topic_partition
        tags = (("topic", partition.topic), ("partition", str(partition.partition)))
        for name, value in (
            ("Size", log_of_partition.size_bytes),
            ("LogStartOffset", log_of_partition.log_start_offset),
            ("LogEndOffset", log_of_partition.log_end_offset),
            ("NumLogSegments", len(log_of_partition.segments)),
            ("RetentionSizeInPercent", _retention_percent(log_of_partition)),
        ):
            yield SensorName("kafka.log:type=Log", name, tags), gauged(value)
