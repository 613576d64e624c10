"""Stats: what is measured of recorded values, equal to Kafka's to the last bit for the same values at the same times.

A sampled stat keeps what was recorded in samples, each for `window_ms` from its first value on. A sample counts until
no part of it lies within the last `samples` windows, so there is one sample more than that. A `Rate` divides by the
time since the oldest sample began, and takes that time to be `samples - 1` whole windows at least: a first value counts
as if nothing had come before it, not as if it had all come within a millisecond.

A stat's `config` may be replaced at any time: what was recorded stays, so a quota that changes keeps the usage. Time is
an argument, and must not decrease from call to call. A negative value undoes a recorded one. Stores.

Not obvious:

- The moments at which a sampled stat drops old samples change its denominator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf, nan
from typing import Final, NamedTuple, Protocol

from kalda.base.samples import FreeUse, Sample

MAX_DOUBLE: Final = 1.7976931348623157e308


class Quota(NamedTuple):
    """A bound of a measured value."""

    bound: float
    upper: bool = True
    """Whether the value must not exceed the bound; otherwise it must not fall below it."""

    def is_acceptable(self, value: float) -> bool:
        """Whether the bound holds."""
        return value <= self.bound if self.upper else value >= self.bound


class MetricConfig(NamedTuple):
    """How far a stat reaches back: `samples` windows of `window_ms` each, the last of which is not over yet."""

    window_ms: int = 30_000
    """`metrics.sample.window.ms`, `quota.window.size.seconds`."""
    samples: int = 2
    """`metrics.num.samples`, `quota.window.num`."""
    quota: Quota | None = None


class Stat(Protocol):
    """A stat that values are recorded in."""

    config: MetricConfig

    def record(self, value: float, now_ms: int) -> None:
        """Count `value` at this moment."""
        ...

    def measure(self, now_ms: int) -> float:
        """The measured value now."""
        ...


class QuotaViolation(NamedTuple):
    """A measured value that its quota does not allow."""

    value: float
    bound: float
    metric: Stat


def violation(metric: Stat, now_ms: int) -> QuotaViolation | None:
    """How `metric` violates the quota of its config; None where it does not, or has none. A token bucket violates its
    quota while it holds less than nothing, whatever the bound."""
    quota = metric.config.quota
    if quota is None:
        return None
    value = metric.measure(now_ms)
    if not value < 0 if isinstance(metric, TokenBucket) else quota.is_acceptable(value):
        return None
    return QuotaViolation(value, quota.bound, metric)


_NONE: Final[list[Sample]] = []
"""The samples of all stats without any; never added to."""


class SampledStat(ABC):
    """A stat of the last windows. A subclass says what a sample keeps, and how samples combine."""

    __slots__ = ("_config", "_current", "_drop_ms", "_samples")
    INITIAL = 0.0
    """The value of a sample in which nothing is recorded."""

    def __init__(self, config: MetricConfig | None = None) -> None:
        self._samples: list[Sample] = _NONE
        """In the order in which they were first used; at most `samples + 1`, then the next one is used again. A list
        of its own from the first value on."""
        self._current = 0
        """The index in `_samples` of the sample in which values are recorded."""
        self._drop_ms = 0
        """Before this time no sample is too old to count."""
        self.config = MetricConfig() if config is None else config

    @property
    def config(self) -> MetricConfig:
        """May be replaced."""
        return self._config

    @config.setter
    def config(self, config: MetricConfig) -> None:
        assert config.window_ms > 0, "a window has a length"
        assert config.samples > 0, "a sampled stat has a sample"
        self._config = config
        self._forget()

    def _forget(self) -> None:
        """What follows from config and samples has to be found anew."""
        self._drop_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        """Count `value` at this moment."""
        sample = self._sample(now_ms)
        self._update(sample, value)
        sample.events += 1
        sample.last_event_ms = now_ms

    def record_all(self, values: Sequence[float], now_ms: int) -> None:
        """Count each of the values, of which there is one at least, at this moment."""
        for value in values:
            self.record(value, now_ms)

    def measure(self, now_ms: int) -> float:
        """The samples that count, combined."""
        if now_ms >= self._drop_ms:
            self._drop_old(now_ms)
        return self._combine()

    def release_memory(self, now_ms: int) -> bool:
        """Forget the samples where none counts any more: what is recorded next is measured as if they were kept. False
        where one counts."""
        age_ms = self._config.samples * self._config.window_ms
        for sample in self._samples:  # one that a reader has emptied has no values, however young it is
            if now_ms - sample.last_event_ms < age_ms and (sample.events or sample.value != self.INITIAL):
                return False
        self._samples, self._current = _NONE, 0
        self._forget()
        return True

    @abstractmethod
    def _update(self, sample: Sample, value: float) -> None:
        """A value counts in the sample of its window."""

    @abstractmethod
    def _combine(self) -> float:
        """What the samples that are not over say together."""

    def _sample(self, now_ms: int) -> Sample:
        """The sample of this moment."""
        samples = self._samples
        if not samples:
            samples = self._samples = [Sample(now_ms, self.INITIAL)]
        sample = samples[self._current]
        config = self._config
        if now_ms - sample.start_ms >= config.window_ms:
            self._current = at = (self._current + 1) % (config.samples + 1)
            if at >= len(samples):
                sample = Sample(now_ms, self.INITIAL)
                samples.append(sample)
            else:
                sample = samples[at]
                sample.restart(now_ms, self.INITIAL)
        return sample

    def _drop_old(self, now_ms: int) -> None:
        """Empty the samples that do not count any more."""
        config = self._config
        age_ms = config.samples * config.window_ms
        last_ms = now_ms
        for sample in self._samples:
            if now_ms - sample.last_event_ms >= age_ms:
                sample.restart(now_ms, self.INITIAL)
            elif sample.last_event_ms < last_ms:
                last_ms = sample.last_event_ms
        self._drop_ms = last_ms + age_ms

    def _oldest_ms(self, now_ms: int) -> int:
        """When the oldest sample began."""
        if not self._samples:
            self._samples = [Sample(now_ms, self.INITIAL)]
        return min([sample.start_ms for sample in self._samples])


class WindowedSum(SampledStat):
    """The sum of the recorded values."""

    __slots__ = ()

    def _update(self, sample: Sample, value: float) -> None:
        sample.value += value

    def _combine(self) -> float:
        total = 0.0
        for sample in self._samples:  # in this order: sum() would round otherwise
            total += sample.value
        return total


class Avg(WindowedSum):
    """The mean of the recorded values; NaN where there are none."""

    __slots__ = ()

    def record_all(self, values: Sequence[float], now_ms: int) -> None:
        """Count each of the values, of which there is one at least, at this moment."""
        sample = self._sample(now_ms)
        sample.value += sum(values)
        sample.events += len(values)
        sample.last_event_ms = now_ms

    def _combine(self) -> float:
        events = sum([sample.events for sample in self._samples])
        return super()._combine() / events if events else nan


class Max(SampledStat):
    """The largest of the recorded values; NaN where there are none."""

    __slots__ = ()
    INITIAL = -inf

    def record_all(self, values: Sequence[float], now_ms: int) -> None:
        """Count each of the values, of which there is one at least, at this moment."""
        self.record(max(values), now_ms)

    def _update(self, sample: Sample, value: float) -> None:
        sample.value = max(sample.value, value)

    def _combine(self) -> float:
        if not any(sample.events for sample in self._samples):
            return nan
        return max(sample.value for sample in self._samples)


class Min(SampledStat):
    """The smallest of the recorded values; NaN where there are none."""

    __slots__ = ()
    INITIAL = MAX_DOUBLE

    def record_all(self, values: Sequence[float], now_ms: int) -> None:
        """Count each of the values, of which there is one at least, at this moment."""
        self.record(min(values), now_ms)

    def _update(self, sample: Sample, value: float) -> None:
        sample.value = min(sample.value, value)

    def _combine(self) -> float:
        if not any(sample.events for sample in self._samples):
            return nan
        return min(sample.value for sample in self._samples)


class Rate(WindowedSum):
    """What was recorded, a second."""

    __slots__ = ()

    def record(self, value: float, now_ms: int) -> None:
        """Count `value` at this moment."""
        samples = self._samples
        if not samples or now_ms - (sample := samples[self._current]).start_ms >= self._config.window_ms:
            sample = self._sample(now_ms)
        sample.value += value
        sample.last_event_ms = now_ms

    def record_all(self, values: Sequence[float], now_ms: int) -> None:
        """Count each of the values, of which there is one at least, at this moment."""
        self.record(sum(values), now_ms)

    def record_within(self, value: float, now_ms: int, free: FreeUse) -> bool:
        """Count `value`, and return whether the rate is within the quota of the config. What is surely within it from
        now on is granted to `free`: until the window ends or a sample becomes too old to count."""
        self.record(value, now_ms)
        config = self._config
        assert config.quota is not None, "the rate has a quota"
        bound, total = config.quota.bound, self.total(now_ms)
        sample = self._samples[self._current]
        # The divisor of the rate is `samples - 1` windows at least.
        left = bound * (config.samples - 1) * config.window_ms / 1000.0 * _SURELY_BELOW - total
        free.grant(sample, sample.value + left, min(self._drop_ms, sample.start_ms + config.window_ms))
        return left >= 0 or total / (self.window_size_ms(now_ms) / 1000.0) <= bound

    def total(self, now_ms: int) -> float:
        """The sum of the samples that count."""
        return super().measure(now_ms)

    def window_size_ms(self, now_ms: int) -> int:
        """The time by which the sum is divided; a quota computes from it how long a client is to pause."""
        if now_ms >= self._drop_ms:
            self._drop_old(now_ms)
        config = self._config
        elapsed_ms = now_ms - self._oldest_ms(now_ms)
        missing_windows = config.samples - 1 - elapsed_ms // config.window_ms
        if missing_windows > 0:
            elapsed_ms += missing_windows * config.window_ms
        return max(1, elapsed_ms)

    def measure(self, now_ms: int) -> float:
        """The rate, a second."""
        return self.total(now_ms) / (self.window_size_ms(now_ms) / 1000.0)

    def is_within(self, bound: float, now_ms: int) -> bool:
        """Whether the rate is at most `bound`."""
        return self.measure(now_ms) <= bound


_SURELY_BELOW = 1 - 1e-9
"""Below this part of a bound, rounding cannot make a rate exceed it."""


class SimpleRate(Rate):
    """A rate over the time since the oldest sample, or one window where that is less. For replication quotas."""

    __slots__ = ()

    def window_size_ms(self, now_ms: int) -> int:
        """The time by which the sum is divided."""
        if now_ms >= self._drop_ms:
            self._drop_old(now_ms)
        return max(now_ms - self._oldest_ms(now_ms), self._config.window_ms)


class CumulativeSum:
    """The sum of all recorded values, however old."""

    __slots__ = ("config", "total")

    def __init__(self, config: MetricConfig | None = None) -> None:
        self.config = MetricConfig() if config is None else config
        self.total = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Add `value`."""
        self.total += value

    def measure(self, now_ms: int) -> float:
        """The sum."""
        return self.total


