"""The throttle times that clients get, as distributions beside Apache Kafka's: the same load under the same quota.

    python bench/throttle_times.py [--quick] [--seconds 60] [--clients 8]

Both nodes run at the same time. To each, eight clients send the same requests in the same rhythm: Produce requests of
2.5 to 50 KB, one after the other, twenty a second at most; eight others fetch as much. Each has a quota of half of
that, and waits where it is muted. Printed are the quantiles of the throttle times of all answers that had one, with
their standard errors (clients drawn again, with repetition), and what share of the answers that was.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

from harness.blocking import BlockingConnection
from harness.nodes import Node
from harness.systems import systems

from kalda.cli.common.command_admin import CommandAdmin
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch

_PERIOD_S = 0.05
_RATE = 250_000.0
"""Bytes a second of each quota."""
_LEAST, _MOST = 2_500, 50_000
"""Bytes of a batch."""
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_VERSION = {"produce": 9, "fetch": 11}
_DRAWN = 200
Times = dict[tuple[str, str], list[list[int]]]
"""By system and kind of requests: of each client, the throttle times of its answers."""


def produces(seed: int) -> Callable[[], Request]:
    """Requests of a random size, the same ones for the same seed."""
    sizes, data = random.Random(seed), os.urandom(_MOST)

    def next_request() -> Request:
        batch = build_batch([(int(time.time() * 1000), None, data[: sizes.randrange(_LEAST, _MOST)], ())])
        partitions = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name="throttled", partition_data=partitions)]
        return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics)

    return next_request


def fetches(seed: int) -> Callable[[], Request]:
    """Requests for one batch of a random size, from an offset that the answer does not move."""
    offsets = random.Random(seed)

    def next_request() -> Request:
        partition = FetchRequestFetchPartition(
            partition=0, fetch_offset=offsets.randrange(100), partition_max_bytes=1_000
        )
        topics = [FetchRequestFetchTopic(topic="full", partitions=[partition])]
        return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1_000, session_epoch=-1, topics=topics)

    return next_request


def run(node: Node, kind: str, number: int, seconds: float, times: Times) -> None:
    """Send requests in their rhythm, and keep the throttle time of each answer."""
    make = produces(number) if kind == "produce" else fetches(number)
    connection = BlockingConnection("127.0.0.1", node.port, client_id=f"{kind}-{number}", timeout_ms=120_000)
    began = time.monotonic()
    due = began
    while (now := time.monotonic()) - began < seconds:
        time.sleep(max(0.0, due - now))
        due = max(due + _PERIOD_S, time.monotonic())
        answer: Any = connection.request(make(), _VERSION[kind])
        times[node.name, kind][number].append(answer.throttle_time_ms)
    connection.close()


def prepare(node: Node, clients: int) -> None:
    """Topics, records to fetch, and the quotas."""
    node.start()
    node.create_topics(["throttled", "full"])
    sizes, data = random.Random(7), os.urandom(_MOST)
    connection = BlockingConnection("127.0.0.1", node.port, client_id="filler", timeout_ms=60_000)
    for _ in range(100):
        batch = build_batch([(int(time.time() * 1000), None, data[: sizes.randrange(_LEAST, _MOST)], ())])
        partitions = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name="full", partition_data=partitions)]
        connection.request(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics), 9)
    connection.close()
    with CommandAdmin(f"127.0.0.1:{node.port}") as cluster:
        for number in range(clients):
            cluster.alter_client_quotas({(("client-id", f"produce-{number}"),): {"producer_byte_rate": _RATE}}).check()
            cluster.alter_client_quotas({(("client-id", f"fetch-{number}"),): {"consumer_byte_rate": _RATE}}).check()
    time.sleep(1.0)  # both have applied the quotas


def quantiles(clients: list[list[int]]) -> list[int]:
    """Of the throttle times of all answers that had one."""
    throttled = sorted(each for client in clients for each in client if each)
    return [throttled[int(len(throttled) * quantile)] for quantile in _QUANTILES]


def show(times: Times) -> None:
    drawing = random.Random(1)
    for (name, kind), clients in times.items():
        drawn = [quantiles(drawing.choices(clients, k=len(clients))) for _ in range(_DRAWN)]
        shown = ", ".join(
            f"p{int(at * 100)} {value} ± {stdev(column):.1f}"
            for at, value, column in zip(_QUANTILES, quantiles(clients), zip(*drawn, strict=True), strict=True)
        )
        found = [each for client in clients for each in client]
        throttled = [each for each in found if each]
        print(
            f"{name:14} {kind:8} {len(found):5} answers, {len(throttled) / len(found):.3f} with a pause: "
            f"mean {mean(throttled):.0f} ms, {shown}"
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8, help="of each kind")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, two clients of each kind")
    given = parser.parse_args()
    if given.quick:
        given.seconds, given.clients = 12.0, 2
    with contextlib.ExitStack() as stack:
        nodes = [Node(system) for system in systems("512M", alone=False)]
        times: Times = {}
        for node in nodes:
            stack.callback(node.close)
            prepare(node, given.clients)
            times |= {(node.name, kind): [[] for _ in range(given.clients)] for kind in _VERSION}
        threads = [
            threading.Thread(target=run, args=(node, kind, number, given.seconds, times))
            for node in nodes
            for kind in _VERSION
            for number in range(given.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        show(times)


if __name__ == "__main__":
    main()
