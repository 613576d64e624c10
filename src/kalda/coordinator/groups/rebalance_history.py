"""The last rebalances of the groups that one broker coordinates: what caused each, and who was waited for.

It is for operators only: nothing is decided by it, and no record has it, so a coordinator that takes a group over
begins without. Memory is bounded: it holds the last rebalances of those groups that have rebalanced last, with a few
causes and members each, in short texts.

A rebalance of a classic group ends its join barrier first, then the assignment of its leader is committed. One of a
group of another kind begins with a group epoch; its target is computed, then each member comes to it. It has ended when
the last member has, which is looked at only when the history is read, or the next begins.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

_GROUPS = 500
_REBALANCES_A_GROUP = 10
_CAUSES_A_REBALANCE = 3
_MEMBERS_NAMED = 3
_CHARACTERS = 100


class NamedMember(Protocol):
    """A member of a group of any kind."""

    @property
    def member_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def client_id(self) -> str: ...
    @property
    def client_host(self) -> str: ...


class MemberName(NamedTuple):
    """Who a member is."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str

    @classmethod
    def of(cls, member: NamedMember) -> MemberName:
        """Of a member."""
        instance_id = member.instance_id
        return cls(
            _short(member.member_id),
            None if instance_id is None else _short(instance_id),
            _short(member.client_id),
            member.client_host.removeprefix("/"),
        )


class Cause(NamedTuple):
    """Why a group rebalances: what has happened, to which members, and the reason that the client gave."""

    what: str
    members: Sequence[NamedMember] = ()
    reason: str = ""

    def __str__(self) -> str:
        """For the log."""
        subjects = ", ".join(member.member_id for member in self.members)
        return f"{self.what} {subjects}".rstrip() + (f": {self.reason}" if self.reason else "")


class NamedCause(NamedTuple):
    """A cause as it is kept."""

    what: str
    members: tuple[MemberName, ...]
    member_count: int
    reason: str


@dataclass(slots=True)
class Rebalance:
    """One rebalance. Times are in ms of the coordinator's clock; None for what has not happened."""

    started_ms: int
    generation: int
    """Before; of a group of another kind than classic its epoch."""
    group_type: str
    causes: list[NamedCause] = field(default_factory=list)
    cause_count: int = 0
    joined_ms: int | None = None
    """When the join barrier ended."""
    assigned_ms: int | None = None
    """When the target assignment of a group epoch was computed."""
    ended_ms: int | None = None
    outcome: str = ""
    """How it ended; empty while it is under way."""
    next_generation: int | None = None
    member_count: int | None = None
    last_member: MemberName | None = None
    """The member that came last: the others waited for it."""
    last_ms: int | None = None
    """When it came."""
    removed: tuple[MemberName, ...] = ()
    """Members that did not come in time."""
    removed_count: int = 0

    def add_cause(self, cause: Cause) -> None:
        """Something that alone would have caused it."""
        self.cause_count += 1
        if len(self.causes) < _CAUSES_A_REBALANCE:
            self.causes.append(NamedCause(cause.what, _names(cause.members), len(cause.members), _short(cause.reason)))


class RebalanceHistory:
    """Of all groups of one coordinator."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[Rebalance]] = OrderedDict()
        """The last rebalances, the oldest first; groups in the order in which they began one last."""

    def of(self, group_id: str) -> Iterable[Rebalance]:
        """The last rebalances of a group, the oldest first."""
        return self._groups.get(group_id, ())

    def _open(self, group_id: str) -> Rebalance | None:
        rebalances = self._groups.get(group_id)
        return rebalances[-1] if rebalances and rebalances[-1].ended_ms is None else None

    def begin(self, group_id: str, generation: int, cause: Cause, now_ms: int, kind: str = "classic") -> None:
        """A rebalance begins. One that is under way ends by it."""
        self.end(group_id, "interrupted by the next", now_ms)
        rebalances = self._groups.get(group_id)
        if rebalances is None:
            rebalances = self._groups[group_id] = deque(maxlen=_REBALANCES_A_GROUP)
            if len(self._groups) > _GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group_id)
        rebalance = Rebalance(now_ms, generation, kind)
        rebalance.add_cause(cause)
        rebalances.append(rebalance)

    def begin_epoch(self, group_id: str, epoch: int, cause: Cause, now_ms: int, kind: str) -> None:
        """A group has a new epoch, after `epoch`. Epochs before the next target is computed are one rebalance. The
        caller settles the one before, where all members had come to its target."""
        rebalance = self._open(group_id)
        if rebalance is not None and rebalance.assigned_ms is None:
            rebalance.add_cause(cause)
            return
        self.begin(group_id, epoch, cause, now_ms, kind)

    def assigned(self, group_id: str, epoch: int, member_count: int, now_ms: int) -> None:
        """The target assignment of a group epoch is computed."""
        rebalance = self._open(group_id)
        if rebalance is not None:
            rebalance.assigned_ms, rebalance.next_generation = now_ms, epoch
            rebalance.member_count = member_count

    def reconciled(self, group_id: str, member: NamedMember, now_ms: int) -> None:
        """A member has come to the target, as the last one so far."""
        rebalance = self._open(group_id)
        if rebalance is not None and rebalance.assigned_ms is not None:
            rebalance.last_member, rebalance.last_ms = MemberName.of(member), now_ms

    def settle(self, group_id: str) -> None:
        """All members have come to the target: the rebalance has ended with the last of them."""
        rebalance = self._open(group_id)
        if rebalance is not None and rebalance.assigned_ms is not None:
            rebalance.ended_ms = rebalance.assigned_ms if rebalance.last_ms is None else rebalance.last_ms
            rebalance.outcome = "stable"

    def add_cause(self, group_id: str, cause: Cause) -> None:
        """Something has happened during a rebalance that alone would have caused it."""
        rebalance = self._open(group_id)
        if rebalance is not None:
            rebalance.add_cause(cause)

    def joined(
        self,
        group_id: str,
        now_ms: int,
        *,
        generation: int,
        member_count: int,
        last: NamedMember,
        last_ms: int,
        removed: Sequence[NamedMember],
    ) -> None:
        """The join barrier has ended with a new generation; `last` came last, at `last_ms`, the members in `removed`
        did not come in time."""
        rebalance = self._open(group_id)
        if rebalance is not None:
            rebalance.joined_ms, rebalance.next_generation = now_ms, generation
            rebalance.member_count = member_count
            rebalance.last_member, rebalance.last_ms = MemberName.of(last), last_ms
            rebalance.removed, rebalance.removed_count = _names(removed), len(removed)

    def end(self, group_id: str, outcome: str, now_ms: int) -> None:
        """The rebalance that is under way has ended, if there is one."""
        rebalance = self._open(group_id)
        if rebalance is not None:
            rebalance.ended_ms, rebalance.outcome = now_ms, outcome


def _names(members: Sequence[NamedMember]) -> tuple[MemberName, ...]:
    return tuple(MemberName.of(member) for member in members[:_MEMBERS_NAMED])


def _short(text: str) -> str:
    """The same object where it is short: most texts belong to members anyway."""
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"
