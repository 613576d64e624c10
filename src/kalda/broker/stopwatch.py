# cython: language_level=3, embedsignature=False, binding=False, annotation_typing=False
"""For how long one request has held the event loop. stopwatch.pxd declares the fields for Cython."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """For how long one request has held the event loop. It runs from the moment at which it is made."""

    __slots__ = ("_now_ns", "_since_ns", "_sum_ns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._sum_ns = 0
        self._since_ns = now_ns()
        """When it was started; negative while it stands."""

    def start(self) -> None:
        """Run; no effect where it does."""
        if self._since_ns < 0:
            self._since_ns = self._now_ns()

    def stop(self) -> None:
        """Stand; no effect where it does."""
        if self._since_ns >= 0:
            self._sum_ns += self._now_ns() - self._since_ns
            self._since_ns = -1

    def read(self) -> int:
        """Nanoseconds so far."""
        if self._since_ns < 0:
            return self._sum_ns
        return self._sum_ns + self._now_ns() - self._since_ns
