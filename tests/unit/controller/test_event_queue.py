"""One event at a time: those that decide in steps, what waits behind them, and what a lost leadership does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from by_hand import one_step_a_turn

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending
from kalda.controller.event_queue import EventQueue, EventTimes
from kalda.protocol.messages.metadata_records import NoOpRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result

RECORD = VersionedRecord(NoOpRecord(), 0)


class Queue:
    """A queue whose turns the test takes. What happens is in `happened`."""

    def __init__(self) -> None:
        self.turns: list[Callable[[], None]] = []
        self.happened: list[Any] = []
        self.refusal: ApiError | None = None
        self.now_ms = 0
        self.times = EventTimes(1_000, 1_000)
        self.events = EventQueue(
            one_step_a_turn(self.turns.append),
            lambda: self.now_ms,
            self.times,
            write=self._write,
            refusal=lambda: self.refusal,
            failure=self._failure,
            on_poll=self._poll,
        )
        self.poll: Callable[[], object] = lambda: None
        self.on_failure: Callable[[], object] = lambda: None

    def _write(self, result: Result[VersionedRecord, Any]) -> Pending[Any]:
        self.happened.append(("written", result.response, len(result.records)))
        answer: Pending[Any] = Pending()
        answer.complete(result.response)
        return answer

    def _failure(self, name: str, error: Exception) -> ApiError:
        self.on_failure()
        return as_api_error(error)

    def _poll(self) -> None:
        self.happened.append("poll")
        self.poll()

    def run(self, name: str, timeout_ms: int = 0) -> Pending[str]:
        return self.events.run(name, lambda: Result([RECORD], name), timeout_ms)

    def run_in_steps(self, name: str, steps: int = 2, timeout_ms: int = 0) -> Pending[str]:
        def decide() -> Steps[Result[VersionedRecord, str]]:
            for step in range(steps):
                self.happened.append((name, step))
                if step < steps - 1:
                    yield
            return Result([RECORD] * steps, name)

        return self.events.run(name, decide, timeout_ms)

    def turn(self) -> None:
        self.turns.pop(0)()

    def turn_to_end(self) -> None:
        while self.turns:
            self.turn()


def test_an_event_runs_on_the_spot_where_nothing_is_under_way() -> None:
    queue = Queue()
    assert queue.run("a").value == "a"
    assert queue.run_in_steps("b", steps=1).value == "b", "the first step is taken at once, and is the last"
    assert queue.turns == []
    assert queue.times.started == 2


def test_what_comes_while_an_event_decides_waits_behind_it_in_order() -> None:
    queue = Queue()
    first, second, third = queue.run_in_steps("a", 3), queue.run("b"), queue.run_in_steps("c", 2)
    assert not first.done
    assert not second.done
    queue.turn_to_end()
    assert queue.happened == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("written", "a", 3),
        ("written", "b", 1),
        ("c", 0),
        ("c", 1),
        ("written", "c", 2),
    ]
    assert (first.value, second.value, third.value) == ("a", "b", "c")
    assert queue.run("d").value == "d", "the queue is empty again"


def test_an_event_out_of_an_event_is_not_inside_of_it() -> None:
    queue = Queue()
    inner: list[Pending[str]] = []

    def decide() -> Result[VersionedRecord, str]:
        inner.append(queue.run("inner"))
        assert not inner[0].done
        return Result([], "outer")

    assert queue.events.run("outer", decide).value == "outer"
    queue.turn_to_end()
    assert inner[0].value == "inner"


def test_a_poll_waits_behind_what_came_before_it_and_its_own_events_do_not_wait() -> None:
    queue = Queue()

    def poll() -> None:
        assert not queue.events.is_busy
        queue.run("later")
        assert queue.events.run_inside("task", lambda: Result([RECORD], "task")).value == "task"

    queue.poll = poll
    queue.run_in_steps("a", 2)
    queue.run("heartbeat")
    assert queue.events.is_busy
    queue.events.poll_later()
    queue.events.poll_later()
    queue.run("b")
    queue.turn_to_end()
    names = [each if each == "poll" else each[1] for each in queue.happened if each == "poll" or each[0] == "written"]
    assert names == ["a", "heartbeat", "poll", "task", "b", "later"]


def test_an_error_while_deciding_fails_that_event_alone() -> None:
    queue = Queue()

    def fail(error: Exception) -> Callable[[], Steps[Result[VersionedRecord, str]]]:
        def decide() -> Steps[Result[VersionedRecord, str]]:
            yield
            raise error

        return decide

    refused = queue.events.run("a", fail(ApiError(ErrorCode.POLICY_VIOLATION)))
    broken = queue.events.run("b", fail(KeyError("a bug")))
    last = queue.run("c")
    queue.turn_to_end()
    assert refused.error is not None
    assert refused.error.code is ErrorCode.POLICY_VIOLATION
    assert broken.error is not None
    assert broken.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert last.value == "c"


@pytest.mark.parametrize("turns", [0, 1])
def test_a_lost_leadership_ends_the_event_and_fails_what_waits(turns: int) -> None:
    queue = Queue()
    first, second = queue.run_in_steps("a", 5), queue.run("b")
    queue.events.poll_later()
    for _ in range(turns):
        queue.turn()
    queue.refusal = ApiError(ErrorCode.NOT_CONTROLLER)
    queue.events.drop_all(queue.refusal)
    for each in (first, second):
        assert each.error is queue.refusal
    assert queue.run("c").error in (None, queue.refusal)
    queue.turn_to_end()
    assert queue.happened == [("a", step) for step in range(turns + 1)], "nothing was written"
    assert queue.run("d").error is queue.refusal
    queue.refusal = None
    assert queue.run("e").value == "e"


def test_an_event_may_lose_the_leadership_by_its_failure() -> None:
    queue = Queue()
    gone = ApiError(ErrorCode.NOT_CONTROLLER)

    def decide() -> Steps[Result[VersionedRecord, str]]:
        yield
        raise KeyError("a bug")

    queue.on_failure = lambda: queue.events.drop_all(gone)
    first, second = queue.events.run("a", decide), queue.run("b")
    queue.turn_to_end()
    assert first.error is not None
    assert first.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert second.error is gone


def test_a_request_whose_time_is_over_is_not_begun() -> None:
    queue = Queue()
    queue.run_in_steps("a", 3)
    late, in_time, timeless = queue.run("b", timeout_ms=10), queue.run("c", timeout_ms=100), queue.run("d")
    queue.now_ms = 50
    queue.turn_to_end()
    assert late.error is not None
    assert late.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert (in_time.value, timeless.value) == ("c", "d")
    assert queue.times.timed_out == 1


def test_the_time_of_an_event_is_that_of_its_steps_without_the_time_between_them() -> None:
    queue = Queue()

    def decide() -> Steps[Result[VersionedRecord, str]]:
        for _ in range(3):
            queue.now_ms += 100
            yield
        return Result([], "a")

    queue.events.run("a", decide)
    while queue.turns:
        queue.now_ms += 5_000
        queue.turn()
    assert "took 300.00 ms" in queue.times.message()
