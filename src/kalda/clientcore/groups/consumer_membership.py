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
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.commits import GroupMetadata
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.consumer_metrics import CoordinatorMetrics
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.groups.membership import (
    Call,
    Callback,
    CommitBeforeRebalance,
    Membership,
    MembershipConfig,
)
from kalda.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)

log = logging.getLogger(__name__)
_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_STATIC_EPOCH = -2
_FENCING = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class ConsumerGroupPhase(Enum):
    """Where the member is in a reconciliation."""

    STABLE = "stable"
    RESOLVING = "resolving"
    COMMITTING = "committing"
    RELEASING = "releasing"
    ACCEPTING = "accepting"


class ConsumerMembership(Membership):
    """One member of one KIP-848 group. Its id is its own choice, for the life of the consumer."""

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
        super().__init__(config, subscription, requests, commit, metrics)
        self._find_topic_ids = find_topic_ids
        self.member_id = member_id
        self.epoch = _JOIN_EPOCH
        self.phase = ConsumerGroupPhase.STABLE
        self.names_by_id: dict[Uuid, str] = {}
        """Topics that were resolved for assignments."""
        self._is_member = False
        """A heartbeat was accepted in this membership."""
        self._was_fenced = False
        """What is still assigned is lost; nothing is sent before the listener has returned."""
        self._target: dict[Uuid, tuple[int, ...]] | None = None
        """The last assignment that the coordinator has sent and that is not in force."""
        self._to_release: tuple[TopicPartition, ...] = ()
        self._is_in_flight = False
        self._acknowledges = False
        """The next heartbeat names the owned partitions, at once."""
        self._has_lost_answer = False
        """An assignment may have been in an answer that was lost: the answer to a request with all fields has it."""
        self._sent_subscription: tuple[frozenset[str], str | None] | None = None
        """What the coordinator has of the subscription; None: nothing."""
        self._next_heartbeat_ms = 0
        self._interval_ms = config.heartbeat_interval_ms
        self._failures = 0

    def run(self, is_polling: bool) -> None:
        """Take the next steps. `is_polling`: the application is in a call of `poll`."""
        self._watch_polls(is_polling, self._is_member)
        if self._has_left or self.error is not None or not self._subscription.is_by_group:
            return
        if self._requests.coordinator_error is not None:
            self.error = self._requests.coordinator_error
            return
        if is_polling:
            self._step()
        self._heartbeat()

    def deadline_ms(self, is_polling: bool) -> int | None:
        """When `run` is due again; None where only an event helps."""
        times = [None if self._has_left else self._next_heartbeat_ms]
        if self._is_member and not is_polling:
            times.append(self._polled_at_ms + self._config.max_poll_interval_ms + 1)
        return self._requests.earliest(times)

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
        elif code in _FENCING:
            self._fence(ErrorCode(code))

    # -- reconciliation

    def _step(self) -> None:
        if self.callback is not None:
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
        known = self._requests.metadata.topic_names
        names = {topic_id: known.get(topic_id) or self.names_by_id.get(topic_id) for topic_id in self._target}
        unknown = [topic_id for topic_id, name in names.items() if name is None]
        if unknown:
            self.phase = ConsumerGroupPhase.RESOLVING
            self._find_topic_ids(unknown)
            return
        self._assignment = tuple(
            TopicPartition(name, index)
            for topic_id, name in names.items()
            if name is not None
            for index in self._target[topic_id]
        )
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
        is_joining = self.epoch == _JOIN_EPOCH
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self._config.instance_id,
        )
        is_at_rest = self.phase is ConsumerGroupPhase.STABLE and self._target is None
        says_all = is_joining or (self._has_lost_answer and is_at_rest)
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
        self._is_in_flight = True
        self._sent_subscription = subscribed
        self._next_heartbeat_ms = now_ms + self._interval_ms
        self.metrics.heartbeat_sent_ms = now_ms
        epoch = self.epoch
        self._requests.send(node_id, request, lambda answer, error: self._on_heartbeat(epoch, now_ms, answer, error))

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

    def _on_heartbeat(
        self, epoch: int, sent_at_ms: int, answer: ConsumerGroupHeartbeatResponse | None, error: ApiError | None
    ) -> None:
        self._is_in_flight = False
        if answer is not None:
            self.metrics.heartbeats.append(self._requests.now_ms - sent_at_ms)
        if epoch != self.epoch:
            return
        if answer is not None and answer.error_code:
            error = refused(answer.error_code, f"group {self._config.group_id!r}", answer.error_message)
        if error is not None or answer is None:
            self._on_heartbeat_error(error)
            return
        self._failures = 0
        self._is_member = True
        if answer.member_id:
            self.member_id = answer.member_id
        self.epoch = answer.member_epoch
        self._interval_ms = max(1, answer.heartbeat_interval_ms or self._config.heartbeat_interval_ms)
        self._next_heartbeat_ms = self._requests.now_ms + self._interval_ms
        if answer.assignment is not None:
            self._has_lost_answer = False
            self._target = {each.topic_id: tuple(each.partitions) for each in answer.assignment.topic_partitions}

    def _on_heartbeat_error(self, error: ApiError | None) -> None:
        assert error is not None
        # What the lost request said has to be said again, and what the lost answer said is answered to a request that
        # has all fields.
        self._has_lost_answer = True
        self._sent_subscription = None
        self._acknowledges = self._is_member and self.phase is ConsumerGroupPhase.STABLE and self._target is None
        self._failures += 1
        self._next_heartbeat_ms = self._requests.retry_at_ms(self._failures)
        self._requests.on_coordinator_error(error)
        if error.code in _FENCING or (error.code is ErrorCode.GROUP_ID_NOT_FOUND and self.epoch > _JOIN_EPOCH):
            self._fence(error.code)  # a group that has no such member any more may have become one of another kind
        elif error.code is ErrorCode.UNRELEASED_INSTANCE_ID:
            log.info("group %s: the static member's predecessor has not left yet", self._config.group_id)
        elif not error.code.retriable:
            self.error = error

    def _fence(self, code: ErrorCode) -> None:
        log.warning("group %s: member %s was fenced: %s", self._config.group_id, self.member_id, code.name)
        if self._is_member:  # else it is the join that was refused, which waits longer each time
            self._next_heartbeat_ms = 0
        self._end_membership()

    def _end_membership(self) -> None:
        self.epoch = _JOIN_EPOCH
        if self._is_member:
            self._failures = 0
        self._is_member = False
        self._target = None
        self._acknowledges = False
        self._sent_subscription = None
        self._stop_returning()
        self._was_fenced = bool(self._subscription.partitions)
        if self.callback is None:
            self._committing = None
            self.phase = ConsumerGroupPhase.STABLE

    def _leave_for_silence(self) -> None:
        self._send_leave(None, _LEAVE_EPOCH if self._config.instance_id is None else _LEAVE_STATIC_EPOCH)
        self._has_left = True
        self._end_membership()

    def begin_leave(self, leaves_group: bool | None, reason: str) -> Operation | None:
        """Leave. `leaves_group` None: dynamic members leave, static ones only release their partitions. Returns what to
        wait for; None where nothing is sent."""
        operation: Operation | None = None
        if self._is_member and leaves_group is not False:
            operation = Operation("leaving the group", self._requests.now_ms + self._config.request_timeout_ms)
            is_static = self._config.instance_id is not None and leaves_group is None
            self._send_leave(operation, _LEAVE_STATIC_EPOCH if is_static else _LEAVE_EPOCH)
            if operation.is_done:
                operation = None
        log.info("group %s: the member leaves: %s", self._config.group_id, reason)
        self._end_membership()
        self._has_left = True  # a heartbeat before the next poll would join again
        self._was_fenced = False
        self.callback = None
        self.phase = ConsumerGroupPhase.STABLE
        return operation

    def _send_leave(self, operation: Operation | None, epoch: int) -> None:
        node_id = self._requests.coordinator()
        if node_id is None:
            if operation is not None:
                operation.succeed()
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._config.instance_id,
        )
        self._send_leaving(node_id, request, operation)
