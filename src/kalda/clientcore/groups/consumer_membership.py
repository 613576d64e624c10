"""A member of a consumer group of KIP-848: the coordinator assigns, the member reconciles.

Every request is a ConsumerGroupHeartbeat. The first has epoch 0 and everything that describes the member; later ones
only what has changed. The response may have a target assignment, by topic ids. The member moves towards it:

    STABLE       nothing to do but heartbeats
    RESOLVING    the names of some topic ids are not known yet: metadata is fetched
    COMMITTING   positions of the partitions that are to be given up are committed, where auto-commit is on
    RELEASING    the listener is called with them (lost, where the member was fenced)
    ACCEPTING    the listener is called with the new partitions
    then         a heartbeat at once, with the partitions that are owned now

A newer target that comes meanwhile is taken up afterwards. A fenced member gives all up and joins again, as epoch 0. A
member that does not poll for `max.poll.interval.ms` leaves (epoch -1), and joins again with the next poll.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.consumer_metrics import CoordinatorMetrics
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.groups.membership import (
    FENCING,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Call,
    Callback,
    CommitBeforeRebalance,
    HeartbeatMember,
    Membership,
    MembershipConfig,
    Target,
)
from kalda.clientcore.sharing.share_metrics import ShareConsumerMetrics
from kalda.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from kalda.protocol.messages.share import ShareGroupHeartbeatRequest

log = logging.getLogger(__name__)
_LEAVE_STATIC_EPOCH = -2


class ConsumerGroupPhase(Enum):
    """Where the member is in a reconciliation."""

    STABLE = "stable"
    RESOLVING = "resolving"
    COMMITTING = "committing"
    RELEASING = "releasing"
    ACCEPTING = "accepting"


class ConsumerMembership(HeartbeatMember, Membership):
    """One member of one KIP-848 group."""

    def __init__(
        self,
        config: MembershipConfig,
        member_id: str,
        subscription: Subscription,
        requests: Requests,
        commit: CommitBeforeRebalance,
        find_topic_ids: Callable[[Sequence[Uuid]], None],
        metrics: CoordinatorMetrics,
    ) -> None:
        """`find_topic_ids` requests the names of topics of which an assignment has the ids only."""
        Membership.__init__(self, config, subscription, requests, commit, metrics)
        self._init_heartbeats(member_id, find_topic_ids, metrics)
        self.phase = ConsumerGroupPhase.STABLE
        self._was_fenced = False
        """What is still assigned is lost; nothing is sent before the listener has returned."""
        self._to_release: tuple[TopicPartition, ...] = ()
        self._acknowledges = False
        """The next heartbeat names the owned partitions, at once."""
        self._has_lost_answer = False
        """An assignment may have been in an answer that was lost: the answer to a request with all fields has it."""
        self._sent_subscription: tuple[frozenset[str], str | None] | None = None
        """What the coordinator has of the subscription; None: nothing."""

    @property
    def may_commit(self) -> bool:
        """Whether the member's epoch is in force."""
        return self._is_member and not self._was_fenced

    @property
    def is_settled(self) -> bool:
        """No reconciliation is under way or needed."""
        return (
            self._is_member
            and self.phase is ConsumerGroupPhase.STABLE
            and self._target is None
            and not self._acknowledges
        )

    def group_metadata(self) -> GroupMetadata:
        """What commits name."""
        epoch = self.epoch if self.may_commit else -1
        return GroupMetadata(self._config.group_id, epoch, self.member_id, self._config.instance_id)

    def request_rejoin(self, reason: str) -> None:
        """The coordinator decides about rebalances; there is nothing to request."""
        log.info("group %s: a rebalance was requested (%s): the coordinator decides", self._config.group_id, reason)

    def on_commit_fenced(self, code: int) -> None:
        """A commit was refused: of a stale epoch the next heartbeat has a later one; an unknown member joins again."""
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            self._next_heartbeat_ms = 0
        elif code in FENCING:
            self._on_fenced(ErrorCode(code))

    # -- reconciliation

    def _step(self, is_polling: bool) -> None:
        if not is_polling or self.callback is not None:
            return
        if self._was_fenced and self.phase is ConsumerGroupPhase.STABLE:
            self._to_release = tuple(self._subscription.partitions)
            if self._to_release:
                self.phase = ConsumerGroupPhase.RELEASING
                self.callback = Callback(Call.LOST, self._to_release)
                return
            self._was_fenced = False
        if self.phase in (ConsumerGroupPhase.STABLE, ConsumerGroupPhase.RESOLVING) and self._target is not None:
            self._resolve()
        if self.phase is ConsumerGroupPhase.COMMITTING and (self._committing is None or self._committing.is_done):
            self._committing = None
            self.phase = ConsumerGroupPhase.RELEASING
            self.callback = Callback(Call.REVOKED, self._to_release)

    def _resolve(self) -> None:
        assert self._target is not None
        assignment = self._named(self._target)
        if assignment is None:
            self.phase = ConsumerGroupPhase.RESOLVING
            return
        self._assignment = assignment
        self._target = None
        self.phase = ConsumerGroupPhase.STABLE
        wanted = frozenset(self._assignment)
        self.metrics.on_rebalance_started(self._requests.now_ms)
        self._to_release = tuple(p for p in self._subscription.partitions if p not in wanted)
        if self._to_release:
            for partition in self._to_release:
                self._subscription.partitions[partition].is_revoking = True
            self.phase = ConsumerGroupPhase.COMMITTING
            self._committing = self._commit(list(self._to_release))
        else:
            self._accept()

    def on_callback_done(self) -> None:
        """The listener has returned, or has raised."""
        self.callback = None
        if self.phase is ConsumerGroupPhase.RELEASING:
            gone = frozenset(self._to_release)
            self._to_release = ()
            self._subscription.set_partitions([p for p in self._subscription.partitions if p not in gone])
            if self._was_fenced:
                self.phase = ConsumerGroupPhase.STABLE
                self._was_fenced = bool(self._subscription.partitions)
            else:
                self._accept()
        elif self.phase is ConsumerGroupPhase.ACCEPTING:
            self._begin_use()
            self.phase = ConsumerGroupPhase.STABLE
            if not self._was_fenced:
                self._acknowledges = True
                self.metrics.on_rebalance_ended(self._requests.now_ms)

    def _accept(self) -> None:
        self.phase = ConsumerGroupPhase.ACCEPTING
        self._put_in_force()

    # -- heartbeats

    def _heartbeat(self) -> None:
        now_ms = self._requests.now_ms
        subscribed = (self._subscription.topics, self._subscription.server_pattern)
        is_changed = subscribed != self._sent_subscription
        is_early = now_ms < self._next_heartbeat_ms and (self._failures or not (self._acknowledges or is_changed))
        if self._is_in_flight or self._was_fenced or is_early:
            return
        node_id = self._requests.coordinator()
        if node_id is None:
            return
        is_joining = self.epoch == JOIN_EPOCH
        request = self._request(self.epoch)
        says_all = is_joining or self._has_lost_answer
        if says_all:
            request.rack_id = self._config.rack or None
            request.rebalance_timeout_ms = self._config.max_poll_interval_ms
            request.server_assignor = self._config.remote_assignor
        if is_joining:
            request.topic_partitions = []
        if says_all or is_changed:
            request.subscribed_topic_names = sorted(subscribed[0])
            if subscribed[1] is not None or (self._sent_subscription or (None, None))[1] is not None:
                request.subscribed_topic_regex = subscribed[1] or ""
        if (self._acknowledges or says_all) and not is_joining:
            request.topic_partitions = self._owned_by_id()
        self._acknowledges = False
        self._sent_subscription = subscribed
        self._send_heartbeat(node_id, request)

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._config.instance_id,
        )

    def _owned_by_id(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        ids = {name: topic_id for topic_id, name in self.names_by_id.items()}
        ids.update({name: topic_id for topic_id, name in self._requests.metadata.topic_names.items()})
        owned: dict[str, list[int]] = {}
        for topic, index in sorted(self._subscription.partitions):
            owned.setdefault(topic, []).append(index)
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=ids[name], partitions=indexes)
            for name, indexes in owned.items()
            if name in ids
        ]

    def _on_target(self, target: Target) -> None:
        self._has_lost_answer = False
        self._target = target

    def _on_heartbeat_error(self, error: ApiError) -> None:
        self._has_lost_answer = True
        super()._on_heartbeat_error(error)

    def _forget_sent(self) -> None:
        self._sent_subscription = None

    def _is_fencing(self, code: ErrorCode) -> bool:
        """A group that has no such member any more may have become one of another kind."""
        return super()._is_fencing(code) or (code is ErrorCode.GROUP_ID_NOT_FOUND and self.epoch > JOIN_EPOCH)

    def _end_membership(self) -> None:
        super()._end_membership()
        self._acknowledges = False
        self._stop_returning()
        self._was_fenced = bool(self._subscription.partitions)
        if self.callback is None:
            self._committing = None
            self.phase = ConsumerGroupPhase.STABLE

    def _leave_for_silence(self) -> None:
        self._send_leave(None, LEAVE_EPOCH if self._config.instance_id is None else _LEAVE_STATIC_EPOCH)
        self._has_left = True
        self._end_membership()

    def begin_leave(self, leaves_group: bool | None, reason: str) -> Operation | None:
        """Leave. `leaves_group` None: dynamic members leave, static ones only release their partitions. Returns what to
        wait for; None where nothing is sent."""
        is_static = self._config.instance_id is not None and leaves_group is None
        epoch = _LEAVE_STATIC_EPOCH if is_static else LEAVE_EPOCH
        operation = self._leave(epoch, reason, is_sent=leaves_group is not False)
        self._was_fenced = False
        self.callback = None
        self.phase = ConsumerGroupPhase.STABLE
        return operation


