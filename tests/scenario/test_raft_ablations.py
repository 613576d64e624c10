"""With a safeguard switched off, some storm must break a promise: otherwise the storms do not test it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kalda.raft import replication, roles
from kalda.raft.replica import Replica
from kalda.raft.voters import OffsetAndEpoch
from kalda.sim.quorum import SimQuorum, recover, storm

SEEDS = range(40)
Patch = pytest.MonkeyPatch


def breaks_a_promise(run: Callable[[int], SimQuorum]) -> bool:
    for seed in SEEDS:
        try:
            recover(run(seed))
        except (AssertionError, IndexError):
            return True
    return False


def test_votes_for_logs_that_lack_records(monkeypatch: Patch) -> None:
    monkeypatch.setattr(OffsetAndEpoch, "is_up_to_date", lambda self, other: True)
    assert breaks_a_promise(storm)


def test_commits_before_a_majority_has_the_record(monkeypatch: Patch) -> None:
    def highest_offset(self: roles.LeaderRole) -> int | None:
        offset = max((progress.end_offset for progress in self.voters.values()), default=0)
        return offset if offset > max(self.epoch_start_offset, self.high_watermark or 0) else None

    monkeypatch.setattr(roles.LeaderRole, "committed_offset", highest_offset)
    assert breaks_a_promise(storm)


def test_acknowledgements_before_the_sync(monkeypatch: Patch) -> None:
    original = Replica.flush

    def flush(self: Replica) -> None:
        original(self)
        self.log.flushed_offset = self.log.end_offset

    monkeypatch.setattr(Replica, "flush", flush)
    assert breaks_a_promise(storm)


def test_votes_that_are_not_persisted(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Replica, "persist", lambda self: None)
    assert breaks_a_promise(storm)


def test_appends_without_truncation(monkeypatch: Patch) -> None:
    monkeypatch.setattr(replication, "_truncate", lambda machine, diverging: None)
    assert breaks_a_promise(storm)
