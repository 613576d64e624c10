"""What share partitions of this broker read from and write to the share coordinator, wherever that is.

The coordinator of a share partition leads a partition of `__share_group_state`. Where that is this broker, it is called
without a connection. A request that did not reach it, or reached a broker that does not coordinate the share partition
any more or not yet, is sent again, with growing pauses, until it has been tried for some seconds. A write that is done
twice changes nothing. Each call settles whatever happens: an exception on its way is its outcome, and that of no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending, Timers
from kalda.base.share_states import SharePartitionKey, StateBatch, StateRead, StateWrite
from kalda.coordinator.answers import answer_after_all
from kalda.coordinator.share.records import StateSummary
from kalda.protocol.messages.share import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateRequestPartitionData,
    DeleteStateData,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateRequestPartitionData,
    InitializeStateData,
    ReadShareGroupStateRequest,
    ReadShareGroupStateRequestPartitionData,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryRequestPartitionData,
    ReadStateData,
    ReadStateSummaryData,
    WriteShareGroupStateRequest,
    WriteShareGroupStateRequestPartitionData,
    WriteShareGroupStateRequestStateBatch,
    WriteStateData,
)

log = logging.getLogger("kalda.share")

T = TypeVar("T")
_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 1_000
_MAX_ATTEMPTS = 10
"""Some six seconds, if every attempt fails at once."""
_RETRIED = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
_UNDERSTOOD = frozenset(
    (
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )
)
"""Refusals that mean the same to members, or to the share partition. All others are faults between brokers."""
StateRequest = (
    InitializeShareGroupStateRequest
    | ReadShareGroupStateRequest
    | WriteShareGroupStateRequest
    | DeleteShareGroupStateRequest
    | ReadShareGroupStateSummaryRequest
)


class _Call:
    """One request, through all attempts."""

    __slots__ = ("attempts", "key", "outcome", "request")

    def __init__(self, key: SharePartitionKey, request: StateRequest) -> None:
        self.key = key
        self.request = request
        self.attempts = 0
        self.outcome: Pending[Any] = Pending()
        """The result of the only partition."""


class SharePersister:
    """The `Persister` of this broker's share partitions."""

    def __init__(
        self,
        node_id: int,
        coordinator_of: Callable[[SharePartitionKey], int | None],
        send: Callable[[int, StateRequest], Pending[Any]],
        handle_here: Callable[[StateRequest], Any],
        timers: Timers,
        create_topic: Callable[[], None],
    ) -> None:
        """`coordinator_of(key)` is the broker that coordinates a share partition, None while it is unknown; then
        `create_topic()` has the topic of coordinators created, where it is missing.
        `send(broker, request)` settles with the response of another broker, `handle_here(request)` is this one's, now
        or later."""
        self._node_id = node_id
        self._coordinator_of = coordinator_of
        self._send = send
        self._handle_here = handle_here
        self._timers = timers
        self._create_topic = create_topic
        self._closed = False

    def close(self) -> None:
        """Try nothing again."""
        self._closed = True

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[StateRead]:
        """The state of a share partition; its former leaders are fenced. Fails with COORDINATOR_NOT_AVAILABLE,
        FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_SERVER_ERROR."""
        data = ReadShareGroupStateRequestPartitionData(partition=key.partition, leader_epoch=leader_epoch)
        topics = [ReadStateData(topic_id=key.topic_id, partitions=[data])]
        return self._begin(key, ReadShareGroupStateRequest(group_id=key.group_id, topics=topics)).and_then(_as_read)

    def write(self, key: SharePartitionKey, write: StateWrite) -> Pending[None]:
        """Add to the state of a share partition. Fails as `read`, and with FENCED_STATE_EPOCH."""
        data = WriteShareGroupStateRequestPartitionData(
            partition=key.partition,
            state_epoch=write.state_epoch,
            leader_epoch=write.leader_epoch,
            start_offset=write.start_offset,
            delivery_complete_count=write.delivery_complete_count,
            state_batches=[
                WriteShareGroupStateRequestStateBatch(
                    first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
                )
                for first, last, state, count in write.batches
            ],
        )
        topics = [WriteStateData(topic_id=key.topic_id, partitions=[data])]
        written = self._begin(key, WriteShareGroupStateRequest(group_id=key.group_id, topics=topics))
        return written.and_then(lambda _: None)

    # -- for the group coordinator

    def initialize(
        self, offsets: Mapping[SharePartitionKey, int], state_epoch: int
    ) -> Pending[dict[SharePartitionKey, ApiError | None]]:
        """Begin the state of share partitions, each at an offset; the error of each."""
        calls = {}
        for key, offset in offsets.items():
            data = InitializeShareGroupStateRequestPartitionData(
                partition=key.partition, state_epoch=state_epoch, start_offset=offset
            )
            topics = [InitializeStateData(topic_id=key.topic_id, partitions=[data])]
            request = InitializeShareGroupStateRequest(group_id=key.group_id, topics=topics)
            calls[key] = self._begin(key, request)
        return _all(calls, lambda call: call.error)

    def delete(self, keys: Collection[SharePartitionKey]) -> Pending[dict[SharePartitionKey, ApiError | None]]:
        """End the state of share partitions; the error of each."""
        calls = {}
        for key in keys:
            data = DeleteShareGroupStateRequestPartitionData(partition=key.partition)
            topics = [DeleteStateData(topic_id=key.topic_id, partitions=[data])]
            calls[key] = self._begin(key, DeleteShareGroupStateRequest(group_id=key.group_id, topics=topics))
        return _all(calls, lambda call: call.error)

    def summarize(
        self, keys: Collection[SharePartitionKey]
    ) -> Pending[dict[SharePartitionKey, StateSummary | ApiError]]:
        """How far a group is with partitions, or the error of each."""
        calls = {}
        for key in keys:
            data = ReadShareGroupStateSummaryRequestPartitionData(partition=key.partition)
            topics = [ReadStateSummaryData(topic_id=key.topic_id, partitions=[data])]
            calls[key] = self._begin(key, ReadShareGroupStateSummaryRequest(group_id=key.group_id, topics=topics))
        return _all(calls, _as_summary)

    def _begin(self, key: SharePartitionKey, request: StateRequest) -> Pending[Any]:
        call = _Call(key, request)
        self._try(call)
        return call.outcome

    def _try(self, call: _Call) -> None:
        call.attempts += 1
        try:
            reply = self._ask(call)
        except Exception as error:
            if not isinstance(error, ApiError):
                log.exception("share partition %s: the share coordinator could not be asked", call.key.coordinator_key)
            self._failed(call, as_api_error(error))
            return
        if isinstance(reply, Pending):
            reply.then(lambda response, error: self._answered(call, response, error))
        else:
            self._answered(call, reply, None)

    def _ask(self, call: _Call) -> Any:
        """The response, or a `Pending` of it. Raises `ApiError`."""
        broker_id = None if self._closed else self._coordinator_of(call.key)
        if broker_id is None:
            if not self._closed:
                self._create_topic()
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the share coordinator is unknown")
        return self._handle_here(call.request) if broker_id == self._node_id else self._send(broker_id, call.request)

    def _answered(self, call: _Call, response: Any, error: ApiError | None) -> None:
        if error is not None:
            self._failed(call, error)
            return
        results = [partition for topic in response.results for partition in topic.partitions]
        if len(results) != 1:
            self._failed(call, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the share coordinator answered nothing"))
        elif results[0].error_code:
            self._failed(call, ApiError(ErrorCode(results[0].error_code), results[0].error_message or ""))
        else:
            call.outcome.complete(results[0])

    def _failed(self, call: _Call, error: ApiError) -> None:
        if error.code in _RETRIED and call.attempts < _MAX_ATTEMPTS and not self._closed:
            pause_ms = min(_FIRST_PAUSE_MS << (call.attempts - 1), _LONGEST_PAUSE_MS)
            self._timers.call_later_ms(pause_ms, lambda: self._try(call))
        elif error.code in _RETRIED:
            call.outcome.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message))
        elif error.code in _UNDERSTOOD:
            call.outcome.fail(error)
        else:
            call.outcome.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message))


def _as_read(result: Any) -> StateRead:
    batches = [
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in result.state_batches
    ]
    return StateRead(result.state_epoch, result.start_offset, batches)


def _as_summary(call: Pending[Any]) -> StateSummary | ApiError:
    if call.error is not None:
        return call.error
    result: Any = call.value
    return StateSummary(result.start_offset, result.leader_epoch, result.delivery_complete_count)


def _all(
    calls: Mapping[SharePartitionKey, Pending[Any]], outcome: Callable[[Pending[Any]], T]
) -> Pending[dict[SharePartitionKey, T]]:
    """The outcome of each, when all have one."""
    answer = answer_after_all(list(calls.values()), lambda: {key: outcome(call) for key, call in calls.items()})
    if isinstance(answer, Pending):
        return answer
    settled: Pending[dict[SharePartitionKey, T]] = Pending()
    settled.complete(answer)
    return settled
