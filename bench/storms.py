"""What a well-behaved client notices of one that storms, with quotas on: the p99 of its round trips.

    python bench/storms.py [--quick] [--seconds 10] [--rounds 3] [--only KIND] [--alone]

    throttled     produces as fast as it can, and ignores the pauses that it is given
    connections   opens 10,000 connections at once
    topics        creates 5,000 topics at once: a hundred requests on one connection
    requests      sends small requests, pipelined, as fast as it can
    telemetry     pushes metrics on four connections: 5 KB, of ten thousand data points of a client with 50 KB of
                  attributes

The storm is a process of its own, with the client id `storm`, which has quotas of every kind; the node limits new
connections. The other client produces one record at a time. Printed is its p99 over all its round trips during the
storm, over that before it; its longest one, how many topics there are in the end, and the node's memory. Client, storm
and node share the machine's cores. In each round Kalda and Apache Kafka have a node of their own, one after the other;
what is printed last are the medians over the rounds. Telemetry is measured with Kalda alone: Apache Kafka receives it
only where a reporter is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from harness.blocking import BlockingConnection
from harness.client import Raw, percentiles, produce_request
from harness.nodes import Node
from harness.systems import KALDA, System, systems

from kalda.base.configs.resources import ConfigResourceType
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.admin import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kalda.protocol.notation import Request
from kalda.records.compression import Compression, compress
from kalda.telemetry.otlp import DataPoint, MetricKind, encode

_QUOTAS = {
    "producer_byte_rate": 1e6,
    "consumer_byte_rate": 1e6,
    "request_percentage": 10.0,
    "controller_mutation_rate": 50.0,
}
_SETTINGS = "max.connection.creation.rate=200\n"
_WARM_UP = 5_000
_ROUND_TRIPS = 1_000


def frame_of(request: Request, version: int) -> bytes:
    body = b"".join(encode_request(request, version, 1, "storm"))
    return len(body).to_bytes(4, "big") + body


def flood(port: int, frame: bytes, until: float) -> int:
    """Send the frame, and read the answers as they come. Returns the bytes of the answers."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setblocking(False)
        burst = left = memoryview(frame * max(1, 65_536 // len(frame)))
        got = 0
        while time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                left = left[peer.send(left) :] or burst
            with contextlib.suppress(BlockingIOError):
                got += len(peer.recv(1 << 20))
            time.sleep(0.0005)
    return got


def storm(kind: str, port: int, seconds: float) -> None:
    """In a process of its own."""
    until = time.monotonic() + seconds
    if kind == "throttled":
        flood(port, frame_of(produce_request("storm", 100_000), 9), until)
    elif kind == "requests":
        flood(port, frame_of(MetadataRequest(topics=[]), 9), until)
    elif kind == "telemetry":
        threads = [threading.Thread(target=push_bombs, args=(port, until)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elif kind == "topics":
        requests = [
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(name=f"s-{at + each}", num_partitions=1, replication_factor=1) for each in range(50)
                ],
                timeout_ms=10_000,
            )
            for at in range(0, 5_000, 50)
        ]
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(b"".join(frame_of(request, 7) for request in requests))
            peer.settimeout(1.0)
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError):
                    peer.recv(1 << 20)
    else:
        peers: list[socket.socket] = []
        while time.monotonic() < until and len(peers) < 10_000:
            peer = socket.socket()
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError, OSError):
                peer.connect(("127.0.0.1", port))
            peers.append(peer)
        time.sleep(max(0.0, until - time.monotonic()))
        print(f"{len(peers)} connections begun, {sum(map(is_connected, peers))} of them connected", flush=True)


def push_bombs(port: int, until: float) -> None:
    """Each push is of another client, so that none comes too early."""
    attributes = [(f"k{number}", "v" * 1_000) for number in range(50)]
    points = [DataPoint(f"m{number}", MetricKind.GAUGE, 1.0, 1) for number in range(10_000)]
    metrics = bytes(compress(Compression.ZSTD, encode(points, tuple(attributes))))
    with BlockingConnection("127.0.0.1", port, client_id="storm", timeout_ms=60_000) as connection:
        while time.monotonic() < until:
            got = connection.request(GetTelemetrySubscriptionsRequest())
            push = PushTelemetryRequest(
                client_instance_id=got.client_instance_id,
                subscription_id=got.subscription_id,
                compression_type=Compression.ZSTD,
                metrics=metrics,
            )
            connection.request(push)


