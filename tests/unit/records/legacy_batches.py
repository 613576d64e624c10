"""Makes batches of the message formats 0 and 1, as clients and brokers before Kafka 0.11 did."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import pack

from kalda.records.builder import _xxhash32
from kalda.records.compression import Compression, compress

LegacyRecord = tuple[int, int, bytes | None, bytes | None]
"""(offset, timestamp, key, value)"""


def _sized(data: bytes | None) -> bytes:
    return pack(">i", -1) if data is None else pack(">i", len(data)) + data


def message(
    magic: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None, attributes: int = 0
) -> bytes:
    body = pack(">bb", magic, attributes) + (pack(">q", timestamp) if magic else b"") + _sized(key) + _sized(value)
    return pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def legacy_batch(
    magic: int,
    records: Sequence[LegacyRecord],
    compression: Compression = Compression.NONE,
    append_time_ms: int | None = None,
) -> bytes:
    """One message for each record, or one wrapper around them all."""
    stamped = 0 if append_time_ms is None else 8
    if compression is Compression.NONE:
        return b"".join(message(magic, o, append_time_ms or t, key, value, stamped) for o, t, key, value in records)
    first, last = records[0][0], records[-1][0]
    inner = b"".join(message(magic, o - first if magic else o, t, key, value) for o, t, key, value in records)
    packed = bytes(compress(compression, inner))
    if compression is Compression.LZ4 and not magic:
        packed = packed[:6] + bytes((_xxhash32(packed[:6]) >> 8 & 0xFF,)) + packed[7:]  # over the frame's magic, too
    largest = max(t for _, t, _, _ in records) if append_time_ms is None else append_time_ms
    return message(magic, last, largest, None, packed, compression | stamped)
