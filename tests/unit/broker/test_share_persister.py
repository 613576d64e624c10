"""What share partitions read and write: here or at another broker, again where it has failed."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey, StateBatch, StateRead, StateWrite
from kalda.broker.channels.share_persister import SharePersister, StateRequest
from kalda.protocol.messages.share import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateResponsePartitionResult,
    ReadShareGroupStateResponseStateBatch,
    ReadStateResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteShareGroupStateResponsePartitionResult,
    WriteStateResult,
)

KEY = SharePartitionKey("g", Uuid(b"orders".ljust(16, b".")), 3)
HERE, THERE = 1, 2
WRITE = StateWrite(1, 5, 10, 2, [StateBatch(10, 11, 2, 1)])


class World:
    """Answers of the share coordinator, one an attempt; where there are no more, the attempt fails."""

    def __init__(self, *answers: Any, coordinator: int | None = HERE) -> None:
        self.answers = list(answers)
        self.coordinator = coordinator
        self.requests: list[tuple[int, StateRequest]] = []
        self.time = HandTime()
        self.persister = SharePersister(
            HERE,
            lambda key: self.coordinator,
            self._send,
            lambda request: self._handle(HERE, request),
            self.time,
            self._create_topic,
        )
        self.created = 0

    def _create_topic(self) -> None:
        self.created += 1

    def _send(self, broker_id: int, request: StateRequest) -> Pending[Any]:
        sent: Pending[Any] = Pending()
        try:
            sent.complete(self._handle(broker_id, request))
        except ApiError as error:
            sent.fail(error)
        return sent

    def _handle(self, broker_id: int, request: StateRequest) -> Any:
        self.requests.append((broker_id, request))
        answer = self.answers.pop(0) if self.answers else ErrorCode.NETWORK_EXCEPTION
        if isinstance(answer, ErrorCode):
            raise ApiError(answer)
        return answer


def read_answer(code: ErrorCode = ErrorCode.NONE) -> ReadShareGroupStateResponse:
    batches = [
        ReadShareGroupStateResponseStateBatch(first_offset=10, last_offset=11, delivery_state=2, delivery_count=1)
    ]
    result = ReadShareGroupStateResponsePartitionResult(
        partition=3, error_code=int(code), state_epoch=1, start_offset=10, state_batches=batches
    )
    return ReadShareGroupStateResponse(results=[ReadStateResult(topic_id=KEY.topic_id, partitions=[result])])


def write_answer(code: ErrorCode = ErrorCode.NONE) -> WriteShareGroupStateResponse:
    result = WriteShareGroupStateResponsePartitionResult(partition=3, error_code=int(code))
    return WriteShareGroupStateResponse(results=[WriteStateResult(topic_id=KEY.topic_id, partitions=[result])])


@pytest.mark.parametrize("coordinator", [HERE, THERE])
def test_the_coordinator_of_the_key_is_asked(coordinator: int) -> None:
    world = World(read_answer(), write_answer(), coordinator=coordinator)
    assert world.persister.read(KEY, 5).value == StateRead(1, 10, [StateBatch(10, 11, 2, 1)])
    assert world.persister.write(KEY, WRITE).done
    (_, read), (asked, written) = world.requests
    assert asked == coordinator
    assert isinstance(read, ReadShareGroupStateRequest)
    assert isinstance(written, WriteShareGroupStateRequest)
    assert read.topics[0].partitions[0].leader_epoch == 5
    data = written.topics[0].partitions[0]
    assert (data.partition, data.state_epoch, data.leader_epoch, data.start_offset) == (3, 1, 5, 10)
    assert (data.delivery_complete_count, data.state_batches[0].last_offset) == (2, 11)


def test_a_coordinator_that_has_moved_is_found_again() -> None:
    moved = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    world = World(*map(write_answer, moved), ErrorCode.NETWORK_EXCEPTION, write_answer(), coordinator=THERE)
    written = world.persister.write(KEY, WRITE)
    world.coordinator = None
    world.time.advance(60)
    assert len(world.requests) == 1
    world.coordinator = HERE
    world.time.advance(5_000)
    assert written.done
    assert written.error is None
    assert [broker for broker, _ in world.requests] == [THERE, HERE, HERE, HERE]
    assert world.created == 1, "the topic may be missing"


def test_what_never_succeeds_fails_after_some_seconds() -> None:
    world = World()
    written = world.persister.write(KEY, WRITE)
    world.time.advance(10_000)
    assert written.error is not None
    assert written.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(world.requests) == 10
    assert world.time.timers == 0


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH),
        (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_STATE_EPOCH),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_refusals_are_final(code: ErrorCode, expected: ErrorCode) -> None:
    world = World(read_answer(code))
    read = world.persister.read(KEY, 5)
    assert read.error is not None
    assert read.error.code is expected
    assert world.time.timers == 0


def test_an_answer_without_the_partition_is_a_fault() -> None:
    read = World(ReadShareGroupStateResponse()).persister.read(KEY, 5)
    assert read.error is not None
    assert read.error.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_nothing_is_tried_after_the_end() -> None:
    world = World(ErrorCode.NETWORK_EXCEPTION, write_answer())
    written = world.persister.write(KEY, WRITE)
    world.persister.close()
    world.time.advance(10_000)
    assert written.error is not None
    assert len(world.requests) == 1


@pytest.mark.parametrize("coordinator", [HERE, THERE])
def test_an_exception_on_the_way_is_the_outcome_of_its_call_alone(
    coordinator: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(read_answer(), coordinator=coordinator)
    handle = world._handle

    def faulty(broker_id: int, request: StateRequest) -> Any:
        if request.group_id == "bad":
            raise RuntimeError("thrown on purpose")
        return handle(broker_id, request)

    monkeypatch.setattr(world, "_handle", faulty)
    failed = world.persister.read(KEY._replace(group_id="bad"), 5)
    read = world.persister.read(KEY, 5)
    assert failed.error is not None
    assert failed.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert read.value is not None
