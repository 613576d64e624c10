"""The cost of a request by the number of the node's partitions: 10, 100, 1,000, 5,000.

    python bench/scale.py [--quick] [--rounds 5] [--most 5000] [--requests 20000]

A node for each number is running, and one partition of each gets requests in turn, so that the machine's drift affects
all equally. The figure is the node's own CPU per request, which hardly depends on other load. It should be the same for
all numbers.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from statistics import median

from harness.figures import run_client
from harness.nodes import Node
from harness.systems import KALDA

STEPS = (10, 100, 1_000, 5_000)
WORKLOADS = {"requests": "produce", "fetches": "fetch", "metadata": "metadata"}
"""Workloads of `harness.client`, and their titles."""
_PER_TOPIC = 50


def grow(node: Node, have: int, wanted: int) -> None:
    """Add topics until there are `wanted` partitions."""
    names = [f"more-{have}-{number}" for number in range((wanted - have) // _PER_TOPIC)]
    for start in range(0, len(names), 20):
        node.create_topics(names[start : start + 20], _PER_TOPIC)
    rest = (wanted - have) % _PER_TOPIC
    if rest:
        node.create_topics([f"rest-{have}"], rest)


def cost(node: Node, workload: str, topic: str, requests: int) -> float:
    """CPU µs of the node for each request."""
    before = node.cpu_s()
    run_client(workload, node, topic, requests, 100)
    return (node.cpu_s() - before) / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each workload at each step")
    parser.add_argument("--most", type=int, default=STEPS[-1], help="partitions of the last step")
    parser.add_argument("--requests", type=int, default=20_000, help="requests in a run")
    parser.add_argument("--quick", action="store_true", help="one run, up to 1,000 partitions")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.most = 1, 1_000

    nodes: dict[int, Node] = {}
    samples: dict[tuple[int, str], list[float]] = defaultdict(list)
    try:
        for step in (step for step in STEPS if step <= arguments.most):
            nodes[step] = Node(KALDA)
            nodes[step].start()
            nodes[step].create_topics(["driven"])
            grow(nodes[step], 1, step)
        for number in range(arguments.rounds):
            for step, node in nodes.items() if number % 2 == 0 else reversed(nodes.items()):
                for workload in WORKLOADS:
                    samples[step, workload].append(cost(node, workload, "driven", arguments.requests))
        show(nodes, samples)
    finally:
        for node in nodes.values():
            node.close()


def show(nodes: dict[int, Node], samples: dict[tuple[int, str], list[float]]) -> None:
    """Print medians, and their ratios to those with the fewest partitions."""
    heads = "".join(f"{f'{name}, CPU µs':>26}" for name in WORKLOADS.values())
    print(f"{'partitions':>10}  {heads}   RSS, MB")
    fewest = min(nodes)
    for step, node in nodes.items():
        cells = ""
        for workload in WORKLOADS:
            middle = median(samples[step, workload])
            cells += f"{f'{middle:.1f} ({middle / median(samples[fewest, workload]):.2f}×)':>26}"
        print(f"{step:>10,}  {cells}{node.rss_mb():>10.0f}")


if __name__ == "__main__":
    main()
