"""A member of a share group (KIP-932): the coordinator assigns partitions, which other members may have too.

Every request is a ShareGroupHeartbeat. The first has epoch 0 and what describes the member; later ones only what has
changed. A new assignment is in force at once: nobody has to give anything up first. A fenced member joins again, as
epoch 0, with the partitions that it has until the next assignment. A member that does not poll for
`max.poll.interval.ms` leaves (epoch -1), and joins again with the next poll.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.groups.membership import Member, MembershipConfig
from kalda.clientcore.sharing.share_metrics import ShareConsumerMetrics
from kalda.protocol.messages.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

log = logging.getLogger(__name__)
_JOIN_EPOCH: Final = 0
_LEAVE_EPOCH: Final = -1
_FENCING: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class ShareMembership(Member):
    """One member of one share group. Its id is its own choice, for the life of the consumer."""

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
        self._find_topic_ids = find_topic_ids
        self._metrics = metrics
        self.member_id = member_id
        self.epoch = _JOIN_EPOCH
        self.names_by_id: dict[Uuid, str] = {}
        """Topics that were resolved for assignments."""
        self._is_member = False
        """A heartbeat was accepted in this membership."""
        self._target: dict[Uuid, tuple[int, ...]] | None = None
        """The last assignment that the coordinator has sent and that is not in force."""
        self._resolve_at_ms = 0
        """When the names of its topics are requested again."""
        self._is_in_flight = False
        self._sent_topics: frozenset[str] | None = None
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
        if self._target is not None:
            self._take_over(self._target)
        self._heartbeat()

    def deadline_ms(self, is_polling: bool) -> int | None:
        """When `run` is due again; None where only an event helps."""
        times = [None if self._has_left else self._next_heartbeat_ms]
        if self._target is not None:
            times.append(self._resolve_at_ms)
        if self._is_member and not is_polling:
            times.append(self._polled_at_ms + self._config.max_poll_interval_ms + 1)
        return self._requests.earliest(times)

    def _take_over(self, target: dict[Uuid, tuple[int, ...]]) -> None:
        known = self._requests.metadata.topic_names
        names = {topic_id: known.get(topic_id) or self.names_by_id.get(topic_id) for topic_id in target}
        unknown = [topic_id for topic_id, name in names.items() if name is None]
        if unknown:
            self._find_topic_ids(unknown)
            self._resolve_at_ms = self._requests.retry_at_ms()
            return
        self._target = None
        assigned = [
            TopicPartition(name, index)
            for topic_id, name in names.items()
            if name is not None
            for index in target[topic_id]
        ]
        if frozenset(assigned) == frozenset(self._subscription.partitions):
            return
        self._subscription.set_partitions(assigned)
        self._metrics.rebalances.append(1)
        for topic in {partition.topic for partition in assigned}:
            self._requests.metadata.want(topic, self._requests.now_ms)

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
        is_joining = self.epoch == _JOIN_EPOCH
        request = ShareGroupHeartbeatRequest(
            group_id=self._config.group_id, member_id=self.member_id, member_epoch=self.epoch
        )
        if is_joining:
            request.rack_id = self._config.rack or None
        if is_joining or is_changed:
            request.subscribed_topic_names = sorted(topics)
        self._is_in_flight = True
        self._sent_topics = topics
        self._next_heartbeat_ms = now_ms + self._interval_ms
        self._metrics.heartbeat_sent_ms = now_ms
        epoch = self.epoch
        self._requests.send(node_id, request, lambda answer, error: self._on_heartbeat(epoch, now_ms, answer, error))

    def _on_heartbeat(
        self, epoch: int, sent_at_ms: int, answer: ShareGroupHeartbeatResponse | None, error: ApiError | None
    ) -> None:
        self._is_in_flight = False
        if answer is not None:
            self._metrics.heartbeats.append(self._requests.now_ms - sent_at_ms)
        if epoch != self.epoch:
            return
        if answer is not None and answer.error_code:
            error = refused(answer.error_code, f"share group {self._config.group_id!r}", answer.error_message)
        if error is not None or answer is None:
            assert error is not None
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
            self._target = {each.topic_id: tuple(each.partitions) for each in answer.assignment.topic_partitions}

    def _on_heartbeat_error(self, error: ApiError) -> None:
        self._sent_topics = None  # what the lost request said has to be said again
        self._failures += 1
        self._next_heartbeat_ms = self._requests.retry_at_ms(self._failures)
        self._requests.on_coordinator_error(error)
        if error.code in _FENCING:
            log.warning("share group %s: member %s was fenced: %s",
                        self._config.group_id, self.member_id, error.code.name)  # fmt: skip
            if self._is_member:  # else it is the join that was refused, which waits longer each time
                self._next_heartbeat_ms = 0
            self._end_membership()
        elif not error.code.retriable:
            self.error = error

    def _end_membership(self) -> None:
        self.epoch = _JOIN_EPOCH
        if self._is_member:
            self._failures = 0
        self._is_member = False
        self._target = None
        self._sent_topics = None

    def _leave_for_silence(self) -> None:
        self._send_leave(None)
        self._has_left = True
        self._end_membership()
        self._subscription.set_partitions(())

    def begin_leave(self, reason: str) -> Operation | None:
        """Leave. Returns what to wait for; None where nothing is sent."""
        operation: Operation | None = None
        if self._is_member:
            operation = Operation("leaving the group", self._requests.now_ms + self._config.request_timeout_ms)
            self._send_leave(operation)
            if operation.is_done:
                operation = None
        log.info("share group %s: the member leaves: %s", self._config.group_id, reason)
        self._end_membership()
        self._has_left = True  # a heartbeat before the next poll would join again
        return operation

    def _send_leave(self, operation: Operation | None) -> None:
        node_id = self._requests.coordinator()
        if node_id is None:
            if operation is not None:
                operation.succeed()
            return
        request = ShareGroupHeartbeatRequest(
            group_id=self._config.group_id, member_id=self.member_id, member_epoch=_LEAVE_EPOCH
        )
        self._send_leaving(node_id, request, operation)
