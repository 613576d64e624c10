"""A share coordinator in virtual time over a log in memory, and brokers whose requests take one line each."""

from __future__ import annotations

from typing import Any

from groups_world import MemoryLog

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey
from kalda.coordinator.share.records import ShareRecord, decode_record
from kalda.coordinator.share.shard import ShareCoordinatorConfig, ShareState
from kalda.coordinator.share.share_coordinator import ShareCoordinator
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
from kalda.protocol.messages.share_records import ShareSnapshotValue
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records

ORDERS, PAYMENTS = Uuid(b"orders".ljust(16, b".")), Uuid(b"payments".ljust(16, b"."))
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


class ShareWorld:
    """One partition of `__share_group_state`, and two topics of four partitions."""

    def __init__(self, **config: int) -> None:
        self.now = 1_000_000
        self.config = ShareCoordinatorConfig(**config)
        self.log = MemoryLog()
        self.topics = {ORDERS: 4, PAYMENTS: 4}
        self.pruned: list[int] = []
        self.prune_failure: Exception | None = None
        self.epoch = 0
        self.elect()

    def elect(self) -> None:
        """A fresh coordinator loads the log: another broker, or this one after a restart."""
        self.epoch += 1
        self.coordinator = ShareCoordinator(
            self.config,
            self.log,
            lambda topic_id, partition: partition < self.topics.get(topic_id, 0),
            self._prune,
            lambda: 1,
        )
        self.runtime = self.coordinator.runtime
        self.log.on_append = self.runtime.on_high_watermark
        self.runtime.on_elected(0, self.epoch, self.now)
        for load in self.runtime.take_loads():
            high_watermark = self.log.high_watermarks.get(0, 0)
            if all(run_to_end(load.replay(batch, high_watermark, self.now)) for batch in self.log.read_all(0)):
                load.finish(high_watermark, self.now)

    def _prune(self, index: int, offset: int) -> None:
        if self.prune_failure is not None:
            raise self.prune_failure
        self.pruned.append(offset)

    def replicate(self) -> None:
        """Everything appended so far is committed."""
        for partition, end in self.log.ends.items():
            self.log.high_watermarks[partition] = end
            self.runtime.on_high_watermark(partition, end)

    def pass_time(self, ms: int) -> None:
        """Let time go by, with every timer at its moment."""
        until = self.now + ms
        while (deadline := self.runtime.next_deadline_ms()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.runtime.poll(self.now)
        self.now = until
        self.runtime.poll(until)

    @property
    def records(self) -> list[ShareRecord]:
        """All that was appended."""
        return [
            decode_record(record.key or b"", record.value)
            for batch in self.log.read_all(0)
            for at, header in iter_batches(batch)
            for record in read_records(batch, at, header)
        ]

    @property
    def kinds(self) -> str:
        """S for a snapshot, u for an update, t for a tombstone, of all records in order."""
        return "".join(
            "t" if value is None else "S" if isinstance(value, ShareSnapshotValue) else "u" for _, value in self.records
        )

    def state(self, topic_id: Uuid = ORDERS, partition: int = 0) -> ShareState | None:
        shard = self.runtime.shard_for("any")
        return shard.states.get(SharePartitionKey("g", topic_id, partition))

    # -- requests of brokers

    def initialize(self, *, state_epoch: int = 1, start: int = -1, topic: Uuid = ORDERS, partition: int = 0) -> Any:
        data = InitializeShareGroupStateRequestPartitionData(
            partition=partition, state_epoch=state_epoch, start_offset=start
        )
        topics = [InitializeStateData(topic_id=topic, partitions=[data])]
        request = InitializeShareGroupStateRequest(group_id="g", topics=topics)
        return outcome(run_to_end(self.coordinator.initialize(request, self.now)))

    def write(
        self,
        *batches: tuple[int, int, int, int],
        leader_epoch: int = 0,
        state_epoch: int = 1,
        start: int = -1,
        count: int = -1,
        topic: Uuid = ORDERS,
        partition: int = 0,
    ) -> Any:
        data = WriteShareGroupStateRequestPartitionData(
            partition=partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start,
            delivery_complete_count=count,
            state_batches=[
                WriteShareGroupStateRequestStateBatch(
                    first_offset=first, last_offset=last, delivery_state=state, delivery_count=times
                )
                for first, last, state, times in batches
            ],
        )
        request = WriteShareGroupStateRequest(group_id="g", topics=[WriteStateData(topic_id=topic, partitions=[data])])
        return outcome(run_to_end(self.coordinator.write(request, self.now)))

    def read(self, *, leader_epoch: int = 0, topic: Uuid = ORDERS, partition: int = 0) -> Any:
        data = ReadShareGroupStateRequestPartitionData(partition=partition, leader_epoch=leader_epoch)
        request = ReadShareGroupStateRequest(group_id="g", topics=[ReadStateData(topic_id=topic, partitions=[data])])
        return outcome(run_to_end(self.coordinator.read(request, self.now)))

    def summarize(self, *, topic: Uuid = ORDERS, partition: int = 0) -> Any:
        data = ReadShareGroupStateSummaryRequestPartitionData(partition=partition)
        request = ReadShareGroupStateSummaryRequest(
            group_id="g", topics=[ReadStateSummaryData(topic_id=topic, partitions=[data])]
        )
        return outcome(run_to_end(self.coordinator.summarize(request, self.now)))

    def delete(self, *, topic: Uuid = ORDERS, partition: int = 0) -> Any:
        data = DeleteShareGroupStateRequestPartitionData(partition=partition)
        request = DeleteShareGroupStateRequest(
            group_id="g", topics=[DeleteStateData(topic_id=topic, partitions=[data])]
        )
        return outcome(run_to_end(self.coordinator.delete(request, self.now)))


def outcome(answer: Any) -> Any:
    """The name of the error, or what was answered for the only partition; the `Pending` while there is no answer."""
    if isinstance(answer, Pending):
        if not answer.done:
            return answer
        answer = answer.value
    result = answer.results[0].partitions[0]
    return ErrorCode(result.error_code).name if result.error_code else result


def batches_in(result: Any) -> list[tuple[int, int, int, int]]:
    """The state batches of a read."""
    return [
        (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in result.state_batches
    ]
