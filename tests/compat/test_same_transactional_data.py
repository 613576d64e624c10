"""Transactions at partitions and groups: Kalda gives the same answers as Apache Kafka, to wrong requests too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from data_requests import batch, fetch, produce
from same_answers import Asker

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.protocol.messages.groups import (
    FindCoordinatorRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kalda.protocol.messages.partitions import FetchRequest, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kalda.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kalda.records.batch import iter_batches

pytestmark = pytest.mark.compat

Both = Callable[[Callable[[Asker], None]], None]
Fresh = Callable[[str], str]
WAIT_S = 30
OFFSETS_PARTITIONS = 50
_BUSY = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR,
         ErrorCode.COORDINATOR_NOT_AVAILABLE)  # fmt: skip


class Writer:
    """A transactional producer of one topic; version 1 of transactions has AddPartitionsToTxn, version 2 has not."""

    def __init__(self, asker: Asker, name: str, topic_id: Uuid, transactional_id: str = "") -> None:
        self.asker, self.name, self.topic_id = asker, name, topic_id
        self.id = transactional_id or name
        self.producer_id = self.epoch = -1
        self.sequence = 0
        until = time.monotonic() + WAIT_S
        for kind, key in ((1, self.id), (0, self.id)):
            while asker.quiet(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])).coordinators[0].error_code:
                assert time.monotonic() < until, "there is no coordinator"
                time.sleep(0.05)
        self.init()

    def init(self) -> None:
        """As a new producer of that id."""
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=60_000)
        answer = self.until_free(request, 5, lambda each: each.error_code)
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def until_free(self, request: Any, version: int, code: Callable[[Any], int]) -> Any:
        until = time.monotonic() + WAIT_S
        while code(answer := self.asker.quiet(request, version)) in _BUSY:
            assert time.monotonic() < until, request
            time.sleep(0.02)
        return answer

    def add(self, *partitions: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.name, partitions=list(partitions))],
        )
        answer = self.until_free(
            request, 3, lambda each: each.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        )
        assert not answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def batch(self, count: int = 1, **fields: Any) -> bytearray:
        return batch(
            count,
            **{
                "producer_id": self.producer_id,
                "producer_epoch": self.epoch,
                "base_sequence": self.sequence,
                "is_transactional": True,
                **fields,
            },
        )

    def send(self, label: str, version: int, *data: tuple[int, bytes | bytearray], name: str | None = "") -> None:
        """A Produce whose answer is compared, but for errors that pass."""
        request = produce(self.name, self.topic_id, *data)
        request.transactional_id = self.id if name == "" else name

        def passing(answer: Any) -> int:
            code: int = answer.responses[0].partition_responses[0].error_code
            if code == ErrorCode.NOT_ENOUGH_REPLICAS:  # the coordinator completes the transaction before
                return int(ErrorCode.CONCURRENT_TRANSACTIONS)
            return code

        answer = self.until_free(request, version, passing)
        shown = sorted(
            (each.index, ErrorCode(each.error_code).name, each.base_offset)
            for topic in answer.responses
            for each in topic.partition_responses
        )
        self.asker.note(f"Produce v{version} {label}", [list(each) for each in shown])

    def end(self, *, commits: bool, version: int) -> None:
        request = EndTxnRequest(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commits
        )
        answer = self.until_free(request, version, lambda each: each.error_code)
        self.asker.note(f"EndTxn v{version}", ErrorCode(answer.error_code).name)
        if version >= 5 and not answer.error_code:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        self.wait_decided()

    def wait_decided(self) -> None:
        """Until the markers of the transaction are written."""
        until = time.monotonic() + WAIT_S
        while self.stable(0, 1) != self.stable(0, 0) or self.stable(1, 1) != self.stable(1, 0):
            assert time.monotonic() < until, "the transaction is not ended"
            time.sleep(0.02)

    def stable(self, index: int, isolation: int) -> int:
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1)]
        topics = [ListOffsetsTopic(name=self.name, partitions=asked)]
        answer = self.asker.quiet(ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics))
        offset: int = answer.topics[0].partitions[0].offset
        return offset

    def note_partitions(self, label: str) -> None:
        """What consumers of both kinds see of both partitions, in several versions of Fetch and ListOffsets."""
        for index in (0, 1):
            ends = [self.stable(index, isolation) for isolation in (0, 1)]
            self.asker.note(f"{label}: ListOffsets of {index}", ends)
            for version in (4, 11, 12, 18):
                for isolation in (0, 1):
                    self.note_fetch(
                        f"{label}: Fetch v{version} of {index}, isolation {isolation}", version, isolation, index
                    )

    def note_fetch(self, label: str, version: int, isolation: int, index: int) -> None:
        at = (self.name, ZERO_UUID if version < 13 else self.topic_id, index, 0)
        request: FetchRequest = fetch(at, isolation_level=isolation)
        found = self.asker.quiet(request, version).responses[0].partitions[0]
        data = found.records or b""
        joined = b"".join(map(bytes, data)) if isinstance(data, list) else bytes(data)
        batches = [(header.base_offset, header.is_control, header.producer_epoch) for _, header in iter_batches(joined)]
        aborted = None
        if found.aborted_transactions is not None:
            aborted = [(each.producer_id == self.producer_id, each.first_offset) for each in found.aborted_transactions]
        self.asker.note(
            label, [found.error_code, found.high_watermark, found.last_stable_offset, repr(batches), repr(aborted)]
        )

    def note_producers(self, label: str) -> None:
        topics = [DescribeProducersRequestTopicRequest(name=self.name, partition_indexes=[0, 1, 7])]
        answer = self.asker.quiet(DescribeProducersRequest(topics=topics))
        shown = [
            (
                each.partition_index,
                each.error_code,
                sorted(
                    (one.producer_id == self.producer_id, one.producer_epoch, one.last_sequence, one.coordinator_epoch,
                     one.current_txn_start_offset)
                    for one in each.active_producers
                ),
            )
            for each in answer.topics[0].partitions
        ]  # fmt: skip
        self.asker.note(f"{label}: DescribeProducers", repr(shown))


@pytest.mark.parametrize("version", [3, 7, 8, 9, 11])
def test_produce_of_version_1(both: Both, fresh: Fresh, version: int) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        each = Writer(asker, name, asker.make(name, 2))
        each.send("without its partition", version, (0, each.batch()))
        each.add(0)
        each.send("first", version, (0, each.batch(2)))
        each.note_partitions("open")
        each.note_producers("open")
        each.send("again", version, (0, each.batch(2)))
        each.send("out of order", version, (0, each.batch(base_sequence=9)))
        each.send("an old epoch", version, (0, each.batch(producer_epoch=-1)))
        each.send("outside of the transaction", version, (0, each.batch(base_sequence=2, is_transactional=False)))
        each.send("no transactional id", version, (0, each.batch(base_sequence=2)), name=None)
        each.send("another id", version, (1, each.batch()), name="nobody")
        each.send("one with its partition, one without", version, (0, each.batch(base_sequence=2)), (1, each.batch()))
        each.send("an unknown partition", version, (7, each.batch()))
        each.end(commits=True, version=3)
        each.note_partitions("committed")
        each.note_producers("committed")
        each.send("after the end", version, (0, each.batch(base_sequence=3)))
        each.add(0, 1)
        each.send("the next one", version, (0, each.batch(base_sequence=3)), (1, each.batch()))
        each.end(commits=False, version=3)
        each.note_partitions("aborted")
        old = each.epoch
        each.init()
        each.add(0)
        each.send("a fenced epoch", version, (0, each.batch(producer_epoch=old, base_sequence=4)))
        each.send("the new epoch", version, (0, each.batch()))
        each.note_producers("new epoch")
        each.end(commits=True, version=3)

    both(scenario)


@pytest.mark.parametrize("version", [12, 13])
def test_produce_of_version_2(both: Both, fresh: Fresh, version: int) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        each = Writer(asker, name, asker.make(name, 2))
        each.send("a later batch first", version, (0, each.batch(base_sequence=3)))
        each.send("first", version, (0, each.batch(2)), (1, each.batch()))
        each.note_partitions("open")
        each.end(commits=False, version=5)
        each.note_partitions("aborted")
        each.note_producers("aborted")
        each.send("the next one", version, (0, each.batch()))
        each.send("the epoch before", version, (0, each.batch(producer_epoch=each.epoch - 1, base_sequence=2)))
        each.send("an epoch ahead", version, (1, each.batch(producer_epoch=each.epoch + 1)))
        each.send("outside of the transaction", version, (0, each.batch(base_sequence=1, is_transactional=False)))
        each.send("another id", version, (1, each.batch()), name="nobody")
        each.note_producers("open")
        each.end(commits=True, version=5)
        each.note_partitions("committed")

    both(scenario)


def test_markers(both: Both, fresh: Fresh) -> None:
    """Of whoever sends them: without an authorizer, everybody may."""
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        each = Writer(asker, name, asker.make(name, 2))

        def write(label: str, *, epoch: int, coordinator: int, commits: bool = True, transaction: int = 0) -> None:
            for version in (1, 2):
                topics = [
                    WritableTxnMarkerTopic(name=name, partition_indexes=[0, 7]),
                    WritableTxnMarkerTopic(name="nope", partition_indexes=[0]),
                ]
                marker = WritableTxnMarker(
                    producer_id=each.producer_id,
                    producer_epoch=epoch,
                    transaction_result=commits,
                    coordinator_epoch=coordinator,
                    topics=topics,
                    transaction_version=transaction if version == 2 else 0,
                )
                answer = asker.quiet(WriteTxnMarkersRequest(markers=[marker]), version)
                shown = sorted(
                    (topic.name, one.partition_index, ErrorCode(one.error_code).name)
                    for found in answer.markers
                    for topic in found.topics
                    for one in topic.partitions
                )
                asker.note(f"WriteTxnMarkers v{version} {label}", [list(one) for one in shown])

        write("of an unknown producer", epoch=3, coordinator=0)
        each.note_producers("unknown producer")
        each.epoch = 3
        each.send("after a marker", 9, (0, each.batch()))
        write("of an old epoch", epoch=2, coordinator=0)
        write("of an old epoch", epoch=2, coordinator=0, transaction=2)
        write("of a later coordinator", epoch=3, coordinator=7)
        write("of an old coordinator", epoch=3, coordinator=6)
        write("again", epoch=3, coordinator=7)
        write("again, of version 2", epoch=3, coordinator=7, transaction=2)
        write("of a later epoch", epoch=5, coordinator=7, commits=False, transaction=2)
        each.note_producers("markers")
        asker.ask(WriteTxnMarkersRequest(markers=[]), 1, "nothing")
        group = coordinator_partition("group", OFFSETS_PARTITIONS)
        for index in (group, 1000):
            topics = [WritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[index])]
            marker = WritableTxnMarker(producer_id=each.producer_id, producer_epoch=5, topics=topics)
            answer = asker.quiet(WriteTxnMarkersRequest(markers=[marker]), 1)
            asker.note(f"offsets {index}", answer.markers[0].topics[0].partitions[0].error_code)

    both(scenario)


@pytest.mark.parametrize("version", range(6))
def test_offsets_in_transactions(both: Both, fresh: Fresh, version: int) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        each = Writer(asker, name, asker.make(name, 2))

        def commit(label: str, at: tuple[str, int, int] = (name, 0, 5), **fields: Any) -> None:
            topic, index, offset = at
            partition = TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=fields.pop("metadata", "m")
            )
            request = TxnOffsetCommitRequest(
                **{
                    "transactional_id": each.id,
                    "group_id": name,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.epoch,
                    "topics": [TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
                    **fields,
                }
            )
            answer = each.until_free(request, version, lambda one: one.topics[0].partitions[0].error_code)
            asker.note(f"TxnOffsetCommit v{version} {label}", ErrorCode(answer.topics[0].partitions[0].error_code).name)

        def note_offsets(label: str) -> None:
            for stable in (False, True):
                wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1])]
                groups = [OffsetFetchRequestGroup(group_id=name, topics=wanted)]
                asker.ask(OffsetFetchRequest(groups=groups, require_stable=stable), 9, f"{label} {stable}")

        def add_offsets() -> None:
            if version < 5:
                request = AddOffsetsToTxnRequest(
                    transactional_id=each.id,
                    producer_id=each.producer_id,
                    producer_epoch=each.epoch,
                    group_id=name,
                )
                assert not each.until_free(request, 3, lambda one: one.error_code).error_code

        commit("without the group")
        add_offsets()
        commit("first")
        note_offsets("open")
        commit("an unknown topic", ("nope", 0, 5))
        commit("an unknown partition", (name, 7, 5))
        commit("too much metadata", metadata="x" * 5000)
        commit("another producer", producer_id=each.producer_id + 100_000)
        commit("an old epoch", producer_epoch=-1)
        commit("no group", group_id="")
        generation = {"generation_id_or_member_epoch": 3 if version >= 3 else -1}
        commit("a generation without a group", group_id=f"{name}-none", **generation)
        if version >= 3:
            commit("a member that is not there", member_id="nobody", **generation)
            commit("a static member that is not there", member_id="nobody", group_instance_id="i", **generation)
        end = 5 if version >= 5 else 3
        wait_free = EndTxnRequest(
            transactional_id=each.id, producer_id=each.producer_id, producer_epoch=each.epoch, committed=True
        )
        answer = each.until_free(wait_free, end, lambda one: one.error_code)
        asker.note("EndTxn", ErrorCode(answer.error_code).name)
        until = time.monotonic() + WAIT_S
        while not _is_stable(asker, name):
            assert time.monotonic() < until, "the offsets stay pending"
            time.sleep(0.02)
        note_offsets("committed")

    both(scenario)


def _is_stable(asker: Asker, name: str) -> bool:
    wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=wanted)]
    answer = asker.quiet(OffsetFetchRequest(groups=groups, require_stable=True), 9)
    return not answer.groups[0].topics[0].partitions[0].error_code
