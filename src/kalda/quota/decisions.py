"""Throttle times, and what is kept of the last ones.

The rate O of a client exceeds its quota T over the window W. A pause of X brings the rate down to the quota where
O * W / (W + X) = T, so X = (O - T) / T * W.
"""

from __future__ import annotations

from math import copysign, floor, isnan
from typing import Final, NamedTuple

from kalda.base.stats import Rate

MAX_INT: Final = 2**31 - 1


class Decision(NamedTuple):
    """One request that was throttled."""

    now_ms: int
    recorded: float
    """Bytes, or percent of the time of the event loop, or partitions."""
    observed: float
    """O: the rate with it; of a token bucket, the tokens left."""
    bound: float
    """T: the quota."""
    window_ms: int
    """W: the time over which the rate is measured; 0 for a token bucket."""
    throttle_ms: int
    """X: the pause."""


def rounded(milliseconds: float) -> int:
    """As Java rounds: half a millisecond up, NaN to 0. At most the largest int, which is what a response can carry."""
    if isnan(milliseconds):
        return 0
    return floor(milliseconds + 0.5) if -MAX_INT < milliseconds < MAX_INT else int(copysign(MAX_INT, milliseconds))


def throttle_ms(rate: Rate, bound: float, now_ms: int) -> tuple[float, int, int]:
    """O, W and X of a rate that exceeds its bound."""
    observed = rate.measure(now_ms)
    window_ms = rate.window_size_ms(now_ms)
    return observed, window_ms, rounded((observed - bound) / bound * window_ms)
