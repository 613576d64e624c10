"""Finds the position of each partition that has none, and checks those whose leader has changed.

    run()              send what is due: OffsetFetch, ListOffsets, OffsetForLeaderEpoch
    list_offsets(...)  offsets by timestamp, for the application

A partition without a position gets the group's committed offset; where there is none, that of `auto.offset.reset`, else
`NoOffset` is raised. An offset with a leader epoch is validated before anything is fetched from it, and again whenever
the leader epoch in the metadata has grown (KIP-320): the leader answers where the log of that epoch ends. An end below
the position means that the records between were lost. The position is then reset to that end, or `LogTruncated` is
raised where there is no reset policy.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.metadata import FoundOffset
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.consumer_errors import LogTruncated, NoOffset, Operation
from kalda.clientcore.consuming.subscription import LATEST, OffsetAndEpoch, PartitionState, Reset, Status, Subscription
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kalda.protocol.messages.partitions import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kalda.protocol.naming import MAX_PARTITIONS_NAMED
from kalda.protocol.notation import Request

# The requests that commit offsets and fetch committed ones, and what their responses mean.

MAX_OFFSET_FETCH = 7
"""The last version with one group a request; it has topic names and no topic ids."""
MAX_OFFSET_COMMIT = 9
"""The last version with topic names instead of topic ids."""
FENCED = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
)
"""Errors of a commit: the member is not in the group any more, or its generation is over."""


class GroupMetadata(NamedTuple):
    """What a commit names of a member: Kafka's ConsumerGroupMetadata. A consumer without membership has -1 and ""."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def commit_request(
    group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndEpoch], topic_ids: Mapping[str, Uuid] | None = None
) -> OffsetCommitRequest:
    """Commit `offsets` as a member of the group. `topic_ids`: of the topics; else `MAX_OFFSET_COMMIT` is the version to
    send it in."""
    topic_ids = topic_ids or {}
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for partition, position in offsets.items():
        topic = topics.get(partition.topic)
        if topic is None:
            topic_id = topic_ids.get(partition.topic, ZERO_UUID)
            topic = topics[partition.topic] = OffsetCommitRequestTopic(name=partition.topic, topic_id=topic_id)
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=list(topics.values()),
    )


def committed_errors(
    request: OffsetCommitRequest, response: OffsetCommitResponse
) -> Iterator[tuple[TopicPartition, ErrorCode]]:
    """The partitions that were not committed."""
    names = {topic.topic_id: topic.name for topic in request.topics}
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code:
                name = topic.name or names.get(topic.topic_id, "")
                yield TopicPartition(name, each.partition_index), ErrorCode(each.error_code)


