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
from enum import Enum
from typing import Any, NamedTuple, Protocol

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.commits import GroupMetadata
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.consumer_metrics import CoordinatorMetrics
from kalda.clientcore.consuming.subscription import Subscription
from kalda.protocol.notation import Request

log = logging.getLogger(__name__)


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
