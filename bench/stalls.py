"""How long other clients wait, and how much memory is taken, while a node answers the worst request of each API.

A node with both roles in a process of its own, two connections to a listener: one sends a request that names very many
things, the other sends ApiVersions all the time. Printed are the longest time that the second waited, the time until
the first was answered, and how much the memory of the node grew meanwhile: in MB, and as a multiple of the growth for
an honest request, a Produce of as many bytes. Memory that the node has freed and kept does not count as growth.

    python bench/stalls.py [--items 200000] [--only PRODUCE]

With `--heavy`, the requests that are heavy because of what the node holds: 15,000 partitions, 10,000 groups and ACLs,
20,000 quotas, 100,000 transactional ids.

    python bench/stalls.py --heavy [--only groups acls]
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import psutil
from harness.heavy_state import PROPERTIES, heavy_requests
from harness.nodes import Node
from harness.systems import KALDA
from harness.worst_requests import PARTITIONS, TOPIC, worst_requests

from kalda.base.errors import ApiError
from kalda.network.blocking import BlockingConnection
from kalda.network.calls import Call, choose_version, frame_request
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.notation import Request, Response
from kalda.records.builder import build_batch

_ENDS_THE_NODE = frozenset((ApiKey.UNREGISTER_BROKER,))
_LARGEST_BATCH = 1_000_000
_WINDOW = 200


_LAST_WITH_NAMES = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12, ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9}
"""Later versions name topics by ids, which these requests lack."""


class Measured(NamedTuple):
    """What one request did."""

    took_s: float
    longest_s: float
    """The longest wait of the other client."""
    grown_mb: float
    """By which the memory of the node grew, at most."""
    sent_bytes: int
    outcome: str


class _Pings(threading.Thread):
    """Sends small requests until it is stopped, and keeps the longest wait, and the most memory of the node."""

    def __init__(self, port: int, node: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.most_bytes = 0
        self.stopped = False
        self._node = node
        self._connection = BlockingConnection("127.0.0.1", port)

    def run(self) -> None:
        with self._connection as connection:
            while not self.stopped:
                began = time.perf_counter()
                connection.negotiate()
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
                self.most_bytes = max(self.most_bytes, self._node.memory_info().rss)


def version_with_names(request: Request, connection: BlockingConnection) -> int:
    """The highest version in which topics are named."""
    highest = choose_version(request, None, connection.versions)
    return min(highest, _LAST_WITH_NAMES.get(ApiKey(request.API_KEY), highest))


def measure(port: int, node: psutil.Process, request: Request) -> Measured:
    """Send a request while another client asks."""
    with BlockingConnection("127.0.0.1", port, timeout_ms=120_000) as connection:
        # Encoded before the other client begins: both are in this process, and so share its interpreter.
        version = version_with_names(request, connection)
        frame = b"".join(frame_request(Call(request.API_KEY, version, 1), request, "stalls"))
        before = node.memory_info().rss
        pings = _Pings(port, node)
        pings.start()
        began = time.perf_counter()
        outcome = "closed"
        with contextlib.suppress(OSError, ApiError):
            connection._socket.settimeout(120)
            connection._socket.sendall(frame)
            outcome = f"{len(connection._read_frame()) / 1e6:.1f} MB"
        took = time.perf_counter() - began
        pings.stopped = True
        pings.join()
    return Measured(took, pings.longest_s, max(0, pings.most_bytes - before) / 1e6, len(frame), outcome)


def honest(size_bytes: int) -> Request:
    """A Produce request of about so many bytes, in batches of at most a megabyte to several partitions."""
    data = []
    for index in range(min(PARTITIONS, 1 + size_bytes // _LARGEST_BATCH)):
        size = min(_LARGEST_BATCH, size_bytes) - 200
        batch = build_batch([(0, None, bytes(max(1, size)), ())])
        data.append(PartitionProduceData(index=index, records=batch))
    return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)])


def announced(port: int) -> Iterator[tuple[ApiKey, int]]:
    """The APIs of a listener, and the highest version of each."""
    with BlockingConnection("127.0.0.1", port) as connection:
        assert connection.versions is not None
        for key, (_, highest) in sorted(connection.versions.items()):
            if key in API and key not in _ENDS_THE_NODE:
                yield ApiKey(key), min(highest, API[ApiKey(key)].highest)


def _sent(port: int, requests: Sequence[Request]) -> list[Response]:
    """The responses of requests of one class that are sent `_WINDOW` at a time."""
    responses: list[Response] = []
    with BlockingConnection("127.0.0.1", port, timeout_ms=120_000) as connection:
        version = version_with_names(requests[0], connection)
        for start in range(0, len(requests), _WINDOW):
            calls = [connection.send(request, version) for request in requests[start : start + _WINDOW]]
            responses += [connection.receive(call) for call in calls]
    return responses


def measure_heavy(node: Node, process: psutil.Process, only: Sequence[str]) -> None:
    """Print what heavy requests do, one after the other."""
    print(f"{'request':<40}{'answer, s':>11}{'longest wait, ms':>18}{'memory, MB':>12}  answer")
    for name, request in heavy_requests(lambda requests: _sent(node.port, requests), only):
        done = measure(node.port, process, request)
        print(
            f"{name:<40}{done.took_s:>11.2f}{done.longest_s * 1000:>18.0f}{done.grown_mb:>12.1f}  {done.outcome}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="*", default=[3_900, 50_000, 200_000])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--heavy", action="store_true", help="heavy because of what the node holds")
    options = parser.parse_args()
    node = Node(KALDA, PROPERTIES if options.heavy else "")
    try:
        node.start()
        node.create_topics([TOPIC], PARTITIONS)
        assert node.process is not None
        process = psutil.Process(node.process.pid)
        if options.heavy:
            measure_heavy(node, process, options.only)
            return
        head = f"{'listener':<11}{'request':<34}{'items':>8}{'answer, s':>11}{'longest wait, ms':>18}"
        print(f"{head}{'memory, MB':>12}{'of honest':>11}  answer")
        for listener, port in (("broker", node.port), ("controller", node.controller_port)):
            for key, version in announced(port):
                if options.only and key.name not in options.only:
                    continue
                for items in options.items:
                    for request in worst_requests(key, version, items):
                        done = measure(port, process, request)
                        usual = measure(node.port, process, honest(done.sent_bytes))
                        ratio = done.grown_mb / max(1.0, usual.grown_mb, done.sent_bytes / 1e6)
                        print(
                            f"{listener:<11}{key.name:<34}{items:>8}{done.took_s:>11.2f}{done.longest_s * 1000:>18.0f}"
                            f"{done.grown_mb:>12.1f}{ratio:>11.1f}  {done.outcome}",
                            flush=True,
                        )
    finally:
        node.close()


if __name__ == "__main__":
    main()
