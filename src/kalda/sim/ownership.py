"""Who owns what of a group, as its members' heartbeats and their answers say: partitions of a consumer group (KIP-848),
tasks of a streams group (KIP-1071).

A member owns a thing from the answer that assigns it until its next heartbeat that does not name it, or until an answer
says that it is no member any more. Two promises follow:

- in one epoch of a group, a thing is assigned to one member at most;
- where a thing is assigned while another member still has it, that one was removed: no heartbeat that it sends from
  then on is accepted.

A coordinator that was replaced, but has not received that yet, may accept heartbeats until then. So the second promise
is checked for answers of the node that has assigned the thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.clientcore.connections.connections import OnDone
from kalda.protocol.messages.groups import ConsumerGroupHeartbeatRequest

Thing: TypeAlias = tuple[Any, ...]


class _Owner:
    """What one member owns."""

    __slots__ = ("assigned", "held", "replaced_by", "replaced_number")

    def __init__(self) -> None:
        self.assigned: frozenset[Thing] = frozenset()
        """By its latest answer with an assignment."""
        self.held: set[Thing] = set()
        self.replaced_by = ""
        """Who was given a thing that this member held, and by which node; empty where no member was."""
        self.replaced_number = 0
        """The heartbeats up to this number were sent before that."""


class Ownership:
    """Of one group."""

    def __init__(self, group: str, violated: Callable[[str], None], *, has_one_kind: bool) -> None:
        """`has_one_kind`: the group has members of the consumer protocol only, so that its epochs go on."""
        self._group = group
        self._violated = violated
        self._has_one_kind = has_one_kind
        self._owners: dict[str, _Owner] = {}
        self._holders: dict[Thing, set[str]] = {}
        """The members that hold each thing."""
        self._in_epoch: dict[tuple[int, Thing], str] = {}
        self._sent = 0
        self._ended: dict[str, int] = {}
        """The number of each member's latest heartbeat by which it left or began anew: it ignores answers to earlier
        ones."""

    def watched(self, node_id: int, request: ConsumerGroupHeartbeatRequest, on_done: OnDone) -> OnDone:
        """What is called with the answer to a heartbeat that is being sent to a node."""
        member, has = request.member_id, request.topic_partitions
        number = self.sent(member, request.member_epoch, None if has is None else set(_keys(has)))

        def answered(response: Any, error: ApiError | None) -> None:
            if request.member_epoch >= 0 and response is not None:
                if response.error_code:
                    self.refused(member, ErrorCode(response.error_code))
                else:
                    assigned = response.assignment
                    keys = None if assigned is None else frozenset(_keys(assigned.topic_partitions))
                    self.accepted(str(node_id), number, member, response.member_epoch, keys)
            on_done(response, error)

        return answered

    def sent(self, member: str, epoch: int, has: set[Thing] | None) -> int:
        """A member sends a heartbeat, which names what it has, or nothing of that. Returns the heartbeat's number."""
        self._sent += 1
        if epoch <= 0:  # it leaves, or begins anew without anything
            self._forget(member)
            self._ended[member] = self._sent
        elif has is not None and member in self._owners:
            self._hold(member, has)
        return self._sent

    def _hold(self, member: str, held: set[Thing]) -> None:
        owner = self._owners[member]
        for key in owner.held - held:
            self._holders[key].discard(member)
        for key in held - owner.held:
            self._holders.setdefault(key, set()).add(member)
        owner.held = held

    def _forget(self, member: str) -> None:
        if member in self._owners:
            self._hold(member, set())
            del self._owners[member]

    def refused(self, member: str, code: ErrorCode) -> None:
        """The answer to a heartbeat is an error."""
        if not code.retriable:
            self._forget(member)

    def accepted(self, node: str, number: int, member: str, epoch: int, assigned: frozenset[Thing] | None) -> None:
        """A node has accepted the heartbeat with this number, and assigns something else than before, unless that is
        None."""
        if number < self._ended.get(member, 0):
            return
        owner = self._owners.setdefault(member, _Owner())
        if owner.replaced_by.startswith(f"{node}:") and number > owner.replaced_number:
            self._violated(f"{self._group}: {member} is a member still, but {owner.replaced_by} has what it had")
        if assigned is not None:
            owner.assigned = assigned
            for key in sorted(assigned - owner.held):
                for name in sorted(self._holders.get(key, ())):
                    other = self._owners[name]
                    other.replaced_by, other.replaced_number = f"{node}:{member}", self._sent
            self._hold(member, owner.held | assigned)
        if self._has_one_kind:
            for key in sorted(owner.assigned):
                first = self._in_epoch.setdefault((epoch, key), member)
                if first != member:
                    self._violated(f"{self._group}: {key} has two owners in epoch {epoch}: {first} and {member}")


def _keys(topics: Iterable[Any]) -> Iterable[tuple[Uuid, int]]:
    return ((topic.topic_id, number) for topic in topics for number in topic.partitions)
