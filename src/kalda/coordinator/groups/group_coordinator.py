"""The group coordinator: requests in, by group to the shard of its partition, answers out.

Each method takes a decoded request and gives the response, or a `Pending` of it. Errors are in the response, in the
place where each API has them; none is raised. Requests that name several groups are spread over their shards, and
answered when all have answered. Requests on committed offsets are in `offset_requests.py`.

The coordinator has no clock. Every call brings `now_ms`; after it the runtime's `next_deadline_ms` may be earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, TypeVar, cast

from kalda.assignors.server_assignor import ServerAssignor
from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import OFFSETS_TOPIC, UuidSource
from kalda.base.scheduling import Pending
from kalda.coordinator.answers import answer_after, answer_after_all, now_or_later, write_error
from kalda.coordinator.groups.classic_group import GroupState, in_version
from kalda.coordinator.groups.classic_protocol import refusal
from kalda.coordinator.groups.config import (
    ConsumerGroupConfig,
    ConsumerSettings,
    GroupCoordinatorConfig,
    GroupCounters,
    ShareGroupSettings,
    ShareServices,
    StreamsServices,
    StreamsSettings,
    TopicCatalog,
)
from kalda.coordinator.groups.descriptions import (
    describe_consumer_group,
    describe_share_group,
    describe_streams_group,
    explain_classic,
    explain_consumers,
    explain_rebalances,
    explain_shares,
    explain_streams,
)
from kalda.coordinator.groups.offset_requests import OffsetRequests, VerifyTransaction, unverified
from kalda.coordinator.groups.offsets import KnownTopics
from kalda.coordinator.groups.rebalance_history import RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord
from kalda.coordinator.groups.shard import GroupShard, shard_of
from kalda.coordinator.groups.share_offsets import ShareOffsets
from kalda.coordinator.groups.share_protocol import check_heartbeat
from kalda.coordinator.groups.streams.protocol import Prepared, StreamsAnswer
from kalda.coordinator.groups.streams.protocol import check_heartbeat as check_streams_heartbeat
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.runtime import CoordinatorLog, CoordinatorRuntime
from kalda.protocol.access import Caller
from kalda.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
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
from kalda.protocol.messages.share import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kalda.protocol.notation import Response

H = TypeVar("H")
A = TypeVar("A", bound=Response)
D = TypeVar("D")

_NOT_FOUND_FROM = 6


class GroupCoordinator:
    """One broker's group coordinator: requests on the shards of its runtime."""

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        log: CoordinatorLog,
        topics: KnownTopics,
        new_uuid: UuidSource,
        partition_count: Callable[[], int],
        assignors: Mapping[str, ServerAssignor],
        shares: ShareServices,
        streams: StreamsServices,
        wall_ms: Callable[[], int] | None = None,
        verify: VerifyTransaction = unverified,
        consumers: ConsumerGroupConfig | None = None,
    ) -> None:
        """`partition_count` is that of `__consumer_offsets`, 0 while there is none. Timers go by the `now_ms` of each
        call; timestamps that are stored by `wall_ms`, or by `now_ms` too where it is None. `verify` verifies the
        transactions that commit offsets. `assignors` are those of consumer groups, by name, the default first;
        `consumers` are their configs, Kafka's defaults where it is None."""
        self.config = config
        self.counters = counters = GroupCounters()
        self._history = history = RebalanceHistory()
        self._topics = topics
        self._consumers = settings = ConsumerSettings(
            ConsumerGroupConfig({}) if consumers is None else consumers, TopicCatalog(topics), assignors
        )
        self._share_config = shares.config
        share_settings = ShareGroupSettings(shares.config, settings.catalog, shares.states)
        self._streams = streams_settings = StreamsSettings(streams.config, settings.catalog, streams.assignors)

        def make_shard(
            partition: CoordinatorPartition[GroupLogRecord], runtime: CoordinatorRuntime[GroupShard]
        ) -> GroupShard:
            return GroupShard(
                partition,
                config,
                runtime.timers,
                runtime,
                topics,
                new_uuid,
                counters,
                history,
                settings,
                share_settings,
                streams_settings,
            )

        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC, make_shard, log, partition_count, config.commit_timeout_ms, wall_ms
        )
        """Loads the shards, runs their timers, bounds their writes; what drives this coordinator drives the runtime."""
        self.offsets = OffsetRequests(self.runtime, topics, counters, verify)
        self.share_offsets = ShareOffsets(
            share_settings, shares.latest, partial(shard_of, self.runtime), self.runtime.wall_ms
        )

    # -- membership ----------------------------------------------------------------------------------------------

    def join_group(
        self, caller: Caller, request: JoinGroupRequest, now_ms: int
    ) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """JoinGroup: answered at the end of the join barrier; at once with an error, or if no rebalance is needed."""
        self.runtime.advance(now_ms)
        config = self.config
        try:
            shard = shard_of(self.runtime, request.group_id)
            if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
                raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
            shard.end_for_classic(request.group_id, request.member_id)
        except ApiError as error:
            return in_version(refusal(request.member_id, error.code), caller.api_version)
        answer = shard.classic_protocol(request.group_id).join(caller, request)
        self.runtime.fire_due()
        return now_or_later(answer) if isinstance(answer, Pending) else answer

    def sync_group(
        self, caller: Caller, request: SyncGroupRequest, now_ms: int
    ) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """SyncGroup: answered when the leader's assignment is committed."""
        self.runtime.advance(now_ms)
        try:
            shard = shard_of(self.runtime, request.group_id)
        except ApiError as error:
            return SyncGroupResponse(error_code=int(error.code))
        answer = shard.classic_protocol(request.group_id).sync(caller, request)
        return now_or_later(answer) if isinstance(answer, Pending) else answer

    def heartbeat(self, caller: Caller, request: HeartbeatRequest, now_ms: int) -> HeartbeatResponse:
        """Heartbeat: always answered at once. While its partition is being loaded, without an error: the member may be
        in the group, and must not leave it."""
        self.runtime.advance(now_ms)
        try:
            shard = shard_of(self.runtime, request.group_id)
        except ApiError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return HeartbeatResponse()
            return HeartbeatResponse(error_code=int(error.code))
        return shard.classic_protocol(request.group_id).heartbeat(request)

    def leave_group(
        self, caller: Caller, request: LeaveGroupRequest, now_ms: int
    ) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
        """LeaveGroup: answered at once; where the group becomes empty, when its record is committed."""
        self.runtime.advance(now_ms)
        try:
            shard = shard_of(self.runtime, request.group_id)
        except ApiError as error:
            return LeaveGroupResponse(error_code=int(error.code))
        answer = shard.classic_protocol(request.group_id).leave(caller, request)
        self.runtime.fire_due()
        return now_or_later(answer) if isinstance(answer, Pending) else answer

    def consumer_group_heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat (KIP-848): answered when what it has changed is committed."""
        self.runtime.advance(now_ms)
        return self._heartbeat(
            lambda: shard_of(self.runtime, request.group_id).consumer_protocol.heartbeat(caller, request),
            _refusal(ConsumerGroupHeartbeatResponse),
        )

    def _heartbeat(self, heartbeat: Callable[[], H | Pending[H]], refused: Callable[[ApiError], H]) -> H | Pending[H]:
        """The answer of a kind's heartbeat; `refused(error)` where it raises, or is not written."""
        try:
            answer = heartbeat()
        except ApiError as error:
            return refused(error)
        if not isinstance(answer, Pending):
            return answer
        committed = self.runtime.in_time(answer)

        def finish(error: ApiError | None) -> H:
            if error is not None:
                return refused(ApiError(write_error(error.code)))
            return cast(H, committed.value)

        return answer_after(committed, finish)

    def on_topics_changed(self, names: Iterable[str], offset: int, *, created: bool) -> None:
        """Topics were made, deleted, extended, or their replicas have moved, in the metadata of that offset; `created`:
        some are new. Groups that subscribe to them refresh with the next heartbeat."""
        changed = frozenset(names)
        self._consumers.catalog.on_changed(changed, offset, created=created)
        for shard in list(self.runtime.active_shards()):
            shard.on_topics_changed(changed)

    def share_group_heartbeat(
        self, caller: Caller, request: ShareGroupHeartbeatRequest, now_ms: int
    ) -> ShareGroupHeartbeatResponse | Pending[ShareGroupHeartbeatResponse]:
        """ShareGroupHeartbeat (KIP-932): answered when what it has changed is committed."""
        self.runtime.advance(now_ms)

        def heartbeat() -> ShareGroupHeartbeatResponse | Pending[ShareGroupHeartbeatResponse]:
            check_heartbeat(request)
            shard = shard_of(self.runtime, request.group_id)
            is_taken = shard.has_other_than_share(request.group_id)
            return shard.share_protocol.heartbeat(caller, request, is_taken=is_taken)

        return self._heartbeat(heartbeat, _refusal(ShareGroupHeartbeatResponse))

    def prepare_streams_heartbeat(self, request: StreamsGroupHeartbeatRequest) -> Steps[Prepared]:
        """What of a StreamsGroupHeartbeat takes long, before it. Raises `ApiError`."""
        check_streams_heartbeat(request)
        shard = shard_of(self.runtime, request.group_id)
        return (yield from shard.streams_protocol.prepare(request))

    def streams_group_heartbeat(
        self, caller: Caller, request: StreamsGroupHeartbeatRequest, prepared: Prepared, now_ms: int
    ) -> StreamsAnswer | Pending[StreamsAnswer]:
        """StreamsGroupHeartbeat (KIP-1071), with the outcome of `prepare_streams_heartbeat`: answered when what it has
        changed is committed."""
        self.runtime.advance(now_ms)

        def heartbeat() -> StreamsAnswer | Pending[StreamsAnswer]:
            shard = shard_of(self.runtime, request.group_id)
            ending = shard.ending_for_streams(request.group_id)
            return shard.streams_protocol.heartbeat(caller, request, prepared, ending)

        return self._heartbeat(heartbeat, streams_refused)

    def streams_heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members of a streams group send heartbeats."""
        return self._streams.config.heartbeat_interval_ms(group_id)

    def describe_streams_groups(
        self, request: StreamsGroupDescribeRequest, now_ms: int
    ) -> Iterator[StreamsGroupDescribeResponseDescribedGroup]:
        """StreamsGroupDescribe (KIP-1071): as `describe_groups`."""
        with_description = request.include_topology_description

        def describe(shard: GroupShard, group_id: str, epoch: int) -> StreamsGroupDescribeResponseDescribedGroup:
            assignor = self._streams.assignor(group_id).name
            group = shard.streams.get(group_id, epoch)
            return describe_streams_group(group, epoch, assignor, with_description=with_description)

        return self._described(request.group_ids, now_ms, describe, StreamsGroupDescribeResponseDescribedGroup)

    def describe_share_groups(
        self, request: ShareGroupDescribeRequest, now_ms: int
    ) -> Iterator[ShareGroupDescribeResponseDescribedGroup]:
        """ShareGroupDescribe (KIP-932): as `describe_groups`."""

        def describe(shard: GroupShard, group_id: str, epoch: int) -> ShareGroupDescribeResponseDescribedGroup:
            return describe_share_group(shard.shares.get(group_id, epoch), epoch, self._topics.name_of)

        return self._described(request.group_ids, now_ms, describe, ShareGroupDescribeResponseDescribedGroup)

    def _described(
        self,
        group_ids: Iterable[str],
        now_ms: int,
        describe: Callable[[GroupShard, str, int], D],
        failed: Callable[..., D],
    ) -> Iterator[D]:
        """Committed groups of one kind, one after the other: `describe(shard, group_id, epoch)`. A group that is named
        again is refused."""
        self.runtime.advance(now_ms)
        described: set[str] = set()
        for group_id in group_ids:
            try:
                if group_id in described:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                described.add(group_id)
                shard = shard_of(self.runtime, group_id)
                found = describe(shard, group_id, shard.partition.committed_epoch())
            except ApiError as error:
                message = error.message if error.code is ErrorCode.GROUP_ID_NOT_FOUND else None
                found = failed(group_id=group_id, error_code=int(error.code), error_message=message)
            yield found

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
            group = shard_of(self.runtime, group_id, may_be_empty=True).group(group_id)
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

    def explain_rebalance(self, group_id: str, now_ms: int) -> dict[str, Any]:
        """Who waits for whom in a group, and its last rebalances here, as JSON. `error` is why this node does not have
        the group's present state."""
        self.runtime.advance(now_ms)
        found: dict[str, Any] = {"group": group_id, "now_ms": now_ms, "error": None}
        try:
            shard = shard_of(self.runtime, group_id)
            wall_ms = self.runtime.wall_ms()
            if (consumers := shard.consumers.groups.get(group_id)) is not None:
                found |= explain_consumers(consumers, shard.consumers, self._consumers, wall_ms)
                shard.consumers.settle(consumers)
            elif (shares := shard.shares.groups.get(group_id)) is not None:
                found |= explain_shares(shares, self._share_config, wall_ms)
                shard.shares.settle(shares)
            elif (streams := shard.streams.groups.get(group_id)) is not None:
                found |= explain_streams(streams, shard.streams, self._streams, wall_ms)
                shard.streams.settle(streams)
            else:
                found |= explain_classic(shard.group(group_id), now_ms)
        except ApiError as error:
            found["error"] = error.code.name
        found["rebalances"] = explain_rebalances(self._history.of(group_id))
        return found

    def describe_consumer_groups(
        self, request: ConsumerGroupDescribeRequest, now_ms: int
    ) -> Iterator[ConsumerGroupDescribeResponseDescribedGroup]:
        """ConsumerGroupDescribe (KIP-848): as `describe_groups`."""
        default = next(iter(self._consumers.assignors))

        def describe(shard: GroupShard, group_id: str, epoch: int) -> ConsumerGroupDescribeResponseDescribedGroup:
            return describe_consumer_group(shard.consumers.get(group_id, epoch), epoch, default, self._topics.name_of)

        return self._described(request.group_ids, now_ms, describe, ConsumerGroupDescribeResponseDescribedGroup)

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
        written: list[tuple[list[str], Pending[None]]] = []
        for group_id, result in results.items():
            try:
                shard = shard_of(self.runtime, group_id, may_be_empty=True)
                ending = shard.ending(group_id)
            except ApiError as error:
                result.error_code = int(error.code)
                continue
            if group_id in shard.shares.groups:
                written.append(([group_id], self._delete_share_group(shard, group_id)))
                continue
            _, deleted, records = by_shard.setdefault(shard.partition.index, (shard, [], []))
            deleted.append(group_id)
            records.extend(shard.offsets.tombstones_of_group(group_id))
            records.extend(ending)
        written += [
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

    def _delete_share_group(self, shard: GroupShard, group_id: str) -> Pending[None]:
        """Delete a group without members when its state is deleted at the share coordinator."""

        def delete(_: None) -> Pending[None]:
            if group_id not in shard.shares.groups:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
            return self.runtime.in_time(shard.partition.write_in_parts(shard.ending(group_id)))

        return self.share_offsets.end_state(shard, shard.shares.get(group_id)).and_then(delete)


def _refusal(response: type[A]) -> Callable[[ApiError], A]:
    return lambda error: response(error_code=int(error.code), error_message=error.message or None)


def streams_refused(error: ApiError) -> StreamsAnswer:
    """A StreamsGroupHeartbeat that has failed."""
    return StreamsAnswer(_refusal(StreamsGroupHeartbeatResponse)(error))
