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
from struct import Struct
from typing import TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps, run_to_end
from kalda.base.ids import TopicPartition, Uuid

K = TypeVar("K", str, TopicPartition)
_MASK = 0xFFFFFFFF
_UNIT = Struct(">H")


def java_order(keys: Iterable[K], sized_for: int | None = None, capacity: int = 16) -> list[K]:
    """Distinct keys, given in the order of insertion, in the order of iteration. `sized_for`: for how many keys the
    table is large enough, where that is not their number. `capacity`: with how many buckets it was made, a power of
    two."""
    return run_to_end(java_order_steps(keys, sized_for, capacity))


def java_order_steps(keys: Iterable[K], sized_for: int | None = None, capacity: int = 16) -> Steps[list[K]]:
    """`java_order` of many keys."""
    inserted = list(keys)
    while (len(inserted) if sized_for is None else sized_for) > capacity * 3 // 4:
        capacity *= 2
    buckets: list[int] = []
    for key in inserted:
        buckets.append(_spread(_hash(key)) & (capacity - 1))
        if len(buckets) % ITEMS_A_STEP == 0:
            yield
    return [inserted[index] for index in sorted(range(len(inserted)), key=buckets.__getitem__)]


def _hash(key: str | TopicPartition) -> int:
    if isinstance(key, str):
        return string_hash(key)
    return (31 * (31 + key.partition) + string_hash(key.topic)) & _MASK


def string_hash(text: str) -> int:
    """Java's `String.hashCode`, unsigned: over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in _UNIT.iter_unpack(units):
        value = (31 * value + unit) & _MASK
    return value


def uuid_hash(uuid: Uuid) -> int:
    """Kafka's `Uuid.hashCode`, unsigned."""
    mixed = int.from_bytes(uuid[:8], "big") ^ int.from_bytes(uuid[8:], "big")
    return (mixed >> 32 ^ mixed) & _MASK


def _spread(value: int) -> int:
    return value ^ value >> 16
