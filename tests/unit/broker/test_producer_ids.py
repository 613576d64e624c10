"""Producer ids out of the controller's blocks: each once, and seldom waited for."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.handlers.producers import ProducerIds
from kalda.protocol.messages.brokers import AllocateProducerIdsResponse


class Controller:
    """Gives blocks of ten, when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Pending[Any]] = []
        self._next = 100
        self.ids = ProducerIds(1, lambda: 7, self._send)

    def _send(self, request: Any) -> Pending[Any]:
        assert (request.broker_id, request.broker_epoch) == (1, 7)
        self.asked.append(Pending())
        return self.asked[-1]

    def give(self, count: int = 10) -> None:
        first, self._next = self._next, self._next + count
        self.asked.pop().complete(AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count))


@pytest.fixture
def controller() -> Controller:
    return Controller()


def waiting(controller: Controller, count: int) -> list[Pending[int]]:
    found = []
    for _ in range(count):
        taken = controller.ids.take()
        assert isinstance(taken, Pending)
        found.append(taken)
    return found


def test_whoever_comes_before_the_first_block_waits_for_it(controller: Controller) -> None:
    first, second = waiting(controller, 2)
    assert len(controller.asked) == 1, "one block is asked for"
    controller.give()
    assert (first.value, second.value) == (100, 101)
    assert controller.ids.take() == 102


def test_the_next_block_is_there_before_it_is_needed(controller: Controller) -> None:
    waiting(controller, 1)
    controller.give()
    assert [controller.ids.take() for _ in range(8)] == list(range(101, 109))
    assert len(controller.asked) == 1, "nearly used up"
    controller.give()
    assert [controller.ids.take() for _ in range(3)] == [109, 110, 111]
    assert not controller.asked


def test_more_may_wait_than_a_block_has(controller: Controller) -> None:
    all_of_them = waiting(controller, 25)
    while controller.asked:
        controller.give()
    assert [each.value for each in all_of_them] == list(range(100, 125))


@pytest.mark.parametrize("is_answered", [False, True])
def test_without_a_block_they_are_told_to_come_again(controller: Controller, is_answered: bool) -> None:
    (told,) = waiting(controller, 1)
    if is_answered:
        controller.asked.pop().complete(AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    else:
        controller.asked.pop().fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert told.error is not None
    assert told.error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (again,) = waiting(controller, 1)
    controller.give()
    assert again.value == 100
