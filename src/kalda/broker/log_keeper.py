"""Makes the log manager of a node out of its configuration."""

from __future__ import annotations

from collections.abc import Callable

from kalda.base.configs.server import ServerConfig
from kalda.broker.shell import Host
from kalda.storage.config import LogConfig
from kalda.storage.log_dir import LogDir
from kalda.storage.log_manager import LogManager, LogManagerConfig


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
    )
