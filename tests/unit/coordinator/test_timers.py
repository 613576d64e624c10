"""The heap fires each timer once, at its latest deadline, in a repeatable order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.base.background import Steps, run_to_end
from kalda.coordinator.timers import RETRY_MS, CoordinatorTimer, TimerTask


def test_a_later_deadline_replaces_an_earlier_one_and_the_other_way_round() -> None:
    timers, fired = CoordinatorTimer(), []
    timer = TimerTask(fired.append)
    timers.arm(timer, 10)
    timers.arm(timer, 30)
    timers.fire(20)
    assert fired == []
    timers.arm(timer, 25)
    timers.fire(25)
    timers.fire(100)
    assert fired == [25]
    assert timers.next_deadline_ms() is None


def test_a_disarmed_timer_does_not_fire_until_armed_again() -> None:
    timers, fired = CoordinatorTimer(), []
    timer = TimerTask(fired.append)
    timers.arm(timer, 10)
    timers.disarm(timer)
    timers.fire(10)
    timers.arm(timer, 12)
    timers.fire(12)
    assert fired == [12]


def test_a_timer_that_rearms_itself_at_once_does_not_hold_the_caller() -> None:
    timers, fired = CoordinatorTimer(), []

    def again(now_ms: int) -> None:
        fired.append(now_ms)
        timers.arm(timer, now_ms)

    timer = TimerTask(again)
    timers.arm(timer, 5)
    assert timers.fire(5) == 1
    assert timers.next_deadline_ms() == 5


@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 40)), st.integers(0, 5)), max_size=60))
def test_against_a_plain_table_of_deadlines(steps: list[tuple[int, int | None, int]]) -> None:
    timers, now = CoordinatorTimer(), 0
    fired: list[int] = []
    handles = [TimerTask(lambda _, at=at: fired.append(at)) for at in range(4)]
    deadlines: dict[int, int] = {}
    for at, delay, passed in steps:
        if delay is None:
            timers.disarm(handles[at])
            deadlines.pop(at, None)
        else:
            timers.arm(handles[at], now + delay)
            deadlines[at] = now + delay
        now += passed
        fired.clear()
        timers.fire(now)
        due = {each for each, deadline in deadlines.items() if deadline <= now}
        assert sorted(fired) == sorted(due)
        for each in due:
            del deadlines[each]
        first = timers.next_deadline_ms()
        assert not deadlines or (first is not None and first <= min(deadlines.values()))


def test_a_timer_may_fire_the_others() -> None:
    timers = CoordinatorTimer()
    fired: list[str] = []

    def fire_the_rest(now_ms: int) -> None:
        fired.append("first")
        timers.fire(now_ms)

    timers.arm(TimerTask(fire_the_rest), 10)
    timers.arm(TimerTask(lambda _: fired.append("second")), 10)
    timers.fire(10)
    assert fired == ["first", "second"]


def test_disarmed_timers_do_not_stay_in_memory_until_their_deadline() -> None:
    timers, fired = CoordinatorTimer(), []
    kept = [TimerTask(fired.append) for _ in range(10)]
    for number, timer in enumerate(kept):
        timers.arm(timer, 100 + number)
    callbacks: list[weakref.ref[Callable[[int], None]]] = []
    for _ in range(1_000):
        disarmed = TimerTask(lambda now_ms: fired.append(now_ms))
        callbacks.append(weakref.ref(disarmed.callback))
        timers.arm(disarmed, 1_800_000)
        timers.disarm(disarmed)
    assert sum(each() is not None for each in callbacks) <= 128
    for now_ms in range(100, 110):
        timers.fire(now_ms)
    assert fired == list(range(100, 110))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 50))), max_size=60), st.integers(0, 50)
)
def test_a_heap_that_is_made_anew_fires_what_it_would_have_fired(
    calls: list[tuple[int, int | None]], now_ms: int
) -> None:
    def fired_by(few: int) -> list[int]:
        timers, fired = CoordinatorTimer(), []
        handles = [TimerTask(lambda _, number=number: fired.append(number)) for number in range(6)]
        with patch("kalda.coordinator.timers._FEW", few):
            for number, deadline_ms in calls:
                if deadline_ms is None:
                    timers.disarm(handles[number])
                else:
                    timers.arm(handles[number], deadline_ms)
            timers.fire(now_ms)
            for later_ms in range(now_ms, 51):
                timers.fire(later_ms)
        assert timers.next_deadline_ms() is None
        assert timers._stale == 0
        return fired

    assert sorted(fired_by(-1)) == sorted(fired_by(10**9))


def test_a_timer_that_fails_fires_again_and_the_others_stay_due() -> None:
    timers, fired = CoordinatorTimer(), []

    def fail_once(now_ms: int) -> None:
        fired.append(now_ms)
        if len(fired) == 1:
            raise ZeroDivisionError

    timers.arm(TimerTask(fail_once), 10)
    timers.arm(TimerTask(fired.append), 11)
    with pytest.raises(ZeroDivisionError):
        timers.fire(20)
    assert fired == [20]
    timers.fire(21)
    assert fired == [20, 21]
    timers.fire(20 + RETRY_MS)
    assert fired == [20, 21, 20 + RETRY_MS]
    assert timers.next_deadline_ms() is None


def test_steps_of_a_timer_are_run_by_the_driver_and_a_failure_fires_the_timer_again() -> None:
    timers, done, background = CoordinatorTimer(), [], list[Steps[None]]()
    timers.run = background.append

    def work(now_ms: int) -> Steps[None]:
        for part in ("first", "second"):
            done.append(part)
            yield
            if len(done) == 2:
                raise ZeroDivisionError

    timers.arm(TimerTask(work), 10)
    assert timers.fire(10) == 1
    assert not done
    with pytest.raises(ZeroDivisionError):
        run_to_end(background.pop())
    assert done == ["first", "second"]
    assert timers.fire(10 + RETRY_MS) == 1
    run_to_end(background.pop())
    assert done == ["first", "second"] * 2
    assert timers.next_deadline_ms() is None
