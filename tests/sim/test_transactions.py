"""Seeds of transactions: the histories of all clients must be sound; and without a safeguard, some seed is not.

`KALDA_SIM_SEEDS=from:to` runs other seeds; `KALDA_SIM_ABLATIONS=all` switches off all safeguards, one by one.
`kalda sim transactions --from SEED --trace` prints the trace of one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from transaction_ablations import TRANSACTION_ABLATIONS

from kalda.sim.transaction_clients import SimTransactions
from kalda.sim.transaction_storm import PLANS, TransactionPlan, simulate_transactions

FIRST, LAST = (int(part) for part in os.environ.get("KALDA_SIM_SEEDS", "0:1").split(":"))
QUICK = ("the last stable offset bounds fetches", "verification before append", "epochs of appends")
CHOSEN = tuple(TRANSACTION_ABLATIONS) if os.environ.get("KALDA_SIM_ABLATIONS") == "all" else QUICK


def test_without_faults() -> None:
    verdict = simulate_transactions(TransactionPlan(1, kinds=(), zombies=False, duration_s=3))
    assert verdict.passed, verdict.violation
    assert verdict.committed > 30
    assert verdict.aborted > 5


def test_the_last_transactions_end_before_the_logs_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a loop has read all its input long before it commits."""
    send_offsets: Callable[..., Awaitable[None]] = SimTransactions.send_offsets

    async def late(self: SimTransactions, *arguments: Any) -> None:
        await asyncio.sleep(0.8)
        await send_offsets(self, *arguments)

    monkeypatch.setattr(SimTransactions, "send_offsets", late)
    lines: list[str] = []
    verdict = simulate_transactions(TransactionPlan(1, kinds=(), zombies=False, duration_s=3), lines.append)
    assert verdict.passed, verdict.violation
    assert verdict.unknown == sum("it does not wait for the answer" in line for line in lines)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_the_history_is_sound(plan: str, seed: int) -> None:
    verdict = simulate_transactions(replace(PLANS[plan], seed=seed))
    assert verdict.passed, verdict.violation
    assert verdict.committed


def test_a_seed_is_the_same_run_each_time() -> None:
    plan = TransactionPlan(3, duration_s=4)
    traces: list[list[str]] = [[], []]
    for trace in traces:
        simulate_transactions(plan, trace.append, verbose=True)
    assert traces[0] == traces[1]


@pytest.mark.parametrize("name", CHOSEN)
def test_without_a_safeguard_a_seed_fails(name: str) -> None:
    ablation = TRANSACTION_ABLATIONS[name]
    broken = ablation.find()
    assert broken is not None, f"{ablation.seeds} seeds pass without the safeguard: {name}"
    verdict = simulate_transactions(broken.plan)
    assert verdict.passed, f"the same seed fails with the safeguard on: {verdict.violation}"
