"""What clients ask of committed offsets: requests in, by group to the shard of its partition, answers out.

As in `group_coordinator`, each method gives the response or a `Pending` of it, with its errors in it. OffsetFetch names
one group before version 8, several from then on. Before version 2 its response has no error code of its own: each
partition has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.answers import answer_after, answer_after_all, now_or_later, txn_commit_error, write_error
from kalda.coordinator.groups.classic_group import GroupState
from kalda.coordinator.groups.config import GroupCounters
from kalda.coordinator.groups.consumer_group import ConsumerGroup
from kalda.coordinator.groups.offsets import TXN_TOPIC_IDS_FROM, KnownTopics, fail_commit, name_in_transaction
from kalda.coordinator.groups.shard import GroupShard, shard_of
from kalda.coordinator.groups.streams.group import StreamsGroup
from kalda.coordinator.partition import TransactionalProducer
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.protocol.access import Caller
from kalda.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kalda.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kalda.statemachine.timeline import LATEST
from kalda.storage.log.producer_state import Verification

_GROUP_NOT_FOUND_ON_COMMIT_FROM = 9
VerifyTransaction = Callable[[int, TxnOffsetCommitRequest, int], "Verification | Pending[Verification | None] | None"]
"""`(partition, request, version)`: the guard for the append of a request's offsets to that partition of
`__consumer_offsets`, None where none is needed; or what settles with it, or fails, when the transaction's coordinator
has answered. Raises `ApiError`."""


def unverified(partition: int, request: TxnOffsetCommitRequest, version: int) -> None:
    """For a log that demands no verification."""


class OffsetRequests:
    """The offsets of all groups of one coordinator."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        topics: KnownTopics,
        counters: GroupCounters,
        verify: VerifyTransaction,
    ) -> None:
        self._runtime = runtime
        self._topics = topics
        self._counters = counters
        self._verify = verify

    def commit(
        self, caller: Caller, request: OffsetCommitRequest, now_ms: int
    ) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
        """OffsetCommit: answered when the records are committed; at once where there are only errors."""
        self._runtime.advance(now_ms)
        try:
            shard = shard_of(self._runtime, request.group_id, may_be_empty=True)
        except ApiError as error:
            return _commit_refused(request, error.code)
        records, response = shard.offsets.commit(request, caller.api_version, self._runtime.wall_ms())
        if not records:
            return response
        try:
            self._check_commit(shard, caller, request)
        except ApiError as error:
            return fail_commit(response, error.code)
        self._counters.offset_commits.record(len(records), now_ms)
        return answer_after(
            self._runtime.in_time(shard.partition.write(records)),
            lambda error: response if error is None else fail_commit(response, write_error(error.code)),
        )

    def _check_commit(self, shard: GroupShard, caller: Caller, request: OffsetCommitRequest) -> None:
        group = shard.member_group(request.group_id)
        generation = request.generation_id_or_member_epoch
        if isinstance(group, ConsumerGroup | StreamsGroup):
            group.check_offset_commit(
                request.member_id,
                request.group_instance_id,
                generation,
                self._partitions_of(request),
                transactional=False,
                version=caller.api_version,
            )
            return
        if group is None:
            shard.check_no_share_group(request.group_id)
            if generation < 0:
                return  # offsets without membership: the commit makes a simple group
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND
                if caller.api_version >= _GROUP_NOT_FOUND_ON_COMMIT_FROM
                else ErrorCode.ILLEGAL_GENERATION
            )
        group.check_offset_commit(request.member_id, request.group_instance_id, generation, transactional=False)
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            shard.rebalancer.touch(group, group.members[request.member_id])

    def commit_in_transaction(
        self, caller: Caller, request: TxnOffsetCommitRequest, now_ms: int
    ) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
        """TxnOffsetCommit: offsets that count once their transaction is committed. The first of a transaction waits
        until its coordinator has confirmed that this partition of `__consumer_offsets` is in the transaction; from
        version 5 on, that adds it (KIP-890). Topics are named by id from version 6 on (KIP-1319)."""
        self._runtime.advance(now_ms)
        version = caller.api_version
        try:
            index = shard_of(self._runtime, request.group_id).partition.index
            if not self._names_a_partition(version, request):
                return self._append_in_transaction(version, request, None)
            verified = self._verify(index, request, version)
        except ApiError as error:
            return self._txn_commit_failed(request, version, error.code)
        if not isinstance(verified, Pending):
            return self._append_in_transaction(version, request, verified)
        answer: Pending[TxnOffsetCommitResponse] = Pending()

        def on_verified(verification: Verification | None, error: ApiError | None) -> None:
            if error is not None:
                answer.complete(self._txn_commit_failed(request, version, error.code))
                return
            done = self._append_in_transaction(version, request, verification)
            if isinstance(done, Pending):
                done.then(answer.settle)
            else:
                answer.complete(done)

        verified.then(on_verified)
        return answer

    def _names_a_partition(self, version: int, request: TxnOffsetCommitRequest) -> bool:
        """Whether it names a partition that exists. Otherwise nothing is committed, so nothing is verified."""
        topics = self._topics
        named = ((name_in_transaction(topics, topic, version), topic.partitions) for topic in request.topics)
        return any(
            name is not None and topics.has_partition(name, each.partition_index)
            for name, partitions in named
            for each in partitions
        )

    def _append_in_transaction(
        self, version: int, request: TxnOffsetCommitRequest, verification: Verification | None
    ) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
        try:
            shard = shard_of(self._runtime, request.group_id)
            records, response = shard.offsets.commit_in_transaction(request, version, self._runtime.wall_ms())
            self._check_commit_in_transaction(shard, request, version)
        except ApiError as error:
            return self._txn_commit_failed(request, version, error.code)
        if not records:
            return response
        if request.producer_id < 0 or request.producer_epoch < 0:
            return self._txn_commit_failed(request, version, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._counters.offset_commits.record(len(records), self._runtime.now_ms())
        producer = TransactionalProducer(request.producer_id, request.producer_epoch, verification)
        return answer_after(
            self._runtime.in_time(shard.partition.write_in_transaction(records, None, producer)),
            lambda error: response if error is None else fail_commit(response, txn_commit_error(error.code, version)),
        )

    def _partitions_of(self, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> Iterator[tuple[str, Uuid, int]]:
        """Name and id of the topic, and partition, of each offset."""
        for topic in request.topics:
            name, topic_id = topic.name, topic.topic_id
            if topic_id == ZERO_UUID:
                topic_id = self._topics.id_of(name) or ZERO_UUID
            else:
                name = self._topics.name_of(topic_id) or name
            for partition in topic.partitions:
                yield name, topic_id, partition.partition_index

    def _check_commit_in_transaction(self, shard: GroupShard, request: TxnOffsetCommitRequest, version: int) -> None:
        """Fenced by member, generation and static instance (KIP-447); a producer of an older release sends none."""
        group, generation = shard.member_group(request.group_id), request.generation_id_or_member_epoch
        if isinstance(group, ConsumerGroup | StreamsGroup):
            try:
                group.check_offset_commit(
                    request.member_id,
                    request.group_instance_id,
                    generation,
                    self._partitions_of(request),
                    transactional=True,
                    version=version,
                )
            except ApiError as error:
                if error.code is ErrorCode.STALE_MEMBER_EPOCH and version < TXN_TOPIC_IDS_FROM:
                    raise ApiError(ErrorCode.ILLEGAL_GENERATION) from None
                raise
        elif group is not None:
            group.check_offset_commit(request.member_id, request.group_instance_id, generation, transactional=True)
        else:
            shard.check_no_share_group(request.group_id)
            if generation >= 0:
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND if version >= TXN_TOPIC_IDS_FROM else ErrorCode.ILLEGAL_GENERATION
                )

    def _txn_commit_failed(
        self, request: TxnOffsetCommitRequest, version: int, code: ErrorCode
    ) -> TxnOffsetCommitResponse:
        """The same error for every partition that exists."""
        translated = txn_commit_error(code, version)

        def error_of(name: str | None, index: int) -> ErrorCode:
            if name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            return translated if self._topics.has_partition(name, index) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        topics = []
        for topic in request.topics:
            name = name_in_transaction(self._topics, topic, version)
            results = [
                TxnOffsetCommitResponsePartition(
                    partition_index=each.partition_index, error_code=error_of(name, each.partition_index)
                )
                for each in topic.partitions
            ]
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
        return TxnOffsetCommitResponse(topics=topics)

    def fetch(
        self, caller: Caller, request: OffsetFetchRequest, now_ms: int
    ) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
        """OffsetFetch: committed offsets, at once. With require_stable the answer waits for the writes before it. It
        does so without, while some of these are the former leader's: it may have answered them, so they must not seem
        undone. A group all of whose offsets are requested again is refused: there may be very many."""
        self._runtime.advance(now_ms)
        version = caller.api_version
        groups = group_requests(request, version)
        whole: set[str] = set()
        results: list[OffsetFetchResponseGroup | Pending[OffsetFetchResponseGroup]] = []
        for group in groups:
            if group.topics is None and group.group_id in whole:
                results.append(fetch_failed(group, ErrorCode.INVALID_REQUEST))
                continue
            if group.topics is None:
                whole.add(group.group_id)
            results.append(self._fetch(group, version, request.require_stable))

        def finish() -> OffsetFetchResponse:
            settled = [_settled(group, result) for group, result in zip(groups, results, strict=True)]
            return to_response(groups, settled, version)

        return answer_after_all([result for result in results if isinstance(result, Pending)], finish)

    def _fetch(
        self, request: OffsetFetchRequestGroup, version: int, require_stable: bool
    ) -> OffsetFetchResponseGroup | Pending[OffsetFetchResponseGroup]:
        try:
            shard = shard_of(self._runtime, request.group_id, may_be_empty=True)
        except ApiError as error:
            return fetch_failed(request, error.code)
        reads_committed = not require_stable and not shard.partition.predecessor_hw_unknown
        epoch = shard.partition.committed_epoch() if reads_committed else LATEST
        group = shard.epoch_group(request.group_id, epoch)
        if group is not None:
            try:
                group.check_offset_fetch(request.member_id, request.member_epoch, epoch)
            except ApiError as error:
                return fetch_failed(request, error.code)
        if reads_committed:
            return shard.offsets.fetch(request, version, epoch, require_stable=False)
        found = shard.offsets.fetch(request, version, require_stable=require_stable)
        return now_or_later(self._runtime.in_time(shard.partition.write_with([], found)))

    def delete(
        self, caller: Caller, request: OffsetDeleteRequest, now_ms: int
    ) -> OffsetDeleteResponse | Pending[OffsetDeleteResponse]:
        """OffsetDelete (KIP-496): answered when the tombstones are committed."""
        self._runtime.advance(now_ms)
        try:
            shard = shard_of(self._runtime, request.group_id)
            group = shard.epoch_group(request.group_id) or shard.group(request.group_id)
            group.check_offset_delete()
        except ApiError as error:
            return OffsetDeleteResponse(error_code=int(error.code))
        records, response = shard.offsets.delete(group, request)
        if not records:
            return response
        self._counters.offset_deletions.record(len(records), now_ms)
        return answer_after(
            self._runtime.in_time(shard.partition.write(records)),
            lambda error: response if error is None else OffsetDeleteResponse(error_code=int(write_error(error.code))),
        )


def _commit_refused(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=int(code))
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _settled(
    request: OffsetFetchRequestGroup, result: OffsetFetchResponseGroup | Pending[OffsetFetchResponseGroup]
) -> OffsetFetchResponseGroup:
    if not isinstance(result, Pending):
        return result
    if result.error is not None:
        return fetch_failed(request, result.error.code)
    assert result.value is not None
    return result.value


SEVERAL_GROUPS_FROM = 8
_TOP_LEVEL_ERROR_FROM = 2


def group_requests(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """The request's groups, in the newest shape."""
    if version >= SEVERAL_GROUPS_FROM:
        return request.groups
    topics = request.topics
    if topics is not None:
        return [
            OffsetFetchRequestGroup(
                group_id=request.group_id,
                topics=[
                    OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                    for topic in topics
                ],
            )
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=None)]


def fetch_failed(request: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponseGroup:
    """A group whose offsets cannot be read now. Consumers before 3.9 retry after NOT_COORDINATOR only."""
    translated = write_error(code)
    if translated is ErrorCode.COORDINATOR_NOT_AVAILABLE and code is not translated:
        translated = ErrorCode.NOT_COORDINATOR
    return OffsetFetchResponseGroup(group_id=request.group_id, error_code=int(translated))


def to_response(
    groups: Sequence[OffsetFetchRequestGroup], results: Sequence[OffsetFetchResponseGroup], version: int
) -> OffsetFetchResponse:
    """The response in the shape of `version`."""
    if version >= SEVERAL_GROUPS_FROM:
        return OffsetFetchResponse(groups=list(results))
    result = results[0]
    topics: Sequence[OffsetFetchResponseTopics] = result.topics
    if version < _TOP_LEVEL_ERROR_FROM and result.error_code:
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, error_code=result.error_code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in groups[0].topics or ()
        ]
    return OffsetFetchResponse(
        error_code=result.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
