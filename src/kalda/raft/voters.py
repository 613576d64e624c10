"""Voter sets, and their history.

A static quorum (kraft.version 0) takes its voters from `controller.quorum.voters`, without directory ids, and never
changes them. A dynamic one (kraft.version 1, KIP-853) keeps them in the log as VotersRecords: the newest in the log
is in force, committed or not, and a truncation brings an older one back. Voter sets change by one voter at a time, so
that any majority of one shares a member with any majority of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kalda.base.ids import ZERO_UUID, Uuid, uuid_to_text
from kalda.protocol.messages.log_records import (
    VotersRecord,
    VotersRecordEndpoint,
    VotersRecordKRaftVersionFeature,
    VotersRecordVoter,
)

# Small values of the quorum: replicas, ends of logs, addresses, and what does not change while a node runs.


class ReplicaKey(NamedTuple):
    """A replica: a node and the directory that holds its log. After the loss of its disk a node is another replica, and
    not the voter that it was (KIP-853). `ZERO_UUID`: the directory is unknown, as in every static voter set."""

    id: int
    directory_id: Uuid = ZERO_UUID

    def __str__(self) -> str:
        return f"{self.id}" if self.directory_id == ZERO_UUID else f"{self.id}@{uuid_to_text(self.directory_id)}"


class OffsetAndEpoch(NamedTuple):
    """The end of a log (exclusive) and the epoch of its last record; also the id of a snapshot, which holds everything
    before `offset`. Logs compare by epoch first."""

    offset: int
    epoch: int

    def is_up_to_date(self, other: OffsetAndEpoch) -> bool:
        """Whether a log that ends here has every committed record of a log that ends at `other`."""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)


BOOTSTRAP_SNAPSHOT = OffsetAndEpoch(0, 0)

MAX_EPOCH = (1 << 31) - 1
"""The last epoch that messages and `quorum-state` can hold: no election follows it."""
MAX_OFFSET = 1 << 62
"""The highest offset at which a fetched snapshot may end: the log that continues it has room for as many records."""


class VoterEndpoint(NamedTuple):
    """A named listener of a node."""

    name: str
    host: str
    port: int


class Destination(NamedTuple):
    """The receiver of a call. `node_id` is negative for a bootstrap server, whose id is unknown."""

    node_id: int
    host: str
    port: int


class RaftConfig(NamedTuple):
    """Defaults are Kafka's `controller.quorum.*`."""

    local: ReplicaKey
    cluster_id: str | None
    """None where it is not checked."""
    listener: str = "CONTROLLER"
    """The controller listener by which replicas reach one another."""
    endpoints: tuple[VoterEndpoint, ...] = ()
    """The replica's own controller listeners, as it advertises them; none for an observer."""
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    """Where to find the leader while none is known; without them, at the voters' endpoints."""
    can_be_voter: bool = True
    """Whether the node has the controller role. Without it the replica stays an observer, and syncs nothing."""
    auto_join: bool = False
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
    max_kraft_version: int = 1

    @property
    def check_quorum_timeout_ms(self) -> int:
        """How long a leader leads without fetches from a majority of the voters."""
        return self.fetch_timeout_ms * 3 // 2


class Voter(NamedTuple):
    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = 0

    def destination(self, listener: str) -> Destination | None:
        """Where the voter is reached on the listener of that name."""
        for endpoint in self.endpoints:
            if endpoint.name == listener:
                return Destination(self.key.id, endpoint.host, endpoint.port)
        return None