class Meter:
    """How many a second, and how many in all."""

    __slots__ = ("rate", "total")

    def __init__(self) -> None:
        self.rate = Rate()
        self.total = CumulativeSum()

    def record(self, value: float, now_ms: int) -> None:
        """Count `value`."""
        self.rate.record(value, now_ms)
        self.total.record(value, now_ms)


class TokenBucket:
    """Tokens that a quota refills, `bound` a second, up to those of `samples` windows (KIP-599).

    A recorded value takes so many tokens; there may be less than none. The quota is violated while that is so. Unlike
    in a sampled rate, a large value is not held against its client for longer than the quota takes to make up for it.
    """

    __slots__ = ("_refilled_ms", "_tokens", "config")

    def __init__(self, config: MetricConfig | None = None, refilled_ms: int = 0) -> None:
        """The bucket is empty at `refilled_ms`."""
        self.config = MetricConfig() if config is None else config
        self._tokens = 0.0
        self._refilled_ms = refilled_ms

    def record(self, value: float, now_ms: int) -> None:
        """Take `value` tokens."""
        quota = self.config.quota
        if quota is not None:
            burst = self._refill(quota.bound, now_ms)
            self._tokens = min(burst, self._tokens - value)

    def measure(self, now_ms: int) -> float:
        """The tokens that are left; without a quota, as many as Kafka's largest long."""
        quota = self.config.quota
        if quota is None:
            return float(2**63 - 1)
        self._refill(quota.bound, now_ms)
        return self._tokens

    def _refill(self, bound: float, now_ms: int) -> float:
        burst = self.config.samples * (self.config.window_ms / 1000.0) * bound
        self._tokens = min(burst, self._tokens + bound * ((now_ms - self._refilled_ms) / 1000.0))
        self._refilled_ms = now_ms
        return burst
