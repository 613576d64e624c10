"""Settings of logs, typed: a topic's, whose names are Kafka's topic config keys with underscores, and a broker's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from kalda.base.sensors import Counter
from kalda.records.batch import TimestampType
from kalda.records.compression import MAX_DECOMPRESSED_BYTES
from kalda.records.validation import MAX_RECORD_BYTES, ReadRecords, RecordRules, compression_of_config
from kalda.storage.log.corrupt_files import KEPT_BYTES

MAX_INT64 = 2**63 - 1
DAY_MS = 86_400_000
_LEAST_DECOMPRESSED_BYTES = 64 << 20
_MAX_COMPRESSION_RATIO = 64
"""A produced batch that has to be decompressed may grow to that many times `max.message.bytes`, or to the bound above
where that is more. Producers bound their batches before they compress them; a decompression bomb must not occupy the
node."""


class LogConfig(NamedTuple):
    """A topic's. Defaults are Kafka 4.4's; ranges are checked where configs are set."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_INT64
    flush_ms: int = MAX_INT64
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = MAX_INT64
    max_decompressed_message_bytes: int = MAX_RECORD_BYTES
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = MAX_INT64
    message_timestamp_type: TimestampType = TimestampType.CREATE
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS
    kalda_validate_records: ReadRecords = ReadRecords.ALL
    """The broker's, for all its topics."""

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    def record_rules(self, conversions: Counter) -> RecordRules:
        """The rules by which a produced batch is validated. `conversions` counts records that are compressed anew."""
        level = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }.get(self.compression_type)
        return RecordRules(
            compression=compression_of_config(self.compression_type),
            compression_level=level,
            timestamp_type=self.message_timestamp_type,
            timestamp_before_max_ms=self.message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.message_timestamp_after_max_ms,
            compacted=self.compacts,
            max_message_bytes=self.max_message_bytes,
            max_record_bytes=self.max_decompressed_message_bytes,
            checks_config=self.kalda_validate_records,
            conversions=conversions,
            max_batch_decompressed_bytes=min(
                MAX_DECOMPRESSED_BYTES, max(_LEAST_DECOMPRESSED_BYTES, _MAX_COMPRESSION_RATIO * self.max_message_bytes)
            ),
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, str]) -> LogConfig:
        """From config keys with their values as text; absent keys keep their defaults and other keys are passed over.

        `internal.segment.bytes`, which may be below the minimum of `segment.bytes`, wins over that. Raises `ValueError`
        on a value that is not of its key's type.

        Equal settings are one object: a node has thousands of logs and few different settings.
        """
        return _from_items(tuple(config.items()))


@lru_cache(maxsize=1_000)
def _from_items(config: tuple[tuple[str, str], ...]) -> LogConfig:
    values: dict[str, Any] = {}
    for key, text in config:
        name = key.replace(".", "_")
        if name in _PARSERS:
            try:
                values[name] = _PARSERS[name](text)
            except ValueError as error:
                raise ValueError(f"{key}={text!r}: {error}") from error
    if internal := dict(config).get("internal.segment.bytes"):
        values["segment_bytes"] = int(internal)
    return LogConfig(**values)


def _boolean(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("expected true or false")


def _policies(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _timestamp_type(text: str) -> TimestampType:
    match text:
        case "CreateTime":
            return TimestampType.CREATE
        case "LogAppendTime":
            return TimestampType.LOG_APPEND
    raise ValueError("expected CreateTime or LogAppendTime")


_PARSER_OF_TYPE: dict[type, Callable[[str], object]] = {
    frozenset: _policies,
    str: str,
    int: int,
    float: float,
    bool: _boolean,
    TimestampType: _timestamp_type,
    ReadRecords: ReadRecords,
}
_PARSERS = {name: _PARSER_OF_TYPE[type(default)] for name, default in LogConfig._field_defaults.items()}


class LogManagerConfig(NamedTuple):
    """Broker settings, by Kafka's defaults; comments name the keys."""

    retention_check_interval_ms: int = 300_000  # log.retention.check.interval.ms
    flush_check_interval_ms: int = MAX_INT64  # log.flush.scheduler.interval.ms
    recovery_point_interval_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    log_start_interval_ms: int = 60_000  # log.flush.start.offset.checkpoint.interval.ms
    high_watermark_interval_ms: int = 5_000  # replica.high.watermark.checkpoint.interval.ms
    initial_delay_ms: int = 30_000  # log.initial.task.delay.ms
    producer_expiration_ms: int = DAY_MS  # producer.id.expiration.ms
    producer_check_interval_ms: int = 600_000  # producer.id.expiration.check.interval.ms
    corrupt_bytes: int = KEPT_BYTES  # kalda.corrupt.records.retention.bytes
    max_producer_ids: int = 2_000_000  # kalda.producer.ids.max
    verify_transactions: bool = True  # transaction.partition.verification.enable
