"""The roles of a replica, and the state that ends with the role.

    Unattached ──election timeout──▶ Prospective ──majority of pre-votes──▶ Candidate ──majority of votes──▶ Leader
        ▲ │                            ▲ ▲  │                                  │                              │
        │ └──leader found──▶ Follower──┘ └──┼──────lost, or timed out──────────┘                              │
        │                        ▲          └─leader known: back to it                                        │
        └──── a newer epoch is received: from any role ◀─────────────────────── Resigned ◀──steps down────────┘

An observer is an Unattached or a Follower: it finds the leader and fetches, and never stands for election. A
Prospective sends pre-vote requests first, so that it does not disturb an epoch that works (KIP-996).

Every role has `epoch`, `leader_id` (None while no leader is known, or there is none yet) and `voted` (the candidate
that got this replica's vote in the epoch): `quorum-state` holds these three. `deadline` is when the role ends, unless
what it waits for happens before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeAlias

from kalda.raft.rpc import FetchCall, ReplicaProgress
from kalda.raft.voters import Destination, OffsetAndEpoch, ReplicaKey, VoterEndpoint, VoterSet

# The leader's role: how far each replica has fetched, the high watermark, check-quorum.
#
# A voter has the records before the offset that it fetches from: a fetch is an acknowledgement. The high watermark is
# the highest offset up to which a majority of the voters has the log durably; the leader's own flush counts as its
# fetch. It moves only once it passes the start of the leader's own epoch (Raft, section 5.4.2: a record of an older
# epoch is not committed by counting replicas), and it never decreases.
#
# A leader resigns where no majority of the voters has fetched from it for one and a half fetch timeouts
# (check-quorum): they may have elected another leader on the other side of a network partition.

OBSERVER_SESSION_MS = 300_000
MAX_OBSERVERS = 10_000


class FetchProgress:
    """How far one replica has fetched, and when. Times are the machine's clock; -1 before the first fetch."""

    __slots__ = ("end_offset", "has_acknowledged", "key", "last_caught_up_ms", "last_fetch_ms", "leader_end_offset")

    def __init__(self, key: ReplicaKey, has_acknowledged: bool = False) -> None:
        self.key = key
        self.end_offset = -1
        """Where the replica's log ends: the offset of its last fetch. For the leader itself, what it has flushed."""
        self.last_fetch_ms = -1
        self.last_caught_up_ms = -1
        """The last time at which it had all that the leader had."""
        self.leader_end_offset = -1
        """Where the leader's log ended at that last fetch."""
        self.has_acknowledged = has_acknowledged
        """Whether it has replied to this leader's BeginQuorumEpoch, or fetched."""

    def on_fetch(self, offset: int, leader_end_offset: int, now: int) -> None:
        """A fetch from `offset`. Where it has all that the leader had at its previous fetch, it was caught up then."""
        if offset >= leader_end_offset:
            self.last_caught_up_ms = now
        elif self.leader_end_offset >= 0 and offset >= self.leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.last_fetch_ms = now
        self.leader_end_offset = leader_end_offset
        self.has_acknowledged = True

    def report(self) -> ReplicaProgress:
        return ReplicaProgress(self.key, self.end_offset, self.last_fetch_ms, self.last_caught_up_ms)


class ParkedFetch(NamedTuple):
    """A fetch that is answered when there are records or a new high watermark for it, at `deadline` at the latest."""

    token: Hashable
    call: FetchCall
    deadline: int


class VoterChange(NamedTuple):
    """A change of the voters that is appended and not yet committed. `token` is None where no reply is due."""

    offset: int
    token: Hashable | None
    deadline: int


