"""A consumer group of many members; `kalda sim group --members 5000 --partitions 15000` runs a larger one."""

from __future__ import annotations

import pytest

from kalda.coordinator.groups.consumer_group import ConsumerGroup
from kalda.sim.large_group import LargeGroupPlan, simulate_large_group

PLAN = LargeGroupPlan(members=60, partitions=180)


def test_a_large_group_settles_after_joins_a_leave_and_a_kill() -> None:
    verdict = simulate_large_group(PLAN)
    assert verdict.passed, verdict.violation
    assert verdict.heartbeats > 3 * PLAN.members


def test_members_that_do_not_wait_for_partitions_to_be_released_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerGroup, "is_taken", lambda *_: False)
    assert "has what it had" in simulate_large_group(PLAN).violation
