"""Sensors: counters, gauges and rates under Kafka's metric names.

Each floor counts with them; telemetry and console export them, quotas decide by them. A floor gets its sensors from a
`Sensors` once, keeps them in attributes, and counts by adding to `value`: one attribute addition, no call and no
look-up. Reading is what costs: `measure(now_ms)` computes a rate, calls a gauge's function or adds up a sum. Time is an
argument, so the same events give the same measurements. Stores.

    counter        a total that only grows
    counter sum    a total over counters that come and go, as topics do
    gauge          a value of this moment
    rate           so much a second, over the last samples (`kalda.base.stats`)
    average        the mean of the last samples
    maximum        the largest value of the last samples
    minimum        the smallest value of the last samples

Invariant: a tag names something that exists (a topic, a partition), never a name that a client makes up. Where that
thing is removed, its sensors are (`Sensors.remove`). So the number of sensors is bounded. Sensors of clients have an
owner that bounds them (`kalda.quota`), and are listed by a source (`Sensors.add_source`).

Not obvious:

- A gauge and a counter of one name are an error; the order of tags is part of a sensor's identity.

How long things took, in buckets: what quantiles of recent durations are computed from.

A bucket is a quarter of a power of two wide, so a quantile is at most a quarter too large. Counting is one addition to
a list; `recent` compares with the counts of one to two windows ago. A store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import nan
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from kalda.base.stats import Avg, Max, MetricConfig, Min, Rate

Tags: TypeAlias = tuple[tuple[str, str], ...]
"""Keys and values, in the order of Kafka's MBean names; another order is another sensor."""

NO_TAGS: Final[Tags] = ()


class SensorName(NamedTuple):
    """Kafka's name of one metric. As text it is the MBean's: `kafka.server:type=T,name=N,topic=t`."""

    group: str
    """Domain and type: `kafka.server:type=BrokerTopicMetrics`."""
    name: str
    tags: Tags = NO_TAGS

    def __str__(self) -> str:
        return ",".join((self.group, f"name={self.name}", *(f"{key}={value}" for key, value in self.tags)))


