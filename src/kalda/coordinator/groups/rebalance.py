"""The rebalance of a classic group: the join barrier, the sync barrier, and the timers around them.

    prepare ──▶ join barrier ──▶ complete_join ──▶ sync barrier ──▶ assignment committed ──▶ Stable
                 │ all joined, or the join timer         │ sync timer: members without SyncGroup are removed
                 └ an empty group first waits group.initial.rebalance.delay.ms, again after each new member

Four kinds of timers, all in one heap: a pending member's (an id was given out and has not joined), a member's
session, the group's join timer, the group's sync timer.

A method that may write returns the `Pending` of its write, and None where it wrote nothing. Where the append fails, the
group stays in the state that it has reached; the next rebalance writes a checkpoint again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.stats import Meter
from kalda.coordinator.answers import write_error
from kalda.coordinator.groups.classic_group import NO_ASSIGNMENT, ClassicGroup, ClassicMember, GroupState, JoinWaiter
from kalda.coordinator.groups.config import GroupCoordinatorConfig
from kalda.coordinator.groups.rebalance_history import Cause, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord, GroupRecord
from kalda.coordinator.timers import CoordinatorTimer, TimerTask
from kalda.protocol.messages.group_records import GroupMetadataValue
from kalda.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

log = logging.getLogger(__name__)

Write = Callable[[Sequence[GroupLogRecord]], Pending[None]]


class Rebalancer:
    """Drives the groups of one shard through their rebalances."""

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        timers: CoordinatorTimer,
        groups: Mapping[str, ClassicGroup],
        checkpoints: Mapping[str, GroupMetadataValue],
        write: Write,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        completed: Meter,
        history: RebalanceHistory,
    ) -> None:
        """`groups` are the shard's, by id; a timer of a group that is not among them fires without effect.
        `checkpoints` are those replayed. `now_ms()` is the time of the event being handled, `wall_ms()` what is stored
        as a state's timestamp. `completed` counts rebalances, `history` keeps the last ones."""
        self._config = config
        self._timers = timers
        self._groups = groups
        self._checkpoints = checkpoints
        self._write = write
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._completed = completed
        self._history = history

    # -- entering ------------------------------------------------------------------------------------------------

    def rebalance_or_complete_join(self, group: ClassicGroup, cause: Cause) -> Pending[None] | None:
        """The membership has changed: start a rebalance, or end the join barrier of the one under way if it can end."""
        if group.can_rebalance:
            return self.prepare(group, cause)
        self._history.add_cause(group.group_id, cause)
        return self.maybe_complete_join(group)

    def prepare(self, group: ClassicGroup, cause: Cause) -> Pending[None] | None:
        """Open the join barrier; members that wait for an assignment must join again."""
        log.info("group %s: rebalance after generation %d: %s", group.group_id, group.generation, cause)
        former = group.state
        self._history.begin(group.group_id, group.generation, cause, self._now_ms())
        self._end_sync_barrier(group)
        group.transition_to(GroupState.PREPARING_REBALANCE, self._wall_ms())
        if former is GroupState.EMPTY:
            delay_ms = self._config.initial_rebalance_delay_ms
            self._arm_initial(group, delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0))
            return None
        if former is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = NO_ASSIGNMENT
            self._answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        if group.all_members_joined():
            return self.complete_join(group)
        self._arm_join(group)
        return None

    def maybe_complete_join(self, group: ClassicGroup) -> Pending[None] | None:
        """End the join barrier if all members have joined; an initial one ends by its delay only."""
        if group.state is not GroupState.PREPARING_REBALANCE or group.previous_state is GroupState.EMPTY:
            return None
        return self.complete_join(group) if group.all_members_joined() else None

    # -- the join barrier ----------------------------------------------------------------------------------------

    def complete_join(self, group: ClassicGroup) -> Pending[None] | None:
        """End the join barrier without the dynamic members that have not joined; the others are the next generation."""
        self._disarm(group.join_timer)
        late = [m for m in group.members.values() if m.awaiting_join is None and m.instance_id is None]
        for member in late:
            group.remove(member.member_id)
            self._disarm(member.session_timer)
        if group.state is GroupState.DEAD:
            return None
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has joined: wait until one joins, or their sessions end.
            self._arm_join(group)
            return None
        group.start_next_generation(self._wall_ms())
        if group.is_empty:
            log.info("group %s: empty at generation %d", group.group_id, group.generation)
            self._history.end(group.group_id, "no members are left", self._now_ms())
            return self._write([GroupRecord(group.group_id, group.to_record())])
        log.info("group %s: generation %d has %d members", group.group_id, group.generation, len(group.members))
        members = list(group.members.values())
        last, last_ms = group.last_joined()
        self._history.joined(
            group.group_id,
            self._now_ms(),
            generation=group.generation,
            member_count=len(members),
            last=last,
            last_ms=last_ms,
            removed=late,
        )
        responses = [self.join_response(group, member.member_id) for member in members]
        for member in members:
            self.touch(group, member)
            member.is_new = False
            group.pending_syncs[member.member_id] = None
        self._arm_sync(group)
        for member, response in zip(members, responses, strict=True):  # calls out: the generation is whole before
            group.answer_join(member, response)
        return None

    def join_response(self, group: ClassicGroup, member_id: str) -> JoinGroupResponse:
        """The answer to a member's JoinGroup in the present generation; the leader's has all members' metadata."""
        return JoinGroupResponse(
            member_id=member_id,
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader_id or "",
            members=group.member_list() if group.leader_id == member_id else [],
        )

    def _arm_join(self, group: ClassicGroup) -> None:
        group.join_timer = self._rearm(
            group.join_timer, lambda _: self._if_current(group, self.complete_join), group.rebalance_timeout_ms()
        )

    def _arm_initial(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        def elapsed(_: int) -> None:
            if self._groups.get(group.group_id) is not group:
                return
            if group.new_member_added and remaining_ms:
                group.new_member_added = False
                again_ms = min(self._config.initial_rebalance_delay_ms, remaining_ms)
                self._arm_initial(group, again_ms, max(remaining_ms - delay_ms, 0))
            else:
                self.complete_join(group)

        group.join_timer = self._rearm(group.join_timer, elapsed, delay_ms)

    # -- the sync barrier ----------------------------------------------------------------------------------------

    def commit_assignment(self, group: ClassicGroup, assignment: dict[str, bytes]) -> None:
        """The leader has assigned: write a checkpoint, and answer the members' SyncGroups when it is committed."""
        generation = group.generation

        def written(_: None, error: ApiError | None) -> None:
            # A member may have joined or left during the write: then the rebalance that this has started goes on.
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            group.is_assignment_being_written = False
            if error is not None:
                code = write_error(error.code)
                for member in group.members.values():
                    member.assignment = NO_ASSIGNMENT
                self._answer_syncs(group, code)
                self.rebalance_or_complete_join(group, Cause(f"{code.name} while the assignment was written"))
                return
            group.become_stable(self._checkpoints[group.group_id])
            self._completed.record(1, self._now_ms())
            self._history.end(group.group_id, "assigned", self._now_ms())
            self._answer_syncs(group, ErrorCode.NONE)

        if group.is_assignment_being_written:
            return  # the first assignment of this generation stands, and its commit answers this SyncGroup too
        group.is_assignment_being_written = True
        self._write([GroupRecord(group.group_id, group.to_record(assignment))]).then(written)

    def sync_received(self, group: ClassicGroup, member_id: str) -> None:
        """This member has sent its SyncGroup; the sync timer is disarmed once all have."""
        group.pending_syncs.pop(member_id, None)
        if not group.pending_syncs:
            self._disarm(group.sync_timer)

    def _answer_syncs(self, group: ClassicGroup, code: ErrorCode) -> None:
        is_assigned = code is ErrorCode.NONE
        for member in list(group.members.values()):
            response = SyncGroupResponse(
                error_code=int(code),
                protocol_type=group.protocol_type if is_assigned else None,
                protocol_name=group.protocol_name if is_assigned else None,
                assignment=member.assignment,
            )
            if group.answer_sync(member, response):
                # The session timer may have fired without effect while the SyncGroup was parked.
                self.touch(group, member)

    def _end_sync_barrier(self, group: ClassicGroup) -> None:
        group.pending_syncs.clear()
        group.is_assignment_being_written = False
        self._disarm(group.sync_timer)

    def _arm_sync(self, group: ClassicGroup) -> None:
        generation = group.generation

        def elapsed(_: int) -> None:
            if self._groups.get(group.group_id) is not group or group.generation != generation:
                return
            if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) and group.pending_syncs:
                missing = [group.members[member_id] for member_id in group.pending_syncs]
                for member in missing:
                    self._disarm(member.session_timer)
                    group.remove(member.member_id)
                self.prepare(group, Cause("no SyncGroup in time", missing))

        group.sync_timer = self._rearm(group.sync_timer, elapsed, group.rebalance_timeout_ms())

    # -- sessions ------------------------------------------------------------------------------------------------

    def touch(self, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None) -> None:
        """The member has sent a request: its session ends in `timeout_ms`, or in its session timeout."""
        timer = member.session_timer
        if timer is None:
            timer = member.session_timer = TimerTask(lambda _: self._session_ended(group, member))
        self._timers.arm(timer, self._now_ms() + (member.session_timeout_ms if timeout_ms is None else timeout_ms))

    def add_pending(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """A member id was given out: a member must join with it within `timeout_ms`."""

        def elapsed(_: int) -> None:
            if self._groups.get(group.group_id) is group and member_id in group.pending_joins:
                log.info("group %s: pending member %s did not join in time", group.group_id, member_id)
                self._remove_pending(group, member_id)

        assert member_id not in group.members
        group.pending_joins[member_id] = timer = TimerTask(elapsed)
        self._timers.arm(timer, self._now_ms() + timeout_ms)

    def _remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_members_joined():
            self.complete_join(group)

    def drop_pending(self, group: ClassicGroup, member_id: str) -> None:
        """A pending member leaves. The caller ends the join barrier where that is due."""
        self._disarm(group.pending_joins.get(member_id))
        group.remove(member_id)

    def _session_ended(self, group: ClassicGroup, member: ClassicMember) -> None:
        if self._groups.get(group.group_id) is not group or group.members.get(member.member_id) is not member:
            return
        if group.state is GroupState.DEAD or member.satisfies_heartbeat():
            return
        log.info("group %s: the session of member %s ended", group.group_id, member.member_id)
        self.expel(group, member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalance_or_complete_join(group, Cause("session ended", (member,)))
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._history.add_cause(group.group_id, Cause("session ended", (member,)))
            if group.all_members_joined():
                self.complete_join(group)

    def expel(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Remove a member. Its parked JoinGroup gets UNKNOWN_MEMBER_ID: a living client joins again without an id."""
        self._disarm(member.session_timer)
        group.answer_join(member, JoinGroupResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID)))
        group.remove(member.member_id)

    # -- load and unload -----------------------------------------------------------------------------------------

    def adopt(self, group: ClassicGroup) -> None:
        """A group was made of its checkpoint: its members' sessions start now. One that is over capacity rebalances."""
        for member in group.members.values():
            self.touch(group, member)
        if len(group.members) > self._config.max_group_size:
            self.prepare(group, Cause(f"loaded with {len(group.members)} members, more than group.max.size"))

    def end_now(self, group: ClassicGroup, code: ErrorCode) -> None:
        """This node no longer coordinates the group: answer every member that waits with `code`."""
        self._history.end(group.group_id, "another broker coordinates the group", self._now_ms())
        self._stop(group)
        self._answer_waiting(group, code)

    def end_soon(self, group: ClassicGroup, code: Callable[[], ErrorCode]) -> None:
        """A replayed record removes the group. Members that wait are answered with `code()` by a timer, as soon as the
        write that the record belongs to is complete: a replay must not call out."""
        self._history.end(group.group_id, "the group was removed, or has become one of another kind", self._now_ms())
        self._stop(group)
        if any(member.awaiting_join or member.awaiting_sync for member in group.members.values()):
            self._timers.arm(TimerTask(lambda _: self._answer_waiting(group, code())), self._now_ms())

    def _stop(self, group: ClassicGroup) -> None:
        group.transition_to(GroupState.DEAD, self._wall_ms())
        sessions = (member.session_timer for member in group.members.values())
        for timer in (group.join_timer, group.sync_timer, *group.pending_joins.values(), *sessions):
            self._disarm(timer)

    def _answer_waiting(self, group: ClassicGroup, code: ErrorCode) -> None:
        for member in list(group.members.values()):
            group.answer_join(member, JoinGroupResponse(member_id=member.member_id, error_code=int(code)))
            group.answer_sync(member, SyncGroupResponse(error_code=int(code)))

    # -- timers --------------------------------------------------------------------------------------------------

    def _if_current(self, group: ClassicGroup, act: Callable[[ClassicGroup], object]) -> None:
        if self._groups.get(group.group_id) is group:
            act(group)

    def _rearm(self, timer: TimerTask | None, callback: Callable[[int], None], delay_ms: int) -> TimerTask:
        if timer is None:
            timer = TimerTask(callback)
        timer.callback = callback
        self._timers.arm(timer, self._now_ms() + delay_ms)
        return timer

    def _disarm(self, timer: TimerTask | None) -> None:
        if timer is not None:
            self._timers.disarm(timer)

    def admit(
        self, group: ClassicGroup, member: ClassicMember, protocol_type: str, waiter: JoinWaiter, cause: Cause
    ) -> Pending[None] | None:
        """Add a new member whose JoinGroup is parked, and rebalance."""
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        self._disarm(group.pending_joins.get(member.member_id))
        group.add(member, protocol_type, waiter)
        self.touch(group, member, self._config.new_member_join_timeout_ms)
        return self.rebalance_or_complete_join(group, cause)
