"""For how long requests hold the event loop: the timer of a route, and the stopwatch of a request that waits."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kalda.base.samples import FreeUse, Sample
from kalda.broker.stopwatch import RequestTimer
from kalda.broker.system_clock import SystemClock

PERCENT = 0.5


class Clocks:
    """Clocks that the test sets."""

    def __init__(self) -> None:
        self.ns = 1_000
        self.ms = 7

    def now_ns(self) -> int:
        return self.ns

    def now_ms(self) -> int:
        return self.ms


def decode(frame: memoryview, at: int, max_elements: int, depth: int) -> tuple[Any, int]:
    return (bytes(frame), max_elements, depth), at


def free_use(most: float) -> FreeUse:
    free = FreeUse(0)
    free.grant(Sample(0, 0.0), most, 2**62)
    return free


def test_timer_records_the_time_since_the_decoding_where_it_is_free() -> None:
    clocks, free = Clocks(), free_use(12.0)
    timer = RequestTimer(decode, clocks.now_ns, clocks.now_ms, PERCENT)
    assert timer.decode(memoryview(b"frame"), 3, 4, 5) == ((b"frame", 4, 5), 3)
    clocks.ns += 24
    assert timer.take(free)
    assert free.sample is not None
    assert (free.sample.value, free.sample.last_event_ms, free.last_ms, free.requests) == (12.0, 7, 7, 1)

    timer.decode(memoryview(b""), 0, 0, 0)
    clocks.ns += 2
    assert not timer.take(free), "12 were free"
    assert timer.percent == 1.0
    assert (free.sample.value, free.requests) == (12.0, 1)


def test_stopwatch_of_a_request_runs_since_its_decoding_though_other_requests_follow() -> None:
    clocks = Clocks()
    timer = RequestTimer(decode, clocks.now_ns, clocks.now_ms, PERCENT)
    timer.decode(memoryview(b""), 0, 0, 0)
    clocks.ns += 10
    watch = timer.stopwatch()
    assert watch.read() == 10
    watch.stop()
    timer.decode(memoryview(b""), 0, 0, 0)
    clocks.ns += 100
    assert watch.read() == 10
    watch.start()
    clocks.ns += 5
    assert watch.read() == 15
    assert timer.stopwatch().read() == 105


def test_timer_reads_the_clocks_of_the_machine() -> None:
    clock, free = SystemClock(), free_use(1e18)
    timer = RequestTimer(decode, time.perf_counter_ns, clock.mono_ms, 1.0)
    before_ms, before_ns = clock.mono_ms(), time.perf_counter_ns()
    timer.decode(memoryview(b""), 0, 0, 0)
    assert timer.take(free)
    assert 0 <= timer.percent <= time.perf_counter_ns() - before_ns
    assert before_ms <= free.last_ms <= clock.mono_ms() + 1, "a double may be rounded to the millisecond before"


def test_a_clock_that_fails_fails_the_request() -> None:
    def broken() -> int:
        raise OSError("no clock")

    timer = RequestTimer(decode, broken, broken, PERCENT)
    with pytest.raises(OSError, match="no clock"):
        timer.decode(memoryview(b""), 0, 0, 0)
