"""The group coordinator: requests in, by group to the shard of its partition, answers out.

Each method takes a decoded request and gives the response, or a `Pending` of it. Errors are in the response, in the
place where each API has them; none is raised. Requests that name several groups are spread over their shards, and
answered when all have answered.

The coordinator has no clock. Every call brings `now_ms`; after it the runtime's `next_deadline_ms` may be earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import UuidSource
from kalda.base.pending import Pending
from kalda.base.topic_names import OFFSETS_TOPIC
from kalda.coordinator.answers import answer_after, answer_after_all, now_or_later, txn_commit_error, write_error
from kalda.coordinator.groups.classic_group import GroupState, in_version
from kalda.coordinator.groups.classic_protocol import refusal
from kalda.coordinator.groups.config import GroupCoordinatorConfig
from kalda.coordinator.groups.counters import GroupCounters
from kalda.coordinator.groups.offset_fetch import fetch_failed, group_requests, to_response
from kalda.coordinator.groups.offsets import KnownTopics, fail_commit
from kalda.coordinator.groups.records import GroupLogRecord, GroupRecord
from kalda.coordinator.groups.shard import GroupShard
from kalda.coordinator.partition import CoordinatorPartition, TransactionalProducer
from kalda.coordinator.runtime import CoordinatorLog, CoordinatorRuntime
from kalda.protocol.caller import Caller
from kalda.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kalda.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kalda.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kalda.storage.log.producer_state import Verification

_NOT_FOUND_FROM = 6
_GROUP_NOT_FOUND_ON_COMMIT_FROM = 9


VerifyTransaction = Callable[[int, TxnOffsetCommitRequest, int], "Verification | Pending[Verification | None] | None"]
"""`(partition, request, version)`: the guard for the append of a request's offsets to that partition of
`__consumer_offsets`, None where none is needed; or what settles with it, or fails, when the transaction's coordinator
has answered. Raises `ApiError`."""


def _unverified(partition: int, request: TxnOffsetCommitRequest, version: int) -> None:
    """For a log that demands no verification."""


class GroupCoordinator:
    """One broker's group coordinator: requests on the shards of its runtime."""

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        log: CoordinatorLog,
        topics: KnownTopics,
        new_uuid: UuidSource,
        partition_count: Callable[[], int],
        wall_ms: Callable[[], int] | None = None,
        verify: VerifyTransaction = _unverified,
    ) -> None:
        """`partition_count` is that of `__consumer_offsets`, 0 while there is none. Timers go by the `now_ms` of each
        call; timestamps that are stored by `wall_ms`, or by `now_ms` too where it is None. `verify` verifies the
        transactions that commit offsets."""
        self.config = config
        self.counters = counters = GroupCounters()
        self._verify = verify
        self._topics = topics

        def make_shard(
            partition: CoordinatorPartition[GroupLogRecord], runtime: CoordinatorRuntime[GroupShard]
        ) -> GroupShard:
            return GroupShard(partition, config, runtime.timers, runtime, topics, new_uuid, counters)

        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC, make_shard, log, partition_count, config.commit_timeout_ms, wall_ms
        )
        """Loads the shards, runs their timers, bounds their writes; what drives this coordinator drives the runtime."""

    # -- membership ----------------------------------------------------------------------------------------------

    def join_group(
        self, caller: Caller, request: JoinGroupRequest, now_ms: int
    ) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """JoinGroup: answered at the end of the join barrier; at once with an error, or if no rebalance is needed."""
        self.runtime.advance(now_ms)
        config = self.config
        try:
            shard = self._shard_of(request.group_id)
            if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
                raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
            if request.group_id in shard.foreign_groups:
                shard.take_over(request.group_id, request.member_id)
        except ApiError as error:
            return in_version(refusal(request.member_id, error.code), caller.api_version)
        answer = shard.classic.join(caller, request)
        self.runtime.fire_due()
        return now_or_later(answer)

    def sync_group(
        self, caller: Caller, request: SyncGroupRequest, now_ms: int
    ) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """SyncGroup: answered when the leader's assignment is committed."""
        self.runtime.advance(now_ms)
        try:
            shard = self._shard_of(request.group_id)
        except ApiError as error:
            return SyncGroupResponse(error_code=int(error.code))
        answer = shard.classic.sync(caller, request)
        return now_or_later(answer) if isinstance(answer, Pending) else answer

    def heartbeat(self, caller: Caller, request: HeartbeatRequest, now_ms: int) -> HeartbeatResponse:
        """Heartbeat: always answered at once. While its partition is being loaded, without an error: the member may be
        in the group, and must not leave it."""
        self.runtime.advance(now_ms)
        try:
            shard = self._shard_of(request.group_id)
        except ApiError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return HeartbeatResponse()
            return HeartbeatResponse(error_code=int(error.code))
        return shard.classic.heartbeat(request)

    def leave_group(
        self, caller: Caller, request: LeaveGroupRequest, now_ms: int
    ) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
        """LeaveGroup: answered at once; where the group becomes empty, when its record is committed."""
        self.runtime.advance(now_ms)
        try:
            shard = self._shard_of(request.group_id)
        except ApiError as error:
            return LeaveGroupResponse(error_code=int(error.code))
        answer = shard.classic.leave(caller, request)
        self.runtime.fire_due()
        return now_or_later(answer) if isinstance(answer, Pending) else answer

    # -- groups --------------------------------------------------------------------------------------------------

    def describe_groups(
        self, caller: Caller, request: DescribeGroupsRequest, now_ms: int
    ) -> Iterator[DescribeGroupsResponseDescribedGroup]:
        """DescribeGroups: the groups, one after the other. The caller fills in the authorized operations. A group that
        is named again is refused: each description may be very long."""
        self.runtime.advance(now_ms)
        described: set[str] = set()
        for group_id in request.groups:
            if group_id in described:
                yield DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=int(ErrorCode.INVALID_REQUEST))
            else:
                described.add(group_id)
                yield self._describe(group_id, caller.api_version)

    def _describe(self, group_id: str, version: int) -> DescribeGroupsResponseDescribedGroup:
        """A group that does not exist is Dead; from version 6 on with GROUP_ID_NOT_FOUND (KIP-1043)."""
        try:
            group = self._shard_of(group_id, may_be_empty=True).group(group_id)
        except ApiError as error:
            described = DescribeGroupsResponseDescribedGroup(group_id=group_id)
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                described.error_code = int(error.code)
                return described
            described.group_state = GroupState.DEAD.value
            if version >= _NOT_FOUND_FROM:
                described.error_code, described.error_message = int(error.code), error.message
            return described
        protocol = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribeGroupsResponseDescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=[member.describe(protocol) for member in group.members.values()],
        )

    def list_groups(self, request: ListGroupsRequest, now_ms: int) -> Iterator[ListedGroup]:
        """ListGroups: the groups of all partitions that this node coordinates, one after the other: there may be very
        many. Filters ignore case. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        self.runtime.advance(now_ms)
        if self.runtime.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.strip().lower() for state in request.states_filter}
        types = {group_type.strip().lower() for group_type in request.types_filter}
        shards = list(self.runtime.active_shards())
        every = chain.from_iterable(shard.listed() for shard in shards)
        return (
            group
            for group in every
            if (not states or group.group_state.lower() in states) and (not types or group.group_type in types)
        )

    def delete_groups(
        self, caller: Caller, request: DeleteGroupsRequest, now_ms: int
    ) -> DeleteGroupsResponse | Pending[DeleteGroupsResponse]:
        """DeleteGroups: empty groups are deleted, with their offsets. Members whose session has ended are removed
        first, though their timers may not have run yet."""
        self.runtime.advance(now_ms)
        self.runtime.fire_due()
        results = {group_id: DeletableGroupResult(group_id=group_id) for group_id in request.groups_names}
        by_shard: dict[int, tuple[GroupShard, list[str], list[GroupLogRecord]]] = {}
        for group_id, result in results.items():
            try:
                shard = self._shard_of(group_id, may_be_empty=True)
                is_foreign = group_id in shard.foreign_groups
                if is_foreign and not shard.may_end(group_id):
                    raise ApiError(ErrorCode.NON_EMPTY_GROUP)
                if not is_foreign:
                    shard.group(group_id).check_deletable()
            except ApiError as error:
                result.error_code = int(error.code)
                continue
            _, deleted, records = by_shard.setdefault(shard.partition.index, (shard, [], []))
            deleted.append(group_id)
            records.extend(shard.offsets.tombstones_of_group(group_id))
            records.extend(shard.foreign_tombstones(group_id) if is_foreign else [GroupRecord(group_id, None)])
        written = [
            (deleted, self.runtime.in_time(shard.partition.write_in_parts(records)))
            for shard, deleted, records in by_shard.values()
        ]

        def finish() -> DeleteGroupsResponse:
            for deleted, outcome in written:
                if outcome.error is not None:
                    for group_id in deleted:
                        results[group_id].error_code = int(write_error(outcome.error.code))
            return DeleteGroupsResponse(results=list(results.values()))

        return answer_after_all([outcome for _, outcome in written], finish)

    # -- offsets -------------------------------------------------------------------------------------------------

    def offset_commit(
        self, caller: Caller, request: OffsetCommitRequest, now_ms: int
    ) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
        """OffsetCommit: answered when the records are committed; at once where there are only errors."""
        self.runtime.advance(now_ms)
        try:
            shard = self._shard_of(request.group_id, may_be_empty=True)
        except ApiError as error:
            return _commit_refused(request, error.code)
        records, response = shard.offsets.commit(request, caller.api_version, self.runtime.wall_ms())
        if not records:
            return response
        try:
            self._check_commit(shard, caller, request)
        except ApiError as error:
            return fail_commit(response, error.code)
        self.counters.offset_commits.record(len(records), now_ms)
        return answer_after(
            self.runtime.in_time(shard.partition.write(records)),
            lambda error: response if error is None else fail_commit(response, write_error(error.code)),
        )

    def _check_commit(self, shard: GroupShard, caller: Caller, request: OffsetCommitRequest) -> None:
        group = shard.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            shard.check_foreign_commit(request.group_id, generation)
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

    def txn_offset_commit(
        self, caller: Caller, request: TxnOffsetCommitRequest, now_ms: int
    ) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
        """TxnOffsetCommit: offsets that count once their transaction is committed. The first of a transaction waits
        until its coordinator has confirmed that this partition of `__consumer_offsets` is in the transaction; from
        version 5 on, that adds it (KIP-890)."""
        self.runtime.advance(now_ms)
        version = caller.api_version
        try:
            index = self._shard_of(request.group_id).partition.index
            if not self._names_a_partition(request):
                return self._commit_in_transaction(version, request, None)
            verified = self._verify(index, request, version)
        except ApiError as error:
            return self._txn_commit_failed(request, version, error.code)
        if not isinstance(verified, Pending):
            return self._commit_in_transaction(version, request, verified)
        answer: Pending[TxnOffsetCommitResponse] = Pending()

        def on_verified(verification: Verification | None, error: ApiError | None) -> None:
            if error is not None:
                answer.complete(self._txn_commit_failed(request, version, error.code))
                return
            done = self._commit_in_transaction(version, request, verification)
            if isinstance(done, Pending):
                done.then(answer.settle)
            else:
                answer.complete(done)

        verified.then(on_verified)
        return answer

    def _names_a_partition(self, request: TxnOffsetCommitRequest) -> bool:
        """Whether it names a partition that exists. Otherwise nothing is committed, so nothing is verified."""
        has = self._topics.has_partition
        return any(has(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)

    def _commit_in_transaction(
        self, version: int, request: TxnOffsetCommitRequest, verification: Verification | None
    ) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
        try:
            shard = self._shard_of(request.group_id)
            records, response = shard.offsets.commit_in_transaction(request, self.runtime.wall_ms())
            self._check_commit_in_transaction(shard, request)
        except ApiError as error:
            return self._txn_commit_failed(request, version, error.code)
        if not records:
            return response
        if request.producer_id < 0 or request.producer_epoch < 0:
            return self._txn_commit_failed(request, version, ErrorCode.UNKNOWN_SERVER_ERROR)
        self.counters.offset_commits.record(len(records), self.runtime.now_ms())
        producer = TransactionalProducer(request.producer_id, request.producer_epoch, verification)
        return answer_after(
            self.runtime.in_time(shard.partition.write_in_transaction(records, None, producer)),
            lambda error: response if error is None else fail_commit(response, txn_commit_error(error.code, version)),
        )

    @staticmethod
    def _check_commit_in_transaction(shard: GroupShard, request: TxnOffsetCommitRequest) -> None:
        """Fenced by member, generation and static instance (KIP-447); a producer of an older release sends none."""
        group = shard.groups.get(request.group_id)
        if group is not None:
            group.check_offset_commit(
                request.member_id, request.group_instance_id, request.generation_id, transactional=True
            )
        else:
            shard.check_foreign_commit(request.group_id, request.generation_id)
            if request.generation_id >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    def _txn_commit_failed(
        self, request: TxnOffsetCommitRequest, version: int, code: ErrorCode
    ) -> TxnOffsetCommitResponse:
        """The same error for every partition that exists."""
        has, translated = self._topics.has_partition, txn_commit_error(code, version)
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=each.partition_index,
                            error_code=translated
                            if has(topic.name, each.partition_index)
                            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def offset_fetch(
        self, caller: Caller, request: OffsetFetchRequest, now_ms: int
    ) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
        """OffsetFetch: committed offsets, at once. With require_stable the answer waits for the writes before it. It
        does so without, while some of these are the former leader's: it may have answered them, so they must not seem
        undone. A group all of whose offsets are requested again is refused: there may be very many."""
        self.runtime.advance(now_ms)
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
            shard = self._shard_of(request.group_id, may_be_empty=True)
        except ApiError as error:
            return fetch_failed(request, error.code)
        if not require_stable and not shard.partition.predecessor_hw_unknown:
            return shard.offsets.fetch(request, version, shard.partition.committed_epoch(), require_stable=False)
        found = shard.offsets.fetch(request, version, require_stable=require_stable)
        return now_or_later(self.runtime.in_time(shard.partition.write_with([], found)))

    def offset_delete(
        self, caller: Caller, request: OffsetDeleteRequest, now_ms: int
    ) -> OffsetDeleteResponse | Pending[OffsetDeleteResponse]:
        """OffsetDelete (KIP-496): answered when the tombstones are committed."""
        self.runtime.advance(now_ms)
        try:
            shard = self._shard_of(request.group_id)
            group = shard.group(request.group_id)
            group.check_offset_delete()
        except ApiError as error:
            return OffsetDeleteResponse(error_code=int(error.code))
        records, response = shard.offsets.delete(group, request)
        if not records:
            return response
        self.counters.offset_deletions.record(len(records), now_ms)
        return answer_after(
            self.runtime.in_time(shard.partition.write(records)),
            lambda error: response if error is None else OffsetDeleteResponse(error_code=int(write_error(error.code))),
        )

    # -- shards --------------------------------------------------------------------------------------------------

    def _shard_of(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard:
        """The loaded shard of a group. Old clients that only store offsets use the empty id (KIP-289)."""
        if not group_id and not may_be_empty:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        return self.runtime.shard_for(group_id)


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
