"""The partition of a record with a key: murmur2 of the key, as in Kafka's Java client, so that all clients agree."""

from __future__ import annotations

from kalda.records import appending
from kalda.records.batch import Buffer


def murmur2(data: Buffer) -> int:
    """The 32-bit hash, unsigned. Kafka prints the same bits as a signed integer."""
    return appending.murmur2(bytes(data))


def partition_of(key: Buffer, partition_count: int) -> int:
    """The partition of a record with this key. The hash's sign bit is cleared before the remainder, as in Java."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
