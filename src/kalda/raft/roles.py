"""What a replica is, and what it remembers as long as it is that.

    Unattached ──election timeout──▶ Prospective ──majority of pre-votes──▶ Candidate ──majority of votes──▶ Leader
        ▲ │                            ▲ ▲  │                                  │                              │
        │ └─leader heard of─▶ Follower─┘ └──┼──────lost, or time is over───────┘                              │
        │                        ▲          └─leader known: back to it                                        │
        └─── a newer epoch is heard of: from any role ◀──────────────────────── Resigned ◀──steps down────────┘

An observer is an Unattached or a Follower that may not vote for itself: it looks for the leader and fetches.
Prospective asks whether it could win before it disturbs an epoch that works (KIP-996).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from kalda.raft.leader import LeaderRole
from kalda.raft.values import Destination, Endpoint, OffsetAndEpoch, ReplicaKey


class Ballot:
    """Votes of one election, by voter."""

    __slots__ = ("_votes",)

    def __init__(self, voters: Iterable[int]) -> None:
        self._votes: dict[int, bool | None] = dict.fromkeys(voters)

    def record(self, voter: int, granted: bool) -> None:
        """A voter that granted its vote cannot take it back; others may change their reply."""
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
    """Knows the epoch; perhaps who leads it, but not where to find it; perhaps has voted in it."""

    __slots__ = ("deadline", "epoch", "leader_id", "voted")

    def __init__(self, epoch: int, leader_id: int | None, voted: ReplicaKey | None, deadline: int) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.voted = voted
        self.deadline = deadline


class Prospective:
    """Asks for pre-votes, in an epoch that is not its own making."""

    __slots__ = ("ballot", "deadline", "epoch", "leader_endpoints", "leader_id", "retries", "voted")

    def __init__(
        self,
        epoch: int,
        leader_id: int | None,
        leader_endpoints: tuple[Endpoint, ...],
        voted: ReplicaKey | None,
        ballot: Ballot,
        deadline: int,
        retries: int,
    ) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.leader_endpoints = leader_endpoints
        self.voted = voted
        self.ballot = ballot
        self.deadline = deadline
        self.retries = retries


class Candidate:
    """Has voted for itself and asks for votes. `backoff_until` is set once it cannot win any more."""

    __slots__ = ("backoff_until", "ballot", "deadline", "epoch", "retries", "voted")

    leader_id: None = None

    def __init__(self, epoch: int, voted: ReplicaKey, ballot: Ballot, deadline: int, retries: int) -> None:
        self.epoch = epoch
        self.voted = voted
        self.ballot = ballot
        self.deadline = deadline
        self.retries = retries
        self.backoff_until: int | None = None


class Follower:
    """Fetches from the leader of its epoch. `deadline`: when a voter gives the leader up."""

    __slots__ = (
        "deadline",
        "epoch",
        "has_fetched",
        "has_told",
        "leader",
        "leader_endpoints",
        "leader_id",
        "snapshot",
        "snapshot_position",
        "update_voter_at",
        "voted",
    )

    def __init__(
        self,
        epoch: int,
        leader_id: int,
        leader_endpoints: tuple[Endpoint, ...],
        leader: Destination,
        voted: ReplicaKey | None,
        deadline: int,
    ) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.leader_endpoints = leader_endpoints
        self.leader = leader
        self.voted = voted
        self.deadline = deadline
        self.has_fetched = False
        self.has_told = False
        """This static voter's leader knows its directory, endpoints and kraft.versions."""
        self.snapshot: OffsetAndEpoch | None = None
        self.snapshot_position = 0
        self.update_voter_at = 0


class Resigned:
    """Led this epoch, leads no longer, and tells the others so until they know or time is over."""

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
        self.successors = successors
        self.deadline = deadline


Role: TypeAlias = Unattached | Prospective | Candidate | LeaderRole | Follower | Resigned
