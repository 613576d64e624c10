"""Seeded storms over the quorum's machines.

`RAFT_SEEDS=from:to` runs other seeds.
"""

from __future__ import annotations

import os

import pytest

from kalda.sim.quorum import recover, storm

FIRST, LAST = (int(part) for part in os.environ.get("RAFT_SEEDS", "0:30").split(":"))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_storm(seed: int) -> None:
    recover(storm(seed))
