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
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from kalda.assignors.server_assignor import MAX_ASSIGNED, AssignorError, MemberTasks
from kalda.base.background import Steps, run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.stats import Meter
from kalda.coordinator.answers import write_error
from kalda.coordinator.groups.config import KindConfig
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH, KindGroup
from kalda.coordinator.groups.rebalance_history import Cause, NamedMember, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord, KindRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock, TimerTask
from kalda.statemachine.timeline import LATEST, TimelineDict

log = logging.getLogger(__name__)

# What the groups of every kind but the classic one have in common in one partition of `__consumer_offsets`: which
# exist, the replay of their records, the timers of their members, and the checks of static members.
#
# A member's session ends where no heartbeat comes within its session timeout; sessions begin anew when the partition
# is loaded.

G = TypeVar("G", bound=KindGroup[Any, Any, Any])
_RETRY_MS = 500
"""When a member is removed again whose end could not be written."""
MemberKey: TypeAlias = tuple[str, str]
"""Group and member."""


class _HasEpoch(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def rebalance_timeout_ms(self) -> int: ...


HasGroup: TypeAlias = Callable[[str, int], bool]
"""`(group_id, epoch)`: whether a group of any kind has the id, at an epoch of the timeline."""


class MemberTimers:
    """One timer for each of some members."""

    def __init__(self, timers: CoordinatorTimer, now_ms: Callable[[], int]) -> None:
        self._timers = timers
        self._now_ms = now_ms
        self._tasks: dict[MemberKey, TimerTask] = {}

    def __contains__(self, key: MemberKey) -> bool:
        return key in self._tasks

    def arm(self, key: MemberKey, delay_ms: int, on_due: Callable[[], None]) -> None:
        """Call `on_due` after the delay, instead of what was armed before."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = TimerTask(lambda _: None)
        task.callback = lambda _: on_due()
        self._timers.arm(task, self._now_ms() + max(delay_ms, 0))

    def disarm(self, key: MemberKey) -> None:
        """The timer does not fire, and is forgotten."""
        task = self._tasks.pop(key, None)
        if task is not None:
            self._timers.disarm(task)

    def clear(self) -> None:
        """No timer fires."""
        for key in list(self._tasks):
            self.disarm(key)

    def left_ms(self, key: MemberKey) -> int | None:
        """How long until the timer fires; None where the member has none."""
        task = self._tasks.get(key)
        return None if task is None or task.deadline_ms is None else max(task.deadline_ms - self._now_ms(), 0)


class KindGroups(ABC, Generic[G]):
    """The groups of one kind in one shard."""

    def __init__(
        self,
        group_class: type[G],
        partition: CoordinatorPartition[GroupLogRecord],
        config: KindConfig,
        timers: CoordinatorTimer,
        now_ms: Callable[[], int],
        history: RebalanceHistory,
        has_group: HasGroup,
    ) -> None:
        """`group_class(group_id, registry)` gives an empty group. `history` is for operators."""
        self.groups: TimelineDict[str, G] = TimelineDict(partition.registry)
        """Replayed: which groups exist."""
        self.kind = group_class.kind
        self._partition = partition
        self._limits = config
        self._timers = timers
        self._now_ms = now_ms
        self._group_class: Callable[..., G] = group_class
        self._keys = group_class.keys
        self._history = history
        self._has_group = has_group
        self._all_timers: list[MemberTimers] = []
        self._sessions = self._member_timers()

    def _member_timers(self) -> MemberTimers:
        """Timers that end with their member."""
        timers = MemberTimers(self._timers, self._now_ms)
        self._all_timers.append(timers)
        return timers

    def get(self, group_id: str, epoch: int = LATEST) -> G:
        """The group, at an epoch of the timeline where one is given. Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id, None, epoch)
        if group is None:
            raise self._missing(group_id, "Group", epoch)
        return group

    def missing_of_member(self, group_id: str) -> ApiError:
        """GROUP_ID_NOT_FOUND, for a heartbeat to a group that is not of this kind, or does not exist."""
        return self._missing(group_id, f"{self.kind.capitalize()} group", LATEST)

    def _missing(self, group_id: str, what: str, epoch: int) -> ApiError:
        found = f"Group {group_id} is not a {self.kind} group."
        message = found if self._has_group(group_id, epoch) else f"{what} {group_id} not found."
        return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    # -- replay --------------------------------------------------------------------------------------------------

    def replay(self, record: KindRecord) -> None:
        """Apply one record. One with a value makes the group, where there is none; a tombstone of a group that does
        not exist has no effect."""
        group = self.groups.get(record.group_id)
        if group is None:
            if record.value is None:
                return
            group = self.groups[record.group_id] = self._group_class(record.group_id, self._partition.registry)
        self.apply(group, record)
        if record.value is None:
            key: Any = record.key
            if isinstance(key, self._keys.member):
                self._forget(record.group_id, key.member_id)
            elif isinstance(key, self._keys.group):
                self.discard(record.group_id)

    def apply(self, group: G, record: KindRecord) -> None:
        """Apply a record to a group, which need not be one of these."""
        group.replay(record.key, record.value)

    def discard(self, group_id: str) -> None:
        """The group has ended, or its id belongs to a group of another kind now."""
        group = self.groups.pop(group_id, None)
        for member_id in group.members if group is not None else ():
            self._forget(group_id, member_id)

    # -- what happens to the partition ---------------------------------------------------------------------------

    def on_loaded(self) -> None:
        """All records are replayed: sessions begin."""
        for group in self.groups.values():
            for member in group.members.values():
                self.start_session(group, member.member_id)
                self.watch_revocation(group, member)

    def on_unloaded(self) -> None:
        """Another node leads: no timer fires."""
        for timers in self._all_timers:
            timers.clear()
        for group_id in self.groups:
            self._history.end(group_id, "another broker coordinates the group", self._now_ms())

    def on_topics_changed(self, names: frozenset[str]) -> None:
        """Topics were made, deleted or changed: groups that subscribe to one refresh with the next heartbeat."""
        for group in self.groups.values():
            if not group.needs_refresh and not names.isdisjoint(group.subscribed_topics):
                group.needs_refresh = True

    # -- rebalances, for operators ---------------------------------------------------------------------------------

    def settle(self, group: G) -> None:
        """To be called before the group gets a new epoch: the rebalance before has ended where all members had come to
        its target."""
        if group.is_stable:
            self._history.settle(group.group_id)

    def note_epoch(self, group: G, epoch: int, cause: Cause) -> None:
        """The group has got a new epoch, after `epoch`."""
        self._history.begin_epoch(group.group_id, epoch, cause, self._now_ms(), self.kind)

    def note_removal(self, group: G, epoch: int, cause: Cause) -> None:
        """The group has got a new epoch, after `epoch`, since members were removed."""
        self.note_epoch(group, epoch, cause)
        if group.is_empty:
            self._history.end(group.group_id, "no members are left", self._now_ms())

    def note_target(self, group: G, epoch: int) -> None:
        """The target of this epoch, the group's, is computed."""
        self._history.assigned(group.group_id, epoch, len(group.members), self._now_ms())

    def note_reconciled(self, group: G, member: NamedMember) -> None:
        """A member has come to the target."""
        self._history.reconciled(group.group_id, member, self._now_ms())

    # -- members -------------------------------------------------------------------------------------------------

    def session_left_ms(self, group_id: str, member_id: str) -> int | None:
        """What is left of the member's session without a heartbeat; None where it has no session."""
        return self._sessions.left_ms((group_id, member_id))

    def grace_left_ms(self, group_id: str, member_id: str) -> int | None:
        """How long the member has to do what its last answer demands, as to give back what it has; None without such
        a time."""
        key = (group_id, member_id)
        found = (timers.left_ms(key) for timers in self._all_timers if timers is not self._sessions)
        return next((left_ms for left_ms in found if left_ms is not None), None)

    def start_session(self, group: G, member_id: str) -> None:
        """A member has sent a heartbeat: its session begins anew."""
        self._begin_session((group.group_id, member_id), self._limits.session_timeout_ms(group.group_id))

    def watch_revocation(self, group: G, member: Any) -> None:
        """A member that is to give back what it has gets a time for it, where groups of this kind give anything
        back."""

    def _begin_session(self, key: MemberKey, timeout_ms: int) -> None:
        self._sessions.arm(key, timeout_ms, partial(self._expire, key, "session ended"))

    def _forget(self, group_id: str, member_id: str) -> None:
        for timers in self._all_timers:
            timers.disarm((group_id, member_id))

    def _expire(self, key: MemberKey, what: str) -> None:
        """Remove a member; `what` has happened to it. Tried again where the end cannot be written."""
        group = self.groups.get(key[0])
        if group is None or key[1] not in group.members or not self._partition.is_active:
            return
        log.info("group %s: member %s is removed: %s", *key, what)
        if self.end_member(group, key[1], what).error is not None and key in self._sessions:
            self._sessions.arm(key, _RETRY_MS, partial(self._expire, key, what))

    def _watch_epoch(self, timers: MemberTimers, key: MemberKey, member: _HasEpoch, what: str) -> None:
        """A member has its rebalance timeout to leave its epoch."""
        epoch = member.epoch

        def expire() -> None:
            group = self.groups.get(key[0])
            present = None if group is None else group.members.get(key[1])
            if present is not None and present.epoch == epoch:
                self._expire(key, what)

        timers.arm(key, member.rebalance_timeout_ms, expire)

    @abstractmethod
    def end_member(self, group: G, member_id: str, what: str) -> Pending[None]:
        """Write what removes a member, to which `what` has happened; others get what it has in the next group epoch."""


