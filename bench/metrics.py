"""What metrics cost a request: one node, whose requests are measured and not measured in turn while one client sends.

    python bench/metrics.py [--quick] [--rounds 15] [--requests 40000]

It is the same process with and without, since two processes of the same program differ by up to a tenth. The node runs
in the process of this script, and its metrics are read every five seconds. Printed are the medians of the ratios of
each round, with metrics over without: of the rate, and of the CPU of a request.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

from harness.figures import run_client

from kalda.broker.process.node import Node
from kalda.network.free_ports import free_ports
from kalda.testing.cluster import Cluster


def scrape(port: int, over: threading.Event) -> None:
    """Read the metrics every five seconds; Prometheus does so every 15 to 60."""
    while not over.wait(5.0):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page,
        ):
            page.read()


class Measured:
    """The node as `run_client` needs it, and the switch."""

    name = "Kalda"
    directory = Path()

    def __init__(self, node: Node, port: int) -> None:
        assert node._broker is not None
        self.port = port
        self._gate = node._gates["PLAINTEXT"]
        self._pipeline = node._broker.services.pipeline
        self._on_frame, self._errors = self._gate._handler, self._pipeline.errors

    def switch(self, *, on: bool) -> None:
        """Measure the requests from now on, or do not: as where `kalda.metrics.listener` is not set."""
        self._gate._handler = self._on_frame if on else self._pipeline.on_frame
        self._pipeline.errors = self._errors if on else None
        self._pipeline.renew_routes()


def measure(node: Measured, workload: str, rounds: int, requests: int) -> None:
    """Print the ratios, with metrics over without."""
    rates, costs = [], []
    for number in range(rounds):
        seen = {}
        for on in (True, False) if number % 2 else (False, True):
            node.switch(on=on)
            before = time.process_time()
            rate = run_client(workload, node, "measured", requests, 100)["per_s"]
            seen[on] = rate, time.process_time() - before
        rates.append(seen[True][0] / seen[False][0])
        costs.append(seen[True][1] / seen[False][1])
    print(
        f"{workload:9} rate {median(rates):.3f} ({min(rates):.3f} to {max(rates):.3f}), "
        f"CPU of a request {median(costs):.3f} ({min(costs):.3f} to {max(costs):.3f})",
        flush=True,
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--quick", action="store_true", help="three rounds of half the requests")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.requests = 3, 20_000
    (port,) = free_ports(1)
    over = threading.Event()
    with Cluster(config={"kalda.metrics.listener": f"127.0.0.1:{port}"}) as cluster:
        cluster.create_topic("measured", partitions=1)
        node = Measured(cluster.nodes[1], int(cluster.bootstrap_servers.rpartition(":")[2]))
        scraper = threading.Thread(target=scrape, args=(port, over), daemon=True)
        scraper.start()
        for workload in ("requests", "fetches"):
            run_client(workload, node, "measured", given.requests, 100)
            measure(node, workload, given.rounds, given.requests)
        over.set()


if __name__ == "__main__":
    main()
