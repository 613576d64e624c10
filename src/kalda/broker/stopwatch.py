# cython: language_level=3, embedsignature=False, binding=False, annotation_typing=False
"""For how long requests hold the event loop. stopwatch.pxd declares the fields and methods for Cython.

A request that does not wait costs two calls of a `RequestTimer`, which read the machine's clock in C. The timer belongs
to a route: the loop runs one request at a time. A request that waits gets a `Stopwatch`.

Not obvious:

- The time of a request is on its route's timer until it is answered or waits: no other request of the route may be
  decoded before that on the same stack.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kalda.base.samples import FreeUse

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.time import perf_counter_ns
else:
    from time import perf_counter_ns

Decode = Callable[[memoryview, int, int, int], tuple[Any, int]]


class RequestTimer:
    """The time of the last request of a route, from its decoding on."""

    __slots__ = ("_began_ns", "_decode", "_is_machine", "_now_ms", "_now_ns", "_percent_of_ns", "percent")

    def __init__(
        self, decode: Decode, now_ns: Callable[[], int], now_ms: Callable[[], int], percent_of_ns: float
    ) -> None:
        """`decode` decodes the requests. `now_ms` is the clock of the quotas, in whose unit a nanosecond of `now_ns` is
        `percent_of_ns`."""
        self._decode = decode
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._is_machine = now_ns is time.perf_counter_ns
        """Whether `now_ns` is the machine's, which is read in C."""
        self._percent_of_ns = percent_of_ns
        self._began_ns = 0
        """When the last request began to be decoded."""
        self.percent = 0.0
        """What the last `take` has measured."""

    def decode(self, frame: memoryview, at: int, max_elements: int, depth: int) -> tuple[Any, int]:
        """Decode a request, whose time begins."""
        self._began_ns = self._now()
        return self._decode(frame, at, max_elements, depth)

    def take(self, quota: FreeUse) -> bool:
        """Record the time of the request where it is free, as `FreeUse.take` does."""
        now_ns = self._now()
        self.percent = (now_ns - self._began_ns) * self._percent_of_ns
        return quota.take_free(self.percent, self._now_ms())

    def stopwatch(self) -> Stopwatch:
        """A stopwatch that has run since the request began to be decoded."""
        return Stopwatch(self, self._began_ns)

    def _now(self) -> int:
        return perf_counter_ns() if self._is_machine else self._now_ns()


class Stopwatch:
    """For how long one request has held the event loop. It runs from the moment at which the request began."""

    __slots__ = ("_clock", "_since_ns", "_sum_ns")

    def __init__(self, clock: RequestTimer, began_ns: int) -> None:
        self._clock = clock
        self._sum_ns = 0
        self._since_ns = began_ns
        """When it was started; negative while it stands."""

    def start(self) -> None:
        """Run; no effect where it does."""
        if self._since_ns < 0:
            self._since_ns = self._clock._now()

    def stop(self) -> None:
        """Stand; no effect where it does."""
        if self._since_ns >= 0:
            self._sum_ns += self._clock._now() - self._since_ns
            self._since_ns = -1

    def read(self) -> int:
        """Nanoseconds so far."""
        if self._since_ns < 0:
            return self._sum_ns
        return self._sum_ns + self._clock._now() - self._since_ns