class LeaderRole:
    """Leads `epoch`. Nothing of it survives the role."""

    __slots__ = (
        "check_quorum_deadline",
        "epoch",
        "epoch_start_offset",
        "fetched_voters",
        "granting_voters",
        "high_watermark",
        "leader_id",
        "next_begin_epoch",
        "observers",
        "parked_fetches",
        "pending_change",
        "reported_voters",
        "voted",
        "voters",
    )

    def __init__(
        self,
        epoch: int,
        local: ReplicaKey,
        voters: VoterSet,
        granting_voters: tuple[int, ...],
        epoch_start_offset: int,
        now: int,
        check_quorum_timeout_ms: int,
    ) -> None:
        self.epoch = epoch
        self.leader_id = local.id
        self.voted: ReplicaKey | None = None
        self.granting_voters = granting_voters
        self.epoch_start_offset = epoch_start_offset
        """The offset of the LeaderChangeMessage with which this epoch begins."""
        self.high_watermark: int | None = None
        """None until a record of this epoch is committed; above `epoch_start_offset` then."""
        self.voters: dict[int, FetchProgress] = {}
        """The voter set that is in force, the leader among them unless it has removed itself."""
        self.observers: dict[ReplicaKey, FetchProgress] = {}
        """Other replicas that have fetched within `OBSERVER_SESSION_MS`; disjoint from `voters`."""
        self.parked_fetches: list[ParkedFetch] = []
        self.fetched_voters: dict[int, None] = {}
        """Voters that have fetched since `check_quorum_deadline` was last moved."""
        self.check_quorum_deadline = now + check_quorum_timeout_ms
        """When to resign, unless a majority has fetched before."""
        self.next_begin_epoch = now
        """When to send BeginQuorumEpoch to all voters that have not fetched lately."""
        self.pending_change: VoterChange | None = None
        """At most one change of the voters is uncommitted."""
        self.reported_voters: VoterSet | None = None
        """In a static quorum (kraft.version 0): the voters with the directory ids, endpoints and kraft.versions that
        they have reported by UpdateRaftVoter. In memory only. It is the first VotersRecord where kraft.version is
        raised to 1. None in a dynamic quorum."""
        self.set_voters(voters, local)

    def set_voters(self, voters: VoterSet, local: ReplicaKey) -> None:
        """A new voter set is in force as soon as its record is in the log. Progress is kept across the change."""
        old, self.voters = self.voters, {}
        for voter in voters.voters:
            key = local if voter.key.id == local.id else voter.key
            progress = old.get(key.id) or self.observers.pop(key, None)
            if progress is None:
                progress = FetchProgress(key, has_acknowledged=key.id == local.id)
            progress.key = key
            self.voters[key.id] = progress
        for node_id, progress in old.items():
            if node_id not in self.voters and node_id != local.id:
                self.observers[progress.key] = progress

    def progress_of(self, key: ReplicaKey, voters: VoterSet) -> FetchProgress | None:
        """None where there are `MAX_OBSERVERS` already."""
        if voters.is_voter(key):
            return self.voters.get(key.id)
        progress = self.observers.get(key)
        if progress is None and len(self.observers) < MAX_OBSERVERS:
            progress = self.observers[key] = FetchProgress(key)
        return progress

    def on_voter_fetch(self, key: ReplicaKey, majority: int, now: int, check_quorum_timeout_ms: int) -> None:
        """Check-quorum. The leader counts as one of the majority where it is a voter."""
        if key.id not in self.voters or key.id == self.leader_id:
            return
        self.fetched_voters[key.id] = None
        needed = majority - (1 if self.leader_id in self.voters else 0)
        if len(self.fetched_voters) >= needed:
            self.fetched_voters.clear()
            self.check_quorum_deadline = now + check_quorum_timeout_ms

    @property
    def is_only_voter(self) -> bool:
        return list(self.voters) == [self.leader_id]

    def committed_offset(self) -> int | None:
        """The offset that a majority has reached, where it moves the high watermark."""
        offsets = sorted((progress.end_offset for progress in self.voters.values()), reverse=True)
        if not offsets:
            return None
        offset = offsets[len(offsets) // 2]
        if offset <= self.epoch_start_offset or (self.high_watermark is not None and offset <= self.high_watermark):
            return None
        return offset

    @property
    def has_committed_in_epoch(self) -> bool:
        """Then everything before this epoch is committed too."""
        return self.high_watermark is not None and self.high_watermark > self.epoch_start_offset

    def successors(self) -> tuple[ReplicaKey, ...]:
        """Voters other than this one, the most advanced first."""
        others = [p for p in self.voters.values() if p.key.id != self.leader_id]
        return tuple(p.key for p in sorted(others, key=lambda p: (-p.end_offset, p.key.id)))

    def expire_observers(self, now: int) -> None:
        for key in [k for k, p in self.observers.items() if p.last_fetch_ms + OBSERVER_SESSION_MS <= now]:
            del self.observers[key]


class Ballot:
    """The votes of one election by voter; None until a voter has replied."""

    __slots__ = ("_votes",)

    def __init__(self, voters: Iterable[int]) -> None:
        self._votes: dict[int, bool | None] = dict.fromkeys(voters)

    def record(self, voter: int, granted: bool) -> None:
        """A vote that was granted stays granted; one that was denied may be granted later."""
        if voter in self._votes and self._votes[voter] is not True:
            self._votes[voter] = granted

    @property
    def _majority(self) -> int:
        return len(self._votes) // 2 + 1

    @property
    def won(self) -> bool:
        return sum(vote is True for vote in self._votes.values()) >= self._majority

    @property
    def lost(self) -> bool:
        return sum(vote is not False for vote in self._votes.values()) < self._majority

    @property
    def granting(self) -> tuple[int, ...]:
        return tuple(voter for voter, vote in self._votes.items() if vote is True)

    @property
    def unrecorded(self) -> tuple[int, ...]:
        return tuple(voter for voter, vote in self._votes.items() if vote is None)


class Unattached:
    """Has an epoch, but no address of its leader; may have voted in it. At `deadline` a voter becomes Prospective."""

    __slots__ = ("deadline", "epoch", "leader_id", "voted")

    def __init__(self, epoch: int, leader_id: int | None, voted: ReplicaKey | None, deadline: int) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        """A leader whose endpoints are unknown, or one that could not be reached any more."""
        self.voted = voted
        self.deadline = deadline


class Prospective:
    """Sends pre-votes in the present epoch, which it does not raise."""

    __slots__ = ("ballot", "deadline", "epoch", "leader_endpoints", "leader_id", "retries", "voted")

    def __init__(
        self,
        epoch: int,
        leader_id: int | None,
        leader_endpoints: tuple[VoterEndpoint, ...],
        voted: ReplicaKey | None,
        ballot: Ballot,
        deadline: int,
        retries: int,
    ) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.leader_endpoints = leader_endpoints
        """Of the leader that it followed before, which it follows again where the pre-votes are denied."""
        self.voted = voted
        self.ballot = ballot
        self.deadline = deadline
        self.retries = retries
        """Elections in a row without a winner, this one included: the back-off of a Candidate grows with them."""


class Candidate:
    """Has voted for itself in an epoch that it began, and sends votes."""

    __slots__ = ("backoff_until", "ballot", "deadline", "epoch", "retries", "voted")

    leader_id: None = None

    def __init__(self, epoch: int, voted: ReplicaKey, ballot: Ballot, deadline: int, retries: int) -> None:
        self.epoch = epoch
        self.voted = voted
        self.ballot = ballot
        self.deadline = deadline
        self.retries = retries
        self.backoff_until: int | None = None
        """Set once the ballot is lost: when to stand again."""


class Follower:
    """Fetches from the leader of its epoch. `deadline` is a fetch timeout after the leader's last reply."""

    __slots__ = (
        "deadline",
        "epoch",
        "has_fetched",
        "has_updated_leader",
        "leader",
        "leader_endpoints",
        "leader_id",
        "next_voter_change",
        "snapshot",
        "snapshot_position",
        "voted",
    )

    def __init__(
        self,
        epoch: int,
        leader_id: int,
        leader_endpoints: tuple[VoterEndpoint, ...],
        leader: Destination,
        voted: ReplicaKey | None,
        deadline: int,
    ) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.leader_endpoints = leader_endpoints
        self.leader = leader
        """The one of `leader_endpoints` to which this replica sends."""
        self.voted = voted
        self.deadline = deadline
        self.has_fetched = False
        """Whether a fetch from this leader has succeeded: then a pre-vote against it is denied. False again once the
        leader has resigned, or refuses connections."""
        self.has_updated_leader = False
        """Whether the leader of a static quorum has this voter's directory id, endpoints and supported kraft.versions
        by an UpdateRaftVoter (Kafka's name)."""
        self.snapshot: OffsetAndEpoch | None = None
        """The snapshot that is being fetched in the place of records."""
        self.snapshot_position = 0
        """How many of its bytes have arrived."""
        self.next_voter_change = 0
        """When this replica may next send a change of the voters that concerns itself."""


class Resigned:
    """Has led this epoch and leads it no longer. Sends EndQuorumEpoch to the other voters until all have acknowledged
    it, or until `deadline`; it never leads this epoch again."""

    __slots__ = ("deadline", "epoch", "leader_id", "successors", "unacknowledged", "voted")

    def __init__(
        self,
        epoch: int,
        leader_id: int,
        unacknowledged: Iterable[int],
        successors: tuple[ReplicaKey, ...],
        deadline: int,
    ) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.voted: ReplicaKey | None = None
        self.unacknowledged: dict[int, None] = dict.fromkeys(unacknowledged)
        """Voters that have not acknowledged EndQuorumEpoch; in the order of the voter set."""
        self.successors = successors
        """The preferred candidates, most advanced log first."""
        self.deadline = deadline


Role: TypeAlias = Unattached | Prospective | Candidate | LeaderRole | Follower | Resigned
