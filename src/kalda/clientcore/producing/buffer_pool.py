"""The memory of a producer's batches: bounded, reused, and given to those who wait in the order of their coming.

    take(size)          a buffer, or None where there is too little memory, or others wait
    wait(size, wake)    stand in line; `wake` is called when `Waiter.buffer` has been set
    cancel(waiter)      leave the line; what had been set aside for it goes to those behind it
    give_back(buffer)   the memory of a buffer is free

Buffers of the sizes `kept_bytes` are kept for reuse; others are counted only. The caller makes sure that no two calls
run at once.

Invariant: free memory + memory set aside for waiters + memory of buffers in use == `total_bytes`, and none is negative.
So memory of a waiter that gives up is not lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Waiter:
    """One that waits for memory."""

    __slots__ = ("buffer", "reserved_bytes", "size_bytes", "wake")

    def __init__(self, size_bytes: int, wake: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.wake = wake
        self.reserved_bytes = 0
        """Memory set aside so far."""
        self.buffer: bytearray | None = None
        """Set when all of the memory is there."""


class BufferPool:
    """`total_bytes` of memory."""

    def __init__(self, total_bytes: int, *kept_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._free: dict[int, list[bytearray]] = {size: [] for size in kept_bytes}
        """Buffers for reuse, by their size."""
        self._kept_bytes = 0
        """The memory of the buffers in `_free`."""
        self._unused_bytes = total_bytes
        """Free memory that is not in `_free`."""
        self._waiters: deque[Waiter] = deque()

    @property
    def available_bytes(self) -> int:
        """Free memory."""
        return self._unused_bytes + self._kept_bytes

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def take(self, size_bytes: int) -> bytearray | None:
        """A buffer of that size, or None. Raises `ValueError` for more than there is in all."""
        if size_bytes > self.total_bytes:
            raise ValueError(f"{size_bytes} bytes are more than the {self.total_bytes} of the whole pool")
        kept = self._free.get(size_bytes)
        if kept and not self._waiters:
            self._kept_bytes -= size_bytes
            return kept.pop()
        if self._waiters or self.available_bytes < size_bytes:
            return None
        self._free_up(size_bytes)
        self._unused_bytes -= size_bytes
        return bytearray(size_bytes)

    def wait(self, size_bytes: int, wake: Callable[[], None]) -> Waiter:
        """Stand in line. `wake` may be called before this returns."""
        if size_bytes > self.total_bytes:
            raise ValueError(f"{size_bytes} bytes are more than the {self.total_bytes} of the whole pool")
        waiter = Waiter(size_bytes, wake)
        self._waiters.append(waiter)
        self._serve()
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Leave the line; a buffer that was set already is given back."""
        if waiter.buffer is not None:
            buffer, waiter.buffer = waiter.buffer, None
            self.give_back(buffer)
            return
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._unused_bytes += waiter.reserved_bytes
            waiter.reserved_bytes = 0
            self._serve()

    def give_back(self, buffer: bytearray) -> None:
        """The buffer's memory is free. Each buffer is given back once."""
        size_bytes = len(buffer)
        kept = self._free.get(size_bytes)
        if kept is None:
            self._unused_bytes += size_bytes
        else:
            kept.append(buffer)
            self._kept_bytes += size_bytes
        assert self._unused_bytes + self._kept_bytes <= self.total_bytes, "a buffer was given back twice"
        if self._waiters:
            self._serve()

    def _serve(self) -> None:
        """Give free memory to the first in line, until it has enough or none is left; then to the next."""
        while self._waiters:
            first = self._waiters[0]
            missing_bytes = first.size_bytes - first.reserved_bytes
            kept = None if first.reserved_bytes else self._take_kept(first.size_bytes)
            if kept is not None:
                first.buffer = kept
            else:
                self._free_up(missing_bytes)
                taken_bytes = min(missing_bytes, self._unused_bytes)
                self._unused_bytes -= taken_bytes
                first.reserved_bytes += taken_bytes
                if first.reserved_bytes < first.size_bytes:
                    return
                first.reserved_bytes = 0
                first.buffer = bytearray(first.size_bytes)
            self._waiters.popleft()
            first.wake()

    def _take_kept(self, size_bytes: int) -> bytearray | None:
        free = self._free.get(size_bytes)
        if not free:
            return None
        self._kept_bytes -= size_bytes
        return free.pop()

    def _free_up(self, size_bytes: int) -> None:
        """Give up kept buffers until that much memory is unused, or none is kept."""
        for kept_bytes, free in self._free.items():
            while free and self._unused_bytes < size_bytes:
                free.pop()
                self._kept_bytes -= kept_bytes
                self._unused_bytes += kept_bytes
