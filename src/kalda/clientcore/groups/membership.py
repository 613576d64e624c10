"""What members of groups have in common: their configuration, and what they ask of the shell.

Of every member (`Member`), those of share groups included:

    run(is_polling)               time has passed, or something has come: heartbeats, and a rebalance's next step

Of consumers, by both protocols (`Membership`):

    callback                      a call of the rebalance listener that is due; `on_callback_done` after it
    leave(...)                    leave the group
    group_metadata()              what commits and transactions name of the member

Partitions are taken away and given only while the application is in a call of `poll`: records that it was given before
have been processed by then, and its listener runs in its own thread.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.clientcore.connections.client_metrics import Series
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.consumer_metrics import CoordinatorMetrics
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.clientcore.consuming.subscription import Subscription
from kalda.protocol.notation import Request

log = logging.getLogger(__name__)
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
FENCING: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
Target: TypeAlias = Mapping[Uuid, tuple[int, ...]]
"""An assignment as heartbeats have it."""


class Call(Enum):
    """The methods of a rebalance listener."""

    REVOKED = "revoked"
    """The partitions will be taken away when the listener returns; their offsets can still be committed."""
    ASSIGNED = "assigned"
    LOST = "lost"
    """The partitions may be owned by others already; nothing can be committed."""


class Callback(NamedTuple):
    """A call of the listener."""

    call: Call
    partitions: tuple[TopicPartition, ...]


class MembershipConfig(NamedTuple):
    """Of the consumer's config; times in ms."""

    group_id: str
    instance_id: str | None = None
    rack: str = ""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    request_timeout_ms: int = 30_000
    remote_assignor: str | None = None


class CommitBeforeRebalance(Protocol):
    """Commits the positions where `enable.auto.commit` is set; returns None where there is nothing to commit."""

    def __call__(self, partitions: list[TopicPartition]) -> Operation | None: ...


class Member(ABC):
    """One member of one group, of any kind."""

    def __init__(self, config: MembershipConfig, subscription: Subscription, requests: Requests) -> None:
        self._config = config
        self._subscription = subscription
        self._requests = requests
        self.error: ApiError | None = None
        """Why membership cannot go on; raised by poll."""
        self._has_left = False
        """`max.poll.interval.ms` has passed: nothing is sent before the next poll."""
        self._polled_at_ms = 0

    @abstractmethod
    def run(self, is_polling: bool) -> None: ...
    @abstractmethod
    def deadline_ms(self, is_polling: bool) -> int | None: ...
    @abstractmethod
    def _leave_for_silence(self) -> None: ...

    def _watch_polls(self, is_polling: bool, is_member: bool) -> None:
        """A poll has come, or has not come for `max.poll.interval.ms`: then a member leaves."""
        now_ms = self._requests.now_ms
        if is_polling:
            self._polled_at_ms = now_ms
            self._has_left = False
        elif is_member and now_ms - self._polled_at_ms > self._config.max_poll_interval_ms:
            log.warning(
                "group %s: no poll within max.poll.interval.ms (%d ms): the member leaves, and joins again with the "
                "next poll. Raise max.poll.interval.ms, or lower max.poll.records",
                self._config.group_id, self._config.max_poll_interval_ms,
            )  # fmt: skip
            self._leave_for_silence()

    def _send_leaving(self, node_id: int, request: Request, operation: Operation | None) -> None:
        """The last request of this membership. `operation` ends with its answer."""

        def on_done(_answer: Any, _error: ApiError | None) -> None:
            if operation is not None:
                operation.succeed()  # a member that is not removed now is removed when its session ends

        self._requests.send(node_id, request, on_done)


