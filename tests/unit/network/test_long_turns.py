"""Connections whose turns were long: one in each turn of the loop, in their order."""

from __future__ import annotations

from collections.abc import Callable

from kalda.network.long_turns import LongTurns


class PaperConnection:
    """Takes long each time, so it waits again."""

    def __init__(self, name: str, turns: LongTurns, served: list[str], again: int) -> None:
        self._name = name
        self._turns = turns
        self._served = served
        self._again = again

    def take_turn(self) -> None:
        self._served.append(self._name)
        self._again -= 1
        if self._again:
            self._turns.wait(self)


def test_one_a_turn_of_the_loop() -> None:
    soon: list[Callable[[], None]] = []
    served: list[str] = []
    turns = LongTurns(soon.append)
    for name, again in (("a", 3), ("b", 1), ("c", 2)):
        turns.wait(PaperConnection(name, turns, served, again))
    counts = []
    while soon:
        assert len(soon) == 1
        soon.pop()()
        counts.append(len(served))
    assert served == ["a", "b", "c", "a", "c", "a"]
    assert counts == [1, 2, 3, 4, 5, 6]
