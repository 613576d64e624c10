"""The in-sync set of a partition that this broker leads: its members, who may join, who must leave.

The leader proposes a set, the controller decides (KIP-497). While a proposal is in flight the leader acts on the larger
of the two sets, the maximal ISR: a follower that may be a member must have every record before that is committed,
because the controller could make that follower the leader. Nothing else is proposed meanwhile.

A replica may join when its log reaches the high watermark and the log end at which this leader's epoch began: then it
lacks no record that may be committed (KIP-101). The high watermark does not pass a replica that is caught up and may
join; otherwise, in a busy partition, it would always be ahead of that replica. A store.
"""

from __future__ import annotations

from kalda.replication.followers import UNKNOWN, FollowerState, IsrProposal, ReplicationPeers


class InSync:
    """Invariants, while this broker leads: it is a member of `isr`; `isr` is a subset of `maximal`; `maximal` differs
    from `isr` only while there is a proposal."""

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
