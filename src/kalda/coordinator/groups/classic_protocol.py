"""The requests of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Version notes:
- JoinGroup 4+ (KIP-394): a dynamic member without an id gets one with MEMBER_ID_REQUIRED and joins again with it, so
  that a join whose answer was lost leaves no member behind. 5+ (KIP-345): static members. 7+: protocol type in the
  answer, protocol name nullable. 9+ (KIP-814): a static leader that restarts into a stable group gets
  `skip_assignment`.
- SyncGroup 5+ (KIP-559): protocol type and name are required, and must be the group's.
- LeaveGroup 3+ (KIP-345): several members at once, also by instance id alone (an admin's removal).
"""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import UuidSource
from kalda.base.scheduling import Pending
from kalda.coordinator.answers import write_error
from kalda.coordinator.groups.classic_group import (
    NO_ASSIGNMENT,
    ClassicGroup,
    ClassicMember,
    GroupState,
    JoinWaiter,
    Protocols,
)
from kalda.coordinator.groups.config import GroupCoordinatorConfig
from kalda.coordinator.groups.rebalance import Rebalancer, Write
from kalda.coordinator.groups.rebalance_history import Cause
from kalda.coordinator.groups.records import MAX_GROUP_BYTES, GroupRecord
from kalda.coordinator.timers import EventClock
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

_MEMBER_ID_REQUIRED_FROM = 4
_SKIP_ASSIGNMENT_FROM = 9
_PROTOCOL_NAMES_FROM = 5
_SEVERAL_LEAVE_FROM = 3


