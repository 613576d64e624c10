"""A transaction coordinator in virtual time over a log in memory, partitions that take markers, and producers.

`World` holds the log of `__transaction_state` (bytes of batches, as on disk), its high watermark, the brokers that lead
data partitions and the clock. A new coordinator can be elected over the same log at any moment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from groups_world import MemoryLog

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.coordinator.transactions.markers import NO_LEADER, Completion, MarkerQueues
from kalda.coordinator.transactions.metadata import TransactionConfig, TransactionMetadata
from kalda.coordinator.transactions.shard import TransactionShard
from kalda.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from kalda.protocol.access import Caller
from kalda.protocol.messages.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TIMEOUT_MS = 60_000


class Marker(NamedTuple):
    """What a partition has been sent."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int
    version: int


class Ids:
    """Producer ids from 1000 on. `held`: requests for ids wait until `give`."""

    def __init__(self) -> None:
        self.next = 1000
        self.held: list[Pending[int]] | None = None
        self.failure: ErrorCode | None = None

    def take(self) -> int | Pending[int]:
        if self.failure is not None:
            raise ApiError(self.failure)
        if self.held is not None:
            pending: Pending[int] = Pending()
            self.held.append(pending)
            return pending
        self.next += 1
        return self.next - 1

    def give(self) -> None:
        assert self.held is not None
        held, self.held = self.held, None
        for pending in held:
            pending.complete(self.next)
            self.next += 1


