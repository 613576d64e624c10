"""Seeds of whole clusters: all invariants must hold, with all kinds of faults.

`KALDA_SIM_SEEDS=from:to` runs other seeds, of one node, three and four; `kalda sim replay SEED` prints the trace of
one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from kalda.sim import faults
from kalda.sim.scenario import SimPlan, simulate

FIRST, LAST = (int(part) for part in os.environ.get("KALDA_SIM_SEEDS", "0:2").split(":"))


@pytest.mark.parametrize("nodes", [1, 3, 4])
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_all_kinds_of_faults(nodes: int, seed: int) -> None:
    verdict = simulate(SimPlan(seed, nodes))
    assert verdict.passed, verdict.violation


@pytest.mark.parametrize("nodes", [1, 3])
def test_no_faults(nodes: int) -> None:
    verdict = simulate(SimPlan(1, nodes, kinds=(), duration_s=5))
    assert verdict.passed, verdict.violation
    assert verdict.acked > 50
    assert verdict.seen > 50


@pytest.mark.parametrize("seed", range(2))
def test_a_network_that_fails(seed: int) -> None:
    """No broker restarts here, so producers have several batches in flight."""
    verdict = simulate(SimPlan(seed, 3, kinds=(*faults.NETWORK, "pause"), loads=()))
    assert verdict.passed, verdict.violation


_TRACE = """
import hashlib, sys
from kalda.sim.scenario import SimPlan, simulate
trace = hashlib.sha256()
verdict = simulate(SimPlan(2, 3, duration_s=4), lambda line: trace.update(line.encode()), verbose=True)
print(trace.hexdigest(), verdict.acked)
"""


def test_a_seed_is_the_same_run_each_time() -> None:
    """The traces are equal to the last line, also in another process with other hashes of strings."""
    trace = hashlib.sha256()
    verdict = simulate(SimPlan(2, 3, duration_s=4), lambda line: trace.update(line.encode()), verbose=True)
    other = subprocess.run(
        [sys.executable, "-c", _TRACE],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.split() == [trace.hexdigest(), str(verdict.acked)]
