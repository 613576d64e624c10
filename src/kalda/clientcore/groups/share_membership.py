"""A member of a share group (KIP-932): the coordinator assigns partitions, which other members may have too.

Every request is a ShareGroupHeartbeat. The first has epoch 0 and what describes the member; later ones only what has
changed. A new assignment is in force at once: no member has to give up anything first. A fenced member joins again, as
epoch 0, with the partitions that it has until the next assignment. A member that does not poll for
`max.poll.interval.ms` leaves (epoch -1), and joins again with the next poll.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kalda.base.ids import Uuid
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.groups.membership import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatMember, MembershipConfig
from kalda.clientcore.sharing.share_metrics import ShareConsumerMetrics
from kalda.protocol.messages.share import ShareGroupHeartbeatRequest


class ShareMembership(HeartbeatMember):
    """One member of one share group."""

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
