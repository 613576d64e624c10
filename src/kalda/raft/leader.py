"""What only a leader knows.

A voter has the records before the offset that it fetches from: a fetch is an acknowledgement. The high watermark is the
largest offset that a majority of the voters has durably, the leader's own flush counting as its fetch; it moves only
once it passes the start of the leader's own epoch (Raft, section 5.4.2: an older epoch's record is not committed by
counting replicas), and it never goes back.

A leader that a majority has not fetched from for one and a half fetch timeouts steps down (check-quorum): the others
may have elected someone else behind a broken network.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from kalda.raft.rpc import FetchCall, ReplicaProgress
from kalda.raft.values import ReplicaKey
from kalda.raft.voters import VoterSet

OBSERVER_SESSION_MS = 300_000
MAX_OBSERVERS = 10_000


class Progress:
    """How far one replica has come, and when it was last heard of."""

    __slots__ = ("acknowledged", "caught_up_ms", "end_offset", "fetched_ms", "key", "leader_end_then")

    def __init__(self, key: ReplicaKey, acknowledged: bool = False) -> None:
        self.key = key
        self.end_offset = -1
        self.fetched_ms = -1
        self.caught_up_ms = -1
        self.leader_end_then = -1
        self.acknowledged = acknowledged

    def fetched(self, offset: int, leader_end: int, now: int) -> None:
        """It asked for what is at `offset`. It was caught up at the time of its last fetch, if it now has all that the
        leader had then."""
        if offset >= leader_end:
            self.caught_up_ms = now
        elif self.leader_end_then >= 0 and offset >= self.leader_end_then:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset = offset
        self.fetched_ms = now
        self.leader_end_then = leader_end
        self.acknowledged = True

    def report(self) -> ReplicaProgress:
        return ReplicaProgress(self.key, self.end_offset, self.fetched_ms, self.caught_up_ms)


class ParkedFetch(NamedTuple):
    token: Hashable
    call: FetchCall
    deadline: int


class VoterChange(NamedTuple):
    """A change of the voters that is appended and not yet committed. `token` is None where nobody waits."""

    offset: int
    token: Hashable | None
    deadline: int


class LeaderRole:
    __slots__ = (
        "begin_at",
        "change",
        "epoch",
        "fetched_by",
        "granting",
        "high_watermark",
        "leader_id",
        "observers",
        "parked",
        "quorum_deadline",
        "start_offset",
        "told",
        "voted",
        "voters",
    )

    def __init__(
        self,
        epoch: int,
        local: ReplicaKey,
        voters: VoterSet,
        granting: tuple[int, ...],
        start_offset: int,
        now: int,
        quorum_timeout_ms: int,
    ) -> None:
        self.epoch = epoch
        self.leader_id = local.id
        self.voted: ReplicaKey | None = None
        self.granting = granting
        self.start_offset = start_offset
        """Where the LeaderChangeMessage of this epoch stands."""
        self.high_watermark: int | None = None
        """None until a majority has something of this epoch."""
        self.voters: dict[int, Progress] = {}
        self.observers: dict[ReplicaKey, Progress] = {}
        self.parked: list[ParkedFetch] = []
        self.fetched_by: dict[int, None] = {}
        self.quorum_deadline = now + quorum_timeout_ms
        self.begin_at = now
        self.change: VoterChange | None = None
        self.told: VoterSet | None = None
        """Static voters with what they told of themselves: their directories, endpoints and kraft.versions. Kept in
        memory only; it becomes the first VotersRecord when kraft.version is raised to 1."""
        self.set_voters(voters, local)

    def set_voters(self, voters: VoterSet, local: ReplicaKey) -> None:
        """A new voter set counts as soon as its record is in the log."""
        old, self.voters = self.voters, {}
        for voter in voters.voters:
            key = local if voter.key.id == local.id else voter.key
            known = old.get(key.id) or self.observers.pop(key, None)
            if known is None:
                known = Progress(key, acknowledged=key.id == local.id)
            known.key = key
            self.voters[key.id] = known
        for node_id, progress in old.items():
            if node_id not in self.voters and node_id != local.id:
                self.observers[progress.key] = progress

    def progress_of(self, key: ReplicaKey, voters: VoterSet) -> Progress | None:
        """None where there are too many observers to follow one more."""
        if voters.is_voter(key):
            return self.voters.get(key.id)
        progress = self.observers.get(key)
        if progress is None and len(self.observers) < MAX_OBSERVERS:
            progress = self.observers[key] = Progress(key)
        return progress

    def fetched_from(self, key: ReplicaKey, majority: int, now: int, quorum_timeout_ms: int) -> None:
        """Check-quorum: a voter was heard of. The leader counts as one of the majority where it is a voter."""
        if key.id not in self.voters or key.id == self.leader_id:
            return
        self.fetched_by[key.id] = None
        needed = majority - (1 if self.leader_id in self.voters else 0)
        if len(self.fetched_by) >= needed:
            self.fetched_by.clear()
            self.quorum_deadline = now + quorum_timeout_ms

    @property
    def alone(self) -> bool:
        """No other voter's silence could matter."""
        return list(self.voters) == [self.leader_id]

    def committed_offset(self) -> int | None:
        """What a majority has, where that moves the high watermark."""
        offsets = sorted((progress.end_offset for progress in self.voters.values()), reverse=True)
        if not offsets:
            return None
        offset = offsets[len(offsets) // 2]
        if offset <= self.start_offset or (self.high_watermark is not None and offset <= self.high_watermark):
            return None
        return offset

    @property
    def established(self) -> bool:
        """Something of this epoch is committed, and with it everything before."""
        return self.high_watermark is not None and self.high_watermark > self.start_offset

    def successors(self) -> tuple[ReplicaKey, ...]:
        """Voters other than this one, the most advanced first."""
        others = [p for p in self.voters.values() if p.key.id != self.leader_id]
        return tuple(p.key for p in sorted(others, key=lambda p: (-p.end_offset, p.key.id)))

    def expire_observers(self, now: int) -> None:
        for key in [k for k, p in self.observers.items() if p.fetched_ms + OBSERVER_SESSION_MS <= now]:
            del self.observers[key]
