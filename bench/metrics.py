"""What metrics cost: a node with `kalda.metrics.listener`, read every five seconds, beside one without.

    python bench/metrics.py [--rounds 9] [--requests 60000]

Both nodes run at the same time and are measured in turn, the first one of a pair alternating. Printed are the medians
of the ratios of each pair: request rates with metrics over those without, and the same for the CPU of a request.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import urllib.request
from statistics import median

from harness.figures import run_client
from harness.nodes import Node
from harness.systems import KALDA

from kalda.network.free_ports import free_ports


def scrape(port: int, over: threading.Event) -> None:
    """Read the metrics every five seconds; Prometheus does so every 15 to 60."""
    while not over.wait(5.0):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page,
        ):
            page.read()


def measure(nodes: tuple[Node, Node], rounds: int, requests: int) -> None:
    """Print the ratios, with metrics over without."""
    for workload in ("requests", "fetches"):
        rates: list[float] = []
        costs: list[float] = []
        for number in range(rounds):
            seen: dict[Node, tuple[float, float]] = {}
            for node in nodes if number % 2 else nodes[::-1]:
                before = node.cpu_s()
                rate = run_client(workload, node, "measured", requests, 100)["per_s"]
                seen[node] = rate, (node.cpu_s() - before) / requests
            plain, measured = (seen[node] for node in nodes)
            rates.append(measured[0] / plain[0])
            costs.append(measured[1] / plain[1])
        print(
            f"{workload:9} rate {median(rates):.3f} ({min(rates):.3f} to {max(rates):.3f}), "
            f"CPU of a request {median(costs):.3f} ({min(costs):.3f} to {max(costs):.3f})",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=60_000)
    given = parser.parse_args()
    (port,) = free_ports(1)
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        nodes = (Node(KALDA), Node(KALDA, f"kalda.metrics.listener=127.0.0.1:{port}\n"))
        for node in nodes:
            stack.callback(node.close)
            node.start()
            node.create_topics(["measured"])
            for workload in ("requests", "fetches"):
                run_client(workload, node, "measured", 20_000, 100)
        scraper = threading.Thread(target=scrape, args=(port, over), daemon=True)
        scraper.start()
        stack.callback(over.set)
        measure(nodes, given.rounds, given.requests)


if __name__ == "__main__":
    main()
