"""How much memory a node takes for many peers that send slowly, or do not read, and how long another client waits.

A node with both roles in a process of its own, and for each row a fresh one. Many connections do the same to it for
some seconds, while a process of its own sends ApiVersions all the time. Printed are the peak of the node's resident
memory (`VmHWM`) above what it was before, what is left of that when the peers are closed, and the longest time that the
other client waited.

| peers | what they do |
| --- | --- |
| `announce` | announce a request of 100 MB, and send one byte of it |
| `trickle` | announce as much, send one kilobyte, and another one every second |
| `full` | send Produce requests of 100 MB as fast as they are taken; `queued.max.request.bytes` is 200 MB |
| `stop` | likewise, but stop after 20 MB each; then another client sends a request of 20 MB, which is timed |
| `fetch` | send 100 Fetch requests for a megabyte of each of 450 partitions, and read nothing |
| `fetch-small` | likewise, for 120 KB of each |
| `fetch-cold` | as `fetch`, where nothing is in the page cache |
| `fetch-follower` | as `fetch`, with the id of a broker |
| `metadata`, `configs` | send 100 requests whose answers are large, and read nothing |

    python bench/slow_peers.py [--quick] [--connections 200] [--seconds 10] [--only announce trickle]
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from harness.blocking import BlockingConnection
from harness.nodes import Node
from harness.systems import KALDA
from harness.watching import Pings, Resident

from kalda.base.errors import ApiError
from kalda.protocol.framing import Call, frame_request
from kalda.protocol.messages.admin import DescribeConfigsRequest, DescribeConfigsResource
from kalda.protocol.messages.metadata import MetadataRequest
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

_POOL = "queued.max.request.bytes=200000000\n"
_LARGE = 100_000_000
_STOPPED_AT = 20_000_000
_PARTITIONS = 450
_BATCH_BYTES = 100_000
_BATCHES = 20
_REQUESTS = 100
_TOPIC = "t"


def _frame(request: Request, version: int) -> bytes:
    return b"".join(frame_request(Call(request.API_KEY, version, 1), request, "slow"))


def _produce(records: bytes, index: int = 0) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records)]
    return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=_TOPIC, partition_data=data)])


def _fetch(partition_bytes: int, replica_id: int = -1) -> bytes:
    asked = [
        FetchRequestFetchPartition(partition=index, partition_max_bytes=partition_bytes) for index in range(_PARTITIONS)
    ]
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        max_bytes=1 << 30,
        topics=[FetchRequestFetchTopic(topic=_TOPIC, partitions=asked)],
        session_epoch=-1,
    )
    return _frame(request, 12)


def _configs() -> bytes:
    resources = [DescribeConfigsResource(resource_type=2, resource_name=_TOPIC) for _ in range(2_000)]
    return _frame(DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True), 4)


def _fill(port: int) -> None:
    """Append records to all partitions."""
    with BlockingConnection("127.0.0.1", port) as connection:
        for index in range(_PARTITIONS):
            batch = build_batch([(0, None, os.urandom(_BATCH_BYTES), ())])
            calls = [connection.send(_produce(batch, index), 9) for _ in range(_BATCHES)]
            for call in calls:
                connection.receive(call)


def _drop_page_cache(directory: Path) -> None:
    for path in directory.glob(f"data/{_TOPIC}-*/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class _Peers:
    """Connections that do the same."""

    def __init__(self, port: int, count: int) -> None:
        self._sockets: list[socket.socket] = []
        for _ in range(count):
            self._sockets.append(socket.create_connection(("127.0.0.1", port)))
            self._sockets[-1].setblocking(False)

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def open_count(self) -> int:
        """Those that the node has not closed."""
        count = 0
        for each in self._sockets:
            try:
                count += bool(each.recv(1, socket.MSG_PEEK))
            except BlockingIOError:
                count += 1
            except OSError:
                continue
        return count

    def send(self, data: bytes) -> None:
        """Send to each what it takes at once."""
        for each in self._sockets:
            with suppress(OSError):
                each.send(data)

    def stream(self, seconds: float, data: bytes, *, again: bool = True) -> int:
        """Send these bytes on each, as fast as they are taken. Returns how many were taken."""
        sent = 0
        with selectors.DefaultSelector() as selector, memoryview(data) as view:
            at = dict.fromkeys(self._sockets, 0)
            for each in self._sockets:
                selector.register(each, selectors.EVENT_WRITE)
            end = time.monotonic() + seconds
            while time.monotonic() < end and selector.get_map():
                for key, _ in selector.select(0.1):
                    peer = key.fileobj
                    assert isinstance(peer, socket.socket)
                    try:
                        count = peer.send(view[at[peer] : at[peer] + (1 << 18)])
                    except BlockingIOError:
                        continue
                    except OSError:
                        selector.unregister(peer)
                        continue
                    sent += count
                    at[peer] += count
                    if at[peer] == len(view):
                        at[peer] = 0
                        if not again:
                            selector.unregister(peer)
        return sent


def _announce(peers: _Peers, node: Node, seconds: float) -> str:
    peers.send(_LARGE.to_bytes(4, "big") + b"\0")
    time.sleep(seconds)
    return ""


def _trickle(peers: _Peers, node: Node, seconds: float) -> str:
    peers.send(_LARGE.to_bytes(4, "big"))
    for _ in range(int(seconds)):
        peers.send(bytes(1000))
        time.sleep(1)
    return ""


def _full(peers: _Peers, node: Node, seconds: float) -> str:
    sent = peers.stream(seconds, _frame(_produce(bytes(_LARGE - 1000)), 9))
    return f"{sent / seconds / 1e6:.0f} MB/s"


def _stop(peers: _Peers, node: Node, seconds: float) -> str:
    peers.stream(seconds, _frame(_produce(bytes(_LARGE - 1000)), 9)[:_STOPPED_AT], again=False)
    began = time.monotonic()
    try:
        with BlockingConnection("127.0.0.1", node.port, timeout_ms=60_000) as connection:
            connection.request(_produce(bytes(_STOPPED_AT)), 9)
    except ApiError as error:
        return f"another's request: {error}"
    return f"another's request of 20 MB: {time.monotonic() - began:.2f} s"


def _unread(data: bytes) -> Callable[[_Peers, Node, float], str]:
    def send(peers: _Peers, node: Node, seconds: float) -> str:
        began = time.monotonic()
        peers.stream(seconds, data * _REQUESTS, again=False)
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        return ""

    return send


def _cold(peers: _Peers, node: Node, seconds: float) -> str:
    _drop_page_cache(node.directory)
    return _unread(_fetch(1 << 20))(peers, node, seconds)


_ROWS: dict[str, Callable[[_Peers, Node, float], str]] = {
    "announce": _announce,
    "trickle": _trickle,
    "full": _full,
    "stop": _stop,
    "fetch": _unread(_fetch(1 << 20)),
    "fetch-small": _unread(_fetch(120_000)),
    "fetch-cold": _cold,
    "fetch-follower": _unread(_fetch(1 << 20, replica_id=1)),
    "metadata": _unread(_frame(MetadataRequest(topics=None), 12)),
    "configs": _unread(_configs()),
}


def _ping(port: int) -> None:
    """Ask until the input ends, and print the longest wait in ms."""
    pings = Pings(port)
    pings.start()
    sys.stdin.read()
    pings.stopped = True
    pings.join(20)
    print(f"{pings.longest_s * 1000:.0f}")


def _measure(name: str, connections: int, seconds: float) -> str:
    node = Node(KALDA, _POOL if name in ("full", "stop") else "")
    try:
        node.start()
        node.create_topics([_TOPIC], _PARTITIONS)
        if name.startswith("fetch"):
            _fill(node.port)
        assert node.process is not None
        resident = Resident(node.process.pid)
        peers = _Peers(node.port, connections)
        time.sleep(0.5)
        command = [sys.executable, __file__, "--ping", str(node.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pings:
            time.sleep(1)
            resident.reset()
            note = _ROWS[name](peers, node, seconds)
            grown, still_open = resident.grown(), peers.open_count()
            longest, _ = pings.communicate()
        peers.close()
        time.sleep(1)
        resident_now = resident.grown_now()
        return f"{grown / 1e6:>12.0f}{resident_now / 1e6:>12.0f}{int(longest):>18}{still_open:>8}  {note}"
    finally:
        node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", nargs="*", default=list(_ROWS), choices=list(_ROWS))
    parser.add_argument("--ping", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="20 connections, two seconds")
    options = parser.parse_args()
    if options.quick:
        options.connections, options.seconds = 20, 2.0
    if options.ping:
        _ping(options.ping)
        return
    print(f"{'peers':<16}{'memory, MB':>12}{'closed, MB':>12}{'longest wait, ms':>18}{'open':>8}")
    for name in options.only:
        print(f"{name:<16}{_measure(name, options.connections, options.seconds)}", flush=True)


if __name__ == "__main__":
    main()
