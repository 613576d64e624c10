"""ShareGroupHeartbeat: how members of share groups join, keep their place, get partitions, and leave (KIP-932).

What heartbeats of all kinds do alike, and their order, is in `kind_protocol.py`.

Partitions that the group subscribes to and that have no state yet are initialized at the share coordinator, behind the
answer. They are assigned by the heartbeat that finds them initialized.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from kalda.assignors.server_assignor import (
    MAX_ASSIGNED,
    GroupSpec,
    MemberPartitions,
    MemberSubscription,
    TopicShape,
)
from kalda.assignors.simple_assignor import SimpleAssignor
from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import MAX_MEMBER_ID, NO_OFFSET, SharePartitionKey
from kalda.base.stats import Meter
from kalda.coordinator.groups.config import ShareGroupSettings, TopicCatalog
from kalda.coordinator.groups.kind_group import JOINING_EPOCH, LEAVING_EPOCH
from kalda.coordinator.groups.kind_protocol import KindProtocol
from kalda.coordinator.groups.rebalance_history import Cause
from kalda.coordinator.groups.records import GroupLogRecord
from kalda.coordinator.groups.share_group import ShareGroup, ShareGroups, ShareMember, Topic
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock, TimerTask
from kalda.protocol.access import Caller
from kalda.protocol.messages.share import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)

log = logging.getLogger(__name__)

_LONGEST_BEGINNING_MS = 1_000


class ShareProtocol(KindProtocol[ShareGroup]):
    """Heartbeats on the share groups of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        groups: ShareGroups,
        settings: ShareGroupSettings,
        timers: CoordinatorTimer,
        clock: EventClock,
        rebalances: Meter,
    ) -> None:
        """`rebalances` counts group epochs."""
        assigner = _ShareAssigner(settings.catalog)
        super().__init__(partition, groups, settings.config, assigner, timers, clock, rebalances)
        self._groups = groups
        self._config = settings.config
        self._catalog = settings.catalog
        self._states = settings.states
        self._beginnings: dict[str, Pending[None]] = {}
        """Groups whose first partitions are being initialized."""

    def heartbeat(
        self, caller: Caller, request: ShareGroupHeartbeatRequest, *, is_taken: bool
    ) -> ShareGroupHeartbeatResponse | Pending[ShareGroupHeartbeatResponse]:
        """Answered when what it has changed is committed; at once where nothing is to be. A member that joins a group
        which begins waits for its first partitions: its next heartbeat would come after seconds. `is_taken`: a group
        of another kind has the id. The request is checked (`check_heartbeat`). Raises `ApiError`."""
        if request.member_epoch == LEAVING_EPOCH:
            return self._leave(request)
        group, old, is_raised = self._enter(caller, request, is_taken=is_taken)
        beginning = self._begin(group) if request.member_epoch == JOINING_EPOCH else None
        if beginning is not None:
            return beginning.and_then(lambda _: self._answer(request, old, is_raised))
        return self._answer(request, old, is_raised)

    def _answer(
        self, request: ShareGroupHeartbeatRequest, old: ShareMember, is_raised: bool
    ) -> ShareGroupHeartbeatResponse | Pending[ShareGroupHeartbeatResponse]:
        """To a member that has come in, and was `old` before. Raises `ApiError`."""
        if not self._partition.is_active:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        group = self._groups.get(request.group_id)
        self.assign(group)
        member = self._with_target(group, request.member_id, subscription_changed=is_raised)
        self._groups.start_session(group, request.member_id)
        response = ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._config.heartbeat_interval_ms(request.group_id),
        )
        missed_answer = request.member_epoch != old.epoch
        if missed_answer or request.subscribed_topic_names is not None or member.assigned != old.assigned:
            response.assignment = _assignment(member.assigned)
        self._initialize(group)
        return self._partition.after_commit(response)

    # -- joining, and what the member says of itself ---------------------------------------------------------------

    def _enter(
        self, caller: Caller, request: ShareGroupHeartbeatRequest, *, is_taken: bool
    ) -> tuple[ShareGroup, ShareMember, bool]:
        """The group, the member as it was before this heartbeat, and whether the group epoch was raised."""
        group = self._groups.groups.get(request.group_id)
        joins = request.member_epoch == JOINING_EPOCH
        if group is None:
            if not joins or is_taken:
                raise self._groups.missing_of_member(request.group_id)
            group = ShareGroup(request.group_id, self._partition.registry)
        self.check_size(group, request.member_id)
        records: list[GroupLogRecord] = []
        old: ShareMember = self._sender(group, request, request.member_id, None, records)
        epoch, is_new = group.epochs.group, old.member_id not in group.members
        member = _updated(old, caller, request)
        if member != old:
            records.append(group.member_record(member))
        cause = self._raise_epoch(group, old, member, records)
        if cause is not None:
            self._groups.settle(group)
        if records:
            self._partition.write_now(records)
            group = self._groups.groups.get(request.group_id, group)
        if cause is not None:
            self._groups.note_epoch(group, epoch, Cause("joined", (member,)) if is_new else cause)
        group.needs_refresh = False
        return group, old, cause is not None

    def _owns_assigned(self, member: ShareMember, request: ShareGroupHeartbeatRequest) -> bool:
        """Others may have its partitions too."""
        return True

    def _raise_epoch(
        self, group: ShareGroup, old: ShareMember, member: ShareMember, records: list[GroupLogRecord]
    ) -> Cause | None:
        """Add the next group epoch to `records`, where the member subscribes to something else, topics have changed, or
        partitions were initialized since the last assignment; returns which of them."""
        epochs = group.epochs
        is_due = member.topics != old.topics or (epochs.assignment >= epochs.group and group.has_unassigned)
        if not is_due and not group.needs_refresh:
            return None
        metadata_hash = self._catalog.hash_of(group.subscribed_after(old.topics, member.topics))
        if not is_due and metadata_hash == epochs.metadata_hash:
            return None
        records.append(group.epoch_record(epochs.group + 1, metadata_hash))
        self._count_epoch(group, epochs.group + 1)
        if member.topics != old.topics:
            return Cause("subscribes to other topics", (member,))
        return Cause("partitions were initialized" if is_due else "topics that the group subscribes to have changed")

    # -- the member's way to its target ------------------------------------------------------------------------------

    def _with_target(self, group: ShareGroup, member_id: str, *, subscription_changed: bool) -> ShareMember:
        """The member with its target, written where that is something else than what it had."""
        member, epoch = group.member(member_id), group.epochs.assignment
        if member.epoch == epoch and not subscription_changed:
            return member
        shapes = (self._catalog.shape_of(name) for name in member.topics)
        subscribed = {found[0] for found in shapes if found is not None}
        target = {topic_id: each for topic_id, each in group.target(member_id).items() if topic_id in subscribed}
        following = replace(member, assigned=target)
        if member.epoch != epoch:
            following = replace(following, epoch=epoch, previous_epoch=member.epoch)
        if following != member:
            self._partition.write_now([group.assignment_record(following)])
        if following.epoch != member.epoch:
            self._groups.note_reconciled(group, following)
        return following

    # -- initialization --------------------------------------------------------------------------------------------

    def _begin(self, group: ShareGroup) -> Pending[None] | None:
        """Have the first partitions of a group initialized. Settles when they are, cannot be, or take long; None in a
        group that has some."""
        group_id = group.group_id
        if group.initialization.initialized:
            return None
        if group_id not in self._beginnings:
            beginning = self._beginnings[group_id] = Pending()
            self._initialize(group)
            if not beginning.done:
                late = TimerTask(lambda _: self._end_beginning(group_id))
                self._timers.arm(late, self._clock.now_ms() + _LONGEST_BEGINNING_MS)
        return self._beginnings.get(group_id)

    def _end_beginning(self, group_id: str) -> None:
        beginning = self._beginnings.pop(group_id, None)
        if beginning is not None:
            beginning.complete(None)

    def _initialize(self, group: ShareGroup) -> None:
        """Have the state of partitions begun that are subscribed to and not initialized, nor being initialized."""
        topics = self._uninitialized(group)
        if not topics:
            self._end_beginning(group.group_id)
            return
        state_epoch = group.epochs.group
        self._partition.write_now([group.initialization_record(group.initialization.begun(topics))])
        keys = {
            SharePartitionKey(group.group_id, topic_id, number): NO_OFFSET
            for topic_id, topic in topics.items()
            for number in topic.partitions
        }

        def on_initialized(errors: dict[SharePartitionKey, ApiError | None] | None, _: ApiError | None) -> None:
            present = self._groups.groups.get(group.group_id)
            if present is not None and self._partition.is_active:
                held = present.initialization
                error = next((each for each in (errors or {}).values() if each is not None), None)
                if error is not None:
                    log.warning("group %s: partitions are not initialized: %s", group.group_id, error)
                record = present.initialization_record(held.done(topics) if error is None else held.failed(topics))
                self._partition.write([record])
            self._end_beginning(group.group_id)

        self._states.initialize(keys, state_epoch).then(on_initialized)

    def _uninitialized(self, group: ShareGroup) -> dict[Uuid, Topic]:
        """Partitions without state, as far as the group may have them. Those whose initialization has no answer for
        long are among them."""
        now_ms = self._clock.wall_ms()
        held = group.initialization
        room = MAX_ASSIGNED - sum(len(each.partitions) for each in held.initialized.values())
        limit_ms = now_ms - self._config.initialize_retry_interval_ms
        topics: dict[Uuid, Topic] = {}
        for name in group.subscribed_topics:
            found = self._catalog.shape_of(name)
            if found is None:
                continue
            topic_id, shape = found
            initialized = held.initialized.get(topic_id)
            if initialized is not None and len(initialized.partitions) >= shape.partitions:
                continue
            present: frozenset[int] = frozenset()
            for known, is_recent in (
                (initialized, True),
                (held.initializing.get(topic_id), False),
            ):
                # A time ahead of the clock says nothing: the clock was set back.
                if known is not None and (is_recent or limit_ms < known.since_ms <= now_ms):
                    present |= known.partitions
            missing = frozenset(range(shape.partitions)) - present
            if len(missing) > room > 0:
                missing = frozenset(sorted(missing)[:room])
                log.warning("group %s: of its partitions %d are consumed, no more", group.group_id, MAX_ASSIGNED)
            if missing and room > 0:
                topics[topic_id] = Topic(name, missing, now_ms)
                room -= len(missing)
        return topics

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _leave(self, request: ShareGroupHeartbeatRequest) -> Pending[ShareGroupHeartbeatResponse]:
        self._end(request.group_id, request.member_id)
        response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVING_EPOCH)
        return self._partition.write_with([], response)


