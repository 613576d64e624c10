"""The order in which Java's HashMap and HashSet return strings and partitions.

Kafka's sticky assignors break ties by that order, and a group may have leaders in both languages: with the same order
both compute the same assignment, and a change of leader moves no partition. The ids of client metrics subscriptions
are checksums over such an order, so that brokers of both kinds give a client the same id.

A table has a power of two of buckets, at least 16, and is doubled when it is more than three quarters full. Iteration
is by bucket, and within one by age. (Java orders a bucket of eight and more differently; such buckets do not occur in
practice.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kalda.base.ids import TopicPartition, Uuid

K = TypeVar("K", str, TopicPartition)
_MASK = 0xFFFFFFFF


def java_order(keys: Iterable[K], largest_size: int = 0, capacity: int = 16) -> list[K]:
    """Distinct keys, given in the order of insertion, in the order of iteration. `largest_size`: how many keys the
    table has had at most, where it once had more. `capacity`: with how many buckets it was made, a power of two."""
    inserted = list(keys)
    while max(len(inserted), largest_size) > capacity * 3 // 4:
        capacity *= 2
    return sorted(inserted, key=lambda key: _spread(_hash(key)) & (capacity - 1))


def _hash(key: str | TopicPartition) -> int:
    if isinstance(key, str):
        return string_hash(key)
    return (31 * (31 + key.partition) + string_hash(key.topic)) & _MASK


def string_hash(text: str) -> int:
    """Java's `String.hashCode`, unsigned: over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & _MASK
    return value


def uuid_hash(uuid: Uuid) -> int:
    """Kafka's `Uuid.hashCode`, unsigned."""
    mixed = int.from_bytes(uuid[:8], "big") ^ int.from_bytes(uuid[8:], "big")
    return (mixed >> 32 ^ mixed) & _MASK


def _spread(value: int) -> int:
    return value ^ value >> 16