class VoterSet:
    """Voters in order of their ids. Immutable."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._voters: Mapping[int, Voter] = {v.key.id: v for v in sorted(voters, key=lambda v: v.key.id)}

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(str(v.key) for v in self._voters.values())})"

    @classmethod
    def static(cls, listener: str, voters: Iterable[tuple[int, str, int]]) -> VoterSet:
        """The voters of `controller.quorum.voters` as (id, host, port), without directory ids."""
        return cls(Voter(ReplicaKey(node_id), (VoterEndpoint(listener, host, port),)) for node_id, host, port in voters)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._voters)

    @property
    def voters(self) -> tuple[Voter, ...]:
        return tuple(self._voters.values())

    @property
    def majority(self) -> int:
        return len(self._voters) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        return self._voters.get(node_id)

    def is_voter(self, key: ReplicaKey) -> bool:
        """A voter without a directory id in the set is identified by its node id alone."""
        voter = self._voters.get(key.id)
        return voter is not None and voter.key.directory_id in (ZERO_UUID, key.directory_id)

    def is_only_voter(self, key: ReplicaKey) -> bool:
        return len(self._voters) == 1 and self.is_voter(key)

    def destination(self, node_id: int, listener: str) -> Destination | None:
        voter = self._voters.get(node_id)
        return voter.destination(listener) if voter is not None else None

    def with_voter(self, voter: Voter) -> VoterSet:
        """Add or replace one."""
        return VoterSet([*(v for v in self._voters.values() if v.key.id != voter.key.id), voter])

    def without(self, node_id: int) -> VoterSet:
        return VoterSet(v for v in self._voters.values() if v.key.id != node_id)

    def to_record(self) -> VotersRecord:
        return VotersRecord(
            voters=[
                VotersRecordVoter(
                    voter_id=v.key.id,
                    voter_directory_id=v.key.directory_id,
                    endpoints=[VotersRecordEndpoint(name=e.name, host=e.host, port=e.port) for e in v.endpoints],
                    kraft_version_feature=VotersRecordKRaftVersionFeature(
                        min_supported_version=v.min_kraft_version, max_supported_version=v.max_kraft_version
                    ),
                )
                for v in self._voters.values()
            ]
        )

    @classmethod
    def from_record(cls, record: VotersRecord) -> VoterSet:
        return cls(
            Voter(
                ReplicaKey(v.voter_id, v.voter_directory_id),
                tuple(VoterEndpoint(e.name, e.host, e.port) for e in v.endpoints),
                v.kraft_version_feature.min_supported_version,
                v.kraft_version_feature.max_supported_version,
            )
            for v in record.voters
        )


class VoterHistory:
    """Voter sets and kraft.versions by the offset of the record that set them; the newest is in force.

    Those of a snapshot have its last offset: -1 for the bootstrap snapshot, by which a new leader recognizes that its
    voters are in no log yet."""

    __slots__ = ("_static", "_versions", "_voters")

    def __init__(self, static: VoterSet) -> None:
        self._static = static
        self._voters: list[tuple[int, VoterSet]] = []
        self._versions: list[tuple[int, int]] = []

    @property
    def voters(self) -> VoterSet:
        return self._voters[-1][1] if self._voters else self._static

    @property
    def voters_offset(self) -> int | None:
        """The offset of the newest VotersRecord; None in a static quorum."""
        return self._voters[-1][0] if self._voters else None

    @property
    def kraft_version(self) -> int:
        return self._versions[-1][1] if self._versions else 0

    @property
    def dynamic(self) -> bool:
        return self.kraft_version >= 1

    def voters_at(self, offset: int) -> VoterSet:
        """The voters by the records up to and including `offset`."""
        return next((voters for at, voters in reversed(self._voters) if at <= offset), self._static)

    def kraft_version_at(self, offset: int) -> int:
        return next((version for at, version in reversed(self._versions) if at <= offset), 0)

    def set_voters(self, offset: int, voters: VoterSet) -> None:
        assert not self._voters or self._voters[-1][0] <= offset, "voter records come in order of offset"
        self._voters.append((offset, voters))

    def set_kraft_version(self, offset: int, version: int) -> None:
        assert not self._versions or self._versions[-1][0] <= offset, "version records come in order of offset"
        self._versions.append((offset, version))

    def truncate_to(self, end_offset: int) -> None:
        """Drop what records at `end_offset` and after have set."""
        while self._voters and self._voters[-1][0] >= end_offset:
            self._voters.pop()
        while self._versions and self._versions[-1][0] >= end_offset:
            self._versions.pop()

    def trim_before(self, offset: int) -> None:
        """Drop all but the newest of those at or before `offset`: no truncation reaches below it."""
        while len(self._voters) > 1 and self._voters[1][0] <= offset:
            del self._voters[0]
        while len(self._versions) > 1 and self._versions[1][0] <= offset:
            del self._versions[0]

    def reset(self) -> None:
        """A snapshot replaces the log: drop everything but the configured voters."""
        self._voters.clear()
        self._versions.clear()
