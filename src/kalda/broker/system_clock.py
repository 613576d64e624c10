# cython: language_level=3, embedsignature=False, binding=False
"""The machine's clocks. Each Produce and Fetch reads one or two of them; compiled, a reading takes half the time."""

from __future__ import annotations

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
    """The machine's clocks."""

    def wall_ms(self):
        """Milliseconds since the Unix epoch."""
        return int(time() * 1000.0)

    def mono_ms(self):
        """Milliseconds since some fixed moment; they never decrease."""
        return int(monotonic() * 1000.0)
