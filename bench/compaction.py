"""How fast a node compacts a log, and how long its clients wait meanwhile.

A node in a process of its own. Each case fills a compacted topic, of which nothing is compacted at first, and measures
round trips of produce and fetch requests on another topic, one at a time. Then the topic may be compacted, and they
are measured until that is done. The rate is that of the dirty log in the files, taken in a further compaction without
any client.

    python bench/compaction.py [--quick] [--megabytes 256] [--keys 100000] [--threads 1]
"""

from __future__ import annotations

import argparse
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.blocking import BlockingConnection
from harness.client import Raw, fetch_request, produce_request
from harness.nodes import Node
from harness.systems import KALDA

from kalda.protocol.framing import encode_request
from kalda.protocol.messages import admin
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kalda.records.builder import build_batch
from kalda.records.compression import Compression

QUIET = "quiet"
_SETTINGS = "log.cleaner.backoff.ms=100\nlog.cleaner.threads={threads}\nlog.initial.task.delay.ms=100\n"
_SEGMENT_BYTES = 32 << 20
_DIFFERENT_BATCHES = 300
_WAIT_S = 300.0
_SETTLE_S = 3.0
_BASELINE_ROUND_TRIPS = 5_000


class Case(NamedTuple):
    value_bytes: int
    batch_records: int
    compression: Compression

    def __str__(self) -> str:
        codec = self.compression.config_name
        return f"{self.value_bytes} B, {self.batch_records} a batch, {codec}"


CASES = (
    Case(100, 130, Compression.NONE),
    Case(1_000, 16, Compression.NONE),
    Case(100, 130, Compression.LZ4),
    Case(1_000, 16, Compression.LZ4),
    Case(100, 1, Compression.NONE),
)


class Percentiles(NamedTuple):
    p50_ms: float
    p99_ms: float
    longest_ms: float

    def __str__(self) -> str:
        return f"{self.p50_ms:6.2f} {self.p99_ms:6.2f} {self.longest_ms:6.1f}"


def percentiles(taken: list[float]) -> Percentiles:
    taken.sort()
    return Percentiles(*(1000 * taken[min(len(taken) - 1, int(len(taken) * part))] for part in (0.5, 0.99, 1)))


def batches(case: Case, keys: int) -> list[bytearray]:
    """Batches of random keys; the values compress to about a half."""
    rng = random.Random(case.value_bytes)
    words = [rng.randbytes(20).hex().encode() for _ in range(2_000)]
    values = [b"".join(rng.choices(words, k=case.value_bytes // 40 + 1))[: case.value_bytes] for _ in range(1_000)]
    now_ms = int(time.time() * 1000)
    return [
        build_batch(
            [(now_ms, b"key-%012d" % rng.randrange(keys), rng.choice(values), ()) for _ in range(case.batch_records)],
            compression=case.compression,
        )
        for _ in range(max(_DIFFERENT_BATCHES, 40_000 // case.batch_records))
    ]


class Filled:
    """A compacted topic of a node."""

    def __init__(self, node: Node, name: str, case: Case, options: argparse.Namespace) -> None:
        self.name = name
        self._node = node
        settings = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "1.0",
            "segment.bytes": str(_SEGMENT_BYTES),
        }
        topic = CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
        )
        with BlockingConnection("127.0.0.1", node.port, timeout_ms=60_000) as connection:
            connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        time.sleep(1)
        self._fill(batches(case, options.keys), options.megabytes << 20)
        time.sleep(_SETTLE_S)  # the last segments are synced before they may be compacted
        sizes = sorted((path.name, path.stat().st_size) for path in self._directory.glob("*.log"))
        self.dirty_bytes = sum(size for _, size in sizes[:-1])

    @property
    def _directory(self) -> Path:
        return self._node.directory / "data" / f"{self.name}-0"

    def _fill(self, some: list[bytearray], size_bytes: int) -> None:
        frames = []
        for batch in some:
            data = [PartitionProduceData(index=0, records=bytes(batch))]
            request = ProduceRequest(
                acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=self.name, partition_data=data)]
            )
            body = b"".join(encode_request(request, 9, 1, "bench"))
            frames.append(len(body).to_bytes(4, "big") + body)
        sent, number = 0, 0
        with socket.create_connection(("127.0.0.1", self._node.port)) as connection:
            stream = connection.makefile("rb")
            while sent < size_bytes:
                burst = [frames[(number + at) % len(frames)] for at in range(32)]
                connection.sendall(b"".join(burst))
                number += 32
                sent += sum(map(len, burst))
                for _ in range(32):
                    stream.read(int.from_bytes(stream.read(4), "big"))

    def compact(self, meanwhile: Callable[[], object]) -> float:
        """Let the topic be compacted, and call `meanwhile` until it is. Returns how many seconds that took."""
        change = admin.IncrementalAlterConfigsRequestAlterableConfig(
            name="min.cleanable.dirty.ratio", config_operation=0, value="0.01"
        )
        resource = admin.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=self.name, configs=[change]
        )
        with BlockingConnection("127.0.0.1", self._node.port, timeout_ms=60_000) as connection:
            connection.request(admin.IncrementalAlterConfigsRequest(resources=[resource]))
        began, checked = time.perf_counter(), 0.0
        with open(self._node.directory / "server.log", encoding="utf-8") as log:
            while time.perf_counter() - began < _WAIT_S:
                meanwhile()
                if time.perf_counter() - checked > 0.02:
                    checked = time.perf_counter()
                    if f"compacted {self.name}-0 up to" in log.read():
                        return checked - began
        raise SystemExit(f"{self.name} was not compacted within {_WAIT_S:.0f} s")