class ClassicProtocol:
    """Handlers over the groups of one shard."""

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        groups: Mapping[str, ClassicGroup],
        rebalancer: Rebalancer,
        write: Write,
        clock: EventClock,
        new_uuid: UuidSource,
    ) -> None:
        """`groups` are the shard's, by id; the replay of what is written adds and removes them."""
        self._config = config
        self._groups = groups
        self._rebalancer = rebalancer
        self._write = write
        self._clock = clock
        self._new_uuid = new_uuid

    # -- JoinGroup -----------------------------------------------------------------------------------------------

    def join(self, caller: Caller, request: JoinGroupRequest) -> Pending[JoinGroupResponse]:
        """Answered at the end of the join barrier, at once where none is under way or the member is refused."""
        pending: Pending[JoinGroupResponse] = Pending()
        waiter = JoinWaiter(pending, caller.api_version, self._clock.now_ms())
        group = self._groups.get(request.group_id)
        if sum(len(each.metadata) for each in request.protocols) > MAX_GROUP_BYTES:
            refuse_join(waiter, request.member_id, ErrorCode.INVALID_REQUEST)  # its group could not be stored
        elif group is not None:
            self._join_group(caller, request, group, waiter)
        elif request.member_id:
            refuse_join(waiter, request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            self._join_new_group(caller, request, waiter)
        return pending

    def _join_new_group(self, caller: Caller, request: JoinGroupRequest, waiter: JoinWaiter) -> None:
        """The replay of its first record makes the group; where that cannot be written there is no group to join."""
        group_id = request.group_id
        empty = ClassicGroup(group_id, GroupState.EMPTY, state_timestamp_ms=self._clock.wall_ms())

        def written(_: None, error: ApiError | None) -> None:
            if error is None or waiter.pending.done:
                return
            for member in list(group.members.values()):
                if member.awaiting_join is waiter:
                    group.answer_join(member, refusal("", write_error(error.code)))

        outcome = self._write([GroupRecord(group_id, empty.to_record())])
        if outcome.error is not None:
            refuse_join(waiter, request.member_id, write_error(outcome.error.code))
            return
        group = self._groups[group_id]
        self._join_group(caller, request, group, waiter)
        outcome.then(written)

    def _join_group(self, caller: Caller, request: JoinGroupRequest, group: ClassicGroup, waiter: JoinWaiter) -> None:
        member_id = request.member_id
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        if not self._accepts(group, member_id):
            group.remove(member_id)
            refuse_join(waiter, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif group.state is GroupState.DEAD:
            refuse_join(waiter, member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not group.supports(request.protocol_type, protocols):
            refuse_join(waiter, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif not member_id:
            self._join_new_member(caller, request, group, protocols, waiter)
        elif member_id in group.pending_joins:
            if request.group_instance_id is not None:
                # Only dynamic members get MEMBER_ID_REQUIRED.
                refuse_join(waiter, member_id, ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                self._admit(caller, request, group, member_id, protocols, waiter)
        else:
            self._join_known_member(caller, request, group, protocols, waiter)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """group.max.size. During a join barrier the members that have joined count: where the limit was lowered below
        the size, those that join last are refused."""
        limit = self._config.max_group_size
        member = group.members.get(member_id)
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.awaiting_join is not None) or group.awaiting_joins < limit
        return member is not None or len(group.members) < limit

    def _join_new_member(
        self,
        caller: Caller,
        request: JoinGroupRequest,
        group: ClassicGroup,
        protocols: Protocols,
        waiter: JoinWaiter,
    ) -> None:
        instance_id = request.group_instance_id
        new_id = f"{instance_id if instance_id is not None else caller.client_id or ''}-{self._uuid_text()}"
        old_id = None if instance_id is None else group.static_members.get(instance_id)
        if old_id is not None:
            self._restart_static_member(caller, request, group, old_id, new_id, protocols, waiter)
        elif instance_id is None and caller.api_version >= _MEMBER_ID_REQUIRED_FROM:
            self._rebalancer.add_pending(group, new_id, request.session_timeout_ms)
            refuse_join(waiter, new_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._admit(caller, request, group, new_id, protocols, waiter)

    def _admit(
        self,
        caller: Caller,
        request: JoinGroupRequest,
        group: ClassicGroup,
        member_id: str,
        protocols: Protocols,
        waiter: JoinWaiter,
    ) -> None:
        member = ClassicMember(
            member_id,
            instance_id=request.group_instance_id,
            client_id=caller.client_id or "",
            client_host=f"/{caller.client_host}",
            rebalance_timeout_ms=_rebalance_timeout_ms(caller, request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
        )
        self._rebalancer.admit(
            group, member, request.protocol_type, waiter, Cause("joined", (member,), request.reason or "")
        )

    def _join_known_member(
        self,
        caller: Caller,
        request: JoinGroupRequest,
        group: ClassicGroup,
        protocols: Protocols,
        waiter: JoinWaiter,
    ) -> None:
        member_id = request.member_id
        try:
            group.check_member(member_id, request.group_instance_id)
        except ApiError as error:
            waiter.answer(JoinGroupResponse(member_id=member_id, error_code=int(error.code), protocol_name=None))
            return
        member = group.members[member_id]
        state, leads = group.state, group.leader_id == member_id
        if state is GroupState.EMPTY:
            refuse_join(waiter, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        # With the same metadata a member repeats a request whose answer was lost, and needs no rebalance. The leader of
        # a stable group does: it joins again where something besides its metadata calls for a new assignment.
        may_repeat = state is GroupState.COMPLETING_REBALANCE or (state is GroupState.STABLE and not leads)
        if may_repeat and member.protocols == protocols:
            waiter.answer(self._rebalancer.join_response(group, member_id))
            return
        group.update(member, protocols, _rebalance_timeout_ms(caller, request), request.session_timeout_ms, waiter)
        if group.can_rebalance:
            self._rebalancer.prepare(group, Cause("joined again", (member,), request.reason or ""))
        else:
            self._rebalancer.maybe_complete_join(group)  # the rebalance under way has made it join

    def _restart_static_member(
        self,
        caller: Caller,
        request: JoinGroupRequest,
        group: ClassicGroup,
        old_id: str,
        new_id: str,
        protocols: Protocols,
        waiter: JoinWaiter,
    ) -> None:
        """A static member without its member id has restarted. In a stable group whose protocol stays the same it gets
        its old assignment without a rebalance (KIP-345)."""
        assert request.group_instance_id is not None
        assert group.state not in (GroupState.EMPTY, GroupState.DEAD), "a group in this state has no static members"
        instance_id, old_leader = request.group_instance_id, group.leader_id
        old = group.members[old_id]
        before = old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms
        member = group.replace_static(instance_id, old_id, new_id)
        self._rebalancer.touch(group, member)
        group.update(member, protocols, _rebalance_timeout_ms(caller, request), request.session_timeout_ms, waiter)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may have received the old member id: its assignment would not have the new one.
            self._rebalancer.prepare(group, Cause("restarted while the assignment was awaited", (member,)))
            return
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rebalancer.maybe_complete_join(group)
            return
        if group.select_protocol() != group.protocol_name:
            self._rebalancer.rebalance_or_complete_join(group, Cause("restarted with other protocols", (member,)))
            return

        def written(_: None, error: ApiError | None) -> None:
            if group.members.get(new_id) is not member or group.state is GroupState.DEAD:
                return
            if error is None:
                group.answer_join(member, self._restarted(caller, group, new_id, old_leader))
                return
            response = refusal("", write_error(error.code))
            response.generation_id, response.leader = group.generation, old_leader or ""
            response.protocol_type, response.protocol_name = group.protocol_type, group.protocol_name
            group.answer_join(member, response)
            group.update(member, *before, None)
            self._rebalancer.touch(group, group.replace_static(instance_id, new_id, old_id))

        self._write([GroupRecord(group.group_id, group.to_record())]).then(written)

    def _restarted(
        self, caller: Caller, group: ClassicGroup, member_id: str, old_leader: str | None
    ) -> JoinGroupResponse:
        """A client without `skip_assignment` gets the old id as leader, so that it does not assign."""
        response = self._rebalancer.join_response(group, member_id)
        if caller.api_version >= _SKIP_ASSIGNMENT_FROM:
            response.skip_assignment = group.leader_id == member_id
        else:
            response.leader, response.members = old_leader or "", []
        return response

    def _uuid_text(self) -> str:
        text = self._new_uuid().hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    # -- SyncGroup -----------------------------------------------------------------------------------------------

    def sync(self, caller: Caller, request: SyncGroupRequest) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """A follower waits for the leader's assignment; the leader sends it, and waits for its commit."""
        if caller.api_version >= _PROTOCOL_NAMES_FROM and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return SyncGroupResponse(error_code=int(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        group = self._groups.get(request.group_id)
        if group is None or group.is_empty:
            return SyncGroupResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID))
        code = self._check_sync(group, request)
        if code is not ErrorCode.NONE:
            return SyncGroupResponse(error_code=int(code))
        member = group.members[request.member_id]
        self._rebalancer.sync_received(group, member.member_id)
        if group.state is GroupState.STABLE:
            return SyncGroupResponse(
                protocol_type=group.protocol_type,
                protocol_name=group.protocol_name,
                assignment=member.assignment,
            )
        pending: Pending[SyncGroupResponse] = Pending()
        superseded, member.awaiting_sync = member.awaiting_sync, pending
        if superseded is not None:
            superseded.complete(SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS)))
        if group.leader_id == member.member_id:
            assignment = dict.fromkeys(group.members, NO_ASSIGNMENT)
            assignment.update((each.member_id, bytes(each.assignment)) for each in request.assignments)
            self._rebalancer.commit_assignment(group, assignment)
        return pending

    def _check_sync(self, group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            group.check_member(request.member_id, request.group_instance_id)
        except ApiError as error:
            return error.code
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- Heartbeat -----------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Prolongs the session; REBALANCE_IN_PROGRESS makes the member join."""
        group = self._groups.get(request.group_id)
        if group is None:
            return HeartbeatResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID))
        if group.state is GroupState.DEAD:
            return HeartbeatResponse(error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        try:
            group.check_member(request.member_id, request.group_instance_id)
        except ApiError as error:
            return HeartbeatResponse(error_code=int(error.code))
        if request.generation_id != group.generation:
            return HeartbeatResponse(error_code=int(ErrorCode.ILLEGAL_GENERATION))
        if group.is_empty:
            return HeartbeatResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID))
        self._rebalancer.touch(group, group.members[request.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS))
        return HeartbeatResponse()

    # -- LeaveGroup ----------------------------------------------------------------------------------------------

    def leave(self, caller: Caller, request: LeaveGroupRequest) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
        """Each member gets its own error code. Those that leave are removed at once, and the others rebalance."""
        leaving = request.members
        if caller.api_version < _SEVERAL_LEAVE_FROM:
            leaving = [MemberIdentity(member_id=request.member_id)]
        group = self._groups.get(request.group_id)
        if group is None:
            unknown = int(ErrorCode.UNKNOWN_MEMBER_ID)
            return left_response(caller, [one_left(each, unknown) for each in leaving])
        if group.state is GroupState.DEAD:
            return LeaveGroupResponse(error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        left: list[ClassicMember] = []
        results = [one_left(each, int(self._remove(group, each, left))) for each in leaving]
        response = left_response(caller, results)
        written = None
        if any(result.error_code == 0 for result in results) and not group.is_empty:
            reason = next((each.reason for each in leaving if each.reason), "")
            cause = Cause("left" if left else "left before it had joined", left, reason)
            written = self._rebalancer.rebalance_or_complete_join(group, cause)
        if written is None:
            return response
        answer: Pending[LeaveGroupResponse] = Pending()
        written.then(
            lambda _, error: answer.complete(
                response if error is None else LeaveGroupResponse(error_code=int(write_error(error.code)))
            )
        )
        return answer

    def _remove(self, group: ClassicGroup, leaving: MemberIdentity, left: list[ClassicMember]) -> ErrorCode:
        """Adds to `left` who is removed, except a pending member."""
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if not member_id:
            holder = None if instance_id is None else group.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = holder
        elif member_id in group.pending_joins:
            self._rebalancer.drop_pending(group, member_id)
            return ErrorCode.NONE
        else:
            try:
                group.check_member(member_id, instance_id)
            except ApiError as error:
                return error.code
        member = group.members[member_id]
        self._rebalancer.expel(group, member)
        left.append(member)
        return ErrorCode.NONE


def refusal(member_id: str, code: ErrorCode) -> JoinGroupResponse:
    """A JoinGroup answer with an error and nothing else."""
    return JoinGroupResponse(member_id=member_id, error_code=int(code))


def refuse_join(waiter: JoinWaiter, member_id: str, code: ErrorCode) -> None:
    """Answer a JoinGroup with an error."""
    waiter.answer(refusal(member_id, code))


def _rebalance_timeout_ms(caller: Caller, request: JoinGroupRequest) -> int:
    """Version 0 has no rebalance timeout: the session timeout is used for both."""
    return request.session_timeout_ms if caller.api_version == 0 else request.rebalance_timeout_ms


def _differs(requested: str | None, held: str | None) -> bool:
    return requested is not None and held is not None and requested != held


def one_left(leaving: MemberIdentity, code: int) -> MemberResponse:
    """What LeaveGroup answers of one member."""
    return MemberResponse(member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=code)


def left_response(caller: Caller, results: list[MemberResponse]) -> LeaveGroupResponse:
    """Versions before 3 have one member, and its error is the response's."""
    if caller.api_version >= _SEVERAL_LEAVE_FROM:
        return LeaveGroupResponse(members=results)
    return LeaveGroupResponse(error_code=results[0].error_code)
