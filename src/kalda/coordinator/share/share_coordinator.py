"""The share coordinator: InitializeShareGroupState (83), ReadShareGroupState (84), WriteShareGroupState (85),
DeleteShareGroupState (86) and ReadShareGroupStateSummary (87), of brokers only (KIP-932).

Every partition that a request names is a key of its own, decided by its shard; the answer is made when all are. A
request without group, topics or partitions is answered with nothing, as in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import SHARE_STATE_TOPIC, Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import NO_OFFSET, SharePartitionKey, StateBatch, StateWrite
from kalda.base.stats import Avg, Max, Meter
from kalda.coordinator.answers import answer_after_all, write_error
from kalda.coordinator.runtime import CoordinatorLog, CoordinatorRuntime
from kalda.coordinator.share.shard import NO_COUNT, ShareCoordinatorConfig, ShareShard, ShareState
from kalda.protocol.messages.share import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateRequestPartitionData,
    DeleteShareGroupStateResponse,
    DeleteShareGroupStateResponsePartitionResult,
    DeleteStateResult,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateRequestPartitionData,
    InitializeShareGroupStateResponse,
    InitializeShareGroupStateResponsePartitionResult,
    InitializeStateResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateRequestPartitionData,
    ReadShareGroupStateResponse,
    ReadShareGroupStateResponsePartitionResult,
    ReadShareGroupStateResponseStateBatch,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryRequestPartitionData,
    ReadShareGroupStateSummaryResponse,
    ReadShareGroupStateSummaryResponsePartitionResult,
    ReadStateResult,
    ReadStateSummaryResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateRequestPartitionData,
    WriteShareGroupStateResponse,
    WriteShareGroupStateResponsePartitionResult,
    WriteStateResult,
)

StateRequest: TypeAlias = (
    InitializeShareGroupStateRequest
    | ReadShareGroupStateRequest
    | WriteShareGroupStateRequest
    | DeleteShareGroupStateRequest
    | ReadShareGroupStateSummaryRequest
)
Answered: TypeAlias = Steps[Any]
"""The response to one of the requests, in steps, and perhaps later."""


class Shape(NamedTuple):
    """What an API's response is made of."""

    what: str
    """For messages: it was not possible to do this."""
    response: Callable[..., Any]
    topic: Callable[..., Any]
    partition: Callable[..., Any]


INITIALIZE = Shape(
    "initialize share group state",
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    InitializeShareGroupStateResponsePartitionResult,
)
READ = Shape(
    "read share group state",
    ReadShareGroupStateResponse,
    ReadStateResult,
    ReadShareGroupStateResponsePartitionResult,
)
WRITE = Shape(
    "write share group state",
    WriteShareGroupStateResponse,
    WriteStateResult,
    WriteShareGroupStateResponsePartitionResult,
)
DELETE = Shape(
    "delete share group state",
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    DeleteShareGroupStateResponsePartitionResult,
)
SUMMARIZE = Shape(
    "read share group state summary",
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
    ReadShareGroupStateSummaryResponsePartitionResult,
)


class _Partition(Protocol):
    partition: int


class _Topic(Protocol):
    topic_id: Uuid

    @property
    def partitions(self) -> Sequence[_Partition]: ...


