"""A leader's view of its followers, from their fetches; and what a leader needs of the cluster.

A follower's fetch offset is its log end offset: everything below has been appended there. A follower is caught up while
its log end is the leader's, and for `replica.lag.time.max.ms` after the last time when it was. A fetch from where the
leader's log ended at the follower's previous fetch counts as caught up at the time of that fetch: so a follower that
keeps pace with a busy leader, always one fetch behind, is in sync. A store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid

UNKNOWN = -1


class FollowerState:
    """One follower, as its leader sees it. Offsets are those of its last fetch in this leader's epochs."""

    __slots__ = (
        "_fetched_at_leader_end",
        "_fetched_ms",
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN
        """Of the incarnation that fetched last (KIP-903)."""
        self.log_end_offset = UNKNOWN
        """Its last fetch offset."""
        self.log_start_offset = UNKNOWN
        self.last_caught_up_ms: int | None = None
        """None: not since this broker leads."""
        self._fetched_ms: int | None = None
        """When it fetched last."""
        self._fetched_at_leader_end = UNKNOWN
        """Where the leader's log ended at that time."""

    def start_epoch(self, now_ms: int, leader_end: int, *, in_sync: bool, keep_offsets: bool) -> None:
        """A leader epoch begins. A member of the ISR has the whole `replica.lag.time.max.ms` for its first fetch."""
        known_ms = now_ms if in_sync else None
        self.last_caught_up_ms = known_ms
        if keep_offsets:
            self._fetched_at_leader_end, self._fetched_ms = leader_end, known_ms
        else:
            self.broker_epoch = self.log_end_offset = self.log_start_offset = UNKNOWN
            self._fetched_at_leader_end, self._fetched_ms = UNKNOWN, None

    def on_fetch(self, offset: int, log_start_offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        """The follower fetches from `offset` on. Raises NOT_LEADER_OR_FOLLOWER for an incarnation older than one that
        has fetched: the newer one's log may end earlier."""
        if broker_epoch != UNKNOWN and broker_epoch < self.broker_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} fetches with epoch {broker_epoch}, but {self.broker_epoch} is known",
            )
        caught_up_ms: int | None = None
        if offset >= leader_end:
            caught_up_ms = now_ms
        elif offset >= self._fetched_at_leader_end:
            caught_up_ms = self._fetched_ms
        if caught_up_ms is not None and (self.last_caught_up_ms is None or caught_up_ms > self.last_caught_up_ms):
            self.last_caught_up_ms = caught_up_ms
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._fetched_at_leader_end = max(leader_end, self._fetched_at_leader_end)
        self._fetched_ms = now_ms

    def on_idle_fetch(self, offset: int, now_ms: int) -> None:
        """`on_fetch` of a follower that fetches from the same offset again, which is the leader's log end."""
        self.last_caught_up_ms = self._fetched_ms = now_ms
        if offset > self._fetched_at_leader_end:
            self._fetched_at_leader_end = offset

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether the follower keeps pace."""
        if self.log_end_offset == leader_end:
            return True
        return self.last_caught_up_ms is not None and now_ms - self.last_caught_up_ms <= lag_max_ms


class IsrProposal:
    """An ISR that a leader has proposed to the controller, until its outcome arrives."""

    __slots__ = ("grows", "isr", "leader_epoch", "members", "partition_epoch")

    def __init__(
        self, isr: tuple[int, ...], members: list[tuple[int, int]], leader_epoch: int, partition_epoch: int, grows: bool
    ) -> None:
        self.isr = isr
        self.members = members
        """Members with their broker epochs; -1 where a follower's is not known."""
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.grows = grows
        """Whether it has a member more than the ISR; else it has fewer."""


class IsrOutcome:
    """The controller's response to a proposal: the ISR that it has decided on, or an error."""

    __slots__ = ("error", "isr", "leader_epoch", "partition_epoch")

    def __init__(
        self, error: ErrorCode, isr: tuple[int, ...] = (), leader_epoch: int = -1, partition_epoch: int = -1
    ) -> None:
        self.error = error
        self.isr = isr
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch


class ReplicationPeers(Protocol):
    """What a leader needs of the rest of the cluster."""

    lag_max_ms: int
    """`replica.lag.time.max.ms`."""

    def now_ms(self) -> int:
        """A clock that never goes back."""
        ...

    def eligible_epoch(self, broker_id: int) -> int | None:
        """The broker epoch of a broker that may join an ISR; None where it is fenced, shuts down, or is unknown."""
        ...

    def propose(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        proposal: IsrProposal,
        answered: Callable[[IsrOutcome], None],
    ) -> None:
        """Propose an ISR to the controller; `answered` is called with the outcome."""
        ...


class NoPeers:
    """A cluster of one, for a partition without followers."""

    lag_max_ms = 30_000

    def now_ms(self) -> int:
        return 0

    def eligible_epoch(self, broker_id: int) -> int | None:
        return None

    def propose(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        proposal: IsrProposal,
        answered: Callable[[IsrOutcome], None],
    ) -> None:
        raise AssertionError(f"{topic_partition} has no followers, so its ISR does not change")
