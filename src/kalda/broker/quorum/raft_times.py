"""What is measured of a replica of the metadata log over time, under the names of Kafka's `raft-metrics`.

    commit-latency         from the append of a batch on the leader to its commit
    election-latency       from the moment at which this replica stands for election until there is a leader
    append-records-rate    records that this replica has appended as the leader
    fetch-records-rate     records that it has fetched as a follower

Each is of the last one to two windows of 30 s. Metadata changes rarely, so nothing here is on the data path. A store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kalda.base.sensors import Measurable, SensorName
from kalda.base.stats import Avg, Max, Rate
from kalda.raft.roles import Candidate, Follower, LeaderRole, Prospective, Role

RAFT = "kafka.server:type=raft-metrics"


class RaftTimes:
    """Of one replica."""

    def __init__(self) -> None:
        self._appended: deque[tuple[int, int]] = deque()
        """Last offset and time of each batch that this replica has appended as the leader and that is not committed."""
        self._election_began_ms: int | None = None
        """None while this replica does not stand for election."""
        self._commits = (Avg(), Max())
        self._elections = (Avg(), Max())
        self._append_rate = Rate()
        self._fetch_rate = Rate()

    def on_append(self, last_offset: int, records: int, now_ms: int) -> None:
        """A batch was appended as the leader."""
        self._appended.append((last_offset, now_ms))
        self._append_rate.record(records, now_ms)

    def on_fetched(self, records: int, now_ms: int) -> None:
        """Records were appended as a follower."""
        self._fetch_rate.record(records, now_ms)

    def on_commit(self, high_watermark: int, now_ms: int) -> None:
        """Everything before `high_watermark` is committed."""
        while self._appended and self._appended[0][0] < high_watermark:
            latency_ms = now_ms - self._appended.popleft()[1]
            for stat in self._commits:
                stat.record(latency_ms, now_ms)

    def on_role(self, role: Role, now_ms: int) -> None:
        """The replica has changed its role."""
        self._appended.clear()
        if isinstance(role, Prospective | Candidate):
            if self._election_began_ms is None:
                self._election_began_ms = now_ms
        elif isinstance(role, LeaderRole | Follower):
            if self._election_began_ms is not None:
                for stat in self._elections:
                    stat.record(now_ms - self._election_began_ms, now_ms)
            self._election_began_ms = None

    def sensors(self) -> Iterator[tuple[SensorName, Measurable]]:
        """A source for `Sensors.add_source`."""
        for name, (mean, largest) in (("commit-latency", self._commits), ("election-latency", self._elections)):
            yield SensorName(RAFT, f"{name}-avg"), mean
            yield SensorName(RAFT, f"{name}-max"), largest
        yield SensorName(RAFT, "append-records-rate"), self._append_rate
        yield SensorName(RAFT, "fetch-records-rate"), self._fetch_rate