class Counter:
    """A total. Add to `value` in place."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def measure(self, now_ms: int) -> float:
        """The total so far."""
        return self.value


def counted(total: float) -> Counter:
    """A total that is kept elsewhere, as a counter of this moment."""
    counter = Counter()
    counter.value = int(total)
    return counter


class CounterSum:
    """A total over counters that come and go; it never decreases. What belongs to none of them is added to `value`."""

    __slots__ = ("_parts", "value")

    def __init__(self) -> None:
        self.value = 0
        """What was counted here, and in the parts that have been removed."""
        self._parts: dict[Counter, None] = {}

    def add(self, part: Counter) -> None:
        """Include a counter from now on, with all that it has counted."""
        assert part not in self._parts, "a part is counted once"
        self._parts[part] = None

    def remove(self, part: Counter) -> None:
        """Include a counter no longer; what it has counted stays in the total."""
        del self._parts[part]
        self.value += part.value

    def measure(self, now_ms: int) -> float:
        """The total so far."""
        return self.value + sum(part.value for part in self._parts)


class Gauge:
    """A value of this moment: `value`, or what the function returns."""

    __slots__ = ("_read", "value")

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        self.value: float = 0
        """Set by its owner; not used where there is a function."""
        self._read = read

    def measure(self, now_ms: int) -> float:
        """The value now."""
        return self.value if self._read is None else self._read()


def gauged(value: float) -> Gauge:
    """A value that was read elsewhere, as a gauge of this moment."""
    gauge = Gauge()
    gauge.value = value
    return gauge


class Measurable(Protocol):
    """Anything that has a value now."""

    def measure(self, now_ms: int) -> float:
        """The value now."""
        ...


Source: TypeAlias = Callable[[], Iterable[tuple["SensorName", Measurable]]]
Sensor: TypeAlias = Counter | CounterSum | Gauge | Rate | Avg | Max | Min
_S = TypeVar("_S", Counter, CounterSum, Gauge, Rate, Avg, Max, Min)


class Sensors:
    """The sensors of one node, by name. Invariant: a name has one kind of sensor."""

    __slots__ = ("_by_tags", "_families", "_late", "_sources")

    def __init__(self) -> None:
        self._sources: list[Source] = []
        """Functions that list sensors which are kept elsewhere."""
        self._late: list[Callable[[], object]] = []
        """Functions that add sensors before all are listed."""
        self._by_tags: dict[Tags, dict[tuple[str, str], Sensor]] = {}
        """By tags, then by (group, name): what is removed together is kept together."""
        self._families: dict[tuple[str, str], tuple[str, str]] = {}
        """One object for each (group, name), which thousands of topics share."""

    def __len__(self) -> int:
        return sum(map(len, self._by_tags.values()))

    def __iter__(self) -> Iterator[tuple[SensorName, Sensor]]:
        """By group and name; those of one name in the order in which their tags first came. A copy: sensors may be
        added and removed meanwhile."""
        families: dict[tuple[str, str], list[tuple[SensorName, Sensor]]] = {}
        for tags, sensors in self._by_tags.items():
            for (group, name), sensor in sensors.items():
                families.setdefault((group, name), []).append((SensorName(group, name, tags), sensor))
        return chain.from_iterable(families[family] for family in sorted(families))

    def add_source(self, source: Source) -> None:
        """Include in `everything` what `source()` lists at that moment."""
        self._sources.append(source)

    def add_late(self, make: Callable[[], object]) -> None:
        """Call `make()`, which adds sensors, before `everything` lists them for the first time."""
        self._late.append(make)

    def everything(self) -> Iterator[tuple[SensorName, Measurable]]:
        """All sensors of this registry, then those of its sources."""
        while self._late:
            self._late.pop()()
        yield from self
        for source in self._sources:
            yield from source()

    def find(self, group: str, name: str, tags: Tags = NO_TAGS) -> Sensor | None:
        """The sensor of that name, where there is one."""
        return self._by_tags.get(tags, {}).get((group, name))

    def counter(self, group: str, name: str, tags: Tags = NO_TAGS) -> Counter:
        """The counter of that name, made where there is none."""
        return self._get_or_make(group, name, tags, Counter, Counter)

    def counter_sum(self, group: str, name: str, tags: Tags = NO_TAGS) -> CounterSum:
        """The sum of that name, made where there is none."""
        return self._get_or_make(group, name, tags, CounterSum, CounterSum)

    def rate(self, group: str, name: str, tags: Tags = NO_TAGS, config: MetricConfig | None = None) -> Rate:
        """The rate of that name, made with `config` where there is none."""
        return self._get_or_make(group, name, tags, Rate, lambda: Rate(config))

    def average(self, group: str, name: str, tags: Tags = NO_TAGS, config: MetricConfig | None = None) -> Avg:
        """The average of that name, made with `config` where there is none."""
        return self._get_or_make(group, name, tags, Avg, lambda: Avg(config))

    def maximum(self, group: str, name: str, tags: Tags = NO_TAGS, config: MetricConfig | None = None) -> Max:
        """The maximum of that name, made with `config` where there is none."""
        return self._get_or_make(group, name, tags, Max, lambda: Max(config))

    def minimum(self, group: str, name: str, tags: Tags = NO_TAGS, config: MetricConfig | None = None) -> Min:
        """The minimum of that name, made with `config` where there is none."""
        return self._get_or_make(group, name, tags, Min, lambda: Min(config))

    def gauge(self, group: str, name: str, tags: Tags = NO_TAGS, read: Callable[[], float] | None = None) -> Gauge:
        """The gauge of that name, made where there is none. A function is given once: the one of two that is not read
        would be lost without notice."""
        assert read is None or self.find(group, name, tags) is None, f"{SensorName(group, name, tags)} has a reader"
        return self._get_or_make(group, name, tags, Gauge, lambda: Gauge(read))

    def remove(self, tags: Tags) -> None:
        """Remove all sensors with exactly these tags: what they name exists no more."""
        assert tags, "sensors without tags stay"
        self._by_tags.pop(tags, None)

    def _get_or_make(self, group: str, name: str, tags: Tags, kind: type[_S], make: Callable[[], _S]) -> _S:
        sensors = self._by_tags.setdefault(tags, {})
        sensor = sensors.get((group, name))
        if sensor is None:
            sensor = sensors[self._families.setdefault((group, name), (group, name))] = make()
        assert isinstance(sensor, kind), f"{SensorName(group, name, tags)} is a {type(sensor).__name__}"
        return sensor


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
