# cython: language_level=3, embedsignature=False, binding=False, annotation_typing=False
"""The sample of a stat, and the part of a quota that is used without measuring a rate.

A request of a limited client that is surely within its quota costs one call of a method of `FreeUse`. samples.pxd
declares the fields of both classes for Cython: compiled, they are doubles and integers of C, and the call takes a tenth
of a microsecond less. As plain Python the classes behave alike.

Not obvious:

- What is free of a quota is granted in one sample: whatever changes the quota, or the sample in use, grants anew or
  withdraws.
"""

from __future__ import annotations


class Sample:
    """What was recorded in one window."""

    __slots__ = ("events", "last_event_ms", "start_ms", "value")

    def __init__(self, now_ms: int, initial: float) -> None:
        self.restart(now_ms, initial)

    def restart(self, now_ms: int, initial: float) -> None:
        """Begin a new window at this moment."""
        self.start_ms = self.last_event_ms = now_ms
        self.events = 0
        self.value = initial


class FreeUse:
    """What a client may use of a quota before its rate has to be measured again.

    Invariant: before `until_ms`, and with at most `most` in `sample`, the rate is surely within the quota. A change of
    the quota, and of the sample that is in use, comes with another grant.
    """

    __slots__ = ("last_ms", "most", "requests", "sample", "until_ms")

    def __init__(self, now_ms: int) -> None:
        """Nothing is free."""
        self.sample: Sample | None = None
        """That of the current window; None before the first grant, and after `withdraw`."""
        self.most = 0.0
        self.until_ms = 0
        self.requests = 0
        """Recorded so far, freely or not."""
        self.last_ms = now_ms
        """The time of the last record."""

    def grant(self, sample: Sample, most: float, until_ms: int) -> None:
        """From now on so much is free, in this sample."""
        self.sample, self.most, self.until_ms = sample, most, until_ms

    def withdraw(self) -> None:
        """Nothing is free until the next grant."""
        self.sample, self.until_ms = None, 0

    def take(self, value: float, now_ms: int) -> bool:
        """Record `value` where it is free; otherwise nothing is recorded, and False is returned."""
        sample = self.sample
        if now_ms >= self.until_ms or sample is None:
            return False
        total = sample.value + value
        if total > self.most:
            return False
        sample.value = total
        sample.last_event_ms = now_ms
        self.last_ms = now_ms
        self.requests += 1
        return True