class Membership(Member):
    """One consumer in its group: its state and its steps that are the same by both protocols."""

    def __init__(
        self,
        config: MembershipConfig,
        subscription: Subscription,
        requests: Requests,
        commit: CommitBeforeRebalance,
        metrics: CoordinatorMetrics,
    ) -> None:
        super().__init__(config, subscription, requests)
        self._commit = commit
        self.metrics = metrics
        self.callback: Callback | None = None
        self._committing: Operation | None = None
        self._assignment: tuple[TopicPartition, ...] = ()
        """What the coordinator has assigned, until it is in force."""

    @abstractmethod
    def on_callback_done(self) -> None: ...
    @abstractmethod
    def request_rejoin(self, reason: str) -> None: ...
    @abstractmethod
    def group_metadata(self) -> GroupMetadata: ...
    @abstractmethod
    def begin_leave(self, leaves_group: bool | None, reason: str) -> Operation | None: ...
    @property
    @abstractmethod
    def may_commit(self) -> bool: ...
    @property
    @abstractmethod
    def is_settled(self) -> bool: ...
    @abstractmethod
    def on_commit_fenced(self, code: int) -> None: ...

    def _put_in_force(self) -> None:
        """The assignment is the subscription's from now on; the listener is called with what is new."""
        owned = self._subscription.partitions
        added = tuple(partition for partition in self._assignment if partition not in owned)
        self._subscription.set_partitions(self._assignment)
        for partition in added:
            self._subscription.partitions[partition].is_new = True
            self._requests.metadata.want(partition.topic, self._requests.now_ms)
        self.callback = Callback(Call.ASSIGNED, added)

    def _begin_use(self) -> None:
        """The listener has seen the new partitions: their records may be returned."""
        for state in self._subscription.partitions.values():
            state.is_new = False

    def _stop_returning(self) -> None:
        """The partitions may be others' already."""
        for state in self._subscription.partitions.values():
            state.is_revoking = True


class HeartbeatMetrics(Protocol):
    """What is counted of heartbeats."""

    heartbeat_sent_ms: int
    heartbeats: Series


