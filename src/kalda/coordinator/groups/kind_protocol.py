"""What heartbeats on groups of every kind but the classic one do alike: the size of a group, the place of a static
member that returns, the target assignment of a group epoch, and the end of a member.

Each heartbeat does what is due, in this order, and each part is written as one batch: the member and the group epoch;
the target assignment of that epoch; the member's next step towards it. A write that fails leaves the group as the parts
before it have made it, and the next heartbeat goes on from there.

A target of a large group is computed and written in steps; meanwhile members may come and go. The record that raises
the assignment epoch is written last. Until then members may see a part of the new target in the former epoch, which is
harmless: who has a partition is decided by what members have given back, not by the target.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from kalda.assignors.server_assignor import MAX_ASSIGNED, AssignorError
from kalda.assignors.task_assignor import MemberTasks
from kalda.base.background import Steps, run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.stats import Meter
from kalda.coordinator.answers import write_error
from kalda.coordinator.groups.config import KindConfig
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH, KindGroup
from kalda.coordinator.groups.kind_groups import (
    KindGroups,
    assignment_wait_ms,
    fenced_epoch,
    known_instance,
    unreleased_instance,
)
from kalda.coordinator.groups.records import GroupLogRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock

log = logging.getLogger(__name__)

_MEMBERS_A_STEP = 20
_ASSIGNED_A_STEP = 5_000
_G = TypeVar("_G", bound=KindGroup[Any, Any, Any], contravariant=True)
G = TypeVar("G", bound=KindGroup[Any, Any, Any])


class TargetAssigner(Protocol[_G]):
    """Computes target assignments of groups of one kind."""

    def is_small(self, group: _G) -> bool:
        """Whether the target takes some milliseconds at most, so that a member need not wait for its next heartbeat to
        get it."""
        ...

    def target(self, group: _G) -> Steps[tuple[Mapping[str, Any], str]]:
        """The target of each member for the present group epoch, and the name of the assignor. Raises
        `AssignorError`."""
        ...


class KindProtocol(ABC, Generic[G]):
    """Heartbeats on the groups of one kind in one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        groups: KindGroups[G],
        config: KindConfig,
        assigner: TargetAssigner[G],
        timers: CoordinatorTimer,
        clock: EventClock,
        rebalances: Meter,
    ) -> None:
        """`rebalances` counts group epochs."""
        self._partition = partition
        self._of_kind = groups
        self._limits = config
        self._assigner = assigner
        self._timers = timers
        self._clock = clock
        self._rebalances = rebalances

    def check_size(self, group: G, member_id: str, instance_id: str | None = None) -> None:
        """Raises GROUP_MAX_SIZE_REACHED for a member that is new to a full group."""
        if instance_id is not None and instance_id in group.static_members:
            return
        limit = self._limits.max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The {group.kind} group has reached its maximum capacity of {limit} members.",
            )

    # -- who sends a heartbeat -------------------------------------------------------------------------------------

    def _sender(
        self, group: G, request: Any, member_id: str, instance_id: str | None, records: list[GroupLogRecord]
    ) -> Any:
        """The member that sends a heartbeat, as it is before it. A static member that returns gets the place of the
        former one, under its new id, by `records`. Raises `ApiError`."""
        if request.member_epoch != JOINING_EPOCH:
            if instance_id is None:
                member = group.member(member_id)
            else:
                member = known_instance(group.static_member(instance_id), member_id, instance_id)
            self.check_epoch(member, request)
            return member
        if instance_id is not None:
            return self.static_to_join(group, member_id, instance_id, records)
        if member_id not in group.members:
            log.info("group %s: member %s joins", group.group_id, member_id)
        return group.member_or_new(member_id)

    def static_to_join(
        self, group: G, member_id: str, instance_id: str, records: list[GroupLogRecord], *, at_once: bool = False
    ) -> Any:
        """A static member that joins, before it describes itself. The place of another one is free once that has left
        for a while, or `at_once`. Raises UNRELEASED_INSTANCE_ID."""
        present = group.static_member(instance_id)
        if present is None:
            log.info("group %s: static member %s joins as %s", group.group_id, member_id, instance_id)
            return group.member_or_new(member_id)
        if not (at_once or present.leaves_at_once or present.epoch == STATIC_LEAVING_EPOCH):
            raise unreleased_instance(present, member_id, instance_id)
        log.info("group %s: static member %s returns as %s, before as %s",
                 group.group_id, instance_id, member_id, present.member_id)  # fmt: skip
        member = replace(present, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
        records += group.replacement(present, member)
        return member

    def check_epoch(self, member: Any, request: Any) -> None:
        """Raises FENCED_MEMBER_EPOCH. The epoch before is accepted where the member owns nothing but what is assigned
        to it: the answer that had the present one may have been lost."""
        present, received = member.epoch, request.member_epoch
        if received == present:
            return
        if received < present and received == member.previous_epoch and self._owns_assigned(member, request):
            return
        raise fenced_epoch(self._of_kind.kind, received, present)

    @abstractmethod
    def _owns_assigned(self, member: Any, request: Any) -> bool:
        """Whether the request says what the member owns, and all of that is assigned to it, where that matters."""

    def _count_epoch(self, group: G, epoch: int) -> None:
        self._rebalances.record(1, self._clock.now_ms())
        log.info("group %s: epoch %d", group.group_id, epoch)

    # -- the target ------------------------------------------------------------------------------------------------

    def assign(self, group: G) -> bool:
        """Compute the target of the group epoch where there is none yet; that of a large group in the background, and
        its members see it in later heartbeats. False: the interval between assignments has not passed. Raises
        UNKNOWN_SERVER_ERROR where the assignor of a small group cannot."""
        epochs = group.epochs
        if epochs.assignment >= epochs.group or group.is_computing:
            return True
        interval_ms = self._limits.assignment_interval_ms(group.group_id)
        if assignment_wait_ms(epochs.assignment_ms, interval_ms, self._clock.wall_ms()):
            return False
        steps = self._assign(group)
        if not self._assigner.is_small(group):
            group.is_computing = True
            self._timers.run(self._assign_in_background(group, steps))
            return True
        try:
            run_to_end(steps)
        except AssignorError as error:
            message = f"Failed to compute a new target assignment for epoch {epochs.group}: {error}"
            log.error("group %s: %s", group.group_id, message, exc_info=error.__cause__)
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, message) from error
        return True

    def _assign_in_background(self, group: G, steps: Steps[None]) -> Steps[None]:
        """Where it fails, the next heartbeat begins another assignment."""
        try:
            while self._is_live(group):
                try:
                    next(steps)
                except StopIteration:
                    return
                yield
        except (AssignorError, ApiError) as error:
            log.error("group %s: the target assignment failed: %s", group.group_id, error, exc_info=error.__cause__)
        finally:
            group.is_computing = False

    def _target(self, group: G) -> Steps[tuple[Mapping[str, Any], str]]:
        """Raises `AssignorError`, whatever the assignor raises: it may be a user's."""
        try:
            return (yield from self._assigner.target(group))
        except AssignorError:
            raise
        except Exception as error:
            raise AssignorError(f"{type(error).__name__}: {error}") from error

    def _assign(self, group: G) -> Steps[None]:
        """Nothing more is written once the group is another's. Raises `AssignorError`, and `ApiError` of the write."""
        epoch = group.epochs.group
        instance_of = {member.member_id: member.instance_id for member in group.members.values()}
        target, assignor = yield from self._target(group)
        for member_id, assigned in target.items():
            if _size(assigned) > MAX_ASSIGNED:
                raise AssignorError(
                    f"{member_id} alone would get {_size(assigned)}, more than {MAX_ASSIGNED}: add members"
                )
        records: list[GroupLogRecord] = []
        size = 0
        for member_id, assigned in target.items():
            now = group.successor(member_id, instance_of.get(member_id))
            present = None if now is None else group.targets.get(now)
            if now is not None and present is not assigned and present != assigned:
                records.append(group.target_record(now, assigned))
                size += _size(assigned)
            if len(records) >= _MEMBERS_A_STEP or size >= _ASSIGNED_A_STEP:
                self._partition.write_now(records)
                records, size = [], 0
                yield
                if not self._is_live(group):
                    return
        if not self._is_live(group):
            return
        self._partition.write_now([*records, group.target_epoch_record(epoch, self._clock.wall_ms())])
        log.info("group %s: target of epoch %d computed by '%s'", group.group_id, epoch, assignor)
        if epoch == group.epochs.group:
            self._of_kind.note_target(group, epoch)

    def _take_step(self, group: G, member: Any, following: Any) -> Any:
        """The member after its step towards the target, which is written where it changes the member."""
        if following != member:
            self._partition.write_now([group.assignment_record(following)])
            self._of_kind.watch_revocation(group, following)
            if following.is_reconciled(group.epochs.assignment):
                self._of_kind.note_reconciled(group, following)
        return following

    def _is_live(self, group: G) -> bool:
        return self._partition.is_active and self._of_kind.groups.get(group.group_id) is group

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _end(self, group_id: str, member_id: str, instance_id: str | None = None, epoch: int = LEAVING_EPOCH) -> None:
        """A member leaves. A static one that means to return keeps its place until its session ends. Raises
        `ApiError`."""
        group = self._of_kind.get(group_id)
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = known_instance(group.static_member(instance_id), member_id, instance_id)
            if epoch == STATIC_LEAVING_EPOCH:
                log.info("group %s: static member %s leaves for a while", group_id, instance_id)
                self._partition.write_now([group.assignment_record(member.absent())])
                return
        log.info("group %s: member %s leaves", group_id, member.member_id)
        error = self._of_kind.end_member(group, member.member_id, "left").error
        if error is not None:
            raise ApiError(write_error(error.code), error.message)


def _size(assigned: Any) -> int:
    """The partitions, or tasks, of one member."""
    return assigned.count if isinstance(assigned, MemberTasks) else sum(map(len, assigned.values()))
