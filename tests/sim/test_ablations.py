"""With a safeguard switched off, some seed must break a promise: otherwise the seeds prove nothing about it.

`KALDA_SIM_ABLATIONS=all` looks for every safeguard's lack, which takes minutes; by default, for that of the quickest.
"""

from __future__ import annotations

import os

import pytest

from kalda.sim.ablations import ABLATIONS, CONTROLLER_ABLATIONS, QUORUM_ABLATIONS
from kalda.sim.scenario import simulate

QUICK = (
    "sync before acknowledging",
    "producers' sequences",
    "the in-sync minimum",
    "the high watermark for readers of followers",
    "moves of whole logs only",
)
CHOSEN = tuple(ABLATIONS) if os.environ.get("KALDA_SIM_ABLATIONS") == "all" else QUICK


@pytest.mark.parametrize("name", CHOSEN)
def test_its_lack_shows(name: str) -> None:
    ablation = ABLATIONS[name]
    broken = ablation.find()
    assert broken is not None, f"{ablation.seeds} seeds do without: {name}"
    kept = simulate(broken.plan)
    assert kept.kept, f"the same seed fails with the safeguard on: {kept.why}"


SMALL = {**QUORUM_ABLATIONS, **CONTROLLER_ABLATIONS}


@pytest.mark.parametrize("name", SMALL)
def test_its_lack_shows_in_a_small_simulation(name: str) -> None:
    ablation = SMALL[name]
    broken = ablation.find()
    assert broken is not None, f"{ablation.seeds} seeds do without: {name}"
    for seed in range(broken[0] + 1):
        why = ablation.run(seed)
        assert not why, f"seed {seed} fails with the safeguard on: {why}"
