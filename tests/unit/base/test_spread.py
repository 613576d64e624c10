"""Calls of which one event causes many, over several turns of the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kalda.base.steps import Spread


class Calls:
    """A spread with room for calls of 10 a turn, and turns that the test takes by hand."""

    def __init__(self) -> None:
        self.turns: list[Callable[[], None]] = []
        self.spread = Spread(self.turns.append, 10)
        self.made: list[int] = []

    def add(self, first: int, count: int, cost: int = 1) -> list[Callable[[], None]]:
        calls: list[Callable[[], None]] = [partial(self.made.append, number) for number in range(first, first + count)]
        for each in calls:
            self.spread.call(each, cost)
        return calls

    def take_turn(self) -> None:
        self.turns.pop(0)()


def test_what_a_turn_has_no_room_for_is_called_in_the_next_ones_in_order() -> None:
    calls = Calls()
    calls.add(0, 25)
    assert calls.made == list(range(10))
    calls.take_turn()
    assert calls.made == list(range(20))
    calls.add(25, 1)
    calls.take_turn()
    assert calls.made == list(range(26))
    calls.take_turn()
    assert calls.turns == []
    calls.add(26, 1)
    assert calls.made == list(range(27))


def test_a_call_counts_as_what_it_costs() -> None:
    calls = Calls()
    calls.add(0, 5, cost=4)
    assert calls.made == [0, 1, 2]
    calls.take_turn()
    assert calls.made == [0, 1, 2, 3, 4]


def test_what_is_forgotten_is_not_called() -> None:
    calls = Calls()
    waiting = calls.add(0, 13)
    calls.spread.forget(waiting[11])
    calls.take_turn()
    assert calls.made == [*range(11), 12]


def test_a_call_that_fails_holds_no_other(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    calls.add(0, 10)
    calls.spread.call(lambda: {}["a bug"], 1)
    calls.add(10, 2)
    calls.take_turn()
    assert calls.made == list(range(12))
    assert "a bug" in caplog.text
