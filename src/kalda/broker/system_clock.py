# cython: language_level=3, embedsignature=False, binding=False
"""The machine's clocks. Each Produce and Fetch reads one or two of them; compiled, a reading takes half the time."""

from __future__ import annotations

from kalda.base.scheduling import UNLIMITED_MS

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.time import monotonic, time
else:
    from time import monotonic, time


@cython.final
@cython.cclass
class SystemClock:
    """The machine's clocks, and the monotonic time of a loop that follows one of them."""

    _limit_ms: cython.longlong
    _lost_ms: cython.longlong

    def __init__(self):
        self._limit_ms = UNLIMITED_MS
        self._lost_ms = 0

    def wall_ms(self):
        """Milliseconds since the Unix epoch."""
        return int(time() * 1000.0)

    @cython.locals(now_ms=cython.longlong)
    def mono_ms(self):
        """Milliseconds since some fixed moment; they never decrease. While the loop stands still, they do not increase
        (`kalda.base.scheduling`)."""
        now_ms = int(monotonic() * 1000.0)
        return (now_ms if now_ms < self._limit_ms else self._limit_ms) - self._lost_ms

    def machine_ms(self):
        """Milliseconds since some fixed moment, whatever the loop does."""
        return int(monotonic() * 1000.0)

    def follow(self, limit_ms, lost_ms):
        """From now on `mono_ms` is the machine's time, but at most `limit_ms`, less `lost_ms`."""
        self._limit_ms = limit_ms
        self._lost_ms = lost_ms