def is_connected(peer: socket.socket) -> bool:
    try:
        peer.getpeername()
    except OSError:
        return False
    return True


def allow_sockets() -> None:
    """As many open files as this process and its children may have at all."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 12_000:
        print(f"only {hard} files may be open (ulimit -Hn): fewer than 10,000 connections will be")


class Noticed(NamedTuple):
    """What the other client noticed of one storm, and what the node has in the end."""

    p50_before_us: float
    p50_us: float
    p99_before_us: float
    p99_us: float
    p99_ratio: float
    longest_ms: float
    topics: float
    memory_mb: float

    def __str__(self) -> str:
        return (
            f"p50 {self.p50_before_us:.0f} -> {self.p50_us:.0f} µs, "
            f"p99 {self.p99_before_us:.0f} -> {self.p99_us:.0f} µs ({self.p99_ratio:.2f}x), "
            f"longest {self.longest_ms:.0f} ms, {self.topics:.0f} topics, {self.memory_mb:.0f} MB"
        )


def measure(system: System, kind: str, seconds: float) -> Noticed:
    """One storm on a node of its own."""
    node = Node(system, _SETTINGS)
    try:
        node.start()
        node.create_topics(["calm", "storm"])
        with CommandAdmin(f"127.0.0.1:{node.port}") as cluster:
            cluster.alter_client_quotas({(("client-id", "storm"),): _QUOTAS}).check()
            if kind == "telemetry":
                cluster.set_configs(ConfigResource(ConfigResourceType.CLIENT_METRICS, "all"), {"metrics": "*"})
            raw = Raw(node.port, produce_request("calm", 100), 9)
            raw.round_trips(_WARM_UP)
            before = raw.round_trips(10 * _ROUND_TRIPS)
            command = [sys.executable, __file__, "--storm", kind, "--port", str(node.port)]
            with subprocess.Popen([*command, "--seconds", str(seconds + 4)]) as process:
                time.sleep(2.5)  # the quota's first windows are free
                until, taken = time.monotonic() + seconds, []
                while time.monotonic() < until:
                    taken += raw.durations_us(_ROUND_TRIPS)
                process.wait()
            topics = len(cluster.list_topics(internal=True))
        longest_ms, during = max(taken) / 1000, percentiles(taken)
        p99, p99_before = during["p99_us"], before["p99_us"]
        medians = before["p50_us"], during["p50_us"]
        return Noticed(*medians, p99_before, p99, p99 / p99_before, longest_ms, topics, node.rss_mb())
    finally:
        node.close()


def in_rounds(kind: str, measured: Sequence[System], rounds: int, seconds: float) -> None:
    """One kind of storm on nodes of these systems, in turn."""
    noticed: dict[str, list[Noticed]] = defaultdict(list)
    for number in range(rounds):
        for system in measured if number % 2 == 0 else reversed(measured):
            noticed[system.name].append(measure(system, kind, seconds))
            print(f"{kind:12} {system.name:12} {noticed[system.name][-1]}", flush=True)
    for name, each in noticed.items():
        print(f"{kind:12} {name:12} {Noticed(*map(median, zip(*each, strict=True)))}, medians of {rounds}", flush=True)


def main() -> None:
    """Run them all, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("throttled", "connections", "topics", "requests", "telemetry")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="Kalda only")
    parser.add_argument("--only", choices=kinds)
    parser.add_argument("--storm", choices=kinds, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one round of two seconds")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds = 1, 2.0
    allow_sockets()
    if given.storm:
        storm(given.storm, given.port, given.seconds)
        return
    measured = systems("1G", alone=given.alone)
    for kind in [given.only] if given.only else kinds:
        in_rounds(kind, [KALDA] if kind == "telemetry" else measured, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
