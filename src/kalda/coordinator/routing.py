"""Which partition of `__consumer_offsets` a group lives in, and so which broker coordinates it."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, over UTF-16 code units, as an unsigned 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value


def coordinator_partition(group_id: str, partitions: int) -> int:
    """The partition of a group (or of a transactional id, or a share partition's key) among `partitions`."""
    return (java_hash(group_id) & 0x7FFFFFFF) % partitions