def failed_state(shape: Shape, topics: Sequence[_Topic], code: ErrorCode, message: str | None) -> Any:
    """The response to a request that failed as a whole: the error of every partition."""
    return shape.response(
        results=[
            shape.topic(
                topic_id=topic.topic_id,
                partitions=[
                    shape.partition(partition=each.partition, error_code=int(code), error_message=message)
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


class ShareCoordinator:
    """One broker's share coordinator: requests on the shards of its runtime."""

    def __init__(
        self,
        config: ShareCoordinatorConfig,
        log: CoordinatorLog,
        has_partition: Callable[[Uuid, int], bool],
        prune: Callable[[int, int], None],
        partition_count: Callable[[], int],
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """`has_partition` and `prune` as in `ShareShard`; `partition_count` is that of the topic, 0 while there is
        none. Timers go by the `now_ms` of each call; timestamps that are stored by `wall_ms`, or by `now_ms` too where
        it is None."""
        self.runtime: CoordinatorRuntime[ShareShard] = CoordinatorRuntime(
            SHARE_STATE_TOPIC,
            lambda partition, runtime: ShareShard(partition, config, runtime.timers, runtime, has_partition, prune),
            log,
            partition_count,
            config.write_timeout_ms,
            wall_ms,
        )
        self.writes = Meter()
        """Writes of the state of a share partition, refused ones too."""
        self.write_latency_avg = Avg()
        """Milliseconds from a WriteShareGroupState to its answer; this one and its largest."""
        self.write_latency_max = Max()

    def initialize(self, request: InitializeShareGroupStateRequest, now_ms: int) -> Answered:
        """InitializeShareGroupState (83)."""

        def decide(key: SharePartitionKey, data: InitializeShareGroupStateRequestPartitionData) -> Pending[Any]:
            response = InitializeShareGroupStateResponsePartitionResult(partition=key.partition)
            return self._shard(key).initialize(key, data.state_epoch, data.start_offset, response)

        return self._answered(INITIALIZE, request, now_ms, decide)

    def read(self, request: ReadShareGroupStateRequest, now_ms: int) -> Answered:
        """ReadShareGroupState (84)."""

        def decide(key: SharePartitionKey, data: ReadShareGroupStateRequestPartitionData) -> Pending[Any]:
            return self._shard(key).read(key, data.leader_epoch).and_then(lambda state: _read_result(key, state))

        return self._answered(READ, request, now_ms, decide)

    def write(self, request: WriteShareGroupStateRequest, now_ms: int) -> Answered:
        """WriteShareGroupState (85)."""

        def decide(key: SharePartitionKey, data: WriteShareGroupStateRequestPartitionData) -> Pending[Any]:
            self.writes.record(1, now_ms)
            response = WriteShareGroupStateResponsePartitionResult(partition=key.partition)
            return self._shard(key).write(key, _state_write(data), response)

        def record_latency() -> None:
            took_ms = self.runtime.now_ms() - now_ms
            self.write_latency_avg.record(took_ms, self.runtime.now_ms())
            self.write_latency_max.record(took_ms, self.runtime.now_ms())

        return self._answered(WRITE, request, now_ms, decide, record_latency)

    def delete(self, request: DeleteShareGroupStateRequest, now_ms: int) -> Answered:
        """DeleteShareGroupState (86)."""

        def decide(key: SharePartitionKey, data: DeleteShareGroupStateRequestPartitionData) -> Pending[Any]:
            response = DeleteShareGroupStateResponsePartitionResult(partition=key.partition)
            return self._shard(key).delete(key, response)

        return self._answered(DELETE, request, now_ms, decide)

    def summarize(self, request: ReadShareGroupStateSummaryRequest, now_ms: int) -> Answered:
        """ReadShareGroupStateSummary (87)."""

        def decide(key: SharePartitionKey, data: ReadShareGroupStateSummaryRequestPartitionData) -> Pending[Any]:
            return self._shard(key).summary(key).and_then(lambda state: _summary_result(key, state))

        return self._answered(SUMMARIZE, request, now_ms, decide)

    def _shard(self, key: SharePartitionKey) -> ShareShard:
        """Raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        try:
            return self.runtime.shard_for(key.coordinator_key)
        except ApiError as error:
            raise _Elsewhere(error.code) from error

    def _answered(
        self,
        shape: Shape,
        request: StateRequest,
        now_ms: int,
        decide: Callable[[SharePartitionKey, Any], Pending[Any]],
        on_answer: Callable[[], None] | None = None,
    ) -> Answered:
        """Decide each partition of the request, and answer when all are settled."""
        self.runtime.advance(now_ms)
        topics = cast("Sequence[_Topic]", request.topics)
        if not request.group_id or not all(topic.partitions for topic in topics):
            return shape.response()
        outcomes: list[tuple[Uuid, list[tuple[int, Pending[Any]]]]] = []
        decided = 0
        for topic in topics:
            settled: list[tuple[int, Pending[Any]]] = []
            outcomes.append((topic.topic_id, settled))
            for data in topic.partitions:
                decided += 1 + len(getattr(data, "state_batches", ()))
                if decided >= ITEMS_A_STEP:
                    decided = 0
                    yield
                key = SharePartitionKey(request.group_id, topic.topic_id, data.partition)
                settled.append((data.partition, self._outcome(shape, key, data, decide)))

        def finish() -> Any:
            if on_answer is not None:
                on_answer()
            return shape.response(
                results=[
                    shape.topic(topic_id=topic_id, partitions=[_result(shape, *each) for each in each_partition])
                    for topic_id, each_partition in outcomes
                ]
            )

        return answer_after_all([pending for _, settled in outcomes for _, pending in settled], finish)

    def _outcome(
        self,
        shape: Shape,
        key: SharePartitionKey,
        data: _Partition,
        decide: Callable[[SharePartitionKey, Any], Pending[Any]],
    ) -> Pending[Any]:
        """What is decided of one partition. A refusal is a result too, so only the log and the runtime fail it."""
        try:
            return self.runtime.in_time(decide(key, data))
        except _Elsewhere as error:
            refused: Pending[Any] = Pending()
            refused.fail(error)
            return refused
        except ApiError as error:
            answer: Pending[Any] = Pending()
            answer.complete(
                shape.partition(partition=key.partition, error_code=int(error.code), error_message=error.message)
            )
            return answer


class _Elsewhere(ApiError):
    """The share partition is not coordinated here, or not yet."""


def _result(shape: Shape, partition: int, pending: Pending[Any]) -> Any:
    if pending.error is None:
        return pending.value
    code = write_error(pending.error.code)
    message = f"Unable to {shape.what}: {pending.error.message or code.name}"
    return shape.partition(partition=partition, error_code=int(code), error_message=message)


def _state_write(data: WriteShareGroupStateRequestPartitionData) -> StateWrite:
    return StateWrite(
        data.state_epoch,
        data.leader_epoch,
        data.start_offset,
        data.delivery_complete_count,
        [
            StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
            for batch in data.state_batches
        ],
    )


def _read_result(key: SharePartitionKey, state: ShareState) -> ReadShareGroupStateResponsePartitionResult:
    return ReadShareGroupStateResponsePartitionResult(
        partition=key.partition,
        state_epoch=state.state_epoch,
        start_offset=state.start_offset,
        state_batches=[
            ReadShareGroupStateResponseStateBatch(
                first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count
            )
            for first, last, delivery_state, count in state.batches
        ],
    )


def _summary_result(
    key: SharePartitionKey, state: ShareState | None
) -> ReadShareGroupStateSummaryResponsePartitionResult:
    """Of a share partition that is not initialized, the values of none."""
    if state is None:
        return ReadShareGroupStateSummaryResponsePartitionResult(
            partition=key.partition, start_offset=NO_OFFSET, delivery_complete_count=NO_COUNT
        )
    return ReadShareGroupStateSummaryResponsePartitionResult(
        partition=key.partition,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
    )
