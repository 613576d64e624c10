"""Alternating rounds, medians, ratios of medians, the table.

The machine's speed drifts, so every figure is measured with all nodes in each round, and the order of the nodes changes
from round to round. Ratios are those of the medians; above 1 the first node is better.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol, TypeVar

HERE = Path(__file__).parents[1]


class Measured(Protocol):
    """A node, or a cluster of them."""

    name: str
    directory: Path

    @property
    def port(self) -> int:
        """The port to which clients connect first."""
        ...


M = TypeVar("M", bound=Measured)


class Figure(NamedTuple):
    """A line of the table."""

    title: str
    unit: str
    less_is_better: bool = False
    scale: float = 1.0


class Figures:
    """All samples of one run, by figure and node."""

    def __init__(self) -> None:
        self.samples: dict[Figure, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, figure: Figure, node: str, value: float) -> None:
        self.samples[figure][node].append(value * figure.scale)

    def show(self, names: Sequence[str]) -> None:
        """Print medians with the spread of the samples, and the ratio of the first node to the second."""
        heads = "".join(f"{name:>34}" for name in names)
        print(f"\n{'median (lowest to highest)':<42}{heads}{'ratio' if len(names) > 1 else '':>9}")
        for figure, of in self.samples.items():
            cells, medians = "", []
            for name in names:
                samples = of.get(name, [])
                if samples:
                    medians.append(median(samples))
                    cells += f"{f'{medians[-1]:,.4g} ({min(samples):,.4g} to {max(samples):,.4g})':>34}"
                else:
                    cells += f"{'–':>34}"
            ratio = ""
            if len(medians) >= 2:
                better = medians[1] / medians[0] if figure.less_is_better else medians[0] / medians[1]
                ratio = f"{better:>8.2f}×"
            print(f"{f'{figure.title}, {figure.unit}':<42}{cells}{ratio}")

    def save(self, name: str) -> Path:
        """Write every sample to `bench/results`."""
        folder = HERE / "results"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
        rows = [{"title": figure.title, "unit": figure.unit, "samples": of} for figure, of in self.samples.items()]
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        return path


def in_turn(nodes: Sequence[M], rounds: int, work: Callable[[M, int], None]) -> None:
    """Call `work(node, round)` for all nodes in each round, in reverse order in every second round."""
    for number in range(rounds):
        for node in nodes if number % 2 == 0 else reversed(nodes):
            work(node, number)


def run_client(workload: str, node: Measured, topic: str, count: int, size: int) -> dict[str, float]:
    """Run a workload of `harness.client` against a node, in a process of its own."""
    command = [sys.executable, "-m", "harness.client", workload, str(node.port), topic, str(count), str(size)]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{workload} against {node.name} failed; its log is in {node.directory}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
