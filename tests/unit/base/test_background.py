"""The background work of an event loop: for how long it holds the loop, and who gets how much of that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from functools import partial

import pytest

from kalda.base.background import TURN_BUDGET_NS, Background, Priority, Steps, name_of, run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending

MS = 1_000_000


class Loop:
    """An event loop whose turns the test takes, and a clock that moves with the work that is done."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.ready: list[Callable[[], None]] = []
        self.background = Background(self.ready.append, lambda: self.now_ns)
        self.done: list[str] = []
        self.held_ns: list[int] = []
        """For how long each turn was held."""

    def work(self, name: str, took_ns: int = MS) -> None:
        self.now_ns += took_ns
        self.done.append(name)

    def steps(self, name: str, count: int, took_ns: int = MS, value: str = "") -> Steps[str]:
        for _ in range(count):
            self.work(name, took_ns)
            yield
        return value

    def turn(self, arrived: Callable[[], None] = lambda: None) -> None:
        """What was to be called back in this turn, then what the sockets cause."""
        began_ns = self.now_ns
        ready, self.ready[:] = list(self.ready), []
        for callback in ready:
            callback()
        arrived()
        self.held_ns.append(self.now_ns - began_ns)

    def turns(self) -> int:
        """Take turns until nothing is left. How many there were."""
        count = 0
        while self.ready:
            self.turn()
            count += 1
        return count

    def count(self, name: str) -> int:
        return self.done.count(name)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_turn_holds_the_loop_for_at_most_the_budget_and_one_step(loop: Loop) -> None:
    step_ns = 700_000

    def burst() -> None:
        for _ in range(1_000):
            loop.background.call(partial(loop.work, "call", step_ns))

    for number in range(100):
        loop.background.run(loop.steps("answer", 20, step_ns), owner=number)
        loop.background.run(loop.steps("maintenance", 20, step_ns), Priority.MAINTENANCE)
    for _ in range(3):
        loop.turn(burst)
    loop.turns()
    assert max(loop.held_ns) <= TURN_BUDGET_NS + step_ns
    assert (loop.count("call"), loop.count("answer"), loop.count("maintenance")) == (3_000, 2_000, 2_000)


def test_calls_of_many_turns_that_are_made_at_once_hold_none_for_longer(loop: Loop) -> None:
    for _ in range(100):
        loop.turn(lambda: [loop.background.call(partial(loop.work, "call", 300_000)) for _ in range(40)] and None)
    loop.turns()
    assert max(loop.held_ns) <= TURN_BUDGET_NS + 300_000
    assert loop.count("call") == 4_000


def test_a_turn_goes_on_until_its_budget_is_used(loop: Loop) -> None:
    loop.background.run(loop.steps("short", 5_000, 1_000))
    assert loop.turns() <= 2


def test_generators_of_one_priority_alternate(loop: Loop) -> None:
    for name in "abc":
        loop.background.run(loop.steps(name, 2))
    loop.turns()
    assert loop.done == list("abcabc")


