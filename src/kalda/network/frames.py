"""Frames out of a byte stream: a four-byte big-endian size, then that many bytes.

Sans-IO: the transport asks for `room()`, reads straight into it and says how much came with `filled(count)`; then
`next_frame()` hands out one whole frame after another. A frame is writable memory that nobody else will touch again,
so the log may stamp offsets into a produced batch in place. Bytes are copied only where a frame straddles two reads.

Memory follows what has really arrived, never what a size announces: a peer that announces 100 MB and sends nothing
costs 4 KiB. Reads of small frames land in an `Arena` shared by all connections of a loop, which only ever moves
forward; a frame that is kept therefore pins its arena (256 KiB), and a holder that parks should keep what it decoded
instead. Sharing is sound because a loop asks for room, reads and reports within one step.

Invariant: `[_start, _end)` of `_view` is what has arrived and was not handed out yet. What lies behind `_end` is never
handed out, but to be read into: it need not be zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from struct import Struct

from kalda.base.errors import InvalidRequest

ARENA_BYTES = 256 * 1024
MIN_ROOM_BYTES = 64 * 1024
FIRST_KEPT_BYTES = 4 * 1024
GROWTH = 4
SIZE_BYTES = 4

_UNFILLED_BYTES = 64 * 1024
"""From this size on, zeros cost more than the call that makes memory without them."""

_read_size = Struct(">i").unpack_from
_NOTHING = memoryview(bytearray())


class BadFrameSize(InvalidRequest):
    """A size outside the bounds; `seen` holds the first bytes of what came, for the log."""

    def __init__(self, size: int, lowest: int, highest: int, seen: bytes) -> None:
        super().__init__(f"frame size {size} is outside {lowest}..{highest}")
        self.size = size
        self.seen = seen


@cache
def _unfilled() -> Callable[[int], bytearray]:
    """What makes a bytearray whose content is whatever was there."""
    from ctypes import c_char_p, c_ssize_t, py_object, pythonapi

    make = pythonapi.PyByteArray_FromStringAndSize
    make.restype, make.argtypes = py_object, (c_char_p, c_ssize_t)
    return partial(make, None)


class Arena:
    """Memory for reads, given out once from front to back, then replaced by a fresh piece."""

    __slots__ = ("free", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(ARENA_BYTES))
        self.free = 0

    def ensure_room(self) -> None:
        """Leave at least `MIN_ROOM_BYTES` behind `free`."""
        if ARENA_BYTES - self.free < MIN_ROOM_BYTES:
            self.view = memoryview(bytearray(ARENA_BYTES))
            self.free = 0


class FrameReader:
    """The receiving side of one connection."""

    __slots__ = ("_arena", "_asked", "_borrowed", "_end", "_filled_whole", "_start", "_view", "max_bytes", "min_bytes")

    def __init__(self, arena: Arena, max_bytes: int, min_bytes: int) -> None:
        self._arena = arena
        self.max_bytes = max_bytes
        self.min_bytes = min_bytes
        self._view = _NOTHING
        self._start = 0
        self._end = 0
        self._asked = 0
        self._borrowed = True
        self._filled_whole = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have arrived and were not handed out: part of a frame, or frames held back."""
        return self._end - self._start

    @property
    def announced_bytes(self) -> int:
        """The size, with its prefix, of the frame that is arriving; 0 while it is not known."""
        if self._end - self._start < SIZE_BYTES:
            return 0
        size: int = _read_size(self._view, self._start)[0]
        return SIZE_BYTES + size

    @property
    def capacity_bytes(self) -> int:
        """Memory of this connection's own, beside the shared arena."""
        return 0 if self._borrowed else len(self._view)

    def room(self) -> memoryview:
        """Writable memory, never empty, for the next read."""
        if self._start == self._end:
            arena = self._arena
            arena.ensure_room()
            self._view = arena.view
            self._start = self._end = arena.free
            self._borrowed = True
        elif self._borrowed or self._end == len(self._view):
            self._move(self._end - self._start + MIN_ROOM_BYTES)
        room = self._view[self._end :]
        self._asked = len(room)
        return room

    def filled(self, count: int) -> None:
        """`count` bytes were read into the last `room()`."""
        self._end += count
        self._filled_whole = count == self._asked
        if self._borrowed:
            self._arena.free = self._end

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None until more has come. Raises `BadFrameSize`."""
        start = self._start
        end = self._end
        if end - start >= SIZE_BYTES:
            view = self._view
            size: int = _read_size(view, start)[0]
            if not self.min_bytes <= size <= self.max_bytes:
                raise BadFrameSize(size, self.min_bytes, self.max_bytes, bytes(view[start : min(end, start + 16)]))
            start += SIZE_BYTES
            stop = start + size
            if stop <= end:
                self._start = stop
                return view[start:stop]
            self._keep(SIZE_BYTES + size)
        elif end > start:
            self._keep(SIZE_BYTES)
        else:
            self._view = _NOTHING
            self._start = self._end = 0
            self._borrowed = True
        return None

    def _keep(self, needed: int) -> None:
        """Make room behind a partial frame of `needed` bytes in all, in memory of this connection's own."""
        have = self._end - self._start
        if not self._borrowed:
            capacity = len(self._view)
            if self._end < capacity and (self._start == 0 or self._start + needed <= capacity):
                return
        capacity = min(needed, max(FIRST_KEPT_BYTES, GROWTH * have))
        if self._filled_whole:
            capacity = max(capacity, MIN_ROOM_BYTES)  # the kernel holds more: read what follows along with it
        self._move(capacity)

    def _move(self, capacity: int) -> None:
        own = memoryview(bytearray(capacity) if capacity < _UNFILLED_BYTES else _unfilled()(capacity))
        have = self._end - self._start
        assert have < capacity
        own[:have] = self._view[self._start : self._end]
        self._view = own
        self._start = 0
        self._end = have
        self._borrowed = False