class HeartbeatMember(Member):
    """One member whose every request is a heartbeat: it joins with epoch 0, gets its epochs and assignments from the
    coordinator, and joins again where it is fenced. Its id is its own choice, for the life of the consumer."""

    noun: ClassVar[str] = "group"

    def _init_heartbeats(
        self, member_id: str, find_topic_ids: Callable[[Sequence[Uuid]], None], metrics: HeartbeatMetrics
    ) -> None:
        """`find_topic_ids` requests the names of topics of which an assignment has the ids only."""
        self.member_id = member_id
        self._find_topic_ids = find_topic_ids
        self._heartbeat_metrics = metrics
        self.epoch = JOIN_EPOCH
        self.names_by_id: dict[Uuid, str] = {}
        """Topics that were resolved for assignments."""
        self._is_member = False
        """A heartbeat was accepted in this membership."""
        self._target: Target | None = None
        """The last assignment that the coordinator has sent and that is not in force."""
        self._is_in_flight = False
        self._memberships = 0
        """Those that have ended: an answer to a heartbeat of one of them says nothing about the present one."""
        self._next_heartbeat_ms = 0
        self._interval_ms = self._config.heartbeat_interval_ms
        self._failures = 0

    def run(self, is_polling: bool) -> None:
        """Take the next steps. `is_polling`: the application is in a call of `poll`."""
        self._watch_polls(is_polling, self._is_member)
        if self._has_left or self.error is not None or not self._subscription.is_by_group:
            return
        if self._requests.coordinator_error is not None:
            self.error = self._requests.coordinator_error
            return
        self._step(is_polling)
        self._heartbeat()

    def deadline_ms(self, is_polling: bool) -> int | None:
        """When `run` is due again; None where only an event helps."""
        times = [None if self._has_left else self._next_heartbeat_ms, self._step_due_ms()]
        if self._is_member and not is_polling:
            times.append(self._polled_at_ms + self._config.max_poll_interval_ms + 1)
        return self._requests.earliest(times)

    @abstractmethod
    def _step(self, is_polling: bool) -> None:
        """Move towards the target."""

    def _step_due_ms(self) -> int | None:
        """When the next step is due; None where only an event helps."""
        return None

    def _named(self, target: Target) -> tuple[TopicPartition, ...] | None:
        """The target's partitions; None where names of topics are not known, which are requested then."""
        known = self._requests.metadata.topic_names
        names = {topic_id: known.get(topic_id) or self.names_by_id.get(topic_id) for topic_id in target}
        unknown = [topic_id for topic_id, name in names.items() if name is None]
        if unknown:
            self._find_topic_ids(unknown)
            return None
        return tuple(
            TopicPartition(name, index)
            for topic_id, name in names.items()
            if name is not None
            for index in target[topic_id]
        )

    # -- heartbeats

    @abstractmethod
    def _heartbeat(self) -> None:
        """Send a heartbeat where one is due."""

    @abstractmethod
    def _request(self, epoch: int) -> Any:
        """A heartbeat with what all have: the group, the member and this epoch."""

    @abstractmethod
    def _forget_sent(self) -> None:
        """What the lost request said has to be said again."""

    def _send_heartbeat(self, node_id: int, request: Request) -> None:
        now_ms, of = self._requests.now_ms, self._memberships
        self._is_in_flight = True
        self._next_heartbeat_ms = now_ms + self._interval_ms
        self._heartbeat_metrics.heartbeat_sent_ms = now_ms
        self._requests.send(node_id, request, lambda answer, error: self._on_heartbeat(of, now_ms, answer, error))

    def _on_heartbeat(self, of: int, sent_at_ms: int, answer: Any, error: ApiError | None) -> None:
        self._is_in_flight = False
        if answer is not None:
            self._heartbeat_metrics.heartbeats.append(self._requests.now_ms - sent_at_ms)
        if of != self._memberships:
            return
        if answer is not None and answer.error_code:
            error = refused(answer.error_code, f"{self.noun} {self._config.group_id!r}", answer.error_message)
        if error is not None:
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
            self._on_target({each.topic_id: tuple(each.partitions) for each in answer.assignment.topic_partitions})

    def _on_target(self, target: Target) -> None:
        """An assignment has come."""
        self._target = target

    def _on_heartbeat_error(self, error: ApiError) -> None:
        self._forget_sent()
        self._failures += 1
        self._next_heartbeat_ms = self._requests.retry_at_ms(self._failures)
        self._requests.on_coordinator_error(error)
        if self._is_fencing(error.code):
            self._on_fenced(error.code)
        elif error.code is ErrorCode.UNRELEASED_INSTANCE_ID:
            log.info("group %s: the static member's predecessor has not left yet", self._config.group_id)
        elif not error.code.retriable:
            self.error = error

    def _is_fencing(self, code: ErrorCode) -> bool:
        return code in FENCING

    def _on_fenced(self, code: ErrorCode) -> None:
        log.warning("%s %s: member %s was fenced: %s", self.noun, self._config.group_id, self.member_id, code.name)
        if self._is_member:  # else it is the join that was refused, which waits longer each time
            self._next_heartbeat_ms = 0
        self._end_membership()

    # -- the end

    def _end_membership(self) -> None:
        self._memberships += 1
        self.epoch = JOIN_EPOCH
        if self._is_member:
            self._failures = 0
        self._is_member = False
        self._target = None
        self._forget_sent()

    def _leave(self, epoch: int, reason: str, *, is_sent: bool = True) -> Operation | None:
        """The end of this membership, with a last request of this epoch where the group has the member, or may have it
        since it is joining. Returns what to wait for; None where nothing is sent."""
        operation: Operation | None = None
        if (self._is_member or self._is_in_flight) and is_sent:
            operation = Operation("leaving the group", self._requests.now_ms + self._config.request_timeout_ms)
            self._send_leave(operation, epoch)
        log.info("%s %s: the member leaves: %s", self.noun, self._config.group_id, reason)
        self._end_membership()
        self._has_left = True  # a heartbeat before the next poll would join again
        return None if operation is None or operation.is_done else operation

    def _send_leave(self, operation: Operation | None, epoch: int) -> None:
        node_id = self._requests.coordinator()
        if node_id is not None:
            self._send_leaving(node_id, self._request(epoch), operation)
        elif operation is not None:
            operation.succeed()
