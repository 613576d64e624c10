"""Items on their way to the controller: what goes in one request, what is sent again and when, what re-enters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.replication.controller_requests import ControllerQueue

LOST = ApiError(ErrorCode.REQUEST_TIMED_OUT)


class World(HandTime):
    """A queue, and a controller that answers when the test says so: with the keys that it has decided."""

    def __init__(self, max_items: int = 10) -> None:
        super().__init__()
        self.requests: list[dict[str, int]] = []
        self.settled: list[tuple[str, int, str | None]] = []
        self.obsolete: set[str] = set()
        self.on_settled: dict[str, Callable[[], None]] = {}
        self.at_once: set[str] | None = None
        """Answer within `send`."""
        self._pending: Pending[set[str]] = Pending()
        self.queue: ControllerQueue[str, int, set[str], str] = ControllerQueue(
            self, self, max_items=max_items, first_backoff_ms=100, max_backoff_ms=400
        )

    def is_needed(self, key: str, item: int) -> bool:
        return key not in self.obsolete

    def send(self, items: dict[str, int]) -> Pending[set[str]]:
        self.requests.append(dict(items))
        self._pending = Pending()
        if self.at_once is not None:
            self._pending.complete(self.at_once)
        return self._pending

    def outcomes(self, items: dict[str, int], response: set[str] | None, error: ApiError | None) -> dict[str, str]:
        return {key: "decided" for key in items if response is not None and key in response}

    def settle(self, key: str, item: int, outcome: str | None) -> None:
        self.settled.append((key, item, outcome))
        if (call := self.on_settled.pop(key, None)) is not None:
            call()

    def answer(self, *decided: str) -> None:
        self._pending.complete(set(decided))

    def lose(self) -> None:
        self._pending.fail(LOST)

    def put(self, **items: int) -> None:
        for key, item in items.items():
            self.queue.put(key, item)


def test_what_comes_together_goes_together_and_what_comes_meanwhile_goes_next() -> None:
    world = World()
    world.put(a=1, b=2)
    assert world.requests == [], "not before the timer's call"
    world.advance(0)
    world.put(c=3)
    world.advance(10_000)
    assert world.requests == [{"a": 1, "b": 2}], "one request at a time"
    world.answer("a", "b")
    world.advance(0)
    assert world.requests[1:] == [{"c": 3}]
    world.answer("c")
    assert world.settled == [("a", 1, "decided"), ("b", 2, "decided"), ("c", 3, "decided")]
    assert (len(world.queue), world.timers) == (0, 0)


def test_the_newest_item_of_a_key_is_sent() -> None:
    world = World()
    world.put(a=1)
    world.put(a=2)
    world.advance(0)
    assert world.requests == [{"a": 2}]
    world.put(a=3)
    world.lose()
    world.advance(100)
    assert world.requests[1:] == [{"a": 3}], "the item in flight was older"


def test_a_request_is_bounded() -> None:
    world = World(max_items=2)
    world.put(a=1, b=2, c=3)
    world.advance(0)
    world.answer("a", "b")
    world.advance(0)
    assert world.requests == [{"a": 1, "b": 2}, {"c": 3}]


def test_pauses_grow_while_something_is_undecided() -> None:
    world = World()
    world.put(a=1)
    sent_at_ms = []
    for _ in range(6):
        while len(world.requests) == len(sent_at_ms):
            world.advance(1)
        sent_at_ms.append(world.now_ms)
        world.lose()
    pauses = [after - before for before, after in pairwise(sent_at_ms)]
    assert pauses == [100, 200, 400, 400, 400]
    world.advance(400)
    world.answer("a")
    world.put(b=1)
    world.advance(0)
    assert world.requests[-1] == {"b": 1}, "the pause begins anew"


def test_what_is_put_during_a_pause_waits_for_its_end() -> None:
    world = World()
    world.put(a=1)
    world.advance(0)
    world.lose()
    world.put(b=2)
    world.advance(99)
    assert len(world.requests) == 1
    world.advance(1)
    assert world.requests[1:] == [{"b": 2, "a": 1}]


def test_what_is_not_needed_any_more_is_settled_without_a_request() -> None:
    world = World()
    world.put(a=1, b=2)
    world.obsolete.add("a")
    world.advance(0)
    assert world.requests == [{"b": 2}]
    assert world.settled == [("a", 1, None)]


def test_an_outcome_that_puts_an_item_does_not_shorten_the_pause_of_the_others() -> None:
    world = World()
    world.put(a=1, b=2)
    world.advance(0)
    world.on_settled["a"] = lambda: world.put(c=3)
    world.answer("a")
    world.advance(99)
    assert len(world.requests) == 1, "b is undecided, so the controller has its pause"
    world.advance(1)
    assert world.requests[1:] == [{"b": 2, "c": 3}]


def test_an_item_that_is_not_needed_and_puts_another_makes_no_second_request() -> None:
    world = World()
    world.put(a=1, b=2)
    world.obsolete.add("a")
    world.on_settled["a"] = lambda: world.put(c=3)
    world.advance(1_000)
    assert world.requests == [{"b": 2}], "c waits until b is answered"
    world.answer("b")
    world.advance(0)
    assert world.requests[1:] == [{"c": 3}]


def test_a_request_may_be_answered_before_send_returns() -> None:
    world = World()
    world.at_once = {"a", "b"}
    world.on_settled["a"] = lambda: world.put(b=2)
    world.put(a=1)
    world.advance(0)
    assert world.requests == [{"a": 1}, {"b": 2}]
    assert len(world.queue) == 0


def test_a_closed_queue_sends_and_settles_nothing() -> None:
    world = World()
    world.put(a=1)
    world.advance(0)
    world.put(b=2)
    world.queue.close()
    world.answer("a")
    world.put(c=3)
    world.advance(10_000)
    assert (world.requests, world.settled, world.timers) == ([{"a": 1}], [], 0)
