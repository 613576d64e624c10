"""What an assignor on the server is given and gives (KIP-848): the members of a group and their subscriptions by topic
id, the target assignment so far, and the topics; out of these, the next target assignment.

It is computed in steps, since a group may have thousands of members. An assignor is pure: the same specification gives
the same assignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

from kalda.base.background import Steps
from kalda.base.ids import Uuid
from kalda.protocol.naming import MAX_ELEMENTS_SENT

MemberPartitions: TypeAlias = Mapping[Uuid, frozenset[int]]
"""Partitions by topic id. No topic has none."""
TargetAssignment: TypeAlias = dict[str, MemberPartitions]
"""Partitions by member id, of every member; a member that gets none has an empty mapping."""


class MemberSubscription(NamedTuple):
    """One member, as an assignor sees it."""

    topics: frozenset[Uuid]
    """Topics that exist and that it subscribes to, by name or by a regular expression."""
    rack: str | None = None
    instance_id: str | None = None


class TopicShape(NamedTuple):
    """One topic, as an assignor sees it."""

    name: str
    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    """By partition, those of its replicas; empty where no broker has a rack."""


class GroupSpec(NamedTuple):
    """What there is to assign."""

    members: Mapping[str, MemberSubscription]
    current: Mapping[str, MemberPartitions]
    """The target assignment so far, which is not what members own. A member without one is absent."""
    topics: Mapping[Uuid, TopicShape]
    """Of every topic in a subscription."""


class AssignorError(Exception):
    """An assignor cannot assign. The message says why."""


MAX_ASSIGNED = 2 * MAX_ELEMENTS_SENT
"""Partitions, or tasks, of one member: as many as one request may name, since a member names in one heartbeat all that
it has. So the record and the answer that name them are made in one step."""


class ServerAssignor(Protocol):
    """A strategy."""

    @property
    def name(self) -> str:
        """As members name it in `group.remote.assignor`."""
        ...

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        """The target of each member. Raises `AssignorError`."""
        ...
