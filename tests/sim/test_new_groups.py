"""Seeds of consumer groups (KIP-848), of groups that change their kind, of share groups (KIP-932), of streams groups
(KIP-1071), and of topics that are deleted and created again below Kalda's clients.

`KALDA_SIM_SEEDS=from:to` runs other seeds, of one node and of three; `KALDA_SIM_ABLATIONS=all` switches off all
safeguards, one by one. `kalda sim replay SEED --loads share-groups` prints the trace of one.
"""

from __future__ import annotations

import os

import pytest
from group_ablations import GROUP_ABLATIONS

from kalda.sim.groups import Ownership
from kalda.sim.scenario import GROUP_LOADS, RECREATED_LOAD, SimPlan, simulate

_SEEDS = os.environ.get("KALDA_SIM_SEEDS")
FIRST, LAST = (int(part) for part in (_SEEDS or "0:1").split(":"))
SIZES, DURATION_S = ((1, 3), 20.0) if _SEEDS else ((1,), 4.0)
QUICK = ("offsets stay with the group", "records have one owner")
CHOSEN = tuple(GROUP_ABLATIONS) if os.environ.get("KALDA_SIM_ABLATIONS") == "all" else QUICK


@pytest.mark.parametrize("load", [*GROUP_LOADS, RECREATED_LOAD])
@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_the_promises_of_groups_hold(seed: int, nodes: int, load: str) -> None:
    verdict = simulate(SimPlan(seed, nodes, duration_s=DURATION_S, loads=(load,)))
    assert verdict.passed, verdict.violation
    assert verdict.acked


@pytest.mark.parametrize("name", CHOSEN)
def test_without_a_safeguard_a_seed_fails(name: str) -> None:
    ablation = GROUP_ABLATIONS[name]
    broken = ablation.find()
    assert broken is not None, f"{ablation.seeds} seeds pass without the safeguard: {name}"
    verdict = simulate(broken.plan)
    assert verdict.passed, f"the same seed fails with the safeguard on: {verdict.violation}"


def test_an_answer_that_comes_after_its_member_has_left_gives_it_nothing() -> None:
    violations: list[str] = []
    ownership = Ownership("g", violations.append, has_one_kind=True)
    late = ownership.sent("a", 1, None)
    ownership.sent("a", -1, None)
    joined = ownership.sent("b", 0, set())
    ownership.accepted("node", joined, "b", 3, frozenset({("t", 0)}))
    ownership.accepted("node", late, "a", 2, frozenset({("t", 0)}))
    ownership.accepted("node", ownership.sent("b", 3, None), "b", 3, None)
    assert not violations
