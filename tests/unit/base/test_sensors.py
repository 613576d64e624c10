"""Sensors: totals, moments, rates by Kafka's rules, and names that have one kind of sensor."""

from __future__ import annotations

import pytest

from kalda.base.sensors import Counter, CounterSum, SensorName, Sensors
from kalda.base.stats import MetricConfig, Rate

TOPICS = "kafka.server:type=BrokerTopicMetrics"
A, B = (("topic", "a"),), (("topic", "b"),)
WINDOW_MS = 1_000


def rate(samples: int = 3) -> Rate:
    return Rate(MetricConfig(WINDOW_MS, samples))


def test_a_name_is_written_as_kafka_writes_it() -> None:
    assert str(SensorName(TOPICS, "BytesInPerSec")) == "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec"
    tags = (("topic", "a"), ("partition", "0"))
    assert str(SensorName("kafka.log:type=Log", "Size", tags)) == "kafka.log:type=Log,name=Size,topic=a,partition=0"


def test_a_sum_keeps_what_a_removed_part_had_counted() -> None:
    total, parts = CounterSum(), [Counter(), Counter()]
    for part in parts:
        total.add(part)
    parts[0].value += 3
    parts[1].value += 4
    total.value += 1
    assert total.measure(0) == 8
    total.remove(parts[0])
    parts[0].value += 100
    parts[1].value += 1
    assert total.measure(0) == 9


def test_a_gauge_has_a_value_or_a_function() -> None:
    sensors = Sensors()
    by_value = sensors.gauge("g", "value")
    by_value.value = 7
    items = [1, 2]
    by_function = sensors.gauge("g", "function", read=lambda: len(items))
    items.append(3)
    assert (by_value.measure(0), by_function.measure(0)) == (7, 3)


# -- rates


def test_the_first_value_is_divided_by_all_windows_but_the_current_one() -> None:
    one = rate()
    one.record(50, 10_000)
    assert one.measure(10_000) == 50 / 2
    assert one.measure(10_500) == 50 / 2.5
    assert one.measure(10_999) == 50 / 2.999


def test_a_steady_rate_is_measured_as_it_is() -> None:
    one = rate()
    for now_ms in range(10_000, 20_000, 100):
        one.record(10, now_ms)
    assert one.measure(20_000) == pytest.approx(100, rel=0.05)


def test_time_without_values_counts() -> None:
    """Two values a window apart, and half a window more: 200 in two and a half windows."""
    one = rate()
    one.record(100, 0)
    one.record(100, WINDOW_MS)
    assert one.measure(2 * WINDOW_MS + WINDOW_MS // 2) == 200 / 2.5
    assert one.window_size_ms(2 * WINDOW_MS + WINDOW_MS // 2) == 2_500


def test_a_sample_that_reaches_into_the_last_windows_counts_whole() -> None:
    """Kafka keeps one sample more than `samples`, and divides by the time since the oldest one began."""
    one = rate(samples=2)
    one.record(100, 0)
    one.record(50, 900)
    one.record(10, 1_000)
    one.record(10, 2_000)
    assert (one.total(2_800), one.window_size_ms(2_800)) == (170, 2_800)
    assert (one.total(2_899), one.total(2_900)) == (170, 20)


def test_after_a_long_pause_nothing_is_left() -> None:
    one = rate()
    one.record(100, 0)
    assert one.measure(3 * WINDOW_MS - 1) > 0
    assert one.measure(3 * WINDOW_MS) == 0
    one.record(50, 100_000)
    assert one.measure(100_000) == 50 / 2


def test_samples_are_bounded_and_used_again() -> None:
    one = rate()
    for now_ms in range(0, 100 * WINDOW_MS, WINDOW_MS):
        one.record(1, now_ms)
    assert len(one._samples) == 4
    assert one.total(99 * WINDOW_MS) == 3, "the fourth ended a window before the last three began"


def test_a_value_that_is_taken_back_was_never_there() -> None:
    one = rate()
    one.record(100, 5)
    one.record(-100, 6)
    assert one.measure(7) == 0


def test_a_single_sample_of_no_length_is_divided_by_a_millisecond() -> None:
    one = rate(samples=1)
    one.record(5, 0)
    assert one.window_size_ms(0) == 1
    assert rate(samples=1).measure(0) == 0


# -- the registry


def test_a_sensor_is_made_once() -> None:
    sensors = Sensors()
    counter = sensors.counter(TOPICS, "BytesInPerSec", A)
    assert sensors.counter(TOPICS, "BytesInPerSec", A) is counter
    assert sensors.counter(TOPICS, "BytesInPerSec", B) is not counter
    assert sensors.find(TOPICS, "BytesInPerSec", A) is counter
    assert sensors.find(TOPICS, "BytesInPerSec") is None


def test_a_name_has_one_kind_of_sensor() -> None:
    sensors = Sensors()
    sensors.counter("g", "n")
    with pytest.raises(AssertionError, match="g,name=n is a Counter"):
        sensors.rate("g", "n")
    sensors.gauge("g", "m", read=lambda: 1)
    with pytest.raises(AssertionError, match="has a reader"):
        sensors.gauge("g", "m", read=lambda: 2)


def test_what_is_deleted_takes_its_sensors_along() -> None:
    sensors = Sensors()
    for tags in (A, B):
        sensors.counter(TOPICS, "BytesInPerSec", tags).value += 1
        sensors.counter(TOPICS, "BytesOutPerSec", tags)
    sensors.counter(TOPICS, "BytesInPerSec")
    sensors.remove(A)
    sensors.remove((("topic", "none"),))
    assert [name.tags for name, _ in sensors] == [B, (), B]
    assert len(sensors) == 3
    assert sensors.counter(TOPICS, "BytesInPerSec", A).value == 0


def test_sensors_come_by_name_and_then_as_their_tags_came() -> None:
    sensors = Sensors()
    for group, name, tags in (("g", "z", B), ("h", "a", B), ("g", "b", B), ("g", "z", A), ("g", "b", A)):
        sensors.counter(group, name, tags)
    names = [(name.group, name.name, name.tags) for name, _ in sensors]
    assert names == [("g", "b", B), ("g", "b", A), ("g", "z", B), ("g", "z", A), ("h", "a", B)]
    for _ in sensors:
        sensors.counter("g", "made meanwhile")
