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

from collections.abc import Iterable
from typing import TypeAlias

from kalda.raft.leader import LeaderRole
from kalda.raft.values import Destination, OffsetAndEpoch, ReplicaKey, VoterEndpoint


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
