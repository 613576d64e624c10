"""Producer ids out of the controller's blocks: each is given out once, and producers seldom wait for one."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.transaction_channels import ProducerIds
from kalda.protocol.messages.brokers import AllocateProducerIdsResponse


class Controller:
    """Answers a request for a block, of ten ids by default, when the test calls `give`."""

    def __init__(self) -> None:
        self.requested: list[Pending[Any]] = []
        self._next = 100
        self.ids = ProducerIds(1, lambda: 7, self._send)

    def _send(self, request: Any) -> Pending[Any]:
        assert (request.broker_id, request.broker_epoch) == (1, 7)
        self.requested.append(Pending())
        return self.requested[-1]

    def give(self, count: int = 10) -> None:
        first, self._next = self._next, self._next + count
        self.requested.pop().complete(AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count))


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


def test_producers_wait_for_the_first_block(controller: Controller) -> None:
    first, second = waiting(controller, 2)
    assert len(controller.requested) == 1, "one block is requested"
    controller.give()
    assert (first.value, second.value) == (100, 101)
    assert controller.ids.take() == 102


def test_the_next_block_is_there_before_it_is_needed(controller: Controller) -> None:
    waiting(controller, 1)
    controller.give()
    assert [controller.ids.take() for _ in range(8)] == list(range(101, 109))
    assert len(controller.requested) == 1, "nearly used up"
    controller.give()
    assert [controller.ids.take() for _ in range(3)] == [109, 110, 111]
    assert not controller.requested


def test_more_producers_wait_than_a_block_has_ids(controller: Controller) -> None:
    taken = waiting(controller, 25)
    while controller.requested:
        controller.give()
    assert [each.value for each in taken] == list(range(100, 125))


@pytest.mark.parametrize("is_answered", [False, True])
def test_without_a_block_producers_get_an_error_that_they_retry(controller: Controller, is_answered: bool) -> None:
    (refused,) = waiting(controller, 1)
    if is_answered:
        controller.requested.pop().complete(AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    else:
        controller.requested.pop().fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert refused.error is not None
    assert refused.error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (again,) = waiting(controller, 1)
    controller.give()
    assert again.value == 100


def test_a_producer_that_tries_again_at_once_waits_for_the_next_block(controller: Controller) -> None:
    first = controller.ids.take()
    assert isinstance(first, Pending)
    again: list[Any] = []
    first.then(lambda _, error: again.append(controller.ids.take()))
    controller.requested.pop().fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    [second] = again
    assert not second.done
    controller.give()
    assert second.value == 100
