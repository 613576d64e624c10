"""With a safeguard switched off, some storm must break a promise: otherwise the storms prove nothing about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kalda.raft import leader, replication
from kalda.raft.replica import Replica
from kalda.raft.values import OffsetAndEpoch
from kalda.sim.quorum import SimQuorum
from kalda.sim.quorum_storm import calm, storm

SEEDS = range(40)
Patch = pytest.MonkeyPatch


def broken(run: Callable[[int], SimQuorum]) -> bool:
    for seed in SEEDS:
        try:
            calm(run(seed))
        except (AssertionError, IndexError):
            return True
    return False


def test_votes_for_logs_that_lack_records(monkeypatch: Patch) -> None:
    monkeypatch.setattr(OffsetAndEpoch, "is_up_to_date", lambda self, other: True)
    assert broken(storm)


def test_commits_before_a_majority_has_it(monkeypatch: Patch) -> None:
    def first(self: leader.LeaderRole) -> int | None:
        offset = max((progress.end_offset for progress in self.voters.values()), default=0)
        return offset if offset > max(self.epoch_start_offset, self.high_watermark or 0) else None

    monkeypatch.setattr(leader.LeaderRole, "committed_offset", first)
    assert broken(storm)


def test_acknowledgements_of_what_is_not_synced(monkeypatch: Patch) -> None:
    original = Replica.flush

    def flush(self: Replica) -> None:
        original(self)
        self.log.flushed_offset = self.log.end_offset

    monkeypatch.setattr(Replica, "flush", flush)
    assert broken(storm)


def test_votes_that_are_forgotten(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Replica, "persist", lambda self: None)
    assert broken(storm)


def test_appends_that_do_not_fit_the_log(monkeypatch: Patch) -> None:
    monkeypatch.setattr(replication, "_truncate", lambda machine, diverging: None)
    assert broken(storm)
