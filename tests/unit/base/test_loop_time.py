"""A time that does not count stalls of the loop."""

from __future__ import annotations

import pytest

from kalda.base.scheduling import GRACE_MS, MAX_RUN_ON_MS, RUN_ON_MS, TURN_MS, LoopTime

EIGHT_HOURS_MS = 8 * 3_600_000


def turning(until_ms: int) -> LoopTime:
    """A loop that has turned from 0 to that moment."""
    time = LoopTime()
    for now_ms in range(0, until_ms + 1, TURN_MS):
        assert time.turn(now_ms) == 0
    return time


def test_without_a_stall_it_is_the_machines_time() -> None:
    time = turning(10_000)
    assert [time.read(10_000 + ms) for ms in (0, 1, TURN_MS, RUN_ON_MS)] == [10_000, 10_001, 10_100, 10_300]
    assert time.turn(10_000 + RUN_ON_MS) == 0
    assert time.read(10_400) == 10_400, "a turn that is a little late"


@pytest.mark.parametrize("stall_ms", [RUN_ON_MS + 1, 5_000, EIGHT_HOURS_MS])
def test_a_stall_is_not_counted_and_reported_once(stall_ms: int) -> None:
    time = turning(10_000)
    assert time.read(10_000 + stall_ms) == 10_000 + RUN_ON_MS, "read before the loop has turned"
    assert time.turn(10_000 + stall_ms) == stall_ms - RUN_ON_MS
    grace_ms = min(stall_ms, GRACE_MS)
    now_ms = 10_000 + stall_ms
    while now_ms < 10_000 + stall_ms + grace_ms:
        assert time.stands_still(now_ms)
        assert time.read(now_ms) == 10_000 + RUN_ON_MS, "what waits in the sockets is handled first"
        now_ms += TURN_MS
        assert time.turn(now_ms) == 0
    assert not time.stands_still(now_ms)
    assert time.read(now_ms + 50) == 10_000 + RUN_ON_MS + 50


@pytest.mark.parametrize("turn_ms", [350, 500, 600, 1_000, 2_000, 5_000, 10_000])
@pytest.mark.parametrize("turns_in_time", [0, 1, 3, 10])
def test_a_loop_that_keeps_turning_slowly_stretches_no_session_beyond_a_small_factor(
    turn_ms: int, turns_in_time: int
) -> None:
    """Also where some of its turns are in time."""
    time = turning(10_000)
    began_ms = now_ms = 10_000
    while now_ms < began_ms + 60 * (turn_ms + turns_in_time * TURN_MS):
        now_ms += turn_ms
        time.turn(now_ms)
        for _ in range(turns_in_time):
            now_ms += TURN_MS
            time.turn(now_ms)
    took_ms, counted_ms = now_ms - began_ms, time.read(now_ms) - 10_000
    assert counted_ms * 2 >= took_ms or counted_ms * 7 >= took_ms > 60 * 2_000
    if not turns_in_time and turn_ms <= MAX_RUN_ON_MS:
        assert took_ms - counted_ms <= turn_ms + GRACE_MS, "nothing but the first pause"


@pytest.mark.parametrize("between_ms", [GRACE_MS + TURN_MS, 1_000, 5_000])
def test_a_stop_soon_after_another_one_ends_no_session(between_ms: int) -> None:
    """Of a member whose last heartbeat was handled an interval of three seconds ago: sessions take six, at least."""
    time = turning(10_000)
    now_ms = 10_000 + EIGHT_HOURS_MS
    for _ in range(between_ms // TURN_MS + 1):
        time.turn(now_ms)
        now_ms += TURN_MS
    before = time.read(now_ms)
    now_ms += EIGHT_HOURS_MS
    time.turn(now_ms)
    assert time.read(now_ms) - before < 3_000
    before = time.read(now_ms)
    for _ in range(GRACE_MS // TURN_MS):
        assert time.read(now_ms) == before
        now_ms += TURN_MS
        time.turn(now_ms)
    assert time.read(now_ms + 50) == before + 50


def test_it_never_goes_back_whatever_the_turns_are() -> None:
    time, now_ms, last = LoopTime(), 0, 0
    for pause_ms in (100, 100, 299, 301, 100, 5_000, 100, 700, 2_000, 1, 0, 100, 400, 400, 400, 100):
        now_ms += pause_ms
        before = time.read(now_ms)
        time.turn(now_ms)
        after = time.read(now_ms)
        assert last <= before <= after, now_ms
        last = after
    time.free(now_ms)
    assert time.read(now_ms) == last
    assert time.read(now_ms + EIGHT_HOURS_MS) == last + EIGHT_HOURS_MS, "no turns are reported, so none is missed"
