"""A Kalda node beside Apache Kafka: rates, latencies, start-up, memory.

    python bench/broker.py [--quick] [--rounds 5] [--only throughput|requests|startup] [--json]

Both nodes run at the same time and are measured in turn, each with a client process on the same cores. Before each
rate as much memory is touched as is written (`harness/pages.py`). Without Java or a reachable Maven registry, only
Kalda is measured. `--quick` takes a minute; its figures are only rough.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from harness.figures import Figure, Figures, in_turn, run_client
from harness.nodes import Node
from harness.pages import provide_pages
from harness.systems import systems

_MANY_TOPICS, _MANY_PARTITIONS = 20, 50


class Bench:
    """One run over all nodes."""

    def __init__(self, nodes: Sequence[Node], rounds: int, quick: bool) -> None:
        self.nodes = nodes
        self.rounds = rounds
        self.share = 0.1 if quick else 1.0
        self.figures = Figures()

    def _count(self, count: int) -> int:
        return max(10_000, int(count * self.share) // 10_000 * 10_000)

    def throughput(self) -> None:
        """Produce and consume through librdkafka, at 100 B and at 1 KB, and batches by a client that only sends and
        receives them."""
        for node in self.nodes:  # a JVM is slow until its compiler has seen the code of both sizes under load
            for size, count in ((100, 1_500_000), (1024, 300_000)):
                node.create_topics([f"warm-up-{size}"])
                for workload in ("produce", "consume"):
                    run_client(workload, node, f"warm-up-{size}", self._count(count), size)
                node.create_topics([f"warm-up-batches-{size}"])
                for workload in ("batches", "reads"):
                    run_client(workload, node, f"warm-up-batches-{size}", self._count(count), size)
        self._throughput(100, "100 B", self._count(1_500_000), "M records/s", 1e-6)
        self._throughput(1024, "1 KB", self._count(300_000), "MB/s", 1024e-6)

    def _throughput(self, size: int, label: str, count: int, unit: str, scale: float) -> None:
        def work(node: Node, number: int) -> None:
            topic = f"records-{size}-{number}"
            node.create_topics([topic])
            for workload in ("produce", "consume"):
                provide_pages(count * size)  # a consumer's queue takes memory, too: the faster its node, the more
                before = node.cpu_s()
                seen = run_client(workload, node, topic, count, size)
                cpu = (node.cpu_s() - before) / (count * size / 1e6)
                self.figures.add(Figure(f"{workload} {label}", unit, scale=scale), node.name, seen["per_s"])
                self.figures.add(Figure(f"  cores of the client, {workload} {label}", ""), node.name, seen["cores"])
                self.figures.add(Figure(f"  CPU of the node, {workload} {label}", "ms/MB", True, 1e3), node.name, cpu)

        def raw(node: Node, number: int) -> None:
            topic = f"batches-{size}-{number}"
            node.create_topics([topic])
            provide_pages(count * size)
            for workload, share, title in (("batches", 1, "produce batches of"), ("reads", 4, "fetch batches of")):
                before = node.cpu_s()
                rate = run_client(workload, node, topic, share * count, size)["per_s"]
                cpu = (node.cpu_s() - before) / (share * count * size / 1e6)
                self.figures.add(Figure(f"{title} {label}", unit, scale=scale), node.name, rate)
                self.figures.add(Figure(f"  CPU of the node, {title} {label}", "ms/MB", True, 1e3), node.name, cpu)

        in_turn(self.nodes, self.rounds, work)
        in_turn(self.nodes, self.rounds, raw)

    def requests(self) -> None:
        """Single-batch requests over one plain socket, and times of one at a time."""
        for node in self.nodes:  # a JVM is slow until it has seen a request some thousand times
            node.create_topics(["warm-up"])
            for workload in ("requests", "fetches"):
                run_client(workload, node, "warm-up", 20_000, 100)
        in_turn(self.nodes, self.rounds, self._requests)

    def _requests(self, node: Node, number: int) -> None:
        topic = f"requests-{number}"
        node.create_topics([topic])
        count = self._count(60_000)
        for workload, title in (("requests", "produce"), ("fetches", "fetch")):
            before = node.cpu_s()
            rate = run_client(workload, node, topic, count, 100)["per_s"]
            cpu = (node.cpu_s() - before) / count
            self.figures.add(Figure(f"{title} requests, pipelined", "/s"), node.name, rate)
            self.figures.add(Figure(f"  CPU of the node for a {title}", "µs", True, 1e6), node.name, cpu)
        for workload, title in (("round_trip", "produce round trip"), ("end_to_end", "produce to consume")):
            taken = run_client(workload, node, topic, int(10_000 * self.share), 100)
            for key, percentile in (("p50_us", "p50"), ("p99_us", "p99")):
                self.figures.add(Figure(f"{title} {percentile}", "µs", True), node.name, taken[key])

    def startup(self) -> None:
        """From exec to the first answer, and idle memory: empty, then with 1,000 partitions after a clean stop."""

        def start(node: Node, what: str) -> None:
            node.stop()
            self.figures.add(Figure(f"exec to first answer, {what}", "s", True), node.name, node.start())
            time.sleep(2)
            self.figures.add(Figure(f"resident when idle, {what}", "MB", True), node.name, node.rss_mb())

        def fresh(node: Node, number: int) -> None:
            node.stop()
            node.fresh()
            start(node, "fresh")

        in_turn(self.nodes, self.rounds, fresh)
        for node in self.nodes:
            node.create_topics([f"many-{number}" for number in range(_MANY_TOPICS)], _MANY_PARTITIONS)
        in_turn(self.nodes, self.rounds, lambda node, _: start(node, "1,000 partitions"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of a tenth of the work")
    parser.add_argument("--rounds", type=int, default=0, help="rounds over all nodes (5; quick: 2)")
    parser.add_argument("--only", choices=("throughput", "requests", "startup"), help="one part")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--json", action="store_true", help="keep every sample in bench/results")
    arguments = parser.parse_args()

    nodes = [Node(system) for system in systems("1G", alone=arguments.alone)]
    bench = Bench(nodes, arguments.rounds or (2 if arguments.quick else 5), arguments.quick)
    try:
        if arguments.only in (None, "throughput", "requests"):
            for node in nodes:
                node.start()
        for part in (bench.throughput, bench.requests, bench.startup):
            if arguments.only in (None, part.__name__):
                part()
    finally:
        for node in nodes:
            node.close()
    bench.figures.show([node.name for node in nodes])
    if arguments.json:
        print(f"\nsamples: {bench.figures.save('broker')}")


if __name__ == "__main__":
    main()
