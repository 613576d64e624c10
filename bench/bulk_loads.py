"""What a producer and a consumer notice of a bulk load of a cold topic on the same node, by Spark.

A topic of 100 B values is written, and dropped from the page cache. A live producer sends a record every few
milliseconds to another topic, and a consumer reads them. In each round their times are taken without a load, and then
while Spark (`local[1]`, so that a core is left for the node) reads the cold topic again and again. Apache Kafka is
beside it, read by the same source. Spark works on the same cores as the nodes and the clients, so the times are also
taken while it makes as many rows without a node: what the load does to the cores, and not to the node.

    python bench/bulk_loads.py [--alone] [--nice 19] [--rows 3000000] [--seconds 10] [--rounds 2]

`--nice` (only as root) lowers the priority of Spark, as if it had cores of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from statistics import median

from harness.ceiling import register_ceiling
from harness.figures import Figure, Figures
from harness.nodes import Node
from harness.sparks import fill, rounded, session
from harness.systems import systems
from pyspark.sql import SparkSession

from kalda import Consumer, Producer

COLD, LIVE = "cold", "live"
LOAD, ROWS = "beside a load", "beside rows without a node"
_EVERY_S = 0.004
_WARM_S = 3.0


def drop_from_cache(node: Node) -> None:
    """Write the segments to the disk, and drop their pages: the next read is cold."""
    os.sync()
    for path in node.directory.rglob(f"{COLD}-*/*.log"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def p99(samples: list[float]) -> float:
    return sorted(samples)[len(samples) * 99 // 100]


def live(node: Node, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds from each send to its acknowledgement, and from each send until it is consumed."""
    config = {"bootstrap.servers": f"127.0.0.1:{node.port}"}
    acknowledged: list[float] = []
    consumed: list[float] = []
    is_over = threading.Event()

    def consume() -> None:
        with Consumer(config) as consumer:
            consumer.assign([(LIVE, 0)])
            consumer.seek_to_end()
            consumer.poll(0.1)
            while not is_over.is_set():
                records = consumer.poll(0.2)
                now_ns = time.perf_counter_ns()
                consumed.extend((now_ns - int(record.value)) / 1e6 for record in records)

    reader = threading.Thread(target=consume)
    reader.start()
    with Producer(config, acks="all", linger_ms=0) as producer:
        due_s = time.perf_counter() + 1
        until_s = due_s + seconds
        while due_s < until_s:
            time.sleep(max(0.0, due_s - time.perf_counter()))
            sent_ns = time.perf_counter_ns()
            producer.send(LIVE, b"%d" % sent_ns, partition=0).result()
            acknowledged.append((time.perf_counter_ns() - sent_ns) / 1e6)
            due_s = max(due_s + _EVERY_S, time.perf_counter())
    is_over.set()
    reader.join()
    return acknowledged, consumed


class BulkLoad:
    """Spark reads the cold topic again and again, in a thread; without a node, rows that are made in memory."""

    def __init__(self, spark: SparkSession, node: Node | None, rows: int) -> None:
        self._spark = spark
        self._node = node
        self._rows = rows
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._node is None:
                reader = self._spark.read.format("ceiling").option("rows", self._rows).option("partitions", 2)
            else:
                drop_from_cache(self._node)
                reader = self._spark.read.format("kalda").option("subscribe", COLD)
                reader = reader.option("kafka.bootstrap.servers", f"127.0.0.1:{self._node.port}")
            reader.load().selectExpr("sum(length(value))").collect()

    def __enter__(self) -> BulkLoad:
        self._thread.start()
        time.sleep(_WARM_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def add(figures: Figures, name: str, times: dict[str, tuple[list[float], list[float]]]) -> None:
    """`times`: of acknowledgements and of consumption, by what ran beside them."""
    for index, what in enumerate(("acknowledged", "consumed")):
        for beside, found in times.items():
            figures.add(Figure(f"{what}, p50, {beside}", "ms", True), name, median(found[index]))
            figures.add(Figure(f"{what}, p99, {beside}", "ms", True), name, p99(found[index]))
        for beside in (LOAD, ROWS):
            ratio = p99(times[beside][index]) / p99(times["without"][index])
            figures.add(Figure(f"{what}, p99 {beside} over without", "times", True), name, ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--nice", type=int, default=0, help="the niceness of Spark")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes end with this process
    nodes = [Node(each) for each in systems("1G", alone=options.alone)]
    figures = Figures()
    try:
        for node in nodes:
            node.start()
            fill(node, COLD, rounded(options.rows), 2)
            node.create_topics([LIVE])
        os.setpriority(os.PRIO_PROCESS, 0, options.nice)
        spark = session(master="local[1]")
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        register_ceiling(spark)
        for number in range(-1, options.rounds):
            for node in nodes if number % 2 == 0 else reversed(nodes):
                seconds = 2.0 if number < 0 else options.seconds
                times = {"without": live(node, seconds)}
                for beside, source in ((LOAD, node), (ROWS, None)):
                    with BulkLoad(spark, source, rounded(options.rows)):
                        times[beside] = live(node, seconds)
                if number >= 0:
                    add(figures, node.name, times)
        figures.show([node.name for node in nodes])
        print(f"\nsaved to {figures.save('bulk_loads')}")
        spark.stop()
    finally:
        for node in nodes:
            node.close()


if __name__ == "__main__":
    main()