class _ShareAssigner:
    """Computes the target assignments of one shard's share groups."""

    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog = catalog
        self._assignor = SimpleAssignor()

    def is_small(self, group: ShareGroup) -> bool:
        """A group has few members (`group.share.max.size`)."""
        return True

    def target(self, group: ShareGroup) -> Steps[tuple[Mapping[str, MemberPartitions], str]]:
        """By member, of the partitions that are initialized, and the name of the assignor."""
        initialized = {topic_id: topic.partitions for topic_id, topic in group.initialization.initialized.items()}
        target = yield from self._assignor.assign(self._spec(group), initialized)
        return target, self._assignor.name

    def _spec(self, group: ShareGroup) -> GroupSpec:
        ids: dict[str, Uuid] = {}
        topics: dict[Uuid, TopicShape] = {}
        for name in group.subscribed_topics:
            found = self._catalog.shape_of(name)
            if found is not None:
                ids[name] = found[0]
                topics[found[0]] = found[1]
        members = {
            member.member_id: MemberSubscription(
                frozenset(ids[name] for name in member.topics if name in ids), member.rack
            )
            for member in group.members.values()
        }
        current = {member_id: group.targets[member_id] for member_id in members if member_id in group.targets}
        return GroupSpec(members, current, topics)


def check_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST."""
    if not request.member_id.strip():
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if len(request.member_id) > MAX_MEMBER_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"MemberId can't be longer than {MAX_MEMBER_ID} characters.")
    if not request.group_id.strip():
        raise ApiError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise ApiError(ErrorCode.INVALID_REQUEST, "RackId can't be empty.")
    if request.member_epoch == JOINING_EPOCH and not request.subscribed_topic_names:
        raise ApiError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVING_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")


def _updated(member: ShareMember, caller: Caller, request: ShareGroupHeartbeatRequest) -> ShareMember:
    """The member as the request has it; what the request leaves out stays."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack=member.rack if request.rack_id is None else request.rack_id,
        client_id=caller.client_id or "",
        client_host=f"/{caller.client_host}",
        topics=member.topics if names is None else frozenset(names),
    )


def _assignment(assigned: MemberPartitions | Mapping[Uuid, frozenset[int]]) -> ShareGroupHeartbeatResponseAssignment:
    return ShareGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ShareGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in assigned.items()
        ]
    )
