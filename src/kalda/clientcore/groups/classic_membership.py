"""A member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A rebalance, once it is found to be needed:

    COMMITTING   positions of the partitions that will be taken away are committed, where auto-commit is on
    REVOKING     the listener is called with them (lost, where the membership ended)
    JOINING      JoinGroup, which returns when the group's members have joined
    ASSIGNING    the leader waits for the metadata of all topics of all members, then assigns
    SYNCING      SyncGroup, which returns this member's partitions
    RELEASING    cooperative: the listener is called with the partitions to give up; then the member joins again
    ACCEPTING    the listener is called with the new partitions
    STABLE

Eager assignors give all partitions back before JOINING; cooperative ones keep them, and give up only what another
member is to get (KIP-429). The protocol is cooperative where all configured assignors support it.

Between polls only heartbeats are sent. A member that does not poll for `max.poll.interval.ms` leaves the group.
Generations fence: a response of an earlier generation is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from kalda.assignors.consumer_protocol import (
    read_assignment,
    read_member_subscription,
    write_assignment,
    write_member_subscription,
)
from kalda.assignors.stateless import Assignor, Rebalance, Subscriber, Topics
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.consumer_metrics import CoordinatorMetrics
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.clientcore.consuming.subscription import Subscription, SubscriptionKind
from kalda.clientcore.groups.membership import (
    Call,
    Callback,
    CommitBeforeRebalance,
    Membership,
    MembershipConfig,
)
from kalda.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

log = logging.getLogger(__name__)
PROTOCOL_TYPE = "consumer"
_JOIN_SLACK_MS = 5_000
"""How long a JoinGroup or SyncGroup response may take beyond the rebalance timeout."""
_NO_GENERATION = -1


class ClassicPhase(Enum):
    """Where the member is in a rebalance."""

    UNJOINED = "unjoined"
    COMMITTING = "committing"
    REVOKING = "revoking"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    RELEASING = "releasing"
    ACCEPTING = "accepting"
    STABLE = "stable"


class ClassicMembership(Membership):
    """One member of one classic group."""

    def __init__(
        self,
        config: MembershipConfig,
        assignors: Sequence[Assignor],
        subscription: Subscription,
        requests: Requests,
        commit: CommitBeforeRebalance,
        metrics: CoordinatorMetrics,
    ) -> None:
        super().__init__(config, subscription, requests, commit, metrics)
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._is_cooperative = all(assignor.is_cooperative for assignor in assignors)
        self.member_id = ""
        self.generation = _NO_GENERATION
        self.phase = ClassicPhase.UNJOINED
        self._rejoin_reason: str | None = "the consumer starts"
        """Why a rebalance is needed; None: it is not."""
        self._was_lost = False
        """The membership ended: what is still assigned is lost, not revoked."""
        self._to_revoke: tuple[TopicPartition, ...] = ()
        self._joined: JoinGroupResponse | None = None
        """The response that this leader makes an assignment for."""
        self._leader_topics: dict[str, int] | None = None
        """Partition counts of the leader's last assignment; None for other members."""
        self._joined_topics: frozenset[str] = frozenset()
        """The subscription that JoinGroup named."""
        self._is_in_flight = False
        self._retry_at_ms = 0
        self._failures = 0
        self._sent_at_ms = 0
        """When the last JoinGroup or SyncGroup was sent."""
        self._heartbeat_in_flight = False
        self._next_heartbeat_ms = 0
        self._heard_at_ms = 0
        """When the coordinator accepted a JoinGroup, SyncGroup or Heartbeat last."""

    # -- the machine's life

    def run(self, is_polling: bool) -> None:
        """Take the next steps. `is_polling`: the application is in a call of `poll`."""
        self._watch_polls(is_polling, self._has_generation)
        if self._has_left or self._requests.coordinator_error is not None:
            self.error = self.error or self._requests.coordinator_error
            return
        self._watch_subscription()
        self._heartbeat()
        if is_polling and self.error is None:
            self._step()

    def _step(self) -> None:
        if self.phase in (ClassicPhase.STABLE, ClassicPhase.UNJOINED) and self._rejoin_reason is not None:
            if not self._subscription.is_by_group or (
                self._subscription.kind is SubscriptionKind.PATTERN
                and not self._subscription.topics
                and not self._has_generation
            ):
                return
            self._begin_rebalance()
        if self.phase is ClassicPhase.COMMITTING and (self._committing is None or self._committing.is_done):
            self._committing = None
            self._begin_revoking()
        if self.phase is ClassicPhase.ASSIGNING:
            self._assign()
        if self.phase is ClassicPhase.JOINING:
            self._join()

    def deadline_ms(self, is_polling: bool) -> int | None:
        """When `run` is due again; None where only an event helps."""
        times = [self._retry_at_ms]
        if self._has_generation:
            times.append(self._next_heartbeat_ms)
            if not is_polling:
                times.append(self._polled_at_ms + self._config.max_poll_interval_ms + 1)
        return self._requests.earliest(times)

    @property
    def _has_generation(self) -> bool:
        return self.generation != _NO_GENERATION

    @property
    def may_commit(self) -> bool:
        """Whether the member's generation is in force: not while it joins."""
        return self._has_generation and self.phase not in (
            ClassicPhase.JOINING,
            ClassicPhase.ASSIGNING,
            ClassicPhase.SYNCING,
        )

    @property
    def is_settled(self) -> bool:
        """No rebalance is under way or needed."""
        return self.phase is ClassicPhase.STABLE and self._rejoin_reason is None

    def group_metadata(self) -> GroupMetadata:
        """What commits name."""
        return GroupMetadata(self._config.group_id, self.generation, self.member_id, self._config.instance_id)

    def request_rejoin(self, reason: str) -> None:
        """A rebalance is needed, which begins with the next poll."""
        if self._rejoin_reason is None:
            log.info("group %s: %s: the member joins again", self._config.group_id, reason)
        self._rejoin_reason = self._rejoin_reason or reason

    def on_commit_fenced(self, code: int) -> None:
        """A commit was refused: the member has no part in the group any more, or a rebalance is under way."""
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("a commit was refused during a rebalance")
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fail(ApiError(ErrorCode(code), f"another consumer has taken {self._config.instance_id!r}"))
        else:
            self._lose(ErrorCode(code), "a commit")

    def _watch_subscription(self) -> None:
        """Join again where the topics, or the partitions of what this leader has assigned, have changed."""
        if self.phase is not ClassicPhase.STABLE or self._rejoin_reason is not None:
            return
        if self._subscription.topics != self._joined_topics:
            self.request_rejoin("the subscription has changed")
        elif self._leader_topics is not None:
            found = self._partition_counts(self._leader_topics)
            if found is not None and found != self._leader_topics:
                self.request_rejoin("the partitions of a topic have changed")

    def _partition_counts(self, names: Iterable[str]) -> dict[str, int] | None:
        """None while the metadata of some topic has not come."""
        topics = self._requests.metadata.topics
        counts = {}
        for name in names:
            self._requests.metadata.want(name, self._requests.now_ms)
            topic = topics.get(name)
            if topic is None:
                return None
            counts[name] = len(topic.partitions)
        return counts

    # -- before joining

    def _begin_rebalance(self) -> None:
        self.metrics.on_rebalance_started(self._requests.now_ms)
        owned = tuple(self._subscription.partitions)
        if self._was_lost:
            self._to_revoke = owned
            self.phase = ClassicPhase.COMMITTING
            return
        if self._is_cooperative:
            topics = self._subscription.topics
            self._to_revoke = tuple(partition for partition in owned if partition.topic not in topics)
        else:
            self._to_revoke = owned
        for partition in self._to_revoke:
            self._subscription.partitions[partition].is_revoking = True
        self.phase = ClassicPhase.COMMITTING
        if owned and self._has_generation:
            self._committing = self._commit(list(owned))

    def _begin_revoking(self) -> None:
        self.phase = ClassicPhase.REVOKING
        if self._to_revoke:
            self.callback = Callback(Call.LOST if self._was_lost else Call.REVOKED, self._to_revoke)
        else:
            self._revoked()

    def on_callback_done(self) -> None:
        """The listener has returned, or has raised."""
        self.callback = None
        if self.phase is ClassicPhase.REVOKING:
            self._revoked()
        elif not self._has_generation:
            self.phase = ClassicPhase.UNJOINED
        elif self.phase is ClassicPhase.RELEASING:
            self._release()
        elif self.phase is ClassicPhase.ACCEPTING:
            self._accepted()

    def _revoked(self) -> None:
        revoked = frozenset(self._to_revoke)
        self._subscription.set_partitions([p for p in self._subscription.partitions if p not in revoked])
        self._to_revoke = ()
        self._was_lost = not self._has_generation and bool(self._subscription.partitions)
        if self._was_lost:
            self.phase = ClassicPhase.UNJOINED  # the membership ended during the call of the listener
            return
        self.phase = ClassicPhase.JOINING
        self._join()

    # -- joining

    def _join(self) -> None:
        now_ms = self._requests.now_ms
        if self._is_in_flight or now_ms < self._retry_at_ms or self.phase is not ClassicPhase.JOINING:
            return
        node_id = self._requests.coordinator()
        if node_id is None:
            return
        self._joined_topics = self._subscription.topics
        owned = tuple(self._subscription.partitions)
        protocols = [
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=write_member_subscription(
                    sorted(self._joined_topics),
                    assignor.user_data(),
                    owned,
                    self.generation,
                    self._config.rack or None,
                ),
            )
            for assignor in self._assignors.values()
        ]
        request = JoinGroupRequest(
            group_id=self._config.group_id,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=(self._rejoin_reason or "")[:255],
        )
        self._is_in_flight = True
        self._sent_at_ms = now_ms
        self._rejoin_reason = None
        timeout_ms = max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + _JOIN_SLACK_MS)
        self._requests.send(node_id, request, self._on_joined, timeout_ms=timeout_ms)

    def _on_joined(self, answer: JoinGroupResponse | None, error: ApiError | None) -> None:
        self._is_in_flight = False
        if self.phase is not ClassicPhase.JOINING:
            return
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._rejoin_reason = "the coordinator has given a member id"
            self._join()
            return
        if answer is not None and answer.error_code:
            error = refused(answer.error_code, f"group {self._config.group_id!r}")
        if error is not None or answer is None:
            self._failed("JoinGroup", error)
            return
        self.metrics.joins.append(self._requests.now_ms - self._sent_at_ms)
        self._failures = 0
        self.member_id = answer.member_id
        self.generation = answer.generation_id
        self._heard()
        self._joined = answer
        if answer.leader == answer.member_id and not answer.skip_assignment:
            self.phase = ClassicPhase.ASSIGNING
            self._assign()
        else:
            self._leader_topics = None
            self._sync([])

    def _assign(self) -> None:
        """As the leader: assign all members' partitions, once the metadata of all their topics is here."""
        joined = self._joined
        assert joined is not None
        subscribers = [
            Subscriber(
                member.member_id,
                subscription.topics,
                member.group_instance_id,
                subscription.rack,
                subscription.owned,
                subscription.generation,
                subscription.user_data,
            )
            for member in joined.members
            for subscription in (read_member_subscription(member.metadata),)
        ]
        names = sorted({topic for subscriber in subscribers for topic in subscriber.topics})
        counts = self._partition_counts(names)
        if counts is None:
            return
        assignor = self._assignors.get(joined.protocol_name or "")
        if assignor is None:
            self._fail(
                ApiError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"group {self._config.group_id!r} has chosen the assignor {joined.protocol_name!r}, which is not "
                    f"configured here",
                )
            )
            return
        metadata = self._requests.metadata
        racks = {node_id: broker.rack for node_id, broker in metadata.brokers.items()}
        topics = Topics(
            counts,
            {
                TopicPartition(name, partition.partition): tuple(
                    rack for node_id in partition.replicas if (rack := racks.get(node_id)) is not None
                )
                for name in names
                for partition in metadata.partitions_of(name)
            },
        )
        assigned = assignor.assign(Rebalance(tuple(subscribers), topics))
        self._leader_topics = counts
        self._sync(
            [
                SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(partitions))
                for member_id, partitions in assigned.items()
            ]
        )

    def _sync(self, assignments: list[SyncGroupRequestAssignment]) -> None:
        joined = self._joined
        assert joined is not None
        node_id = self._requests.coordinator()
        if node_id is None:
            self._failed("SyncGroup", None)
            return
        self.phase = ClassicPhase.SYNCING
        request = SyncGroupRequest(
            group_id=self._config.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        self._is_in_flight = True
        self._sent_at_ms = self._requests.now_ms
        timeout_ms = max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + _JOIN_SLACK_MS)
        generation = self.generation
        self._requests.send(
            node_id, request, lambda answer, error: self._on_synced(generation, answer, error), timeout_ms=timeout_ms
        )

    def _on_synced(self, generation: int, answer: Any, error: ApiError | None) -> None:
        self._is_in_flight = False
        if self.phase is not ClassicPhase.SYNCING or generation != self.generation:
            return
        if answer is not None and answer.error_code:
            error = refused(answer.error_code, f"group {self._config.group_id!r}")
        if error is not None:
            self._failed("SyncGroup", error)
            return
        self.metrics.syncs.append(self._requests.now_ms - self._sent_at_ms)
        self._failures = 0
        self._heard()
        assigned = read_assignment(answer.assignment)
        assert self._joined is not None
        assignor = self._assignors.get(self._joined.protocol_name or "")
        self._joined = None
        if any(partition.topic not in self._joined_topics for partition in assigned):
            # Others have assigned what this member has unsubscribed meanwhile.
            self.phase = ClassicPhase.STABLE
            self.request_rejoin("partitions were assigned of topics that are not subscribed to")
            return
        if assignor is not None:
            assignor.on_assignment(assigned, self.generation)
        self._assignment = tuple(assigned)
        new = frozenset(assigned)
        self._to_revoke = tuple(partition for partition in self._subscription.partitions if partition not in new)
        if self._to_revoke:
            self.phase = ClassicPhase.RELEASING
            for partition in self._to_revoke:
                self._subscription.partitions[partition].is_revoking = True
            self._committing = self._commit(list(self._to_revoke))
            self.callback = Callback(Call.REVOKED, self._to_revoke)
        else:
            self._accept()

    def _release(self) -> None:
        self._to_revoke = ()
        self.request_rejoin("partitions were given up for other members")
        self._accept()

    def _accept(self) -> None:
        self.phase = ClassicPhase.ACCEPTING
        self._put_in_force()

    def _accepted(self) -> None:
        self._begin_use()
        self._assignment = ()
        self.phase = ClassicPhase.STABLE
        self.metrics.on_rebalance_ended(self._requests.now_ms)
        log.info(
            "group %s: generation %d has assigned %d partitions to %s",
            self._config.group_id, self.generation, len(self._subscription.partitions), self.member_id,
        )  # fmt: skip

    # -- heartbeats

    def _heartbeat(self) -> None:
        now_ms = self._requests.now_ms
        if not self._has_generation or self.phase in (ClassicPhase.JOINING, ClassicPhase.UNJOINED):
            return
        if now_ms - self._heard_at_ms >= self._config.session_timeout_ms:
            log.warning("group %s: the coordinator has not answered for the session timeout", self._config.group_id)
            self._requests.drop_coordinator()
            self._heard_at_ms = now_ms
        if self._heartbeat_in_flight or now_ms < self._next_heartbeat_ms:
            return
        node_id = self._requests.coordinator()
        if node_id is None:
            return
        self._heartbeat_in_flight = True
        self.metrics.heartbeat_sent_ms = now_ms
        self._next_heartbeat_ms = now_ms + self._config.heartbeat_interval_ms
        request = HeartbeatRequest(
            group_id=self._config.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._config.instance_id,
        )
        generation = self.generation
        timeout_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms)
        self._requests.send(
            node_id,
            request,
            lambda answer, error: self._on_heartbeat(generation, now_ms, answer, error),
            timeout_ms=timeout_ms,
        )

    def _on_heartbeat(self, generation: int, sent_at_ms: int, answer: Any, error: ApiError | None) -> None:
        self._heartbeat_in_flight = False
        if error is not None:
            self._requests.on_coordinator_error(error)
            self._next_heartbeat_ms = self._requests.retry_at_ms()
            return
        self.metrics.heartbeats.append(self._requests.now_ms - sent_at_ms)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self._heard_at_ms = self._requests.now_ms
        elif generation != self.generation:
            return
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._heard_at_ms = self._requests.now_ms
            if self.phase is ClassicPhase.STABLE:
                self.request_rejoin("the group rebalances")
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose(code, "a heartbeat")
        elif code.retriable:
            self._requests.on_coordinator_error(ApiError(code))
            self._next_heartbeat_ms = self._requests.retry_at_ms()
        else:
            self._fail(refused(code, f"group {self._config.group_id!r}"))

    def _heard(self) -> None:
        self._heard_at_ms = self._requests.now_ms
        self._next_heartbeat_ms = self._requests.now_ms + self._config.heartbeat_interval_ms

    # -- ends

    def _failed(self, what: str, error: ApiError | None) -> None:
        """JoinGroup or SyncGroup has failed: begin again from JOINING, or fail."""
        self.metrics.on_rebalance_failed()
        self._joined = None
        self._failures += 1
        self._retry_at_ms = self._requests.retry_at_ms(self._failures)
        self._rejoin_reason = self._rejoin_reason or f"{what} has failed"
        if self.phase is not ClassicPhase.JOINING:
            self.phase = ClassicPhase.JOINING
        if error is None:
            return
        self._requests.on_coordinator_error(error)
        code = error.code
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose(code, what)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._retry_at_ms = 0
        elif not code.retriable:
            self._fail(error)
        log.info("group %s: %s has failed with %s", self._config.group_id, what, code.name)

    def _lose(self, code: ErrorCode, what: str) -> None:
        """The coordinator has removed the member, or has completed a rebalance without it."""
        log.warning("group %s: %s was answered with %s: the membership is lost", self._config.group_id, what, code.name)
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._end_membership(f"{what} was answered with {code.name}")

    def _end_membership(self, reason: str) -> None:
        self.generation = _NO_GENERATION
        self._leader_topics = None
        self._rejoin_reason = reason
        self._was_lost = bool(self._subscription.partitions)
        if self.phase in (
            ClassicPhase.STABLE,
            ClassicPhase.COMMITTING,
            ClassicPhase.JOINING,
            ClassicPhase.SYNCING,
            ClassicPhase.ASSIGNING,
        ):
            self._committing = None
            self._joined = None
            self.phase = ClassicPhase.UNJOINED
        # During a call of the listener the phase stays: its end leads to the next step.
        self._stop_returning()

    def _fail(self, error: ApiError) -> None:
        """Nothing helps but the application: the next poll raises `error`."""
        self.error = error
        self.generation = _NO_GENERATION
        self._was_lost = bool(self._subscription.partitions)
        self._rejoin_reason = self._rejoin_reason or "the member has failed"
        if self.callback is None:
            self.phase = ClassicPhase.UNJOINED

    def _leave_for_silence(self) -> None:
        self._send_leave("the application does not poll", None)
        self._has_left = True
        self.member_id = "" if self._config.instance_id is None else self.member_id
        self._end_membership("the application did not poll in time")

    def begin_leave(self, leaves_group: bool | None, reason: str) -> Operation | None:
        """Leave. `leaves_group` None: dynamic members leave, static ones stay until their session ends. Returns what to
        wait for; None where nothing is sent."""
        operation: Operation | None = None
        if leaves_group is None:
            leaves_group = self._config.instance_id is None
        if leaves_group and self.member_id:
            operation = Operation("LeaveGroup", self._requests.now_ms + self._config.request_timeout_ms)
            self._send_leave(reason, operation)
            if operation.is_done:
                operation = None
        self.generation = _NO_GENERATION
        self.member_id = ""
        self.phase = ClassicPhase.UNJOINED
        self.callback = None
        self._joined = None
        self._committing = None
        self._rejoin_reason = "the subscription has changed"
        self._was_lost = False
        return operation

    def _send_leave(self, reason: str, operation: Operation | None) -> None:
        node_id = self._requests.coordinator()
        if node_id is None or not self.member_id:
            if operation is not None:
                operation.succeed()
            return
        identity = MemberIdentity(
            member_id=self.member_id, group_instance_id=self._config.instance_id, reason=reason[:255]
        )
        request = LeaveGroupRequest(group_id=self._config.group_id, members=[identity])
        self._send_leaving(node_id, request, operation)
