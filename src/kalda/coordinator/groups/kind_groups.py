"""What the groups of every kind but the classic one have in common in one partition of `__consumer_offsets`: which
exist, the replay of their records, the timers of their members, and the checks of static members.

A member's session ends where no heartbeat comes within its session timeout; sessions begin anew when the partition is
loaded.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.coordinator.groups.config import KindConfig
from kalda.coordinator.groups.kind_group import KindGroup
from kalda.coordinator.groups.rebalance_history import Cause, NamedMember, RebalanceHistory
from kalda.coordinator.groups.records import GroupLogRecord, KindRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, TimerTask
from kalda.statemachine.timeline import LATEST, TimelineDict

log = logging.getLogger(__name__)

_RETRY_MS = 500
"""When a member is removed again whose end could not be written."""
MemberKey: TypeAlias = tuple[str, str]
"""Group and member."""


class _HasEpoch(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def rebalance_timeout_ms(self) -> int: ...


G = TypeVar("G", bound=KindGroup[Any, Any, Any])
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
