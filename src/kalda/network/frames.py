"""Frames out of a byte stream: a four-byte big-endian size, then that many bytes.

Sans-IO: the transport calls `room()`, reads into the memory it returns, and calls `filled(count)`; then `next_frame()`
returns one whole frame after another. A frame is writable memory that is never used again here, so the log may stamp
offsets into a produced batch in place. Bytes are copied only where a frame spans two reads, and then once: the memory
of a frame that arrives grows where it is.

Memory is allocated for what has arrived, never for the size that a peer announces: a peer that announces 100 MB and
sends nothing costs 4 KiB. Small frames are read into an `Arena` that all connections of a loop share. It is used from
front to back once; a frame that is kept therefore keeps its whole arena (256 KiB) in memory, so a request that waits
should keep what it decoded instead of the frame. Sharing is sound because `room()`, the read and `filled()` happen in
one callback of the loop.

Invariant: `[_start, _end)` of `_view` has arrived and was not returned by `next_frame` yet. The bytes from `_end` on
are only read into; they need not be zeros.

Not obvious:

- A frame that is kept keeps its whole arena of 256 KiB in memory: keep what was decoded instead. Bytes after the end
  of what arrived are not zeros.
- The memory of a frame grows in place in `room()`, when no view of it is in use; in `next_frame()` the transport
  still has one.
"""

from __future__ import annotations

from struct import Struct
from typing import cast

from kalda.base.allocation import grow, unfilled
from kalda.base.errors import InvalidRequest

ARENA_BYTES = 256 * 1024
MIN_ROOM_BYTES = 64 * 1024
FIRST_KEPT_BYTES = 4 * 1024
GROWTH = 16
"""Memory for a frame is at most so many times what has arrived of it. What has not arrived is not touched, so it is not
resident. Most frames of a megabyte get their memory at once: to make it longer costs more than to receive it."""
SIZE_BYTES = 4

_TLS_ALERT = b"\x15\x03"
"""A record of the type alert, and the major version of all of TLS. As a size it is beyond 350 MB."""
_read_size = Struct(">i").unpack_from
_NOTHING = memoryview(bytearray())


class BadFrameSize(InvalidRequest):
    """A size outside the bounds; `seen` has the first bytes received, for the log."""

    def __init__(self, size: int, lowest: int, highest: int, seen: bytes) -> None:
        self.size = size
        self.seen = seen
        self.is_tls_alert = seen.startswith(_TLS_ALERT)
        """Whether the peer has answered plain text as a listener with TLS does."""
        super().__init__(
            "it speaks TLS, which this side does not: set security.protocol to SSL, or to SASL_SSL for a login, or use "
            "the port of a listener without TLS"
            if self.is_tls_alert
            else f"frame size {size} is outside {lowest}..{highest}"
        )


class Arena:
    """Memory for reads, used once from front to back, then replaced by a new buffer."""

    __slots__ = ("free", "view")

    def __init__(self) -> None:
        self.view = memoryview(unfilled(ARENA_BYTES))
        self.free = 0
        """The index in `view` of the first unused byte."""

    def ensure_room(self) -> None:
        """Make at least `MIN_ROOM_BYTES` available from `free` on."""
        if ARENA_BYTES - self.free < MIN_ROOM_BYTES:
            self.view = memoryview(unfilled(ARENA_BYTES))
            self.free = 0


class FrameReader:
    """The receiving side of one connection."""

    __slots__ = (
        "_arena", "_end", "_filled_whole", "_room_bytes", "_start", "_view", "in_arena", "max_bytes", "min_bytes",
    )  # fmt: skip

    def __init__(self, arena: Arena, max_bytes: int, min_bytes: int) -> None:
        self._arena = arena
        self.max_bytes = max_bytes
        self.min_bytes = min_bytes
        self._view = _NOTHING
        self._start = 0
        self._end = 0
        self._room_bytes = 0
        """Size of the last `room()`."""
        self.in_arena = True
        """Whether no frame that is not complete is kept: `_view` is the arena's, not this connection's own memory."""
        self._filled_whole = False
        """The last read filled all of `room()`, so the kernel may hold more."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have arrived and were not returned yet: part of a frame, or frames that wait for a hold."""
        return self._end - self._start

    @property
    def announced_bytes(self) -> int:
        """The size, with its prefix, of the frame that is arriving; 0 before the size has arrived."""
        if self._end - self._start < SIZE_BYTES:
            return 0
        size: int = _read_size(self._view, self._start)[0]
        return SIZE_BYTES + size

    @property
    def is_complete(self) -> bool:
        """Whether `next_frame` returns a frame, or raises."""
        return 0 != self.announced_bytes <= self._end - self._start

    def room(self) -> memoryview:
        """Writable memory, never empty, for the next read."""
        if self._start == self._end:
            arena = self._arena
            arena.ensure_room()
            self._view = arena.view
            self._start = self._end = arena.free
            self.in_arena = True
        elif self.in_arena or self._end == len(self._view):
            self._make_room()
        room = self._view[self._end :]
        self._room_bytes = len(room)
        return room

    def filled(self, count: int) -> None:
        """`count` bytes were read into the last `room()`."""
        self._end += count
        self._filled_whole = count == self._room_bytes
        if self.in_arena:
            self._arena.free = self._end

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None where it has not arrived. Raises `BadFrameSize`."""
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
            self.in_arena = True
        return None

    def _keep(self, needed: int) -> None:
        """Keep a partial frame of `needed` bytes in all, in this connection's own memory with room for more of it."""
        have = self._end - self._start
        if not self.in_arena:
            capacity = len(self._view)
            if self._start == 0 or (self._end < capacity and self._start + needed <= capacity):
                return  # where it is full, `room` makes it longer: here a read may still use it
        capacity = min(needed, max(FIRST_KEPT_BYTES, GROWTH * have))
        if self._filled_whole:
            capacity = max(capacity, MIN_ROOM_BYTES)  # the kernel may hold more: read the following frames too
        self._move(capacity)

    def _make_room(self) -> None:
        """Get room behind what has arrived, as much as `GROWTH` allows."""
        have = self._end - self._start
        missing = self.announced_bytes - have
        capacity = have + max(min(missing, (GROWTH - 1) * have), MIN_ROOM_BYTES)  # the kernel may hold following frames
        if self._start or self.in_arena or have < MIN_ROOM_BYTES:
            self._move(capacity)
            return
        own = cast("bytearray", self._view.obj)
        self._view.release()
        try:
            grow(own, capacity)
        except BufferError:  # frames that were returned are in use
            self._view = memoryview(own)
            self._move(capacity)
        else:
            self._view = memoryview(own)

    def _move(self, capacity: int) -> None:
        own = memoryview(unfilled(capacity))
        have = self._end - self._start
        assert have < capacity
        own[:have] = self._view[self._start : self._end]
        self._view = own
        self._start = 0
        self._end = have
        self.in_arena = False
