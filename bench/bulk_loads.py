"""What a producer and a consumer notice of a bulk load of a cold topic on the same node, by Spark.

A topic of 100 B values is written, and dropped from the page cache. A live producer sends a record every few
milliseconds to another topic, and a consumer reads them. In each round their times are taken without a load, and while
Spark reads the cold topic again and again; the order changes from round to round. Spark runs as `kalda pipeline load`
runs it: on all cores (`local[*]`), in the background class. Apache Kafka is beside it, read by the same source. Spark
works on the same cores as the nodes and the clients, so the times are also taken while it makes as many rows without a
node: what the load does to the cores, and not to the node.

    python bench/bulk_loads.py [--quick] [--alone] [--foreground] [--rows 10000000] [--seconds 10] [--rounds 2]

`--foreground` is that of `kalda pipeline load`: Spark has the priority of the nodes and the clients.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from contextlib import nullcontext
from statistics import median

from harness.ceiling import register_ceiling
from harness.figures import Figure, Figures
from harness.nodes import Node
from harness.sparks import cpu_s, drop_from_cache, fill, rounded, session
from harness.systems import systems
from pyspark.sql import SparkSession

from kalda import Consumer, Producer
from kalda.spark.java import SMALL_FETCHES, ending_java, enter_background

COLD, LIVE = "cold", "live"
WITHOUT, LOAD, ROWS = "without", "beside a load", "beside rows without a node"
_EVERY_S = 0.004
_WARM_S = 3.0


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
    try:
        with Producer(config, acks="all", linger_ms=0) as producer:
            due_s = time.perf_counter() + 1
            until_s = due_s + seconds
            while due_s < until_s:
                time.sleep(max(0.0, due_s - time.perf_counter()))
                sent_ns = time.perf_counter_ns()
                producer.send(LIVE, b"%d" % sent_ns, partition=0).result()
                acknowledged.append((time.perf_counter_ns() - sent_ns) / 1e6)
                due_s = max(due_s + _EVERY_S, time.perf_counter())
    finally:
        is_over.set()
        reader.join()
    return acknowledged, consumed


class BulkLoad:
    """Spark reads the cold topic again and again, in a thread; without a node, rows that are made in memory."""

    def __init__(self, spark: SparkSession, options: dict[str, str], node: Node | None, rows: int) -> None:
        """`options`: of the source."""
        self._spark = spark
        self._options = options
        self._node = node
        self._rows = rows
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._node is None:
                reader = self._spark.read.format("ceiling").option("rows", self._rows).option("partitions", 2)
            else:
                drop_from_cache(self._node, COLD)
                reader = self._spark.read.format("kalda").options(**self._options).option("subscribe", COLD)
                reader = reader.option("kafka.bootstrap.servers", f"127.0.0.1:{self._node.port}")
            try:
                reader.load().selectExpr("sum(length(value))").collect()
            except Exception:
                if not self._is_over.is_set():  # else cancelled
                    raise

    def __enter__(self) -> BulkLoad:
        self._thread.start()
        time.sleep(_WARM_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        while self._thread.is_alive():  # a query may begin behind a cancellation
            self._spark.sparkContext.cancelAllJobs()
            self._thread.join(0.5)


def cpu_of_spark(nodes: list[Node]) -> float:
    """CPU seconds of all processes but the nodes and this one."""
    return cpu_s(with_node=True) - sum(node.cpu_s() for node in nodes)


def add(figures: Figures, name: str, times: dict[str, tuple[list[float], list[float]]]) -> None:
    """`times`: of acknowledgements and of consumption, by what ran beside them."""
    for index, what in enumerate(("acknowledged", "consumed")):
        for beside, found in times.items():
            figures.add(Figure(f"{what}, p50, {beside}", "ms", True), name, median(found[index]))
            figures.add(Figure(f"{what}, p99, {beside}", "ms", True), name, p99(found[index]))
        for beside in (LOAD, ROWS):
            ratio = p99(times[beside][index]) / p99(times[WITHOUT][index])
            figures.add(Figure(f"{what}, p99 {beside} over without", "times", True), name, ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--foreground", action="store_true", help="Spark with the priority of all others")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one round of three seconds, over a tenth of the rows")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.rows = 1, 3.0, 1_000_000
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes end with this process
    rows = rounded(options.rows)
    nodes = [Node(each) for each in systems("1G", alone=options.alone)]
    figures = Figures()
    try:
        for node in nodes:
            node.start()
            fill(node, COLD, rows, 2)
            node.create_topics([LIVE])
        prepare, of_source = (None, {}) if options.foreground else (enter_background, SMALL_FETCHES)
        with ending_java(prepare):
            spark = session(master="local[*]")
        register_ceiling(spark)
        for number in range(-1, options.rounds):
            for node in nodes if number % 2 == 0 else reversed(nodes):
                seconds = 2.0 if number < 0 else options.seconds
                times: dict[str, tuple[list[float], list[float]]] = {}
                cores: dict[str, float] = {}
                for beside in (WITHOUT, LOAD, ROWS) if number % 2 == 0 else (ROWS, LOAD, WITHOUT):
                    source = node if beside == LOAD else None
                    with nullcontext() if beside == WITHOUT else BulkLoad(spark, of_source, source, rows):
                        used, began = cpu_of_spark(nodes), time.perf_counter()
                        times[beside] = live(node, seconds)
                        cores[beside] = (cpu_of_spark(nodes) - used) / (time.perf_counter() - began)
                if number >= 0:
                    add(figures, node.name, times)
                    for beside in (LOAD, ROWS):
                        figures.add(Figure(f"cores that Spark has, {beside}", "", False), node.name, cores[beside])
        figures.show([node.name for node in nodes])
        print(f"\nsaved to {figures.save('bulk_loads')}")
        spark.stop()
    finally:
        for node in nodes:
            node.close()


if __name__ == "__main__":
    main()
