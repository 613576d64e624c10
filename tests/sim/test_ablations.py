"""With a safeguard switched off, some seed must violate an invariant: otherwise the seeds prove nothing about it.

`KALDA_SIM_ABLATIONS=all` tests all safeguards, which takes minutes; by default, those that are found fastest.
"""

from __future__ import annotations

import os

import pytest
from ablations import ABLATIONS, CONSUMER_ABLATIONS, CONTROLLER_ABLATIONS, QUORUM_ABLATIONS

from kalda.sim.scenario import simulate

QUICK = (
    "sync before acknowledging",
    "producers' sequences",
    "five batches in flight",
    "epochs of producers",
    "the in-sync minimum",
    "the high watermark for readers of followers",
    "moves of whole logs only",
)
CHOSEN = tuple(ABLATIONS) if os.environ.get("KALDA_SIM_ABLATIONS") == "all" else QUICK


@pytest.mark.parametrize("name", CHOSEN)
def test_without_a_safeguard_a_seed_fails(name: str) -> None:
    ablation = ABLATIONS[name]
    broken = ablation.find()
    assert broken is not None, f"{ablation.seeds} seeds pass without the safeguard: {name}"
    verdict = simulate(broken.plan)
    assert verdict.passed, f"the same seed fails with the safeguard on: {verdict.violation}"


SMALL = {**QUORUM_ABLATIONS, **CONTROLLER_ABLATIONS, **CONSUMER_ABLATIONS}


@pytest.mark.parametrize("name", SMALL)
def test_without_a_safeguard_a_small_simulation_fails(name: str) -> None:
    ablation = SMALL[name]
    broken = ablation.find()
    assert broken is not None, f"{ablation.seeds} seeds pass without the safeguard: {name}"
    for seed in range(broken[0] + 1):
        violation = ablation.run(seed)
        assert not violation, f"seed {seed} fails with the safeguard on: {violation}"
