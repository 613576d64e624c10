"""Answers parked until the log is stable up to the offset of their records.

Answers are parked in the order of their offsets, which rise with each append. So the queue is a FIFO, and answers are
completed from its head.

What a callback raises is logged and goes no further: the records of an answer are committed, or lost, whether or not
its client can be answered, and the other answers must not wait for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from kalda.base.errors import ApiError

Settle = Callable[[ApiError | None], None]

log = logging.getLogger(__name__)


class DeferredQueue:
    """Callbacks by offset. Each is called exactly once: with None when its offset is stable, or with the error that
    ended the wait."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: deque[tuple[int, Settle]] = deque()
        """By rising offset."""

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def highest_offset(self) -> int | None:
        """The offset that the last one waits for; None where none waits. A read that must see every write before it
        waits for this offset too."""
        return self._parked[-1][0] if self._parked else None

    def park(self, offset: int, settle: Settle) -> None:
        """Call `settle` when the log is stable up to `offset`, which is not below the last one parked."""
        assert not self._parked or self._parked[-1][0] <= offset, "offsets are parked in rising order"
        self._parked.append((offset, settle))

    def complete_up_to(self, offset: int) -> None:
        """Settle everything parked at `offset` or before. A callback may park again, for a later offset."""
        while self._parked and self._parked[0][0] <= offset:
            _call(self._parked.popleft()[1], None)

    def fail_all(self, error: ApiError) -> None:
        """Settle everything with `error`, but not what the callbacks park meanwhile."""
        parked, self._parked = self._parked, deque()
        for _, settle in parked:
            _call(settle, error)


def _call(settle: Settle, error: ApiError | None) -> None:
    try:
        settle(error)
    except Exception:
        log.exception("An answer that waited for its records to be committed could not be given.")