class ShareMembership(HeartbeatMember):
    """A member of a share group (KIP-932): the coordinator assigns partitions, which other members may have too.

    Every request is a ShareGroupHeartbeat. The first has epoch 0 and what describes the member; later ones only what
    has changed. A new assignment is in force at once: no member has to give up anything first. A fenced member joins
    again, as epoch 0, with the partitions that it has until the next assignment. A member that does not poll for
    `max.poll.interval.ms` leaves (epoch -1), and joins again with the next poll.

    One member of one share group.
    """

    noun = "share group"

    def __init__(
        self,
        config: MembershipConfig,
        member_id: str,
        subscription: Subscription,
        requests: Requests,
        find_topic_ids: Callable[[Sequence[Uuid]], None],
        metrics: ShareConsumerMetrics,
    ) -> None:
        """`find_topic_ids` requests the names of topics of which an assignment has the ids only."""
        super().__init__(config, subscription, requests)
        self._init_heartbeats(member_id, find_topic_ids, metrics)
        self._metrics = metrics
        self._resolve_at_ms = 0
        """When the names of topics of the target are requested again."""
        self._sent_topics: frozenset[str] | None = None
        """What the coordinator has of the subscription; None: nothing."""

    def _step(self, is_polling: bool) -> None:
        if self._target is None:
            return
        assigned = self._named(self._target)
        if assigned is None:
            self._resolve_at_ms = self._requests.retry_at_ms()
            return
        self._target = None
        if frozenset(assigned) == frozenset(self._subscription.partitions):
            return
        self._subscription.set_partitions(assigned)
        self._metrics.rebalances.append(1)
        for topic in {partition.topic for partition in assigned}:
            self._requests.metadata.want(topic, self._requests.now_ms)

    def _step_due_ms(self) -> int | None:
        return None if self._target is None else self._resolve_at_ms

    # -- heartbeats

    def _heartbeat(self) -> None:
        now_ms = self._requests.now_ms
        topics = self._subscription.topics
        is_changed = topics != self._sent_topics
        if self._is_in_flight or (now_ms < self._next_heartbeat_ms and (self._failures or not is_changed)):
            return
        node_id = self._requests.coordinator()
        if node_id is None:
            return
        is_joining = self.epoch == JOIN_EPOCH
        request = self._request(self.epoch)
        if is_joining:
            request.rack_id = self._config.rack or None
        if is_joining or is_changed:
            request.subscribed_topic_names = sorted(topics)
        self._sent_topics = topics
        self._send_heartbeat(node_id, request)

    def _request(self, epoch: int) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(group_id=self._config.group_id, member_id=self.member_id, member_epoch=epoch)

    def _forget_sent(self) -> None:
        self._sent_topics = None

    def _leave_for_silence(self) -> None:
        self._send_leave(None, LEAVE_EPOCH)
        self._has_left = True
        self._end_membership()
        self._subscription.set_partitions(())

    def begin_leave(self, reason: str) -> Operation | None:
        """Leave. Returns what to wait for; None where nothing is sent."""
        return self._leave(LEAVE_EPOCH, reason)
