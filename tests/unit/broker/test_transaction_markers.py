"""The driver of transaction markers: when it sends, to whom, and that it stops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.transaction_channels import TransactionMarkers
from kalda.coordinator.transactions.markers import Completion
from kalda.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

HERE, THERE = 1, 2


class Brokers:
    """Partition 1 of `orders` is led by this broker, partition 2 by another one, whose answers the test gives."""

    def __init__(self) -> None:
        self.time = HandTime()
        self.answers_at_once = True
        self.refusal: ErrorCode | None = None
        self.here: list[WriteTxnMarkersRequest] = []
        self.there: list[tuple[WriteTxnMarkersRequest, Pending[Any]]] = []
        self.held: Pending[WriteTxnMarkersResponse] = Pending()
        self.completed: list[str] = []
        self.leaders = {("orders", HERE): HERE, ("orders", THERE): THERE}
        self.markers = TransactionMarkers(
            HERE,
            lambda topic, index: self.leaders.get((topic, index)),
            self.send,
            self.write_here,
            self,  # type: ignore[arg-type]
            self.time,
        )

    def mono_ms(self) -> int:
        return self.time.now_ms

    def send(self, broker: int, request: WriteTxnMarkersRequest) -> Pending[Any]:
        assert broker == THERE
        pending: Pending[Any] = Pending()
        self.there.append((request, pending))
        return pending

    def write_here(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
        self.here.append(request)
        if self.refusal is not None:
            raise ApiError(self.refusal)
        return written(request) if self.answers_at_once else self.held

    def end(self, name: str, *partitions: int) -> None:
        completion = Completion(
            0, name, 1000, 5, 3, 2, {"orders": frozenset(partitions)}, self.completed.append, 0, committed=True
        )
        self.markers.add(completion, self.time.now_ms)


def written(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=each) for each in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def test_nothing_is_sent_on_the_stack_that_queues() -> None:
    """The coordinator queues markers while its log reports a commit."""
    brokers = Brokers()
    brokers.end("a", HERE, THERE)
    brokers.end("b", HERE)
    assert not brokers.here
    brokers.time.advance(0)
    assert [len(request.markers) for request in brokers.here] == [2], "what was queued together leaves together"
    assert brokers.completed == ["b"]
    ((request, pending),) = brokers.there
    pending.complete(written(request))
    assert brokers.completed == ["b", "a"]
    assert (brokers.markers.size, brokers.time.timers) == (0, 1)
    brokers.time.advance(0)
    assert brokers.time.timers == 0, "nothing is queued"


def test_one_request_is_under_way_to_a_broker() -> None:
    brokers = Brokers()
    brokers.end("a", THERE)
    brokers.time.advance(10)
    brokers.end("b", THERE)
    brokers.end("c", THERE)
    brokers.time.advance(10_000)
    assert len(brokers.there) == 1
    request, pending = brokers.there[0]
    pending.complete(written(request))
    brokers.time.advance(0)
    assert [len(request.markers) for request, _ in brokers.there] == [1, 2]


def test_a_broker_that_does_not_answer_is_tried_again_after_a_pause_that_grows() -> None:
    brokers = Brokers()
    brokers.end("a", THERE)
    times = []
    for _ in range(10):
        while len(brokers.there) == len(times):
            brokers.time.advance(1)
        times.append(brokers.time.now_ms)
        brokers.there[-1][1].fail(ApiError(ErrorCode.NETWORK_EXCEPTION))
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[:3] == [20, 40, 80]
    assert pauses[-1] == 1_000


@pytest.mark.parametrize("at_once", [True, False])
def test_a_write_here_that_waits_or_is_refused(at_once: bool) -> None:
    brokers = Brokers()
    brokers.answers_at_once, brokers.refusal = at_once, ErrorCode.KAFKA_STORAGE_ERROR
    brokers.end("a", HERE)
    brokers.time.advance(0)
    assert len(brokers.here) == 1
    brokers.refusal = None
    brokers.time.advance(20)
    assert len(brokers.here) == 2
    if not at_once:
        assert not brokers.completed
        brokers.held.complete(written(brokers.here[-1]))
    assert brokers.completed == ["a"]


def test_after_close_nothing_is_sent_or_counted() -> None:
    brokers = Brokers()
    brokers.end("a", THERE)
    brokers.time.advance(0)
    brokers.end("b", HERE)
    brokers.markers.close()
    assert brokers.time.timers == 0
    request, pending = brokers.there[0]
    pending.complete(written(request))
    brokers.end("c", HERE)
    brokers.time.advance(1_000)
    assert (brokers.here, brokers.completed) == ([], [])
