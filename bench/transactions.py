"""Transactions on three Kalda nodes beside three of Apache Kafka.

    python bench/transactions.py [--quick] [--rounds 5] [--alone] [--json]

Every node is broker and controller; the topics have three replicas and min.insync.replicas 2, and so has
`__transaction_state`. Both clusters run at the same time and are measured in turn. The client is librdkafka: one
producer, fifty producers, transactions of 1,000 records (of 100 B, 1 KB and 10 KB) beside as many records outside of
transactions, and consumers that read them as read_committed and as read_uncommitted.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from harness.clusters import NodeGroup
from harness.figures import Figure, Figures, in_turn, run_client
from harness.systems import systems

SIZES = {100: ("100 B", 200_000), 1_000: ("1 KB", 100_000), 10_000: ("10 KB", 20_000)}
"""Of records: their name, and how many are sent."""


def measure(cluster: NodeGroup, number: int, share: float, figures: Figures) -> None:
    """One round on one cluster."""
    topic = f"transactions-{number}"
    cluster.create(topic)
    one = run_client("transact", cluster, f"{topic}", int(1_000 * share), 100)
    for key, percentile in (("p50_us", "p50"), ("p99_us", "p99")):
        figures.add(Figure(f"begin, one record, commit, {percentile}", "ms", True, 1e-3), cluster.name, one[key])
    figures.add(Figure("transactions of one producer", "/s"), cluster.name, one["per_s"])
    many = run_client("transact_many", cluster, topic, int(5_000 * share), 100)
    figures.add(Figure("transactions of 50 producers", "/s"), cluster.name, many["per_s"])
    for size, (name, count) in SIZES.items():
        large = run_client("thousands", cluster, topic, int(count * share), size)
        figures.add(Figure(f"1,000 records of {name}: within", "/s"), cluster.name, large["within"])
        figures.add(Figure(f"1,000 records of {name}: without", "/s"), cluster.name, large["without"])
        figures.add(Figure(f"1,000 records of {name}: within, of without", ""), cluster.name, large["share"])
        added_ms = 1e6 / large["within"] - 1e6 / large["without"]
        figures.add(Figure(f"1,000 records of {name}: what it adds", "ms", True), cluster.name, added_ms)
    eight = run_client("pipelined_thousands", cluster, topic, int(400_000 * share), 100)
    figures.add(Figure("… of eight producers", ""), cluster.name, eight["within"] / eight["without"])
    read = run_client("isolation", cluster, topic, int(400_000 * share), 100)
    figures.add(Figure("read_committed", "/s"), cluster.name, read["read_committed"])
    figures.add(Figure("read_uncommitted", "/s"), cluster.name, read["read_uncommitted"])
    share_read = read["read_committed"] / read["read_uncommitted"]
    figures.add(Figure("read_committed, of read_uncommitted", ""), cluster.name, share_read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of a tenth of the work")
    parser.add_argument("--rounds", type=int, default=0, help="rounds over both clusters (5; quick: 2)")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--json", action="store_true", help="keep every sample in bench/results")
    arguments = parser.parse_args()

    measured = systems("512M", alone=arguments.alone)
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    share = 0.2 if arguments.quick else 1.0
    figures = Figures()
    with ExitStack() as stack:
        clusters = [stack.enter_context(NodeGroup(system, {})) for system in measured]
        for cluster in clusters:  # a JVM is slow until its compiler has seen the code under load
            cluster.create("warm-up")
            run_client("transact", cluster, "warm-up", int(1_000 * share), 100)
        in_turn(clusters, rounds, lambda cluster, number: measure(cluster, number, share, figures))
    figures.show([system.name for system in measured])
    if arguments.json:
        print(f"\nsamples: {figures.save('transactions')}")


if __name__ == "__main__":
    main()
