"""The partition of a record with a key: murmur2 of the key, as in Kafka's Java client, so that all clients agree."""

from __future__ import annotations

from struct import Struct

from kalda.records.batch import Buffer

_word = Struct("<I")
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """The 32-bit hash, unsigned. Kafka prints the same bits as a signed integer."""
    size = len(data)
    h = _SEED ^ size
    tail = size & ~3
    for (k,) in _word.iter_unpack(memoryview(data)[:tail]):
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    rest = size - tail
    if rest:
        h ^= int.from_bytes(data[tail:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ h >> 15


def partition_of(key: Buffer, partition_count: int) -> int:
    """The partition of a record with this key. The hash's sign bit is cleared before the remainder, as in Java."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
