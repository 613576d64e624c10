"""Who owns which partitions of a consumer group (KIP-848), as its members' heartbeats and their answers say.

A member may read a partition from the answer that assigns it until its next heartbeat that does not name it, or until
an answer says that it is no member any more. Two promises follow:

- in one epoch of a group, a partition is assigned to one member at most;
- where a partition is assigned while another member still has it, that one was removed: no heartbeat that it sends
  from then on is accepted.

A coordinator that was replaced without its knowledge may accept heartbeats until it learns of it. So the second promise
is checked for answers of the node that has assigned the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.clientcore.connections.connections import OnDone
from kalda.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

TopicIdPartition = tuple[Uuid, int]


class _Owner:
    """What one member may read."""

    __slots__ = ("assigned", "held", "replaced_by", "replaced_number")

    def __init__(self) -> None:
        self.assigned: frozenset[TopicIdPartition] = frozenset()
        """By its latest answer with an assignment."""
        self.held: set[TopicIdPartition] = set()
        self.replaced_by = ""
        """Who was given a partition that this member held, and by which node; empty where nobody was."""
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
        self._in_epoch: dict[tuple[int, TopicIdPartition], str] = {}
        self._sent = 0

    def watched(self, node_id: int, request: ConsumerGroupHeartbeatRequest, on_done: OnDone) -> OnDone:
        """What is called with the answer to a heartbeat that is being sent to a node."""
        self._sent += 1
        number, member = self._sent, request.member_id
        if request.member_epoch <= 0:  # it leaves, or begins anew without partitions
            self._owners.pop(member, None)
        elif request.topic_partitions is not None and member in self._owners:
            self._owners[member].held = set(_keys(request.topic_partitions))

        def answered(response: Any, error: ApiError | None) -> None:
            if request.member_epoch >= 0 and response is not None:
                if response.error_code:
                    if not ErrorCode(response.error_code).retriable:
                        self._owners.pop(member, None)
                else:
                    self._on_accepted(node_id, number, member, response)
            on_done(response, error)

        return answered

    def _on_accepted(self, node_id: int, number: int, member: str, response: Any) -> None:
        owner = self._owners.setdefault(member, _Owner())
        if owner.replaced_by.startswith(f"{node_id}:") and number > owner.replaced_number:
            self._violated(f"{self._group}: {member} is a member still, but {owner.replaced_by} has its partition")
        if response.assignment is not None:
            owner.assigned = frozenset(_keys(response.assignment.topic_partitions))
            for key in sorted(owner.assigned - owner.held):
                for name, other in self._owners.items():
                    if name != member and key in other.held:
                        other.replaced_by, other.replaced_number = f"{node_id}:{member}", self._sent
            owner.held |= owner.assigned
        if self._has_one_kind:
            for key in sorted(owner.assigned):
                first = self._in_epoch.setdefault((response.member_epoch, key), member)
                if first != member:
                    self._violated(
                        f"{self._group}: partition {key[1]} has two owners in epoch {response.member_epoch}: "
                        f"{first} and {member}"
                    )


def _keys(topics: Iterable[Any]) -> Iterable[TopicIdPartition]:
    return ((topic.topic_id, number) for topic in topics for number in topic.partitions)
