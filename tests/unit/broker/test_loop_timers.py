"""Timers whose time does not count a stall of the loop, and the deadlines of requests to other nodes."""

from __future__ import annotations

import asyncio

import pytest
from by_hand import HandTime, HandTimer

from kalda.broker.process.shell import LoopTimers
from kalda.network.client.client import Deadline


class Loop:
    """A loop whose timers run late where it is stalled, before it reads its sockets."""

    def __init__(self) -> None:
        self._hand = HandTime()
        self._limit_ms: int | None = None
        self._lost_ms = 0

    def call_later(self, delay_s: float, callback: object) -> HandTimer:
        return self._hand.call_later_ms(round(delay_s * 1000), callback)  # type: ignore[arg-type]

    def call_soon(self, callback: object) -> HandTimer:
        return self.call_later(0, callback)

    def time(self) -> float:
        return self.machine_ms() / 1000

    def machine_ms(self) -> int:
        return self._hand.now_ms

    def wall_ms(self) -> int:
        return self._hand.now_ms

    def mono_ms(self) -> int:
        now_ms = self._hand.now_ms
        return (now_ms if self._limit_ms is None else min(now_ms, self._limit_ms)) - self._lost_ms

    def follow(self, limit_ms: int, lost_ms: int) -> None:
        self._limit_ms, self._lost_ms = limit_ms, lost_ms

    def run(self, ms: int) -> None:
        self._hand.advance(ms)

    def stall(self, ms: int) -> None:
        """Nothing runs; then all timers that have come due do, at that late moment."""
        self._hand.now_ms += ms
        self._hand.advance(0)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def timers(loop: Loop) -> LoopTimers:
    timers = LoopTimers(loop, loop)  # type: ignore[arg-type]
    timers.start()
    return timers


def test_a_timer_comes_when_it_is_due(loop: Loop, timers: LoopTimers) -> None:
    called: list[int] = []
    timers.call_later_ms(6_000, lambda: called.append(loop.machine_ms()))
    timers.call_later_ms(0, lambda: called.append(loop.machine_ms()))
    cancelled = timers.call_later_ms(1_000, lambda: called.append(-1))
    cancelled.cancel()
    loop.run(10_000)
    assert called == [0, 6_000]


@pytest.mark.parametrize("left_ms", [1, 100, 250, 3_000])
@pytest.mark.parametrize("stall_ms", [5_000, 8 * 3_600_000])
def test_a_timer_that_comes_due_in_a_stall_leaves_time_for_what_waits_in_the_sockets(
    loop: Loop, timers: LoopTimers, left_ms: int, stall_ms: int
) -> None:
    """As the session of a member whose heartbeat was sent meanwhile: it cancels the timer when it is read."""
    called: list[int] = []
    loop.run(10_050)
    session = timers.call_later_ms(left_ms, lambda: called.append(loop.machine_ms()))
    loop.stall(stall_ms)
    assert called == []
    loop.run(99)
    assert called == [], "the sockets have been read"
    session.cancel()
    loop.run(10_000)
    assert called == []
    dead = timers.call_later_ms(6_000, lambda: called.append(loop.machine_ms()))
    loop.run(6_000)
    assert called == [loop.machine_ms()], "time goes on"
    dead.cancel()


def test_a_stall_is_measured_from_the_last_turn(loop: Loop, timers: LoopTimers) -> None:
    late: list[int] = []
    timers.on_turn = late.append
    loop.run(1_000)
    loop.stall(5_000)
    loop.run(200)
    assert late == [0] * 10 + [4_900] + [0] * 2
    before = loop.mono_ms()
    timers.stop()
    loop.run(60_000)
    assert len(late) == 13
    assert loop.mono_ms() == before + 60_000


def test_the_time_goes_on_where_what_is_called_at_a_turn_fails(loop: Loop, timers: LoopTimers) -> None:
    def fail(late_ms: int) -> None:
        raise ValueError(late_ms)

    timers.on_turn = fail
    with pytest.raises(ValueError, match="0"):
        loop.run(100)
    timers.on_turn = lambda late_ms: None
    loop.run(9_900)
    assert loop.mono_ms() == 10_000


def test_a_request_to_another_node_does_not_time_out_before_its_answer_is_read(loop: Loop) -> None:
    called: list[int] = []

    def request() -> Deadline:
        return Deadline(loop, 2.0, lambda: called.append(loop.machine_ms()))  # type: ignore[arg-type]

    answered = request()
    loop.stall(30_000)
    assert called == []
    answered.cancel()
    unanswered = request()
    loop.stall(30_000)
    loop.run(1_000)
    assert called == [60_500]
    unanswered.cancel()
    on_time = request()
    loop.run(2_000)
    assert called == [60_500, 63_000]
    on_time.cancel()


def test_an_asyncio_task_times_out_by_such_a_deadline() -> None:
    from kalda.network.client.client import timeout

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with timeout(0.01):
                await asyncio.Event().wait()
        async with timeout(60):
            await asyncio.sleep(0)

    asyncio.run(scenario())
