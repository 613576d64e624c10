"""The segments of a topic read from disk by Spark (`kalda-segments`), beside the same topic read through its broker.

One topic of 100 B values on one node; each round reads it both ways, one after the other, on one `local[2]` session
and with default options. The broker shares the two cores with Spark; reading segments needs none. A partition is one
task where it is read through the broker, and as many as it has parts of 128 MiB where its segments are. CPU is that of
all processes together, so it says more than the rates where the machine has other work.

    python bench/segments.py [--quick] [--rows 8000000] [--partitions 4] [--rounds 3] [--compression zstd] [--cold]

`--cold` drops the topic from the page cache before each read.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from harness import systems
from harness.figures import Figure, Figures
from harness.nodes import Node
from harness.sparks import VALUE_BYTES, cpu_s, drop_from_cache, fill, rounded, session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kalda.spark.segments import register_segments
from kalda.spark.source import COLUMNS

TOPIC = "rows"
VALUES = StructType([COLUMNS["value"]])
SEGMENTS, BROKER = "segments", "through the broker"


def frame(spark: SparkSession, node: Node, source: str, schema: StructType) -> DataFrame:
    reader = spark.read.format("kalda-segments" if source == SEGMENTS else "kalda")
    if source == SEGMENTS:
        reader = reader.option("path", str(node.directory / "data")).option("topics", TOPIC)
    else:
        reader = reader.option("kafka.bootstrap.servers", f"127.0.0.1:{node.port}").option("subscribe", TOPIC)
    return reader.schema(schema).load()


def read(
    spark: SparkSession, node: Node, source: str, schema: StructType, rows: int, *, is_cold: bool
) -> tuple[float, float]:
    """Returns the seconds, and the CPU seconds of all processes."""
    if is_cold:
        drop_from_cache(node, TOPIC)
    used, began = cpu_s(with_node=True), time.perf_counter()
    found = frame(spark, node, source, schema).selectExpr("count(*)", "sum(length(value))").first()
    if found is None or tuple(found) != (rows, rows * VALUE_BYTES):
        raise SystemExit(f"{rows} rows were written, and {found} were read")
    return time.perf_counter() - began, cpu_s(with_node=True) - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compression", default="none", help="of the topic: gzip, snappy, lz4, zstd")
    parser.add_argument("--cold", action="store_true", help="not from the page cache")
    parser.add_argument("--quick", action="store_true", help="one round over a tenth of the rows")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = options.rows // 10, 1
    rows = rounded(options.rows)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the node ends with this process
    node = Node(systems.KALDA)
    try:
        node.start()
        fill(node, TOPIC, rows, options.partitions, options.compression)
        spark = session()
        register_segments(spark)
        figures = Figures()
        for number in range(-1, options.rounds):
            for title, schema in ((f"{len(COLUMNS)} columns, into an aggregate", COLUMNS), ("only values", VALUES)):
                for source in (SEGMENTS, BROKER) if number % 2 == 0 else (BROKER, SEGMENTS):
                    # A schema without the column `corrupt`: damage would end the query.
                    seconds, used = read(spark, node, source, schema, rows, is_cold=options.cold)
                    if number >= 0:
                        figures.add(Figure(title, "M rows/s"), source, rows / seconds / 1e6)
                        figures.add(Figure(f"  CPU, {title}", "µs/row", True), source, used / rows * 1e6)
        figures.show([SEGMENTS, BROKER])
        print(f"\nsaved to {figures.save('segments')}")
        spark.stop()
    finally:
        node.close()


if __name__ == "__main__":
    main()
