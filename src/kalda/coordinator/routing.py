"""Which partition of an internal topic a key belongs to; the partition's leader coordinates the key."""

from __future__ import annotations

from functools import lru_cache

_CACHED_LENGTH = 256
"""Hashes of longer keys are not cached: such keys are legal and rare, and thousands of them would fill memory."""


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, over UTF-16 code units: a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_cached_hash = lru_cache(maxsize=4_096)(java_hash)


def coordinator_partition(key: str, partitions: int) -> int:
    """The partition of a key among `partitions`: of a group id, a transactional id, or a share partition's key.

    It is the remainder of the hash's absolute value, not of its lower 31 bits; Java's least integer, which has no
    absolute value, counts as 0.
    """
    value = _cached_hash(key) if len(key) <= _CACHED_LENGTH else java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partitions
