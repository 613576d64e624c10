"""What both protocols of group membership have in common: their configuration, and what they ask of the shell.

    run(is_polling)               time has passed, or something has come: heartbeats, and a rebalance's next step
    callback                      a call of the rebalance listener that is due; `on_callback_done` after it
    leave(...)                    leave the group
    group_metadata()              what commits and transactions name of the member

Partitions are taken away and given only while the application is in a call of `poll`: records that it was given before
have been processed by then, and its listener runs in its own thread.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.commits import GroupMetadata
from kalda.clientcore.consuming.consumer_errors import Operation


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


class Membership(Protocol):
    """One member of one group."""

    callback: Callback | None
    error: ApiError | None
    """Why membership cannot go on; raised by poll."""

    def run(self, is_polling: bool) -> None: ...
    def deadline_ms(self, is_polling: bool) -> int | None: ...
    def on_callback_done(self) -> None: ...
    def request_rejoin(self, reason: str) -> None: ...
    def group_metadata(self) -> GroupMetadata: ...
    def begin_leave(self, leaves_group: bool | None, reason: str) -> Operation | None: ...
    @property
    def may_commit(self) -> bool: ...
    @property
    def is_settled(self) -> bool: ...
    def on_commit_fenced(self, code: int) -> None: ...
