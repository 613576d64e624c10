"""Exponential backoff with jitter (KIP-580): the pause before attempt n+1 of something that has failed n times."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Random = Callable[[], float]
"""A number from 0 up to, but not including, 1."""
_JITTER = 0.2


class Backoff(NamedTuple):
    """`first_ms` doubles with each failure, up to 20 % of jitter is added or taken away, and no pause is longer than
    `longest_ms`. Where `first_ms` is not less than that, all pauses are `longest_ms`."""

    first_ms: int
    longest_ms: int
    random: Random

    def pause_ms(self, failures: int) -> int:
        """The pause after that many failures in a row; 0 after none."""
        if failures <= 0 or self.first_ms <= 0:
            return 0
        if self.first_ms >= self.longest_ms:
            return self.longest_ms
        plain_ms = min(self.longest_ms, self.first_ms * 2 ** min(failures - 1, 30))
        return min(self.longest_ms, int(plain_ms * (1 + _JITTER * (2 * self.random() - 1))))
