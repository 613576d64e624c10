"""A body that is asked for again while it runs, or while a change is under way."""

from __future__ import annotations

import pytest

from kalda.base.scheduling import Reentrancy


class Worker:
    """Notes how deep its body is on the stack; runs `during` inside the first run."""

    def __init__(self, during: int = 0) -> None:
        self.reentrancy = Reentrancy(self.body)
        self.runs = 0
        self.depth = 0
        self.deepest = 0
        self.calls_left = during
        self.fails = False

    def body(self) -> None:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        self.runs += 1
        if self.fails:
            self.depth -= 1
            raise ValueError("broken")
        while self.calls_left:
            self.calls_left -= 1
            self.reentrancy.run()
        self.depth -= 1


def test_calls_during_a_run_make_one_more_run_and_never_a_nested_one() -> None:
    worker = Worker(during=3)
    worker.reentrancy.run()
    assert (worker.runs, worker.deepest) == (2, 1)


def test_calls_during_a_change_wait_for_its_end() -> None:
    worker = Worker()
    with worker.reentrancy.held():
        with worker.reentrancy.held():
            worker.reentrancy.run()
        worker.reentrancy.run()
        assert worker.runs == 0
    assert worker.runs == 1


def test_a_change_that_asks_for_nothing_runs_nothing() -> None:
    worker = Worker()
    with worker.reentrancy.held():
        pass
    assert worker.runs == 0


def test_a_change_that_fails_runs_what_was_asked_for() -> None:
    worker = Worker()

    def change() -> None:
        with worker.reentrancy.held():
            worker.reentrancy.run()
            raise ValueError("change")

    with pytest.raises(ValueError, match="change"):
        change()
    assert worker.runs == 1


def test_a_body_that_fails_can_run_again() -> None:
    worker = Worker()
    worker.fails = True
    with pytest.raises(ValueError, match="broken"):
        worker.reentrancy.run()
    worker.fails = False
    worker.reentrancy.run()
    assert worker.runs == 2
