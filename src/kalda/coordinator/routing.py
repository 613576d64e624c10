"""Which partition of `__consumer_offsets` a group lives in, and so which broker coordinates it."""

from __future__ import annotations

from functools import lru_cache

_CACHED_LENGTH = 256
"""Longer ids are legal and rare; keeping thousands of them would let a client spend our memory."""


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, over UTF-16 code units: a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_cached_hash = lru_cache(maxsize=4_096)(java_hash)


def coordinator_partition(group_id: str, partitions: int) -> int:
    """The partition of a group (or of a transactional id, or a share partition's key) among `partitions`.

    It goes by the hash's absolute value, not by its lower 31 bits; Java's least integer, which has none, counts as 0.
    """
    value = _cached_hash(group_id) if len(group_id) <= _CACHED_LENGTH else java_hash(group_id)
    return 0 if value == -(1 << 31) else abs(value) % partitions