class RoundTrips:
    """A produce and a fetch request in turn, on another topic."""

    def __init__(self, port: int) -> None:
        self._requests = (Raw(port, produce_request(QUIET, 100), 9), Raw(port, fetch_request(QUIET), 12))
        self.taken: tuple[list[float], list[float]] = ([], [])

    def once(self) -> None:
        for request, taken in zip(self._requests, self.taken, strict=True):
            taken.append(request.round_trips(1)["p50_us"] / 1e6)

    def figures(self) -> tuple[Percentiles, Percentiles]:
        produced, fetched = (percentiles(taken) for taken in self.taken)
        self.taken = ([], [])
        return produced, fetched


def measure(node: Node, number: int, case: Case, options: argparse.Namespace) -> None:
    filled = Filled(node, f"busy-{number}", case, options)
    trips = RoundTrips(node.port)
    for _ in range(_BASELINE_ROUND_TRIPS):
        trips.once()
    without = trips.figures()
    filled.compact(trips.once)
    count = len(trips.taken[0])
    during = trips.figures()
    alone = Filled(node, f"alone-{number}", case, options)
    took = alone.compact(lambda: time.sleep(0.005))
    print(f"{case!s:<36}{alone.dirty_bytes / 1e6 / took:7.0f} MB/s", flush=True)
    for name, before, after in zip(("produce", "fetch"), without, during, strict=True):
        ratio = after.p50_ms / before.p50_ms
        print(f"    {name:<10}without {before}   meanwhile {after}   p50 {ratio:.2f}x   {count} round trips")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller logs")
    parser.add_argument("--megabytes", type=int, default=256, help="how large each log is")
    parser.add_argument("--keys", type=int, default=100_000, help="how many keys there are")
    parser.add_argument("--threads", type=int, default=1, help="log.cleaner.threads")
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)), help="which, by number")
    options = parser.parse_args()
    if options.quick:
        options.megabytes = min(options.megabytes, 100)
    node = Node(KALDA, _SETTINGS.format(threads=options.threads))
    try:
        node.start()
        node.create_topics([QUIET])
        print("p50, p99 and longest in ms")
        for number in options.cases:
            measure(node, number, CASES[number], options)
    finally:
        node.close()


if __name__ == "__main__":
    main()
