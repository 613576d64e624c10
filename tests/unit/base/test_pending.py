"""A result that is set later: chains of them, their errors, and results that are abandoned."""

from __future__ import annotations

import gc
import weakref

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending

FAILED = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "a disk")


class Outcome:
    """What a `Pending` was settled with."""

    def __init__(self, pending: Pending[int]) -> None:
        self.seen: list[tuple[int | None, ApiError | None]] = []
        pending.then(lambda value, error: self.seen.append((value, error)))


def abandoned(pending: Pending[int]) -> list[str]:
    """Gets an entry when `pending` is abandoned."""
    calls: list[str] = []
    pending.on_abandoned = lambda: calls.append("abandoned")
    return calls


def test_a_value_goes_through_each_function_of_a_chain() -> None:
    first = Pending[int]()
    outcome = Outcome(first.and_then(lambda value: value + 1).and_then(lambda value: value * 10))
    assert not outcome.seen
    first.complete(4)
    assert outcome.seen == [(50, None)]


def test_what_is_settled_already_is_passed_on_at_once() -> None:
    first = Pending[int]()
    first.complete(4)
    assert Outcome(first.and_then(lambda value: value + 1)).seen == [(5, None)]


def test_a_function_may_give_what_is_settled_later() -> None:
    first, second = Pending[int](), Pending[int]()
    outcome = Outcome(first.and_then(lambda _: second))
    first.complete(1)
    assert not outcome.seen
    second.complete(2)
    assert outcome.seen == [(2, None)]


def test_errors_pass() -> None:
    def fails(_: int) -> int:
        raise FAILED

    def called_in_vain(value: int) -> int:
        called.append(value)
        return value

    first, second, third = Pending[int](), Pending[int](), Pending[int]()
    called: list[int] = []
    outcomes = [
        Outcome(first.and_then(called_in_vain)),
        Outcome(second.and_then(lambda _: third)),
        Outcome(second.and_then(fails)),
    ]
    first.fail(FAILED)
    second.complete(1)
    third.fail(FAILED)
    assert [outcome.seen for outcome in outcomes] == [[(None, FAILED)]] * 3
    assert not called


def test_who_abandons_a_chain_abandons_what_it_waits_for() -> None:
    first, second = Pending[int](), Pending[int]()
    told_first, told_second = abandoned(first), abandoned(second)
    chain = first.and_then(lambda _: second).and_then(lambda value: value)
    chain.abandon()
    assert (told_first, told_second) == (["abandoned"], [])

    first, second = Pending[int](), Pending[int]()
    told_first, told_second = abandoned(first), abandoned(second)
    chain = first.and_then(lambda _: second).and_then(lambda value: value)
    first.complete(1)
    chain.abandon()
    assert (told_first, told_second) == ([], ["abandoned"])


def test_what_begins_after_a_chain_was_abandoned_is_abandoned_too() -> None:
    """A producer need not settle what was abandoned, but may: what its value begins must not wait for nobody."""
    first, second = Pending[int](), Pending[int]()
    told = abandoned(second)
    first.and_then(lambda _: second).abandon()
    first.complete(1)
    assert told == ["abandoned"]


def test_a_value_that_a_chain_has_passed_on_is_freed_without_garbage_collection() -> None:
    class Large:
        pass

    gc.disable()
    try:
        pendings = [Pending[Large]() for _ in range(2)]
        chain = pendings[0].and_then(lambda _: pendings[1])
        ends = []
        for each in pendings:
            value = Large()
            ends.append(weakref.finalize(value, lambda: None))
            each.complete(value)
        del each, value, chain
        pendings.clear()
        assert not [end for end in ends if end.alive]
    finally:
        gc.enable()
