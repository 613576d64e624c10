"""The summary of a log's dirty part: the last offset of each key, in 24 bytes a key.

A hash table over one bytearray: 16 bytes of the key's MD5, 8 of the offset. Keys are compared by their hash alone: two
keys with the same hash would lose the older one's last value, which at 128 bits does not happen by chance. Probing
takes successive windows of the hash, then neighbours; the table is never filled beyond nine tenths.
"""

from __future__ import annotations

from hashlib import md5
from struct import Struct

ENTRY_BYTES = 24
LOAD_FACTOR = 0.9
_HASH_BYTES = 16
_EMPTY = bytes(_HASH_BYTES)
_OFFSET = Struct(">q")
_WINDOWS = Struct(">IIII")


class OffsetMap:
    """Keys to their last offsets."""

    __slots__ = ("_memory", "_slots", "latest_offset", "max_size", "size")

    def __init__(self, memory_bytes: int) -> None:
        self._slots = max(2, memory_bytes // ENTRY_BYTES)
        self._memory = bytearray(self._slots * ENTRY_BYTES)
        """A free entry is zeros where the hash would be."""
        self.max_size = int(self._slots * LOAD_FACTOR)
        self.size = 0
        """The number of keys."""
        self.latest_offset = -1
        """The last offset whose record has been put, or needed not be; -1 for none. Records above it are not
        covered."""

    @property
    def is_full(self) -> bool:
        return self.size >= self.max_size

    def put(self, key: bytes, offset: int) -> None:
        """Offsets are put in rising order. The map must not be full."""
        assert not self.is_full, "the offset map is full"
        digest = md5(key, usedforsecurity=False).digest()
        at, found = self._find(digest)
        if not found:
            self._memory[at : at + _HASH_BYTES] = digest
            self.size += 1
        _OFFSET.pack_into(self._memory, at + _HASH_BYTES, offset)

    def get(self, key: bytes) -> int:
        """The key's last offset; -1 where it is not in the map."""
        at, found = self._find(md5(key, usedforsecurity=False).digest())
        if not found:
            return -1
        offset: int = _OFFSET.unpack_from(self._memory, at + _HASH_BYTES)[0]
        return offset

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """(position of the key's entry, True), or (of the free entry where it would go, False)."""
        memory, slots = self._memory, self._slots
        for window in _WINDOWS.unpack(digest):
            at = window % slots * ENTRY_BYTES
            held = memory[at : at + _HASH_BYTES]
            if held == digest:
                return at, True
            if held == _EMPTY:
                return at, False
        slot = window % slots
        for step in range(1, slots + 1):
            at = (slot + step) % slots * ENTRY_BYTES
            held = memory[at : at + _HASH_BYTES]
            if held == digest:
                return at, True
            if held == _EMPTY:
                return at, False
        raise AssertionError("the offset map has no free entry")
