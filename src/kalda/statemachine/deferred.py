"""Answers parked until the log is stable up to the offset of their records.

Offsets are parked in rising order, since appends are: the queue is a FIFO, and completing is popping from its head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kalda.base.errors import ApiError

Settle = Callable[[ApiError | None], None]


class DeferredQueue:
    """Callbacks by offset. Each is called exactly once: with None when its offset is stable, or with the error that
    ended the wait."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: deque[tuple[int, Settle]] = deque()

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def highest_offset(self) -> int | None:
        """The offset that the last one waits for. A read that must see every write before it waits there too."""
        return self._parked[-1][0] if self._parked else None

    def park(self, offset: int, settle: Settle) -> None:
        assert not self._parked or self._parked[-1][0] <= offset, "offsets are parked in rising order"
        self._parked.append((offset, settle))

    def complete_up_to(self, offset: int) -> None:
        """Settle everything parked at `offset` or before. A callback may park again: behind, for a later offset."""
        while self._parked and self._parked[0][0] <= offset:
            self._parked.popleft()[1](None)

    def fail_all(self, error: ApiError) -> None:
        """Settle everything with `error`. What a callback parks meanwhile is not touched."""
        parked, self._parked = self._parked, deque()
        for _, settle in parked:
            settle(error)
