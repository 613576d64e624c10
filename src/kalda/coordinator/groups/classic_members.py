"""Members of the classic protocol in a consumer group (KIP-848): JoinGroup, SyncGroup, Heartbeat and LeaveGroup mean
there what heartbeats mean of other members.

JoinGroup is a heartbeat that says all of the member: its subscription, and the partitions that it owns. The answer's
generation is the member's epoch, and no member leads: the coordinator assigns. SyncGroup brings the assignment. A
Heartbeat is answered with REBALANCE_IN_PROGRESS where the member must join again: to come to the next target, to give
partitions back, or to get those that others have given back.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kalda.assignors.consumer_protocol import MemberSubscription, parse_member_subscription
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.ids import Uuid, UuidSource, uuid_to_text
from kalda.base.scheduling import Pending
from kalda.coordinator.groups.classic_group import CONSUMER_PROTOCOL_TYPE, in_version
from kalda.coordinator.groups.classic_protocol import left_response, one_left, refusal
from kalda.coordinator.groups.config import ConsumerSettings
from kalda.coordinator.groups.consumer_group import ConsumerGroup, ConsumerGroups, ConsumerMember, MemberState
from kalda.coordinator.groups.consumer_protocol import ConsumerProtocol
from kalda.coordinator.groups.kind_protocol import known_instance
from kalda.coordinator.groups.migration import Migration, classic_metadata
from kalda.coordinator.groups.records import MAX_GROUP_BYTES, GroupLogRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.protocol.access import Caller
from kalda.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logging.getLogger(__name__)

_MEMBER_ID_REQUIRED_FROM = 4
_SEVERAL_LEAVE_FROM = 3


class ClassicMembers:
    """Handlers over the consumer groups of one shard. Each takes a request for a group that exists."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        groups: ConsumerGroups,
        protocol: ConsumerProtocol,
        migration: Migration,
        settings: ConsumerSettings,
        new_uuid: UuidSource,
    ) -> None:
        self._partition = partition
        self._groups = groups
        self._protocol = protocol
        self._migration = migration
        self._config = settings.config
        self._catalog = settings.catalog
        self._new_uuid = new_uuid

    # -- JoinGroup -----------------------------------------------------------------------------------------------

    def join(self, caller: Caller, request: JoinGroupRequest) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """Answered when what it has changed is committed; there is no barrier."""
        member_id = request.member_id or uuid_to_text(self._new_uuid())
        try:
            group = self._groups.get(request.group_id)
            self._check_join(group, request, member_id)
            if (
                request.group_instance_id is None
                and not request.member_id
                and caller.api_version >= _MEMBER_ID_REQUIRED_FROM
            ):
                raise ApiError(ErrorCode.MEMBER_ID_REQUIRED)
            return self._partition.after_commit(self._join(caller, request, group, member_id))
        except ApiError as error:
            named = member_id if error.code is ErrorCode.MEMBER_ID_REQUIRED else request.member_id
            return in_version(refusal(named, error.code), caller.api_version)

    def _check_join(self, group: ConsumerGroup, request: JoinGroupRequest, member_id: str) -> None:
        if not self._config.allows_classic_members:
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Cannot join the consumer group {group.group_id} with the classic protocol because the group "
                "migration is disabled.",
            )
        if sum(len(each.metadata) for each in request.protocols) > MAX_GROUP_BYTES:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        self._protocol.check_size(group, member_id, request.group_instance_id)
        names = [protocol.name for protocol in request.protocols]
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names or not group.supports_classic(names):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")

    def _join(
        self, caller: Caller, request: JoinGroupRequest, group: ConsumerGroup, member_id: str
    ) -> JoinGroupResponse:
        try:
            subscription = parse_member_subscription(request.protocols[0].metadata)
        except InvalidRequest as error:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
        records: list[GroupLogRecord] = []
        instance_id = request.group_instance_id
        if instance_id is None:
            counted = group.members.get(member_id)
            old = counted or ConsumerMember(member_id)
        else:
            counted = group.static_member(instance_id)
            if request.member_id:
                old = known_instance(counted, member_id, instance_id)
            else:
                old = self._protocol.static_to_join(group, member_id, instance_id, records, at_once=True)
        replaces = counted is not None and counted.member_id != member_id and counted.classic is None
        member = _updated(old, caller, request, subscription)
        group = self._protocol.write_member(group, counted, old, member, records)
        is_downgraded = replaces and self._migration.is_due(group, ())
        if not is_downgraded:
            self._protocol.assign(group)
        if not is_downgraded or group.epochs.assignment >= group.epochs.group:
            changed = member.topics != old.topics or member.regex != old.regex
            owned = self._owned(subscription)
            member = self._protocol.reconcile(group, member_id, owned, subscription_changed=changed)
        if is_downgraded:
            self._migration.downgrade_replaced(group)
        else:
            self._groups.start_session(group, member_id)
            self._groups.await_sync(group, member)
        return in_version(
            JoinGroupResponse(
                member_id=member_id,
                generation_id=member.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=request.protocols[0].name,
            ),
            caller.api_version,
        )

    def _owned(self, subscription: MemberSubscription) -> dict[Uuid, set[int]]:
        """What the member says that it owns. One of an eager protocol owns nothing when it joins."""
        owned: dict[Uuid, set[int]] = {}
        for name, partition in subscription.owned:
            found = self._catalog.shape_of(name)
            if found is not None:
                owned.setdefault(found[0], set()).add(partition)
        return owned

    # -- SyncGroup -----------------------------------------------------------------------------------------------

    def sync(self, caller: Caller, request: SyncGroupRequest) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """The member's assignment, once it is committed."""
        try:
            group = self._groups.get(request.group_id)
            member = _member(group, request.member_id, request.group_instance_id, request.generation_id)
            _check_protocol(member, request)
            if group.epochs.assignment > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._groups.await_join(group, member)
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        except ApiError as error:
            return SyncGroupResponse(error_code=int(error.code))
        self._groups.on_sync(group, member.member_id)
        return self._partition.after_commit(
            SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=self._migration.encode_assignment(member, member.assigned),
            )
        )

    # -- Heartbeat -----------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Prolongs the session; REBALANCE_IN_PROGRESS makes the member join again. Where only members of the classic
        protocol are left, no other request brings the group to its next target; Apache Kafka waits for a JoinGroup
        then."""
        try:
            group = self._groups.get(request.group_id)
            member = _member(group, request.member_id, request.group_instance_id, request.generation_id)
        except ApiError as error:
            return HeartbeatResponse(error_code=int(error.code))
        self._groups.start_session(group, member.member_id)
        if group.classic_count == len(group.members):
            self._refresh(group, member)
        must_join = (
            member.epoch < group.epochs.assignment
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        )
        if must_join:
            self._groups.await_join(group, member)
            return HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS))
        return HeartbeatResponse()

    def _refresh(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        try:
            if group.needs_refresh:
                self._protocol.write_member(group, member, member, member, [])
            self._protocol.assign(group)
        except ApiError as error:
            log.warning("group %s: no new target assignment: %s", group.group_id, error)

    # -- LeaveGroup ----------------------------------------------------------------------------------------------

    def leave(self, caller: Caller, request: LeaveGroupRequest) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
        """Each member gets its own error code. A static member may be named by its instance id alone."""
        leaving = request.members
        if caller.api_version < _SEVERAL_LEAVE_FROM:
            leaving = [MemberIdentity(member_id=request.member_id)]
        try:
            group = self._groups.get(request.group_id)
            member_ids: dict[str, None] = {}
            results: list[MemberResponse] = []
            for each in leaving:
                try:
                    member_ids[_leaving(group, each).member_id] = None
                    results.append(one_left(each, 0))
                except ApiError as error:
                    results.append(one_left(each, int(error.code)))
            if member_ids:
                log.info("group %s: %s leave", group.group_id, ", ".join(member_ids))
                reason = next((each.reason for each in leaving if each.reason), "")
                self._protocol.remove_members(group, member_ids, "left", reason)
        except ApiError as error:
            return LeaveGroupResponse(error_code=int(error.code))
        return self._partition.after_commit(left_response(caller, results))


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """The member of the classic protocol that sent a request. Raises `ApiError`."""
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = known_instance(group.static_member(instance_id), member_id, instance_id)
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if member.epoch != generation:
        raise ApiError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation} is not equal to the member epoch {member.epoch} of {member_id}.",
        )
    return member


def _leaving(group: ConsumerGroup, leaving: MemberIdentity) -> ConsumerMember:
    """The member that leaves, of whichever protocol. Raises `ApiError`."""
    instance_id = leaving.group_instance_id
    if instance_id is None:
        return group.member(leaving.member_id)
    present = group.static_member(instance_id)
    member_id = leaving.member_id or ("" if present is None else present.member_id)
    return known_instance(present, member_id, instance_id)


def _check_protocol(member: ConsumerMember, request: SyncGroupRequest) -> None:
    """Raises INCONSISTENT_GROUP_PROTOCOL."""
    assert member.classic is not None
    name = member.classic.supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _updated(
    old: ConsumerMember, caller: Caller, request: JoinGroupRequest, subscription: MemberSubscription
) -> ConsumerMember:
    """The member as this JoinGroup describes it."""
    timeout_ms = request.rebalance_timeout_ms if caller.api_version else request.session_timeout_ms
    return replace(
        old,
        instance_id=request.group_instance_id if request.group_instance_id is not None else old.instance_id,
        rack=subscription.rack if subscription.rack is not None else old.rack,
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else old.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        regex="",
        client_id=caller.client_id or "",
        client_host=f"/{caller.client_host}",
        classic=classic_metadata(
            request.session_timeout_ms, ((each.name, bytes(each.metadata)) for each in request.protocols)
        ),
    )