@pytest.mark.parametrize("priority", Priority)
def test_nothing_waits_for_the_end_of_other_work(loop: Loop, priority: Priority) -> None:
    """The end of what is endless."""

    def more() -> None:
        loop.work("call", MS // 2)
        loop.background.call(more)

    for each in Priority:
        loop.background.run(loop.steps("other", 100_000), each)
    loop.background.call(more)
    for _ in range(50):
        loop.turn()
    loop.background.run(loop.steps("mine", 3), priority)
    waited: list[str] = []
    for _ in range(20):
        loop.background.call(partial(waited.append, "call"))
        loop.turn()
    assert loop.count("mine") == 3
    assert waited


def test_maintenance_gets_less_than_answers_do_and_all_of_the_time_when_it_is_alone(loop: Loop) -> None:
    loop.background.run(loop.steps("maintenance", 1_000), Priority.MAINTENANCE)
    for _ in range(40):
        loop.turn()
    assert loop.count("maintenance") == 200
    loop.background.run(loop.steps("answer", 1_000))
    for _ in range(40):
        loop.turn()
    assert loop.count("answer") == pytest.approx(160, abs=5)
    assert loop.count("maintenance") == pytest.approx(240, abs=5)


def test_a_result_is_what_the_steps_return(loop: Loop) -> None:
    result = loop.background.run(loop.steps("a", 3, value="answer"))
    assert not result.done
    loop.turns()
    assert (result.value, result.error) == ("answer", None)


def test_a_result_that_is_pending_is_waited_for(loop: Loop) -> None:
    inner: Pending[str] = Pending()

    def steps() -> Generator[None, None, Pending[str]]:
        yield
        return inner

    result = loop.background.run(steps())
    loop.turns()
    assert not result.done
    inner.complete("late")
    assert result.value == "late"


def test_steps_that_fail_fail_alone(loop: Loop) -> None:
    def failing(error: Exception) -> Steps[str]:
        yield
        raise error

    refused = loop.background.run(failing(ApiError(ErrorCode.INVALID_REQUEST)))
    broken = loop.background.run(failing(ValueError("a bug")))
    other = loop.background.run(loop.steps("a", 3, value="done"))
    loop.turns()
    assert refused.error is not None
    assert refused.error.code is ErrorCode.INVALID_REQUEST
    assert broken.error is not None
    assert broken.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert other.value == "done"


def test_a_consumer_that_fails_harms_nobody(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def fail(value: object, error: object) -> None:
        raise ValueError("a bug")

    loop.background.run(loop.steps("a", 1)).then(fail)
    other = loop.background.run(loop.steps("b", 3, value="done"))
    loop.turns()
    assert other.value == "done"
    assert "a bug" in caplog.text


def test_abandoned_steps_are_closed(loop: Loop) -> None:
    closed: list[str] = []

    def steps(name: str) -> Steps[None]:
        try:
            while True:
                loop.work(name)
                yield
        finally:
            closed.append(name)

    first, second = loop.background.run(steps("a")), loop.background.run(steps("b"))
    loop.turn()
    first.abandon()
    assert closed == ["a"]
    done = loop.count("a")
    loop.turn()
    assert loop.count("a") == done
    second.abandon()
    loop.turns()
    assert closed == ["a", "b"]
    assert not first.done


@pytest.mark.parametrize("last", [False, True])
def test_steps_may_be_abandoned_by_themselves(loop: Loop, caplog: pytest.LogCaptureFixture, last: bool) -> None:
    """As by a step that closes the connection which waits for the answer."""
    result: Pending[str] = Pending()
    closed: list[str] = []

    def steps() -> Steps[str]:
        try:
            result.abandon()
            if not last:
                yield
                loop.work("too much")
            return "unwanted"
        finally:
            closed.append("a")

    result = loop.background.run(steps())
    loop.turns()
    assert (closed, loop.done, result.done) == (["a"], [], False)
    assert not caplog.records


def test_a_call_is_made_at_once_where_the_turn_has_time(loop: Loop) -> None:
    loop.background.call(partial(loop.work, "a"))
    assert loop.done == ["a"]
    assert not loop.ready


def test_calls_keep_their_order(loop: Loop) -> None:
    names = [str(number) for number in range(30)]

    def arrive() -> None:
        for name in names[:10]:
            loop.background.call(partial(loop.work, name))

    loop.turn(arrive)
    for name in names[10:20]:
        loop.background.call(partial(loop.work, name))
    loop.turn()
    for name in names[20:]:
        loop.background.call(partial(loop.work, name))
    loop.turns()
    assert loop.done == names


def test_calls_made_by_a_step_count_as_its_turn(loop: Loop) -> None:
    def steps() -> Steps[None]:
        for _ in range(100):
            loop.background.call(partial(loop.work, "call"))
        yield

    loop.background.run(steps())
    loop.turns()
    assert loop.count("call") == 100
    assert max(loop.held_ns) <= TURN_BUDGET_NS + MS


def test_a_cancelled_call_is_not_made(loop: Loop) -> None:
    calls = [loop.background.call(partial(loop.work, str(number))) for number in range(10)]
    for call in calls[:8]:
        call.cancel()
    loop.turns()
    assert loop.done == [*"01234", *"89"]
    calls[9].cancel()


def test_a_call_that_fails_harms_none_behind_it(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.background.call(lambda: {}["a bug"])
    loop.background.call(partial(loop.work, "long", TURN_BUDGET_NS))
    loop.background.call(lambda: {}["another bug"])
    loop.background.call(partial(loop.work, "last"))
    loop.turns()
    assert loop.done == ["long", "last"]
    assert "'a bug'" in caplog.text
    assert "another bug" in caplog.text


def test_nothing_is_done_after_the_end(loop: Loop) -> None:
    closed: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield
        finally:
            closed.append("a")

    endless = loop.steps("endless", 1_000_000)
    loop.background.run(endless)
    started = loop.background.run(steps())
    loop.turn()
    for _ in range(10):
        loop.background.call(partial(loop.work, "call"))
    loop.background.close()
    done = len(loop.done)
    loop.turns()
    late = loop.background.run(loop.steps("late", 1))
    loop.background.call(partial(loop.work, "late call"))
    loop.turns()
    assert len(loop.done) == done
    assert closed == ["a"]
    assert (started.value, late.done) == (None, False)


def test_whose_step_was_the_longest_is_known(loop: Loop) -> None:
    loop.background.run(loop.steps("a", 3), owner="a request")
    loop.background.run(loop.steps("b", 1, 30 * MS))
    loop.turns()
    assert loop.background.longest == (30 * MS, "Loop.steps")
    loop.background.longest = (0, "")
    loop.background.run(loop.steps("a", 1), owner="a request")
    loop.turns()
    assert loop.background.longest == (MS, "a request")


def test_a_partial_function_is_named_by_its_function() -> None:
    assert name_of(functools.partial(run_to_end, None)) == "run_to_end"


def test_short_work_may_be_done_at_once(loop: Loop) -> None:
    assert run_to_end(loop.steps("a", 3, value="done")) == "done"