# Static members.


class StaticMember(Protocol):
    """A member, which may have an instance id."""

    @property
    def member_id(self) -> str: ...


M = TypeVar("M", bound=StaticMember)


def known_instance(present: M | None, member_id: str, instance_id: str) -> M:
    """The member that has the instance id. Raises UNKNOWN_MEMBER_ID, and FENCED_INSTANCE_ID where another member has it
    by now."""
    if present is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    check_instance(present, member_id, instance_id)
    return present


def check_instance(present: StaticMember, member_id: str, instance_id: str) -> None:
    """Raises FENCED_INSTANCE_ID where another member has the instance id by now."""
    if present.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {present.member_id}.",
        )


def unreleased_instance(present: StaticMember, member_id: str, instance_id: str) -> ApiError:
    """The refusal of a member whose instance id another one still has."""
    return ApiError(
        ErrorCode.UNRELEASED_INSTANCE_ID,
        f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
        f"id is owned by {present.member_id} member.",
    )


def assignment_wait_ms(assigned_ms: int, interval_ms: int, wall_ms: int) -> int:
    """How long the next assignment of a group has to wait for its interval (`group.*.assignment.interval.ms`) after the
    latest one, by the wall clock; 0 where there was none yet.

    A coordinator whose clock was ahead may have written the time of the latest one, or the clock was set back: a time
    that is not yet reached says nothing, and nothing waits for it."""
    passed_ms = wall_ms - assigned_ms
    return interval_ms - passed_ms if assigned_ms and 0 <= passed_ms < interval_ms else 0


def fenced_epoch(kind: str, received: int, epoch: int) -> ApiError:
    """The refusal of a member epoch that is not the member's."""
    relation = "greater" if received > epoch else "smaller"
    return ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {kind} group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({epoch}). The member must abandon all its partitions and rejoin.",
    )


_MEMBERS_A_STEP = 20
_ASSIGNED_A_STEP = 5_000
_G = TypeVar("_G", bound=KindGroup[Any, Any, Any], contravariant=True)


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
