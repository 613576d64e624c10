"""The rules for a produced batch: the part of a topic's configuration that applies, and how a refusal is reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.sensors import Counter
from kalda.records.batch import COMPRESSION_MASK, TimestampType
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression

UNBOUNDED_MS: Final = 2**63 - 1
"""The default of `message.timestamp.before.max.ms`: no bound."""

PRODUCER_COMPRESSION: Final = "producer"
"""The default of a topic's `compression.type`: keep the producer's codec."""

LEAST_INT64: Final = -(2**63)
LARGEST_INT64: Final = 2**63 - 1
_CODEC_OF_CONFIG: Final = {codec.config_name: codec for codec in Compression} | {"none": Compression.NONE}


class ReadRecords(Enum):
    """The values of `kalda.validate.records`."""

    ALL = "all"
    UNCOMPRESSED = "uncompressed"
    NONE = "none"


class RecordError(NamedTuple):
    """One record that was refused, by its index in the batch, for `ProduceResponse.record_errors`."""

    batch_index: int
    message: str


class Invalid(Enum):
    """What is counted of refused batches, by Kafka's names of the counters."""

    MAGIC = "InvalidMagicNumberRecordsPerSec"
    CRC = "InvalidMessageCrcRecordsPerSec"
    OFFSET_OR_SEQUENCE = "InvalidOffsetOrSequenceRecordsPerSec"
    NO_KEY = "NoKeyCompactedTopicRecordsPerSec"


class RecordsRefused(ApiError):
    """A batch that is not appended. `record_errors` lists the invalid records, where single records are (KIP-467);
    `invalid` says what is counted, and how often."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        record_errors: list[RecordError] | None = None,
        invalid: tuple[Invalid, int] | None = None,
    ) -> None:
        super().__init__(code, message)
        self.record_errors: list[RecordError] = record_errors or []
        self.invalid = invalid


@dataclass(frozen=True, slots=True)
class RecordRules:
    """The part of a topic's configuration that applies to produced batches. Made once for each configuration."""

    compression: Compression | None = None
    """The codec of the topic; None where batches keep the producer's."""
    compression_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE
    timestamp_before_max_ms: int = UNBOUNDED_MS
    timestamp_after_max_ms: int = 3_600_000
    compacted: bool = False
    max_message_bytes: int = 1_048_588
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    read: ReadRecords = ReadRecords.ALL
    """`kalda.validate.records`: the batches of clients whose records are checked even where the header suffices."""
    conversions: Counter = field(default_factory=Counter, compare=False)
    """Counts the records of batches that are compressed anew."""
    reads: tuple[bool, ...] = field(init=False)
    """By codec id: whether the records of a client's batch are checked, because of `read`, or because of a rule that
    needs each record: keys in a compacted topic, a bound on old timestamps."""

    def time_bounds(self, now_ms: int) -> tuple[int, int]:
        """The earliest and the latest timestamp that a record may have."""
        return max(LEAST_INT64, now_ms - self.timestamp_before_max_ms), min(
            LARGEST_INT64, now_ms + self.timestamp_after_max_ms
        )

    def __post_init__(self) -> None:
        demanded = self.compacted or self.timestamp_before_max_ms != UNBOUNDED_MS
        packed = demanded or self.read is ReadRecords.ALL
        plain = demanded or self.read is not ReadRecords.NONE
        object.__setattr__(self, "reads", (plain, *[packed] * COMPRESSION_MASK))


def compression_of_config(compression_type: str) -> Compression | None:
    """The codec of a topic's `compression.type`, None for `producer`."""
    return None if compression_type == PRODUCER_COMPRESSION else _CODEC_OF_CONFIG[compression_type]


def too_large(size_bytes: int, allowed_bytes: int) -> RecordsRefused:
    """The refusal of a batch of more than `max.message.bytes`."""
    return RecordsRefused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the record batch has {size_bytes} bytes, max.message.bytes allows {allowed_bytes}",
    )
