"""A classic group: members, generation, and which protocol they can agree on.

Pure bookkeeping; it writes no record and arms no timer (`classic_protocol` and `rebalance` do).

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──assignment committed──▶ Stable
      ▲                ▲     │                              │                                         │
      └── all left ────┼─────┘                              │                                         │
                       └────────── join, leave, expiry ─────┴─────────────────────────────────────────┘
    any ──▶ Dead: another node coordinates the group, or a record has removed or replaced it

What a group holds is of two kinds, and each field is declared as one of them:

- *replayed*: it is in the group's checkpoint, its latest GroupMetadata record. A rebalance changes it ahead of the
  record, which is written when the rebalance ends. So a coordinator that fails in a rebalance takes the group back to
  its checkpoint, and the members join again;
- *rebuilt*: it is in no record. A group that is loaded starts without it, and members bring it with their requests.

Invariants:
- a group that is Stable or Empty holds exactly what is in its checkpoint: `to_record()` equals it. Two exceptions: a
  simple group (offsets without members) has no checkpoint, and where the record of a group that became Empty could not
  be appended, its checkpoint stays as it was until the next rebalance ends;
- a group that is Dead has no armed timer, and parks no request;
- `awaiting_joins` counts the members with a parked JoinGroup; `_supported` counts, by protocol name, the members that
  support it; `static_members` maps an instance id to the one member that holds it; a group with members has a leader
  among them.

Members and votes keep insertion order, so that runs repeat.

The coordinator reads the consumer protocol for one purpose: offsets of a topic that is subscribed to do not expire.
Every version of the subscription starts as version 0 does, so only that prefix is read, whatever the version and the
user data behind it. Where metadata cannot be read the topics are unknown; the group goes on, since a client may use any
metadata under any protocol name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.coordinator.timers import TimerTask
from kalda.protocol.messages.group_records import GroupMetadataValue, MemberMetadata
from kalda.protocol.messages.groups import (
    DescribedGroupMember,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

_MAX_TOPICS = 1_000_000


def subscribed_topics_of(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The union of the topics in these subscriptions; None where one of them cannot be read."""
    topics: set[str] = set()
    for subscription in metadata:
        names = _topics_in(subscription)
        if names is None:
            return None
        topics.update(names)
    return frozenset(topics)


