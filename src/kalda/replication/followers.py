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


class InSync:
    """The in-sync set of a partition that this broker leads: its members, who may join, who must leave.

    The leader proposes a set, the controller decides (KIP-497). While a proposal is in flight the leader acts on the
    larger of the two sets, the maximal ISR: a follower that may be a member must have every record before that is
    committed, because the controller could make that follower the leader. Nothing else is proposed meanwhile.

    A replica may join when its log reaches the high watermark and the log end at which this leader's epoch began: then
    it lacks no record that may be committed (KIP-101). The high watermark does not pass a replica that is caught up and
    may join; otherwise, in a busy partition, it would always be ahead of that replica. A store.

    Invariants, while this broker leads: it is a member of `isr`; `isr` is a subset of `maximal`; `maximal` differs from
    `isr` only while there is a proposal.
    """

    __slots__ = ("_broker_id", "_cluster", "_epoch_start", "followers", "isr", "maximal", "proposal")

    def __init__(self, broker_id: int, cluster: ReplicationPeers) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._epoch_start = 0
        self.followers: dict[int, FollowerState] = {}
        """By broker id: every other replica while this broker leads, else none."""
        self.isr: tuple[int, ...] = ()
        """As the controller has decided last."""
        self.maximal: tuple[int, ...] = ()
        """The larger one of `isr` and the proposed ISR."""
        self.proposal: IsrProposal | None = None
        """In flight; or of unknown outcome, or accepted with fewer members, until the metadata brings the ISR."""

    @property
    def epoch_start(self) -> int:
        """The log end offset at which this leader's epoch began."""
        return self._epoch_start

    def set_isr(self, isr: tuple[int, ...]) -> None:
        """Adopt the ISR that the controller has decided on; a proposal is dropped."""
        self.isr = self.maximal = isr
        self.proposal = None

    def follow(self) -> None:
        """This broker does not lead: it tracks no followers."""
        self.followers = {}

    def lead(self, replicas: tuple[int, ...]) -> None:
        """Adopt the set of replicas. State of followers that were replicas before is kept."""
        known = self.followers
        self.followers = {
            broker_id: known.get(broker_id) or FollowerState(broker_id)
            for broker_id in replicas
            if broker_id != self._broker_id
        }

    def start_epoch(self, leader_end: int, *, keep_offsets: bool) -> None:
        """A leader epoch begins. `keep_offsets`: this broker led the epoch before, so no follower has truncated its
        log to another leader's."""
        self._epoch_start = leader_end
        now_ms = self._cluster.now_ms()
        for follower in self.followers.values():
            follower.start_epoch(now_ms, leader_end, in_sync=follower.broker_id in self.isr, keep_offsets=keep_offsets)

    # -- high watermark

    def committed_end(self, local_end: int, leader_end: int) -> int:
        """The smallest log end among the leader, the maximal ISR and those about to join. `local_end`: up to where the
        leader's own log counts."""
        assert local_end <= leader_end, f"{local_end} counts of a log that ends at {leader_end}"
        end = local_end
        for broker_id, follower in self.followers.items():
            if follower.log_end_offset < end and (broker_id in self.maximal or self._is_joining(follower, leader_end)):
                end = follower.log_end_offset
        return end

    def _is_joining(self, follower: FollowerState, leader_end: int) -> bool:
        cluster = self._cluster
        return (
            follower.log_end_offset != UNKNOWN
            and follower.is_caught_up(leader_end, cluster.now_ms(), cluster.lag_max_ms)
            and self._is_eligible(follower)
        )

    # -- joining and leaving

    def _is_eligible(self, follower: FollowerState) -> bool:
        """Whether the broker may join an ISR, and its last fetch was the registered incarnation's (KIP-903)."""
        epoch = self._cluster.eligible_epoch(follower.broker_id)
        return epoch is not None and follower.broker_epoch in (epoch, UNKNOWN)

    def may_join(self, follower: FollowerState, high_watermark: int) -> bool:
        """Whether to propose that this follower becomes a member."""
        return (
            self.proposal is None
            and follower.broker_id not in self.isr
            and follower.log_end_offset >= high_watermark
            and follower.log_end_offset >= self._epoch_start
            and self._is_eligible(follower)
        )

    def laggards(self, leader_end: int) -> tuple[int, ...]:
        """Members that do not keep pace; none while a proposal is in flight."""
        if self.proposal is not None or len(self.isr) <= 1:
            return ()
        now_ms, lag_max_ms = self._cluster.now_ms(), self._cluster.lag_max_ms
        return tuple(
            broker_id
            for broker_id in self.isr
            if broker_id != self._broker_id
            and not (
                broker_id in self.followers and self.followers[broker_id].is_caught_up(leader_end, now_ms, lag_max_ms)
            )
        )

    def propose(self, isr: tuple[int, ...], broker_epoch: int, leader_epoch: int, partition_epoch: int) -> IsrProposal:
        """The proposal to send. From now on the larger one of the two sets counts."""
        assert self.proposal is None, "one proposal at a time"
        assert self._broker_id in isr, f"leader {self._broker_id} proposes an ISR {isr} without itself"
        members = [
            (broker_id, broker_epoch if broker_id == self._broker_id else self._epoch_of(broker_id))
            for broker_id in isr
        ]
        grows = len(isr) > len(self.isr)
        self.maximal = isr if grows else self.isr
        self.proposal = IsrProposal(isr, members, leader_epoch, partition_epoch, grows)
        return self.proposal

    def _epoch_of(self, broker_id: int) -> int:
        follower = self.followers.get(broker_id)
        return UNKNOWN if follower is None else follower.broker_epoch

    def withdraw(self) -> None:
        """The proposal has not taken effect, and will not."""
        self.set_isr(self.isr)
