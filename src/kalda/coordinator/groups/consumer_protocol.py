"""ConsumerGroupHeartbeat: how members join, keep their place, get and give back partitions, and leave (KIP-848).

What heartbeats of all kinds do alike, and their order, is in `kind_protocol.py`.

A heartbeat whose answer was lost is sent again: with the epoch before, it is accepted as long as the member owns
nothing but what it was assigned. One that is older, or was forged, is fenced.

The target assignment is computed for the group epoch in steps, since a group may have thousands of members.

Version notes: 1+ (KIP-848): subscriptions by regular expression, and a member chooses its id itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from kalda.assignors.server_assignor import (
    AssignorError,
    GroupSpec,
    MemberPartitions,
    MemberSubscription,
    TargetAssignment,
    TopicShape,
)
from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, UuidSource, uuid_to_text
from kalda.base.patterns import BadPattern, re2_pattern
from kalda.base.scheduling import Pending
from kalda.base.stats import Meter
from kalda.coordinator.answers import write_error
from kalda.coordinator.groups.config import ConsumerSettings
from kalda.coordinator.groups.consumer_group import (
    AssignedPartitions,
    ConsumerGroup,
    ConsumerGroups,
    ConsumerMember,
    MemberState,
)
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from kalda.coordinator.groups.kind_protocol import KindProtocol
from kalda.coordinator.groups.rebalance_history import Cause
from kalda.coordinator.groups.records import GroupLogRecord, KindRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock
from kalda.protocol.access import DESCRIBE_TOPIC, Caller
from kalda.protocol.messages.group_records import ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue
from kalda.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

# The next state of a member of a consumer group, on the way from what it owns to its target assignment (KIP-848).
#
# A partition changes hands in three steps: its owner gets an assignment without it (UNREVOKED_PARTITIONS), says in a
# heartbeat that it no longer owns it, and only then another member gets it; that one waits meanwhile
# (UNRELEASED_PARTITIONS). So a partition never has two owners. A member comes to the epoch of the target when it has
# given back all that it must.
#
# Pure: what others own is looked up by a function.

OwnedPartitions: TypeAlias = Mapping[Uuid, Collection[int]]
"""What a member says that it owns, by topic id."""


class Reconciliation:
    """One step of one member."""

    def __init__(
        self,
        member: ConsumerMember,
        target_epoch: int,
        target: MemberPartitions,
        is_subscribed: Callable[[Uuid], bool],
        is_taken: Callable[[Uuid, int], bool],
        owned: OwnedPartitions | None,
    ) -> None:
        """`is_subscribed(topic_id)`: whether the member subscribes to the topic. `is_taken(topic_id, partition)`:
        whether another member owns it. `owned` is what the member has reported; None where it reported nothing."""
        self._member = member
        self._target_epoch = target_epoch
        self._target = target
        self._is_subscribed = is_subscribed
        self._is_taken = is_taken
        self._owned = owned

    def next_member(self, *, subscription_changed: bool) -> ConsumerMember:
        """The member after this step, or itself. Raises FENCED_MEMBER_EPOCH for a member in a state of a later
        release."""
        member = self._member
        if member.state is MemberState.STABLE:
            if member.epoch != self._target_epoch:
                return self._advance(member.epoch)
            return self._give_up_unsubscribed() if subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS and self._still_owns(member.revoking):
            return self._give_up_unsubscribed() if subscription_changed else member
        if member.state is MemberState.UNKNOWN:
            if self._owned is None or any(self._owned.values()):
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in an unknown state. The member must abandon all its partitions and "
                    "rejoin.",
                )
            return self._advance(self._target_epoch)
        return self._advance(member.epoch)

    def _still_owns(self, revoking: AssignedPartitions) -> bool:
        """A member that does not say what it owns may own all of it."""
        if self._owned is None:
            return True
        return any(
            not partitions.keys().isdisjoint(self._owned.get(topic_id, ())) for topic_id, partitions in revoking.items()
        )

    def _give_up_unsubscribed(self) -> ConsumerMember:
        """Only topics that the member no longer subscribes to are taken away."""
        member = self._member
        assigned = {topic: partitions for topic, partitions in member.assigned.items() if self._is_subscribed(topic)}
        if len(assigned) == len(member.assigned):
            return member
        revoking = {topic: dict(partitions) for topic, partitions in member.revoking.items()}
        for topic, partitions in member.assigned.items():
            if topic not in assigned:
                revoking.setdefault(topic, {}).update(partitions)
        if self._still_owns(revoking):
            return _at_epoch(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
        return _at_epoch(member, member.epoch, member.state, assigned, member.revoking)

    def _advance(self, epoch: int) -> ConsumerMember:
        """Towards the target: `epoch` is kept until nothing is to be given back."""
        member, target_epoch = self._member, self._target_epoch
        kept: dict[Uuid, dict[int, int]] = {}
        revoking: dict[Uuid, dict[int, int]] = {}
        for topic, partitions in member.assigned.items():
            wanted = self._target.get(topic, frozenset()) if self._is_subscribed(topic) else frozenset()
            for partition, since in partitions.items():
                (kept if partition in wanted else revoking).setdefault(topic, {})[partition] = since
        if revoking and self._still_owns(revoking):
            return _at_epoch(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        waits = False
        for topic, wanted in self._target.items():
            if not self._is_subscribed(topic):
                continue
            held: Mapping[int, int] = member.assigned.get(topic, {})
            for partition in wanted:
                if partition in held:
                    continue
                if self._is_taken(topic, partition):
                    waits = True
                else:
                    kept.setdefault(topic, {})[partition] = target_epoch
        state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
        return _at_epoch(member, target_epoch, state, kept, {})


def _at_epoch(
    member: ConsumerMember,
    epoch: int,
    state: MemberState,
    assigned: AssignedPartitions,
    revoking: AssignedPartitions,
) -> ConsumerMember:
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking)


log = logging.getLogger(__name__)

_MEMBER_ID_REQUIRED_FROM = 1
_REGEX_MIN_INTERVAL_MS = 10_000
"""Regular expressions of a group are not resolved more often."""


class ConsumerProtocol(KindProtocol[ConsumerGroup]):
    """Heartbeats on the consumer groups of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        groups: ConsumerGroups,
        settings: ConsumerSettings,
        timers: CoordinatorTimer,
        clock: EventClock,
        new_uuid: UuidSource,
        rebalances: Meter,
        ending_of_former: Callable[[str], list[GroupLogRecord]],
    ) -> None:
        """`ending_of_former(group_id)` gives the records that end a group of another kind, whose id a member joins; it
        raises `ApiError` where that group cannot be ended. `rebalances` counts group epochs."""
        assigner = PartitionAssigner(settings)
        super().__init__(partition, groups, settings.config, assigner, timers, clock, rebalances)
        self._groups = groups
        self._config = settings.config
        self._catalog = settings.catalog
        self._assignors = assigner.names
        self._new_uuid = new_uuid
        self._ending_of_former = ending_of_former
        self._resolving: set[str] = set()
        """Groups whose regular expressions are being resolved."""

    def heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]:
        """Answered when what it has changed is committed; at once where nothing is to be. Raises `ApiError`."""
        check_heartbeat(request, caller.api_version, self._assignors)
        if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            return self._leave(request)
        member_id = request.member_id or uuid_to_text(self._new_uuid())
        group, old, member = self._enter(caller, request, member_id)
        self._resolve_regexes(caller, group)
        self.assign(group)
        changed = member.topics != old.topics or member.regex != old.regex
        owned = _owned(request)
        member = self.reconcile(group, member_id, owned, subscription_changed=changed)
        self._groups.start_session(group, member_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._config.heartbeat_interval_ms(request.group_id),
        )
        if _is_full(request) or member.assigned != old.assigned or _may_have_missed(owned, member.assigned):
            response.assignment = _assignment(member.assigned)
        return self._partition.after_commit(response)

    def _owns_assigned(self, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
        assigned = member.assigned
        return request.topic_partitions is not None and all(
            assigned.get(topic.topic_id, {}).keys() >= set(topic.partitions) for topic in request.topic_partitions
        )

    # -- joining, and what the member says of itself ---------------------------------------------------------------

    def _enter(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, member_id: str
    ) -> tuple[ConsumerGroup, ConsumerMember, ConsumerMember]:
        """The group, the member as it was before this heartbeat, and as it is now. Writes what has changed, and the
        group epoch with it."""
        records: list[GroupLogRecord] = []
        group = self._groups.groups.get(request.group_id)
        joins = request.member_epoch == JOINING_EPOCH
        if group is None:
            if not joins:
                raise self._groups.missing_of_member(request.group_id)
            records += self._ending_of_former(request.group_id)
            group = ConsumerGroup(request.group_id, self._partition.registry)
            for record in records:
                if isinstance(record, KindRecord):
                    self._groups.apply(group, record)
        self.check_size(group, member_id, request.instance_id)
        instance_id = request.instance_id
        old: ConsumerMember = self._sender(group, request, member_id, instance_id, records)
        counted = group.members.get(member_id) if instance_id is None else group.static_member(instance_id)
        member = _updated(old, caller, request)
        return self.write_member(group, counted, old, member, records), old, member

    def write_member(
        self,
        group: ConsumerGroup,
        counted: ConsumerMember | None,
        old: ConsumerMember,
        member: ConsumerMember,
        records: list[GroupLogRecord],
    ) -> ConsumerGroup:
        """Write `records`, how `member` differs from `old`, and the next group epoch where that or the topics call for
        one; the group as it is then. `counted` is the member that the group's subscriptions count in its place."""
        if member != old:
            records.append(group.member_record(member))
        epoch = group.epochs.group
        is_raised = self._raise_epoch(group, counted, old, member, records)
        if is_raised:
            self._groups.settle(group)
        if records:
            self._partition.write_now(records)
            if is_raised:
                self._groups.note_epoch(group, epoch, _cause(counted, old, member))
            made = self._groups.groups.get(group.group_id, group)
            if made is not group:
                for member_id in made.members:
                    self._groups.start_session(made, member_id)
            group = made
        group.needs_refresh = False
        return group

    def _raise_epoch(
        self,
        group: ConsumerGroup,
        counted: ConsumerMember | None,
        old: ConsumerMember,
        member: ConsumerMember,
        records: list[GroupLogRecord],
    ) -> bool:
        """Add the next group epoch to `records` where the member subscribes to something else, or topics have changed.
        `counted` is the member that the group's subscriptions count in its place."""
        names_changed = member.topics != old.topics
        regex_removed: list[str] = []
        resolved = False
        if member.regex != old.regex:
            if member.regex and not group.subscribers_of(member.regex):
                check_regex(member.regex)
            resolved = member.regex in group.regexes if member.regex else bool(old.regex)
            if old.regex and group.subscribers_of(old.regex) == 1:
                records += group.tombstones_of_regexes([old.regex])
                regex_removed = list(group.regexes[old.regex].topics) if old.regex in group.regexes else []
        is_due = names_changed or resolved
        if not is_due and not group.needs_refresh:
            return False
        removed = [*(counted.topics if counted is not None else ()), *regex_removed]
        metadata_hash = self._catalog.hash_of(group.subscribed_after(removed, member.topics))
        is_raised = is_due or metadata_hash != group.epochs.metadata_hash
        if is_raised:
            epoch = group.epochs.group + 1
            records.append(group.epoch_record(epoch, metadata_hash))
            self._count_epoch(group, epoch)
        if group.epochs.has_partition_metadata:
            records.append(group.partition_metadata_tombstone())
        return is_raised

    # -- the member's way to its target ------------------------------------------------------------------------------

    def reconcile(
        self,
        group: ConsumerGroup,
        member_id: str,
        owned: OwnedPartitions | None,
        *,
        subscription_changed: bool,
    ) -> ConsumerMember:
        """The member's next step towards its target, written where it changes the member. `owned` is what it says that
        it owns; None where it says nothing."""
        member, epoch = group.members[member_id], group.epochs.assignment
        if not subscription_changed and member.is_reconciled(epoch):
            return member
        subscribed = {
            found[0] for name in group.topics_of(member) if (found := self._catalog.shape_of(name)) is not None
        }
        step = Reconciliation(
            member,
            epoch,
            group.target(member_id),
            subscribed.__contains__,
            lambda topic_id, partition: group.is_taken(member_id, topic_id, partition),
            owned,
        )
        following: ConsumerMember = self._take_step(
            group, member, step.next_member(subscription_changed=subscription_changed)
        )
        return following

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> Pending[ConsumerGroupHeartbeatResponse]:
        epoch = request.member_epoch
        self._end(request.group_id, request.member_id, request.instance_id, epoch)
        response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=epoch)
        return self._partition.write_with([], response)

    def remove_members(self, group: ConsumerGroup, member_ids: Iterable[str], what: str, reason: str = "") -> None:
        """Remove members; `what` has happened to them. Raises `ApiError`."""
        error = self._groups.remove_members(group, member_ids, what, reason).error
        if error is not None:
            raise ApiError(write_error(error.code), error.message)

    # -- regular expressions ---------------------------------------------------------------------------------------

    def _resolve_regexes(self, caller: Caller, group: ConsumerGroup) -> None:
        """Resolve the group's regular expressions where one is new, a topic was made, or much time has passed; all of
        them together, so that they cause one rebalance."""
        patterns = list(group.subscribed_regexes)
        if not patterns or group.group_id in self._resolving:
            return
        last = next(iter(group.regexes.values()), None)
        now_ms = self._clock.wall_ms()
        if last is not None and last.timestamp_ms <= now_ms:  # else the clock that it is of was ahead of this one
            if now_ms <= last.timestamp_ms + _REGEX_MIN_INTERVAL_MS:
                return
            if (
                len(patterns) == len(group.regexes)
                and last.version >= self._catalog.created_offset
                and now_ms <= last.timestamp_ms + self._config.regex_refresh_interval_ms
            ):
                return
        self._resolving.add(group.group_id)
        self._timers.run(self._resolve(caller, group, patterns, now_ms))

    def _resolve(self, caller: Caller, group: ConsumerGroup, patterns: Collection[str], now_ms: int) -> Steps[None]:
        try:
            version = self._catalog.offset
            resolved = yield from resolve_regexes(caller, patterns, self._catalog.names())
            if self._is_live(group):
                epoch = group.epochs.group
                self._groups.settle(group)
                self._partition.write_now(self._resolved(group, resolved, version, now_ms))
                if group.epochs.group > epoch:
                    self._groups.note_epoch(group, epoch, Cause("a regular expression matches other topics"))
        except ApiError as error:
            log.error("group %s: its regular expressions are not resolved: %s", group.group_id, error)
        finally:
            self._resolving.discard(group.group_id)

    def _resolved(
        self, group: ConsumerGroup, resolved: Mapping[str, frozenset[str]], version: int, now_ms: int
    ) -> list[GroupLogRecord]:
        records: list[GroupLogRecord] = []
        removed: list[str] = []
        added: list[str] = []
        is_due = False
        for pattern, topics in resolved.items():
            if not group.subscribers_of(pattern):
                continue
            old = group.regexes.get(pattern)
            before = frozenset[str]() if old is None else old.topics
            is_due |= before != topics
            removed += before
            added += topics
            key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern)
            value = ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=now_ms)
            records.append(KindRecord(group.group_id, key, value))
        metadata_hash = self._catalog.hash_of(group.subscribed_after(removed, added))
        if is_due or metadata_hash != group.epochs.metadata_hash:
            records.append(group.epoch_record(group.epochs.group + 1, metadata_hash))
            self._rebalances.record(1, self._clock.now_ms())
        return records


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]) -> None:
    """Raises INVALID_REQUEST and UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if version >= _MEMBER_ID_REQUIRED_FROM or epoch > 0 or epoch == LEAVING_EPOCH:
        _require(bool(request.member_id.strip()), "MemberId can't be empty.")
    _require(bool(request.group_id.strip()), "GroupId can't be empty.")
    _require(request.instance_id is None or bool(request.instance_id.strip()), "InstanceId can't be empty.")
    _require(request.rack_id is None or bool(request.rack_id.strip()), "RackId can't be empty.")
    if epoch == JOINING_EPOCH:
        _require(request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
        _require(request.topic_partitions == [], "TopicPartitions must be empty when (re-)joining.")
        _require(
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    elif epoch == STATIC_LEAVING_EPOCH:
        _require(request.instance_id is not None, "InstanceId can't be null.")
    else:
        _require(epoch >= STATIC_LEAVING_EPOCH, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def _updated(old: ConsumerMember, caller: Caller, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """The member as this heartbeat describes it; what it leaves out stays."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms, rack, assignor = request.rebalance_timeout_ms, request.rack_id, request.server_assignor
    return replace(
        old,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack=old.rack if rack is None else rack,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=old.assignor if assignor is None else assignor,
        topics=old.topics if names is None else frozenset(names),
        regex=old.regex if regex is None else regex,
        client_id=caller.client_id or "",
        client_host=f"/{caller.client_host}",
        classic=None,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> OwnedPartitions | None:
    if request.topic_partitions is None:
        return None
    owned: dict[Uuid, set[int]] = {}
    for topic in request.topic_partitions:
        owned.setdefault(topic.topic_id, set()).update(topic.partitions)
    return owned


def _cause(counted: ConsumerMember | None, old: ConsumerMember, member: ConsumerMember) -> Cause:
    """Why a heartbeat raised the group epoch."""
    if counted is None:
        return Cause("joined", (member,))
    if member.topics != old.topics or member.regex != old.regex:
        return Cause("subscribes to other topics", (member,))
    return Cause("topics that the group subscribes to have changed")


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member joins, or says all of itself since it does not know what the coordinator has received: it
    gets its whole assignment."""
    return request.member_epoch == JOINING_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _may_have_missed(owned: OwnedPartitions | None, assigned: AssignedPartitions) -> bool:
    """Whether the member says that it owns something else than it was assigned. The answer with the assignment may have
    been that of a request which came after its client had given it up."""
    return owned is not None and {topic_id: numbers for topic_id, numbers in owned.items() if numbers} != {
        topic_id: partitions.keys() for topic_id, partitions in assigned.items()
    }


def _assignment(assigned: AssignedPartitions) -> ConsumerGroupHeartbeatResponseAssignment:
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=list(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )


_WORK_A_STEP = 500_000
"""Instructions of a pattern, times the characters of topic names."""


def check_regex(pattern: str) -> None:
    """Raises INVALID_REGULAR_EXPRESSION."""
    try:
        re2_pattern(pattern)
    except BadPattern as error:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern[:100]}` is not a valid regular expression: {error}.",
        ) from None


def resolve_regexes(
    caller: Caller, patterns: Collection[str], topics: Sequence[str]
) -> Steps[dict[str, frozenset[str]]]:
    """The topics that each pattern matches and the caller may describe. A pattern that cannot be compiled here, as
    another product may have accepted it, matches none."""
    resolved: dict[str, frozenset[str]] = {}
    allowed: dict[str, bool] = {}
    work = 0
    for text in patterns:
        found: set[str] = set()
        try:
            pattern = re2_pattern(text)
        except BadPattern:
            resolved[text] = frozenset()
            continue
        for topic in topics:
            work += pattern.size * (len(topic) + 1)
            if work >= _WORK_A_STEP:
                work = 0
                yield
            if pattern.matches(topic):
                if topic not in allowed:
                    allowed[topic] = DESCRIBE_TOPIC.holds_quietly(caller, topic)
                if allowed[topic]:
                    found.add(topic)
        resolved[text] = frozenset(found)
    return resolved


_SMALL = 500
"""Members and partitions together."""
_MEMBERS_A_STEP = 100
_PARTITIONS_A_STEP = 5_000


class PartitionAssigner:
    """Computes the target assignments of one shard's groups."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._assignors = settings.assignors
        self._find_topic = settings.catalog.shape_of

    @property
    def names(self) -> Collection[str]:
        """Of the assignors, the default first."""
        return self._assignors.keys()

    @property
    def default(self) -> str:
        """The assignor of a group whose members ask for none."""
        return next(iter(self._assignors))

    def target(self, group: ConsumerGroup) -> Steps[tuple[TargetAssignment, str]]:
        """By member, and the name of the assignor. Raises `AssignorError`."""
        preferred = group.preferred_assignor(self.default)
        assignor = self._assignors.get(preferred) or self._assignors[self.default]
        spec = yield from self._spec(group)
        target = yield from assignor.assign(spec)
        yield from check_target(spec, target)
        return target, assignor.name

    def is_small(self, group: ConsumerGroup) -> bool:
        """Whether the target takes some milliseconds at most, so that a member need not wait for its next heartbeat to
        get it."""
        size = len(group.members)
        for name in group.subscribed_topics:
            if size > _SMALL:
                return False
            found = self._find_topic(name)
            size += 1 if found is None else found[1].partitions
        return size <= _SMALL

    def _spec(self, group: ConsumerGroup) -> Steps[GroupSpec]:
        names: dict[str, Uuid | None] = {}
        topics: dict[Uuid, TopicShape] = {}
        ids_of: dict[frozenset[str], frozenset[Uuid]] = {}

        def resolve(subscribed: frozenset[str]) -> frozenset[Uuid]:
            for name in subscribed:
                if name not in names:
                    found = self._find_topic(name)
                    names[name] = None if found is None else found[0]
                    if found is not None:
                        topics[found[0]] = found[1]
            return frozenset(topic_id for name in subscribed if (topic_id := names[name]) is not None)

        members: dict[str, MemberSubscription] = {}
        for count, member in enumerate(list(group.members.values()), 1):
            subscribed = group.topics_of(member)
            if subscribed not in ids_of:
                ids_of[subscribed] = resolve(subscribed)
            members[member.member_id] = MemberSubscription(ids_of[subscribed], member.rack, member.instance_id)
            if count % _MEMBERS_A_STEP == 0:
                yield
        current = {member_id: group.targets[member_id] for member_id in members if member_id in group.targets}
        return GroupSpec(members, current, topics)


def check_target(spec: GroupSpec, target: TargetAssignment) -> Steps[None]:
    """Raises `AssignorError` unless every member has a target of partitions that exist and that it subscribes to, and
    no partition has two. An assignor may be a user's."""
    if target.keys() != spec.members.keys():
        raise AssignorError("the assignment does not have all members of the group, or has others")
    assigned: dict[Uuid, set[int]] = {}
    done = 0
    for member_id, partitions in target.items():
        subscribed = spec.members[member_id].topics
        for topic_id, numbers in partitions.items():
            if topic_id not in subscribed:
                raise AssignorError(f"member {member_id} gets a topic that it does not subscribe to")
            taken, done = assigned.setdefault(topic_id, set()), done + len(numbers)
            if not taken.isdisjoint(numbers):
                raise AssignorError(f"a partition of {spec.topics[topic_id].name} is assigned to two members")
            taken |= numbers
        if done >= _PARTITIONS_A_STEP:
            done = 0
            yield
    for topic_id, all_numbers in assigned.items():
        shape = spec.topics[topic_id]
        if all_numbers and not (min(all_numbers) >= 0 and max(all_numbers) < shape.partitions):
            raise AssignorError(f"a partition that {shape.name} does not have is assigned")