def _topics_in(subscription: bytes) -> list[str] | None:
    """Layout: int16 version, int32 count, then as many int16-length strings; what follows is not read."""
    if len(subscription) < 6 or subscription[0] & 0x80:
        return None
    count = int.from_bytes(subscription[2:6], "big", signed=True)
    if not 0 <= count <= min(_MAX_TOPICS, (len(subscription) - 6) // 2):
        return None
    names: list[str] = []
    at = 6
    for _ in range(count):
        length = int.from_bytes(subscription[at : at + 2], "big", signed=True)
        at += 2
        if length < 0 or at + length > len(subscription):
            return None
        try:
            names.append(subscription[at : at + length].decode("utf-8"))
        except UnicodeDecodeError:
            return None
        at += length
    return names


CONSUMER_PROTOCOL_TYPE = "consumer"
GROUP_TYPE = "classic"
NO_ASSIGNMENT = b""
_NULL_PROTOCOL_FROM = 7

Protocols = tuple[tuple[str, bytes], ...]
"""A member's protocols with their metadata, in its order of preference."""


class GroupState(Enum):
    """States by their names on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_BEFORE: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


def in_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Without a protocol, its name is empty before version 7 and null from then on."""
    if not response.protocol_name:
        response.protocol_name = None if version >= _NULL_PROTOCOL_FROM else ""
    return response


class JoinWaiter:
    """A parked JoinGroup and the version in which it must be answered."""

    __slots__ = ("pending", "since_ms", "version")

    def __init__(self, pending: Pending[JoinGroupResponse], version: int, now_ms: int) -> None:
        self.pending = pending
        self.version = version
        self.since_ms = now_ms

    def answer(self, response: JoinGroupResponse) -> None:
        """Complete it, as its version has it."""
        self.pending.complete(in_version(response, self.version))


class ClassicMember:
    """One member, with the requests that it has parked."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "session_timer",
    )

    def __init__(
        self,
        member_id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = NO_ASSIGNMENT,
    ) -> None:
        # Replayed.
        self.member_id = member_id
        self.instance_id = instance_id
        """`group.instance.id` of a static member, None of a dynamic one."""
        self.client_id = client_id
        self.client_host = client_host
        """As it is stored and shown: an address after a slash."""
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        """The checkpoint has that of the group's protocol only; the others are rebuilt when the member joins again."""
        self.assignment = assignment
        """What the leader gave the member in the latest generation whose assignment was committed."""
        # Rebuilt.
        self.awaiting_join: JoinWaiter | None = None
        """The JoinGroup that waits for the end of the join barrier."""
        self.awaiting_sync: Pending[SyncGroupResponse] | None = None
        """The SyncGroup that waits for the commit of the assignment."""
        self.is_new = False
        """From the member's first JoinGroup until it is answered; its session timer is the limit of that wait."""
        self.session_timer: TimerTask | None = None
        """Removes the member when it fires. Armed as long as the group is not Dead."""

    def metadata(self, protocol: str | None) -> bytes:
        """What the member sent for `protocol`, which must be one of its own."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise AssertionError(f"member {self.member_id} does not support protocol {protocol}")

    def satisfies_heartbeat(self) -> bool:
        """A member with a parked request cannot send heartbeats. The wait of a new member is limited all the same."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def describe(self, protocol: str | None) -> DescribedGroupMember:
        """As DescribeGroups shows it; metadata only where the group has chosen `protocol`."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=b"" if protocol is None else self.metadata(protocol),
            member_assignment=self.assignment,
        )


class ClassicGroup:
    """The state of one group."""

    __slots__ = (
        "_supported",
        "awaiting_joins",
        "generation",
        "group_id",
        "is_assignment_being_written",
        "join_timer",
        "leader_id",
        "members",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
        "sync_timer",
    )

    def __init__(
        self,
        group_id: str,
        state: GroupState,
        *,
        state_timestamp_ms: int | None,
        generation: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        leader_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        # Replayed.
        self.generation = generation
        """Counts the join barriers that have ended."""
        self.protocol_type = protocol_type
        """`consumer`, `connect` and so on; None of a group that has never had members."""
        self.protocol_name = protocol_name
        """The assignor that all members of the generation support; None while the group is Empty."""
        self.leader_id = leader_id
        """The member that assigns; None while there are no members."""
        self.members: dict[str, ClassicMember] = {}
        """By member id, the oldest first. Joined or not: see `awaiting_joins`."""
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.state_timestamp_ms = state_timestamp_ms
        """When the group came into its state, by the wall clock; a Stable group keeps that of CompletingRebalance, when
        its record was written. Retention of an Empty group's offsets counts from here."""
        self.subscribed_topics: frozenset[str] | None = None
        """Out of the members' metadata; None where the group has none, or it cannot be read."""
        # Rebuilt.
        self.state = state
        """Stable or Empty when it is made of a checkpoint, by whether that has members."""
        self.previous_state = GroupState.DEAD
        """Which state came before. The join barrier of a group that was Empty ends by a delay, not by a count."""
        self.pending_joins: dict[str, TimerTask] = {}
        """Member ids given out with MEMBER_ID_REQUIRED that have not joined, with the timers that drop them."""
        self.pending_syncs: dict[str, None] = {}
        """Members of this generation that have not sent SyncGroup; a dict for its order."""
        self.is_assignment_being_written = False
        """From the leader's SyncGroup until its record is committed, or a new rebalance begins."""
        self.awaiting_joins = 0
        """How many members have a parked JoinGroup."""
        self.new_member_added = False
        """Whether a member joined during the current part of the initial delay, which prolongs it."""
        self.join_timer: TimerTask | None = None
        """Ends the join barrier."""
        self.sync_timer: TimerTask | None = None
        """Removes the members in `pending_syncs`."""
        self._supported: dict[str, int] = {}
        """How many members support a protocol, by its name."""

    # -- records -------------------------------------------------------------------------------------------------

    @classmethod
    def from_record(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """The group as a checkpoint has it: Stable with members, Empty without."""
        group = cls(
            group_id,
            GroupState.STABLE if value.members else GroupState.EMPTY,
            state_timestamp_ms=None if value.current_state_timestamp == -1 else value.current_state_timestamp,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol_name=(value.protocol or "") if value.members else value.protocol,
            leader_id=value.leader,
        )
        for stored in value.members:
            timeout_ms = stored.session_timeout
            member = ClassicMember(
                stored.member_id,
                instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=timeout_ms if stored.rebalance_timeout == -1 else stored.rebalance_timeout,
                session_timeout_ms=timeout_ms,
                protocols=((value.protocol or "", bytes(stored.subscription)),),
                assignment=bytes(stored.assignment),
            )
            group._hold(member)
        if group.leader_id not in group.members:
            group.leader_id = next(iter(group.members), None)
        group.subscribed_topics = group._compute_subscribed_topics()
        return group

    @classmethod
    def of_members(
        cls, group_id: str, generation: int, members: Iterable[ClassicMember], state_timestamp_ms: int
    ) -> ClassicGroup:
        """A stable group of consumers, of which there is one at least: the first leads. All support one protocol."""
        group = cls(
            group_id,
            GroupState.STABLE,
            state_timestamp_ms=state_timestamp_ms,
            generation=generation,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
        )
        for member in members:
            group._hold(member)
        group.leader_id = next(iter(group.members))
        group.protocol_name = group.select_protocol()
        group.subscribed_topics = group._compute_subscribed_topics()
        return group

    def _hold(self, member: ClassicMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count_protocols(member, 1)

    def take_protocols(self, origin: ClassicGroup) -> None:
        """All protocols of the members, of which a checkpoint has one, from the group of which it was made."""
        for member_id, member in self.members.items():
            self._count_protocols(member, -1)
            member.protocols = origin.members[member_id].protocols
            self._count_protocols(member, 1)

    def to_record(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadataValue:
        """A checkpoint of the group: with `assignments` by member id, or with those that the members have."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=member.assignment if assignments is None else assignments[member.member_id],
                )
                for member in self.members.values()
            ],
        )

    # -- state ---------------------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Change to `state`; a change that the diagram above does not have is a broken invariant."""
        assert self.state in _BEFORE[state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    def become_stable(self, checkpoint: GroupMetadataValue) -> None:
        """The generation's checkpoint, which has the assignments, is committed: the members get them."""
        for stored in checkpoint.members:
            self.members[stored.member_id].assignment = bytes(stored.assignment)
        self.transition_to(GroupState.STABLE, checkpoint.current_state_timestamp)
        assert self.to_record() == checkpoint, f"group {self.group_id} differs from its committed checkpoint"

    @property
    def can_rebalance(self) -> bool:
        return self.state in _BEFORE[GroupState.PREPARING_REBALANCE]

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def start_next_generation(self, now_ms: int) -> None:
        """End the join barrier: the present members make the next generation, or the group is Empty."""
        assert self.awaiting_joins <= len(self.members)
        self.generation += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.subscribed_topics = self._compute_subscribed_topics()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.subscribed_topics = self._compute_subscribed_topics()
            self.transition_to(GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    # -- members -------------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str, waiter: JoinWaiter) -> None:
        """Add a member whose JoinGroup is parked. The first member is the leader."""
        assert member.member_id not in self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        member.awaiting_join = waiter
        self.awaiting_joins += 1
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member, pending or full. If it was the leader, the oldest of the others is."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_joins -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        waiter: JoinWaiter | None,
    ) -> None:
        """A member joins again: its protocols, timeouts and parked request replace the former ones."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        # The client has sent this request again, and no longer waits for the one parked before.
        self.answer_join(member, JoinGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.awaiting_join = waiter
        self.awaiting_joins += waiter is not None

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> ClassicMember:
        """A static member restarted: the new id gets the old one's place and assignment, the old one's requests are
        fenced."""
        old = self.members[old_id]
        fenced = int(ErrorCode.FENCED_INSTANCE_ID)
        self.answer_join(old, JoinGroupResponse(member_id=old_id, protocol_name=None, error_code=fenced))
        self.answer_sync(old, SyncGroupResponse(error_code=fenced))
        new = ClassicMember(
            new_id,
            instance_id=old.instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members = {each.member_id: each for each in (new if m is old else m for m in self.members.values())}
        if self.leader_id == old_id:
            self.leader_id = new_id
        self.static_members[instance_id] = new_id
        return new

    def answer_join(self, member: ClassicMember, response: JoinGroupResponse) -> bool:
        """Answer the member's parked JoinGroup, if there is one."""
        waiter = member.awaiting_join
        if waiter is None:
            return False
        member.awaiting_join = None
        self.awaiting_joins -= 1
        waiter.answer(response)
        return True

    def answer_sync(self, member: ClassicMember, response: SyncGroupResponse) -> bool:
        """Answer the member's parked SyncGroup, if there is one."""
        pending = member.awaiting_sync
        if pending is None:
            return False
        member.awaiting_sync = None
        pending.complete(response)
        return True

    def all_members_joined(self) -> bool:
        return len(self.members) == self.awaiting_joins and not self.pending_joins

    def elect_joined_leader(self) -> bool:
        """Keep a leader that has joined, or choose the oldest member that has; False where none has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def last_joined(self) -> tuple[ClassicMember, int]:
        """The member whose JoinGroup came last of those that are parked, of which there is one at least, and when."""
        return max(
            ((member, member.awaiting_join.since_ms) for member in self.members.values() if member.awaiting_join),
            key=lambda each: each[1],
        )

    def rebalance_timeout_ms(self) -> int:
        """The longest of the members' rebalance timeouts."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def member_list(self) -> list[JoinGroupResponseMember]:
        """The members as the leader gets them, to assign partitions to."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]

    # -- protocols -----------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols may join: an empty group takes any; otherwise all members must support
        one of them."""
        if self.is_empty:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supported.get(name, 0) == count for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The protocol with the most votes. Each member votes for the first of its protocols that all members support;
        of protocols with as many votes, that which was voted for first is selected."""
        count = len(self.members)
        candidates = {name for name, supporters in self._supported.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(name for name, _ in member.protocols if name in candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _count_protocols(self, member: ClassicMember, by: int) -> None:
        for name, _ in member.protocols:
            self._supported[name] = self._supported.get(name, 0) + by

    def _compute_subscribed_topics(self) -> frozenset[str] | None:
        """Topics that consumers subscribe to; None where the group's protocol is not that of consumers, or their
        metadata cannot be read."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        return subscribed_topics_of(member.metadata(self.protocol_name) for member in self.members.values())

    def is_subscribed(self, topic: str) -> bool:
        """Whether members subscribe to `topic`; always true of a consumer group whose subscriptions cannot be read."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    # -- checks --------------------------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member holds the instance id."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> None:
        """Raises the error where this caller may not commit offsets now.

        A caller without member and generation (an admin client, or a consumer that assigns its partitions itself) may
        commit only while the group has no members. Transactional commits may also have neither: old producers do not
        send them.
        """
        if self.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and self.is_empty:
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation != self.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and not self.is_empty:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_deletable(self) -> None:
        """Raises NON_EMPTY_GROUP while the group has members, GROUP_ID_NOT_FOUND when it is dead."""
        if self.state is GroupState.DEAD:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is dead.")
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        """As `check_deletable`; but offsets of a consumer group may be deleted while it has members, those of topics
        that it does not subscribe to."""
        if self.state is GroupState.DEAD or not self.uses_consumer_protocol:
            self.check_deletable()
