"""The replayed state of one group of any kind but the classic one: members, each with a target, and epochs.

Every change that assignments depend on raises the group epoch. A target assignment is computed for a group epoch, which
is its assignment epoch then. Each member comes to that epoch when it has taken over its target.

Only the replay of a record changes a group, and what is derived of records is kept beside them. `needs_refresh` and
`is_computing` are not replayed, and lost with the coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.coordinator.groups.records import KindRecord
from kalda.protocol.notation import RecordBody
from kalda.statemachine.timeline import LATEST, SnapshotRegistry, TimelineDict, TimelineValue

CONSUMER: Final = "consumer"
SHARE: Final = "share"
STREAMS: Final = "streams"
"""The types of the groups of all kinds but the classic one, and the protocol types that they have."""

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
"""A member that leaves for good; also what is replayed of one whose assignment has been deleted."""
STATIC_LEAVING_EPOCH: Final = -2
"""A static member that leaves and means to return within its session timeout."""
FIRST_EPOCH: Final = 1
_COMMITS_WITH_EPOCHS_FROM: Final = 9
"""The version of OffsetCommit that has member epochs."""


class KindMember(Protocol):
    """A member as a value: replaced, never changed."""

    @property
    def member_id(self) -> str: ...

    @property
    def instance_id(self) -> str | None: ...

    @property
    def epoch(self) -> int: ...

    def with_metadata(self, value: Any) -> Self:
        """As the record of what its client says of it has it."""
        ...

    def with_assignment(self, value: Any) -> Self:
        """As the record of its assignment has it."""
        ...

    def without_assignment(self) -> Self:
        """As it is when the record of its assignment has been deleted."""
        ...

    def metadata_value(self) -> RecordBody: ...

    def assignment_value(self) -> RecordBody: ...


@dataclass(frozen=True, slots=True)
class Epochs:
    """What the records of the group itself have."""

    group: int = FIRST_EPOCH
    metadata_hash: int = 0
    """Of the topics that the group reads; 0 for none."""
    assignment: int = FIRST_EPOCH
    assignment_ms: int = 0
    """When the target assignment was computed; 0 where it is not known."""


class KindKeys(NamedTuple):
    """The keys of the records that groups of every kind have."""

    group: type[Any]
    target_epoch: type[Any]
    """By which a target counts."""
    target_epoch_value: type[Any]
    member: type[Any]
    target: type[Any]
    assignment: type[Any]


E = TypeVar("E", bound=Epochs)
M = TypeVar("M", bound=KindMember)
T = TypeVar("T")


class KindGroup(ABC, Generic[E, M, T]):
    """One group, with its epochs, members, and targets of members."""

    kind: ClassVar[str]
    """The type of these groups, and the protocol type that they have."""
    keys: ClassVar[KindKeys]
    no_assignment_epoch: ClassVar[int] = -1
    """The assignment epoch where its record has been deleted."""

    def __init__(
        self, group_id: str, registry: SnapshotRegistry, epochs: E, no_target: T, new_member: Callable[[str], M]
    ) -> None:
        """`new_member(member_id)` gives a member of which nothing else is known."""
        self.group_id = group_id
        self._new_member = new_member
        self._epochs: TimelineValue[E] = TimelineValue(registry, epochs)
        self._no_target = no_target
        self.members: TimelineDict[str, M] = TimelineDict(registry)
        self.targets: TimelineDict[str, T] = TimelineDict(registry)
        self.static_members: TimelineDict[str, str] = TimelineDict(registry)
        """Member id by instance id."""
        self.needs_refresh = True
        """Whether topics may have changed since the hash was computed."""
        self.is_computing = False
        """Whether a target assignment is being computed in the background."""

    # -- what is read --------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> E:
        return self._epochs.value

    def epochs_at(self, epoch: int) -> E:
        """As they were at an epoch of the timeline."""
        return self._epochs.get(epoch)

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    @abstractmethod
    def is_stable(self) -> bool:
        """Whether every member has its target. Visits the members."""

    @property
    @abstractmethod
    def subscribed_topics(self) -> Iterable[str]:
        """Names of topics that the group reads."""

    def member(self, member_id: str) -> M:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise self._unknown_member(member_id)
        return member

    def member_or_new(self, member_id: str) -> M:
        """The member; one of which nothing is known yet where the group has none with that id."""
        return self.members.get(member_id) or self._new_member(member_id)

    def static_member(self, instance_id: str) -> M | None:
        """The member that has this instance id."""
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str, epoch: int = LATEST) -> T:
        """The target of a member, empty without one."""
        return self.targets.get(member_id, self._no_target, epoch)

    def successor(self, member_id: str, instance_id: str | None) -> str | None:
        """The member that has the place of one that was here: a static member that has restarted has another id. None
        where it has left."""
        if member_id in self.members:
            return member_id
        return None if instance_id is None else self.static_members.get(instance_id)

    # -- checks --------------------------------------------------------------------------------------------------

    def check_deletable(self) -> None:
        """Raises NON_EMPTY_GROUP."""
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        """Offsets may be deleted while there are members, those of topics that they do not read."""

    def check_offset_fetch(self, member_id: str | None, epoch: int, at: int) -> None:
        """Raises UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH. `at` is the epoch of the timeline to read at. A request
        that names no member is allowed."""
        if member_id is None and epoch < 0:
            return
        member = self.members.get(member_id or "", None, at)
        if member is None:
            raise self._unknown_member(member_id or "")
        if epoch != member.epoch:
            message = f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}."
            raise ApiError(self._stale_code(member), message)

    def _behind_member(
        self, member_id: str, instance_id: str | None, epoch: int, *, transactional: bool, version: int
    ) -> M | None:
        """The member that commits offsets in an epoch before its own: whether it may depends on the partitions. None
        where it may in any case: in its own epoch; without members in an epoch below 0; in a transaction where nothing
        names a member. Raises UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, and the error of an epoch that is not its."""
        if epoch < 0 and not self.members:
            return None
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return None
        member = self.member(member_id)
        stale = self._stale_code(member)
        if not transactional and stale is ErrorCode.STALE_MEMBER_EPOCH and version < _COMMITS_WITH_EPOCHS_FROM:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"OffsetCommit version 9 or above must be used by members using the {self.kind} group protocol",
            )
        if epoch > member.epoch:
            raise ApiError(stale, f"Received member epoch {epoch} is newer than current member epoch {member.epoch}.")
        return None if epoch == member.epoch else member

    def _stale_code(self, member: M) -> ErrorCode:
        """The error for an epoch that is not the member's: another one for a member of the classic protocol, whose
        requests have no epochs."""
        return ErrorCode.STALE_MEMBER_EPOCH

    def _unknown_member(self, member_id: str) -> ApiError:
        return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")

    # -- replay --------------------------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any) -> None:
        """A record of the group; the value of a tombstone is None."""
        keys, of = self.keys, type(key)
        if of is keys.member:
            if value is None:
                self.remove_member(key.member_id)
            else:
                self.replay_member(self.member_or_new(key.member_id).with_metadata(value))
        elif of is keys.assignment:
            if value is not None:
                self.replay_member(self.member_or_new(key.member_id).with_assignment(value))
            elif key.member_id in self.members:
                self.replay_member(self.members[key.member_id].without_assignment())
        elif of is keys.target:
            if value is None:
                self.targets.pop(key.member_id, None)
            else:
                self.targets[key.member_id] = self._target_of(value)
        elif of is keys.target_epoch:
            epoch = self.no_assignment_epoch if value is None else value.assignment_epoch
            self._change_epochs(assignment=epoch, assignment_ms=0 if value is None else value.assignment_timestamp)
        else:
            self._replay_own(key, value)

    def _change_epochs(self, **changed: int | bool) -> None:
        self._epochs.value = replace(self.epochs, **changed)

    @abstractmethod
    def _replay_own(self, key: Any, value: Any) -> None:
        """The record of the group itself, or one that only groups of this kind have."""

    @abstractmethod
    def _target_of(self, value: Any) -> T:
        """The target that a record has."""

    @abstractmethod
    def replay_member(self, member: M) -> None:
        """A member is new or has changed."""

    def remove_member(self, member_id: str) -> M | None:
        """A member has been removed; what it was. The instance id stays where another member has it meanwhile."""
        old = self.members.pop(member_id, None)
        if old is not None and old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]
        return old

    # -- records -------------------------------------------------------------------------------------------------

    def member_record(self, member: M) -> KindRecord:
        """The record of a member's own fields, as its requests give them."""
        return self._of_member(self.keys.member, member.member_id, member.metadata_value())

    def assignment_record(self, member: M) -> KindRecord:
        """The record of what a member has."""
        return self._of_member(self.keys.assignment, member.member_id, member.assignment_value())

    def target_record(self, member_id: str, target: T) -> KindRecord:
        """The record of a member's target."""
        return self._of_member(self.keys.target, member_id, self._target_value(target))

    @abstractmethod
    def _target_value(self, target: T) -> RecordBody: ...

    def target_epoch_record(self, epoch: int, now_ms: int) -> KindRecord:
        """The record by which a target counts."""
        value = self.keys.target_epoch_value(assignment_epoch=epoch, assignment_timestamp=now_ms)
        return self._of_group(self.keys.target_epoch, value)

    def replacement(self, old: M, member: M) -> list[KindRecord]:
        """What gives a static member that returns the place of the former one."""
        return [
            *self.tombstones_of([old.member_id]),
            self.member_record(member),
            self.target_record(member.member_id, self.target(old.member_id)),
            self.assignment_record(member),
        ]

    def tombstones_of(self, member_ids: Iterable[str]) -> list[KindRecord]:
        """What removes members."""
        keys = self.keys
        return [
            self._of_member(key, member_id, None)
            for member_id in member_ids
            for key in (keys.assignment, keys.target, keys.member)
        ]

    def tombstones(self) -> list[KindRecord]:
        """What removes the group, its own record last."""
        return [
            *self.tombstones_of(self.members),
            self._of_group(self.keys.target_epoch, None),
            *self._own_tombstones(),
            self._of_group(self.keys.group, None),
        ]

    def _own_tombstones(self) -> Iterable[KindRecord]:
        """Of the records that only groups of this kind have."""
        return ()

    def _of_group(self, key: type[Any], value: RecordBody | None) -> KindRecord:
        return KindRecord(self.group_id, key(group_id=self.group_id), value)

    def _of_member(self, key: type[Any], member_id: str, value: RecordBody | None) -> KindRecord:
        return KindRecord(self.group_id, key(group_id=self.group_id, member_id=member_id), value)


# Names that members of the group have in common, counted.


def count_names(counts: TimelineDict[str, int], names: Iterable[str], by: int) -> None:
    """Each of `names` has `by` more members that name it; a name without any is removed."""
    for name in names:
        count = counts.get(name, 0) + by
        if count > 0:
            counts[name] = count
        else:
            counts.pop(name, None)


def names_after(counts: TimelineDict[str, int], removed: Iterable[str], added: Iterable[str]) -> set[str]:
    """The names that are left once each of `removed` has one member fewer and each of `added` one more."""
    changes: dict[str, int] = {}
    for name in removed:
        changes[name] = changes.get(name, 0) - 1
    for name in added:
        changes[name] = changes.get(name, 0) + 1
    names = set(counts)
    for name, change in changes.items():
        if counts.get(name, 0) + change > 0:
            names.add(name)
        else:
            names.discard(name)
    return names