def committed_request(
    group_id: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool
) -> OffsetFetchRequest:
    """The committed offsets of `partitions`; None: of all, which are requested for very many of them, too."""
    if partitions is not None and len(partitions) > MAX_PARTITIONS_NAMED:
        partitions = None
    topics: dict[str, list[int]] = {}
    for topic, index in partitions or ():
        topics.setdefault(topic, []).append(index)
    named = [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    return OffsetFetchRequest(
        group_id=group_id, topics=None if partitions is None else named, require_stable=require_stable
    )


def read_committed(
    response: OffsetFetchResponse,
) -> tuple[dict[TopicPartition, OffsetAndEpoch], dict[TopicPartition, ErrorCode]]:
    """Committed offsets, and the partitions whose offset could not be read. Partitions without one are in neither."""
    found: dict[TopicPartition, OffsetAndEpoch] = {}
    failed: dict[TopicPartition, ErrorCode] = {}
    for topic in response.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                failed[partition] = ErrorCode(each.error_code)
            elif each.committed_offset >= 0:
                found[partition] = OffsetAndEpoch(
                    each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                )
    return found, failed


log = logging.getLogger(__name__)
_CONSUMER = -1
"""The replica id of a client that is not a replica."""


class _Listing:
    """A ListOffsets operation of the application, over several leaders, repeated until its deadline."""

    __slots__ = ("found", "in_flight", "missing", "operation", "retry_at_ms")

    def __init__(self, operation: Operation, times: Mapping[TopicPartition, int]) -> None:
        self.operation = operation
        self.missing = dict(times)
        self.found: dict[TopicPartition, FoundOffset] = {}
        self.in_flight: set[TopicPartition] = set()
        self.retry_at_ms = 0


class Positions:
    """The positions of one consumer."""

    def __init__(
        self,
        subscription: Subscription,
        requests: Requests,
        wall_ms: Callable[[], int],
        *,
        group_id: str | None,
        reset: Reset | None,
        read_committed: bool,
        request_timeout_ms: int,
    ) -> None:
        """`wall_ms` is the wall clock, for resets by duration."""
        self._subscription = subscription
        self._requests = requests
        self._wall_ms = wall_ms
        self._group_id = group_id
        self._reset = reset
        self._read_committed = read_committed
        self._request_timeout_ms = request_timeout_ms
        self._fetches_committed = False
        """An OffsetFetch is in flight."""
        self._retry_committed_at_ms = 0
        self._in_flight: set[tuple[PartitionState, int]] = set()
        """Partitions that a request in flight is about, with their `seeks`."""
        self._listings: list[_Listing] = []
        self._checked_version = -1
        """`metadata.version` against which leader epochs were compared last."""
        self.failures: deque[ApiError] = deque()
        """To be raised by the next poll."""

    def run(self) -> None:
        """Send what is due."""
        self._compare_epochs()
        self._fetch_committed()
        self._start_resets()
        self._send_by_leader(Status.RESETTING, self._reset_request, self._on_reset)
        self._send_by_leader(Status.VALIDATING, self._validation_request, self._on_validated)
        for listing in list(self._listings):
            self._run_listing(listing)

    def deadline_ms(self) -> int | None:
        """When `run` is due again; None where only an event helps."""
        times = [self._retry_committed_at_ms, *(listing.retry_at_ms for listing in self._listings)]
        times += [listing.operation.deadline_ms for listing in self._listings]
        times += [state.retry_at_ms for state in self._subscription.partitions.values()]
        return self._requests.earliest(times)

    # -- committed offsets

    def _fetch_committed(self) -> None:
        if self._group_id is None or self._fetches_committed or self._requests.now_ms < self._retry_committed_at_ms:
            return
        wanted = [s for s in self._subscription.partitions.values() if s.status is Status.UNPOSITIONED and not s.is_new]
        if not wanted:
            return
        node_id = self._requests.coordinator()
        if node_id is None:
            if self._requests.coordinator_error is not None:
                self._fail_once(self._requests.coordinator_error)
            return
        self._fetches_committed = True
        request = committed_request(self._group_id, [s.partition for s in wanted], require_stable=self._read_committed)
        seeks = [(state, state.seeks) for state in wanted]
        self._requests.send(
            node_id,
            request,
            lambda answer, error: self._on_committed(seeks, answer, error),
            max_version=MAX_OFFSET_FETCH,
        )

    def _on_committed(self, wanted: list[tuple[PartitionState, int]], answer: Any, error: ApiError | None) -> None:
        self._fetches_committed = False
        if answer is not None and answer.error_code:
            error = refused(answer.error_code, f"group {self._group_id!r}")
        if error is not None:
            self._requests.on_coordinator_error(error)
            self._retry_committed_at_ms = self._requests.retry_at_ms()
            if not error.code.retriable:
                self._fail_once(error)
            return
        found, failed = read_committed(answer)
        asked = {state.partition for state, _ in wanted}
        failed = {partition: code for partition, code in failed.items() if partition in asked}
        for partition, code in failed.items():
            # UNSTABLE_OFFSET_COMMIT: a transaction with offsets of this group has not ended yet.
            self._retry_committed_at_ms = self._requests.retry_at_ms()
            if not code.retriable and code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                self._fail_once(refused(code, f"group {self._group_id!r}, partition {partition}"))
        without: list[TopicPartition] = []
        for state, seeks in wanted:
            if state.seeks != seeks or state.status is not Status.UNPOSITIONED or state.partition in failed:
                continue
            committed = found.get(state.partition)
            if committed is not None:
                state.seek(committed)
            elif self._reset is not None:
                state.request_reset(self._reset)
            else:
                without.append(state.partition)
        if without:
            self._retry_committed_at_ms = self._requests.retry_at_ms()
            self._fail_once(NoOffset(without))

    def is_mended(self, failure: Exception) -> bool:
        """Whether the application has positioned all partitions that had no offset: it may seek after it has assigned,
        and the I/O thread may look for an offset in between."""
        if not isinstance(failure, NoOffset):
            return False
        states = [self._subscription.partitions.get(each) for each in failure.partitions]
        return all(state is None or state.status is not Status.UNPOSITIONED for state in states)

    def _start_resets(self) -> None:
        if self._group_id is not None:
            return
        wanted = [s for s in self._subscription.partitions.values() if s.status is Status.UNPOSITIONED and not s.is_new]
        if wanted and self._reset is None:
            self._fail_once(NoOffset([state.partition for state in wanted]))
            return
        for state in wanted:
            assert self._reset is not None
            state.request_reset(self._reset)

    def _fail_once(self, error: ApiError) -> None:
        if not any(type(each) is type(error) and each.args == error.args for each in self.failures):
            self.failures.append(error)

    # -- resets and validations

    def _compare_epochs(self) -> None:
        metadata = self._requests.metadata
        if metadata.version == self._checked_version:
            return
        self._checked_version = metadata.version
        for partition, state in self._subscription.partitions.items():
            leader = metadata.leader_of(*partition)
            if leader is None or leader.epoch < 0:
                continue
            if state.status is Status.FETCHING and leader.epoch > state.validated_epoch:
                if state.validated_epoch >= 0 or state.epoch >= 0:
                    state.validate()
                if state.status is Status.FETCHING:
                    state.validated_epoch = leader.epoch

    def _send_by_leader(
        self,
        status: Status,
        build: Callable[[list[PartitionState]], Request],
        on_answer: Callable[[PartitionState, Any], None],
    ) -> None:
        now_ms = self._requests.now_ms
        metadata = self._requests.metadata
        by_node: dict[int, list[PartitionState]] = {}
        for partition, state in self._subscription.partitions.items():
            if state.status is not status or state.retry_at_ms > now_ms or (state, state.seeks) in self._in_flight:
                continue
            leader = metadata.leader_of(*partition)
            if leader is None:
                metadata.request_leader(partition.topic)
                continue
            by_node.setdefault(leader.node_id, []).append(state)
        for node_id, all_states in by_node.items():
            if not self._requests.is_ready(node_id):
                continue
            states = all_states[:MAX_PARTITIONS_NAMED]
            versions = self._requests.connections.versions_of(node_id) or {}
            if status is Status.VALIDATING and ApiKey.OFFSET_FOR_LEADER_EPOCH not in versions:
                for state in states:
                    self._validated(state)
                continue
            marks = [(state, state.seeks) for state in states]
            self._in_flight.update(marks)
            self._requests.send(
                node_id,
                build(states),
                partial(self._on_leader_answer, marks, on_answer),
            )

    def _on_leader_answer(
        self,
        marks: list[tuple[PartitionState, int]],
        on_answer: Callable[[PartitionState, Any], None],
        answer: Any,
        error: ApiError | None,
    ) -> None:
        self._in_flight.difference_update(marks)
        by_partition = {state.partition: state for state, seeks in marks if state.seeks == seeks}
        if error is not None:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                for state in by_partition.values():
                    if state.status is Status.VALIDATING:
                        self._validated(state)
                    else:
                        self._fail_once(error)
            self._retry(list(by_partition.values()))
            return
        for topic in answer.topics:
            name = topic.name if isinstance(topic, ListOffsetsTopicResponse) else topic.topic
            for each in topic.partitions:
                index = getattr(each, "partition_index", None)
                found = by_partition.pop(TopicPartition(name, each.partition if index is None else index), None)
                if found is None:
                    continue
                if not each.error_code:
                    on_answer(found, each)
                    continue
                failure = refused(each.error_code, f"partition {found.partition}")
                if not failure.code.retriable and not failure.code.invalid_metadata:
                    self._fail_once(failure)
                self._retry([found])
        if by_partition:  # the broker has said nothing of them
            self._retry(list(by_partition.values()))

    def _retry(self, states: Collection[PartitionState]) -> None:
        self._requests.metadata.request_update()
        for state in states:
            state.retry_at_ms = self._requests.retry_at_ms()

    def _reset_request(self, states: list[PartitionState]) -> Request:
        wall_ms = self._wall_ms()
        times = {state.partition: state.reset.timestamp(wall_ms) for state in states if state.reset is not None}
        return self._list_request(times)

    def _list_request(self, times: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for partition, timestamp in times.items():
            leader = self._requests.metadata.leader_of(*partition)
            topics.setdefault(partition.topic, []).append(
                ListOffsetsPartition(
                    partition_index=partition.partition,
                    current_leader_epoch=-1 if leader is None else leader.epoch,
                    timestamp=timestamp,
                )
            )
        return ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=int(self._read_committed),
            topics=[ListOffsetsTopic(name=name, partitions=entries) for name, entries in topics.items()],
            timeout_ms=self._request_timeout_ms,
        )

    def _on_reset(self, state: PartitionState, answer: Any) -> None:
        if state.status is not Status.RESETTING:
            return
        if answer.offset < 0:
            state.request_reset(LATEST)  # by duration: every record is older
            return
        log.info("the position of %s is reset to offset %d", state.partition, answer.offset)
        state.seek(OffsetAndEpoch(answer.offset))
        state.epoch = state.fetch_epoch = answer.leader_epoch
        self._validated(state)

    def _validation_request(self, states: list[PartitionState]) -> Request:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for state in states:
            leader = self._requests.metadata.leader_of(*state.partition)
            assert leader is not None
            state.asked_epoch = leader.epoch
            topics.setdefault(state.partition.topic, []).append(
                OffsetForLeaderPartition(
                    partition=state.partition.partition, current_leader_epoch=leader.epoch, leader_epoch=state.epoch
                )
            )
        return OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[OffsetForLeaderTopic(topic=name, partitions=entries) for name, entries in topics.items()],
        )

    def _on_validated(self, state: PartitionState, answer: Any) -> None:
        if state.status is not Status.VALIDATING:
            return
        is_unknown = answer.leader_epoch < 0 or answer.end_offset < 0
        if not is_unknown and answer.end_offset >= state.offset:
            self._validated(state)
            return
        if is_unknown and self._is_former_leader(state):
            self._retry([state])
            return
        if self._reset is None:
            divergent = {} if is_unknown else {state.partition: answer.end_offset}
            state.retry_at_ms = self._requests.retry_at_ms()
            self._fail_once(LogTruncated({state.partition: state.offset}, divergent))
        elif is_unknown:
            log.warning("the epoch of offset %d of %s is unknown to its leader: reset", state.offset, state.partition)
            state.request_reset(self._reset)
        else:
            log.warning(
                "the log of %s was truncated: the position is reset from offset %d to %d",
                state.partition, state.offset, answer.end_offset,
            )  # fmt: skip
            state.seek(OffsetAndEpoch(answer.end_offset))
            state.epoch = state.fetch_epoch = answer.leader_epoch
            self._validated(state)

    def _is_former_leader(self, state: PartitionState) -> bool:
        """Whether there may be a later leader than the one that has answered. After `request_timeout_ms` without one
        there is none: the position's epoch was of a topic that has been deleted and created again."""
        if not 0 <= state.asked_epoch < state.epoch:
            return False
        now_ms = self._requests.now_ms
        if state.former_since_ms is None:
            state.former_since_ms = now_ms
        return now_ms - state.former_since_ms < self._request_timeout_ms

    def _validated(self, state: PartitionState) -> None:
        leader = self._requests.metadata.leader_of(*state.partition)
        state.validated_epoch = -1 if leader is None else leader.epoch
        state.status = Status.FETCHING
        state.retry_at_ms = 0

    # -- for the application

    def list_offsets(self, times: Mapping[TopicPartition, int], operation: Operation) -> None:
        """The offsets at timestamps (or `OffsetSpec`s): `operation` gets a dict of `FoundOffset`."""
        for partition in times:
            self._requests.metadata.want(partition.topic, self._requests.now_ms)
        listing = _Listing(operation, times)
        self._listings.append(listing)
        self._run_listing(listing)

    def _run_listing(self, listing: _Listing) -> None:
        now_ms = self._requests.now_ms
        listing.operation.expire(now_ms)
        if not listing.missing:
            listing.operation.succeed(listing.found)
        if listing.operation.is_done:
            self._listings.remove(listing)
            return
        if now_ms < listing.retry_at_ms:
            return
        metadata = self._requests.metadata
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for partition, timestamp in listing.missing.items():
            if partition in listing.in_flight:
                continue
            leader = metadata.leader_of(*partition)
            if leader is None:
                metadata.request_leader(partition.topic)
                continue
            by_node.setdefault(leader.node_id, {})[partition] = timestamp
        for node_id, all_times in by_node.items():
            if self._requests.is_ready(node_id):
                times = dict(islice(all_times.items(), MAX_PARTITIONS_NAMED))
                listing.in_flight.update(times)
                self._requests.send(
                    node_id,
                    self._list_request(times),
                    partial(self._on_listed, listing, times),
                )

    def _on_listed(
        self, listing: _Listing, times: Mapping[TopicPartition, int], answer: Any, error: ApiError | None
    ) -> None:
        listing.in_flight.difference_update(times)
        if error is not None:
            self._failed_listing(listing, error)
            return
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    self._failed_listing(listing, refused(each.error_code, f"partition {partition}"))
                elif listing.missing.pop(partition, None) is not None:
                    listing.found[partition] = FoundOffset(each.offset, each.timestamp, each.leader_epoch)
        if not listing.missing.keys().isdisjoint(times):  # the broker has said nothing of them, or has refused
            listing.retry_at_ms = self._requests.retry_at_ms()
        if not listing.missing:
            listing.operation.succeed(listing.found)

    def _failed_listing(self, listing: _Listing, error: ApiError) -> None:
        if not error.code.retriable:
            listing.operation.fail(error)
            return
        self._requests.metadata.request_update()
        listing.retry_at_ms = self._requests.retry_at_ms()