class World:
    """One coordinator at a time. Data partitions: `orders` 0 to 2, of which partition n is led by broker n."""

    def __init__(self, *, version: int = 2, partitions: int = 1, **config: Any) -> None:
        self.now = 1_000_000
        self.version = version
        self.partitions = partitions
        self.config = TransactionConfig(**config)
        self.log = MemoryLog()
        self.ids = Ids()
        self.leaders: dict[tuple[str, int], int] = {("orders", index): index for index in range(3)}
        self.down: set[int] = set()
        """Brokers that do not answer."""
        self.codes: dict[tuple[str, int], ErrorCode] = {}
        """What partitions answer to markers, where it is an error."""
        self.written: list[Marker] = []
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        """Of the last `deliver`."""
        self.epoch = 0
        self.elect()

    # -- the coordinator

    def elect(self) -> None:
        """A fresh coordinator loads the log: another broker, or this one after a restart."""
        self.epoch += 1
        self.markers = MarkerQueues(lambda *each: self.leaders.get(each), lambda: None)
        self.coordinator = TransactionCoordinator(
            self.config, self.log, self, self.ids, lambda: self.version, lambda: self.partitions
        )
        self.runtime = self.coordinator.runtime
        self.log.on_append = self.runtime.on_high_watermark
        for partition in range(self.partitions):
            self.runtime.on_elected(partition, self.epoch, self.now)
            self.load()

    def add(self, completion: Completion, now_ms: int) -> None:
        self.markers.add(completion, now_ms)

    def drop_shard(self, shard: int) -> None:
        self.markers.drop_shard(shard)

    def load(self) -> None:
        for load in self.runtime.take_loads():
            high_watermark = self.log.high_watermarks.get(load.partition, 0)
            for batch in self.log.read_all(load.partition):
                run_to_end(load.replay(batch, high_watermark, self.now))
            load.finish(high_watermark, self.now)

    def replicate(self) -> None:
        """The high watermark reaches the end of the log."""
        for partition, end in self.log.ends.items():
            self.log.high_watermarks[partition] = end
            self.runtime.on_high_watermark(partition, end)

    def resign(self, partition: int = 0) -> None:
        self.runtime.on_resigned(partition)

    def pass_ms(self, milliseconds: int) -> None:
        """Time passes, and every timer that is due runs at its time."""
        end = self.now + milliseconds
        while (deadline := self.runtime.next_deadline_ms()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.runtime.poll(self.now)
        self.now = end
        self.runtime.advance(end)

    @property
    def shard(self) -> TransactionShard:
        return next(self.runtime.active_shards())

    def state(self, transactional_id: str = "t") -> TransactionMetadata:
        metadata = self.shard.transactions.get(transactional_id)
        assert metadata is not None
        return metadata

    def label(self, transactional_id: str = "t") -> str:
        """The state as DescribeTransactions shows it, or its error."""
        described = self.coordinator.describe(transactional_id)
        return described.transaction_state or ErrorCode(described.error_code).name

    # -- the brokers

    def deliver(self) -> int:
        """Brokers answer the marker requests that are to be sent now. Returns how many requests there were."""
        self.requests = self.markers.requests(self.now)
        for broker, request in self.requests:
            if broker in self.down:
                self.markers.on_failure(broker, ApiError(ErrorCode.NETWORK_EXCEPTION), self.now)
            else:
                self.markers.on_response(broker, self.write_markers(broker, request), self.now)
        return len(self.requests)

    def settle(self, milliseconds: int = 0) -> None:
        """Deliver markers, for as long as any can be sent within that time."""
        end = self.now + milliseconds
        while True:
            while self.deliver():
                pass
            deadline = self.markers.next_deadline_ms()
            if deadline is None or deadline > end:
                break
            self.pass_ms(max(0, deadline - self.now))
        if self.now < end:
            self.pass_ms(end - self.now)

    def write_markers(self, broker: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=self._code(broker, marker, topic.name, index)
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _code(self, broker: int, marker: WritableTxnMarker, topic: str, index: int) -> ErrorCode:
        if self.leaders.get((topic, index), NO_LEADER) != broker:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        code = self.codes.get((topic, index), ErrorCode.NONE)
        if code is ErrorCode.NONE:
            self.written.append(
                Marker(
                    topic,
                    index,
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.transaction_result,
                    marker.coordinator_epoch,
                    marker.transaction_version,
                )
            )
        return code

    # -- requests

    def init_later(
        self, transactional_id: str | None = "t", *, expected: tuple[int, int] = (-1, -1), version: int = 5, **more: Any
    ) -> Any:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=more.pop("timeout_ms", TIMEOUT_MS),
            producer_id=expected[0],
            producer_epoch=expected[1],
            **more,
        )
        return self.coordinator.init_producer_id(Caller(version), request, self.now)

    def init(self, transactional_id: str | None = "t", **more: Any) -> tuple[int, int] | str:
        """Producer id and epoch, or the name of the error."""
        response = done(self.init_later(transactional_id, **more))
        if response.error_code:
            assert (response.producer_id, response.producer_epoch) == (-1, -1)
            return ErrorCode(response.error_code).name
        return response.producer_id, response.producer_epoch

    def add_later(
        self,
        producer: tuple[int, int],
        *partitions: int,
        transactional_id: str = "t",
        topic: str = "orders",
        version: int | None = None,
    ) -> Any:
        self.runtime.advance(self.now)
        return self.coordinator.add_partitions(
            transactional_id,
            *producer,
            {topic: frozenset(partitions or (0,))},
            self.version if version is None else version,
        )

    def begin(self, producer: tuple[int, int], *partitions: int, **more: Any) -> str:
        """Add partitions; the name of the result."""
        code: ErrorCode = done(self.add_later(producer, *partitions, **more))
        return code.name

    def end_later(
        self, producer: tuple[int, int], *, committed: bool, version: int | None = None, transactional_id: str = "t"
    ) -> Any:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        if version is None:
            version = 5 if self.version >= 2 else 4
        return self.coordinator.end_txn(Caller(version), request, self.now)

    def commit(self, producer: tuple[int, int], **more: Any) -> tuple[int, int] | str:
        """Producer id and epoch of the next transaction, which are -1 before version 2; or the name of the error."""
        return _ended(self.end_later(producer, committed=True, **more))

    def abort(self, producer: tuple[int, int], **more: Any) -> tuple[int, int] | str:
        return _ended(self.end_later(producer, committed=False, **more))

    def producer(self, transactional_id: str = "t") -> tuple[int, int]:
        """A producer that has begun."""
        begun = self.init(transactional_id)
        assert isinstance(begun, tuple)
        return begun


def _ended(answer: Any) -> tuple[int, int] | str:
    response = done(answer)
    if response.error_code:
        return ErrorCode(response.error_code).name
    return response.producer_id, response.producer_epoch


def done(answer: Any) -> Any:
    """The value of an answer, which is there."""
    if isinstance(answer, Pending):
        assert answer.done, "the answer waits"
        assert answer.error is None, answer.error
        return answer.value
    return answer
