"""What an assignor on the server is given and gives: of consumer groups (KIP-848), of streams groups (KIP-1071).

An assignor is given the members of a group and their subscriptions by topic id,
the target assignment so far, and the topics; out of these it gives the next target assignment.

It is computed in steps, since a group may have thousands of members. An assignor is pure: the same specification gives
the same assignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


# What a task assignor of a streams group (KIP-1071, KIP-1357) is given and gives: the members with the tasks that
# they run, the shape of the topology, and the group's configs; out of these, the next target assignment.
#
# A topology is cut into subtopologies, and each of them into as many tasks as the largest of its source topics has
# partitions. Every task has one active copy. A task of a stateful subtopology may have standby copies, which follow
# its changelog in other processes. A process is one instance of the application; each of its threads is a member.
#
# It is computed in steps, since a group may have thousands of members. An assignor is pure: the same specification
# gives the same assignment.

Tasks: TypeAlias = Mapping[str, frozenset[int]]
"""Partitions by subtopology id. No subtopology has none."""


class TaskId(NamedTuple):
    """One task. Its text is the one that Kafka Streams gives it."""

    subtopology_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology_id}_{self.partition}"


@dataclass(frozen=True, slots=True)
class MemberTasks:
    """The tasks of one member, by the part that they play."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)
    """Tasks whose state it restores in order to run them; no assignor of Kafka 4.4 gives any."""

    @property
    def count(self) -> int:
        """Tasks of all parts."""
        return sum(len(each) for part in (self.active, self.standby, self.warmup) for each in part.values())


@dataclass(frozen=True, slots=True)
class StreamsMemberSpec:
    """One member, as a task assignor sees it."""

    process_id: str
    tasks: MemberTasks
    """What it has been given and has not been asked to give up: its current assignment, not its target."""
    task_offsets: Mapping[TaskId, int] = field(default_factory=dict)
    """The sum of the offsets to which it has the state of a task on its disk, as it reports them."""
    task_end_offsets: Mapping[TaskId, int] = field(default_factory=dict)
    """The sum of the end offsets of the task's changelogs, as it reports them."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)


class SubtopologyShape(NamedTuple):
    """One subtopology, as a task assignor sees it."""

    number_of_tasks: int
    is_stateful: bool
    """Whether it has changelog topics, so that standby copies of its tasks make sense."""


class StreamsGroupSpec(NamedTuple):
    """What there is to assign, and how."""

    members: Mapping[str, StreamsMemberSpec]
    subtopologies: Mapping[str, SubtopologyShape]
    num_standby_replicas: int = 0
    rack_aware_assignment_tags: tuple[str, ...] = ()
    """Client tags over whose values standby copies are to be spread. The assignor `sticky` of 4.4 ignores them."""


class TaskAssignor(Protocol):
    """A strategy. Raises `AssignorError` where it cannot assign."""

    @property
    def name(self) -> str:
        """As `streams.assignor.name` names it."""
        ...

    def assign(self, spec: StreamsGroupSpec) -> Steps[dict[str, MemberTasks]]:
        """The target of each member; a member that gets none has empty mappings."""
        ...
