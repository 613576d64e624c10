"""How long things took, in buckets: what quantiles of recent durations are computed from.

A bucket is a quarter of a power of two wide, so a quantile is at most a quarter too large. Counting is one addition to
a list; `recent` compares with the counts of one to two windows ago. A store.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import Final

from kalda.base.sensors import SensorName, Tags

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 1.0)
BUCKETS: Final = 160
"""Four for each bit of a duration in microseconds, up to 2^40."""
_WINDOW_MS: Final = 60_000


class Durations:
    """How many durations fell into each bucket, since the start."""

    __slots__ = ("_now_counts", "_then_counts", "_then_ms", "counts")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        """Add to these in place, at `bucket_of`."""
        self._then_counts = self._now_counts = [0] * BUCKETS
        """What `counts` was when two windows began: one to two windows ago, and at most one."""
        self._then_ms = 0

    def add_us(self, duration_us: int) -> None:
        """Count one duration."""
        self.counts[bucket_of(duration_us)] += 1

    def recent(self, now_ms: int) -> list[int]:
        """The counts of the last one or two windows."""
        if now_ms - self._then_ms >= _WINDOW_MS:
            self._then_counts, self._now_counts, self._then_ms = self._now_counts, list(self.counts), now_ms
        return [count - then for count, then in zip(self.counts, self._then_counts, strict=True)]


def quantiles_ms(counts: list[int]) -> list[float]:
    """Milliseconds by `QUANTILES`; empty where nothing was counted."""
    total = sum(counts)
    if not total:
        return []
    found = []
    seen = bucket = 0
    for quantile in QUANTILES:
        while bucket < BUCKETS - 1 and seen + counts[bucket] < quantile * total:
            seen += counts[bucket]
            bucket += 1
        found.append(upper_end_us(bucket) / 1000)
    return found


def bucket_of(duration_us: int) -> int:
    """The bucket that a duration falls into."""
    if duration_us < 4:
        return max(0, duration_us)
    bits = duration_us.bit_length()
    return min((bits - 2 << 2) | (duration_us >> bits - 3 & 3), BUCKETS - 1)


def upper_end_us(bucket: int) -> int:
    """The largest duration in a bucket."""
    if bucket < 4:
        return bucket
    shift = (bucket >> 2) - 1
    return ((4 | bucket & 3) + 1 << shift) - 1


class Quantile:
    """One quantile of recent durations, a measurable for `Sensors`: milliseconds, NaN where there are none."""

    __slots__ = ("_at", "_durations")

    def __init__(self, durations: Durations, at: int) -> None:
        """`at` is the index in `QUANTILES`."""
        self._durations = durations
        self._at = at

    def measure(self, now_ms: int) -> float:
        """The quantile now."""
        found = quantiles_ms(self._durations.recent(now_ms))
        return found[self._at] if found else nan


def quantile_sensors(group: str, name: str, tags: Tags, durations: Durations) -> Iterator[tuple[SensorName, Quantile]]:
    """A histogram of Kafka's as sensors: one for each quantile, by the tag `quantile`."""
    for at, quantile in enumerate(QUANTILES):
        yield SensorName(group, name, (*tags, ("quantile", str(quantile)))), Quantile(durations, at)
