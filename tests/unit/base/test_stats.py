"""Stats against vectors of Kafka's own classes (`tests/golden/quota/QuotaVectors.java`): equal to the last bit."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from kalda.base.samples import FreeUse, Sample
from kalda.base.stats import (
    Avg,
    CumulativeSum,
    Max,
    MetricConfig,
    Min,
    Quota,
    QuotaViolation,
    Rate,
    SimpleRate,
    TokenBucket,
    WindowedSum,
    violation,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "quota" / "vectors.jsonl.gz"


def vectors(kind: str) -> list[dict[str, Any]]:
    with gzip.open(GOLDEN, "rt") as lines:
        return [each for each in map(json.loads, lines) if each["kind"] == kind]


def same(ours: float, theirs: float | str) -> bool:
    other = float(theirs)
    return ours == other or (math.isnan(ours) and math.isnan(other))


@pytest.mark.parametrize("vector", vectors("stats"), ids=lambda each: f"{each['samples']}x{each['window_ms']}")
def test_sampled_stats_measure_what_kafka_measures(vector: dict[str, Any]) -> None:
    config = MetricConfig(vector["window_ms"], vector["samples"])
    stats = [kind(config) for kind in (Rate, SimpleRate, WindowedSum, Avg, Max, Min, CumulativeSum)]
    rate = stats[0]
    for now_ms, value, *measured in vector["rows"]:
        del measured[2]  # a rate of how many values were recorded, which nothing here has
        ours: list[float] = []
        for stat in stats:
            if value != "measure":
                stat.record(value, now_ms)
            ours.append(stat.measure(now_ms))
        assert isinstance(rate, Rate)
        ours.append(rate.window_size_ms(now_ms))
        of_percentiles = measured[len(ours) :]  # of a sensor that Kalda does not have
        assert len(of_percentiles) == 4
        wrong = [at for at, pair in enumerate(zip(ours, measured, strict=False)) if not same(*pair)]
        assert not wrong, f"at {now_ms}: {ours} is not {measured}"


@pytest.mark.parametrize("vector", vectors("bucket"), ids=lambda each: str(each["quota"]))
def test_a_token_bucket_holds_what_kafkas_holds(vector: dict[str, Any]) -> None:
    bucket = TokenBucket(MetricConfig(vector["window_ms"], vector["samples"], Quota(vector["quota"])))
    for now_ms, value, tokens in vector["rows"]:
        bucket.record(value, now_ms)
        assert bucket.measure(now_ms) == tokens


def test_a_violation_has_value_bound_and_metric() -> None:
    rate = Rate(MetricConfig(1_000, 3, Quota(10)))
    rate.record(20, 0)
    assert violation(rate, 0) is None
    rate.record(20, 0)
    assert violation(rate, 0) == QuotaViolation(20.0, 10, rate)
    rate.config = rate.config._replace(quota=Quota(30))
    assert violation(rate, 0) is None, "what was recorded stays, the bound is another"
    rate.config = rate.config._replace(quota=Quota(30, upper=False))
    assert violation(rate, 0) == QuotaViolation(20.0, 30, rate)
    rate.config = rate.config._replace(quota=None)
    assert violation(rate, 0) is None


def test_an_empty_bucket_violates_its_quota_only_below_nothing() -> None:
    bucket = TokenBucket(MetricConfig(1_000, 10, Quota(5)), refilled_ms=-(2**40))
    assert bucket.measure(0) == 50
    bucket.record(50, 0)
    assert violation(bucket, 0) is None
    bucket.record(1, 0)
    assert violation(bucket, 0) == QuotaViolation(-1.0, 5, bucket)
    assert violation(bucket, 200) is None


@pytest.mark.parametrize("bound", [12_000, 13_000, 13_400, 14_000, 1e9])
def test_what_is_recorded_freely_is_within_the_quota(bound: float) -> None:
    """Rates that are measured after each record decide the same, whatever was recorded and undone between."""
    config = MetricConfig(1_000, 11, Quota(bound))
    fast, slow, free = Rate(config), Rate(config), FreeUse(0)
    for number, now_ms in enumerate(range(0, 60_000, 37)):
        value = now_ms % 977
        slow.record(value, now_ms)
        is_within = free.take(value, now_ms) or fast.record_within(value, now_ms, free)
        assert is_within is (slow.measure(now_ms) <= bound), now_ms
        if number % 50 == 0:
            for rate in (fast, slow):
                rate.record(-value, now_ms)
        if number == 700:
            fast.config = slow.config = config._replace(quota=Quota(bound := bound / 2))
            free.withdraw()
        assert fast.measure(now_ms) == slow.measure(now_ms)
    assert free.requests > 500 or bound < 10_000


def test_what_is_free_is_taken() -> None:
    sample, free = Sample(1_000, 0.0), FreeUse(1_000)
    assert not free.take(0, 1_000), "nothing is free before the first grant"
    free.grant(sample, 10.0, 2_000)
    assert free.take(2.5, 1_001)
    assert free.take(7, 1_003)
    assert (sample.value, sample.last_event_ms, free.requests, free.last_ms) == (9.5, 1_003, 2, 1_003)
    assert not free.take(0.6, 1_004), "more than is free"
    assert not free.take(0, 2_000), "the grant has ended"
    assert (sample.value, free.requests, free.last_ms) == (9.5, 2, 1_003)
    assert free.take(0.5, 1_999)
    free.withdraw()
    assert not free.take(0, 1_999)
