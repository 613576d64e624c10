"""How long other clients wait, and how much memory is taken, while a node answers the worst request of each API.

A node with both roles in a process of its own, two connections to a listener: one sends a request that names very many
things, the other sends ApiVersions all the time. Printed are the longest time that the second waited, the time until
the first was answered, and the peak of the node's resident memory meanwhile (`VmHWM`), above what it was before.

Each request gets a fresh node that has answered a small one of that API: memory that was freed and kept for the next
request would hide its growth.

    python bench/stalls.py [--quick] [--items 19900] [--only PRODUCE] [--listener broker]

With `--heavy`, the requests that are heavy because of what the node holds: 15,000 partitions, 10,000 groups and ACLs,
20,000 quotas, 100,000 transactional ids.

    python bench/stalls.py --heavy [--only groups acls]
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from harness.blocking import BlockingConnection
from harness.heavy_state import PROPERTIES, heavy_requests
from harness.nodes import Node
from harness.systems import KALDA
from harness.watching import Pings, Resident
from harness.worst_requests import PARTITIONS, TOPIC, worst_requests

from kalda.base.errors import ApiError
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.framing import Call, choose_version, frame_request
from kalda.protocol.notation import Request, Response

_ENDS_THE_NODE = frozenset((ApiKey.UNREGISTER_BROKER,))
_HIDDEN = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)
"""Served by brokers, but announced only where metrics of clients are asked for."""
_WINDOW = 200
_LAST_WITH_NAMES = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12, ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9}
"""Later versions name topics by ids, which these requests lack."""


class Measured(NamedTuple):
    """What one request did."""

    took_s: float
    longest_s: float
    """The longest wait of the other client."""
    grown_bytes: int
    """By which the resident memory of the node grew, at its peak."""
    sent_bytes: int
    answer_bytes: int
    """0 where the connection was closed."""

    def __str__(self) -> str:
        answer = f"{self.answer_bytes / 1e6:.1f} MB" if self.answer_bytes else "closed"
        return f"{self.took_s:>11.2f}{self.longest_s * 1000:>18.0f}{self.grown_bytes / 1e6:>12.1f}  {answer:>8}"


def version_with_names(request: Request, connection: BlockingConnection) -> int:
    """The highest version in which topics are named."""
    key = ApiKey(request.API_KEY)
    highest = API[key].highest if key in _HIDDEN else choose_version(request, None, connection.versions)
    return min(highest, _LAST_WITH_NAMES.get(key, highest))


def measure(port: int, pid: int, request: Request) -> Measured:
    """Send a request while another client asks."""
    with BlockingConnection("127.0.0.1", port, timeout_ms=120_000) as connection:
        # Encoded before the other client begins: both are in this process, and so share its interpreter.
        version = version_with_names(request, connection)
        frame = b"".join(frame_request(Call(request.API_KEY, version, 1), request, "stalls"))
        pings = Pings(port)
        resident = Resident(pid)
        resident.reset()
        pings.start()
        began = time.perf_counter()
        answer_bytes = 0
        with contextlib.suppress(OSError, ApiError):
            connection._socket.settimeout(120)
            connection._socket.sendall(frame)
            answer_bytes = len(connection._read_frame())
        took = time.perf_counter() - began
        pings.stopped = True
        pings.join()
    return Measured(took, pings.longest_s, resident.grown(), len(frame), answer_bytes)


def announced(port: int) -> Iterator[tuple[ApiKey, int]]:
    """The APIs that a listener announces, and the highest version of each."""
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


@contextmanager
def a_node(properties: str = "") -> Iterator[tuple[Node, int]]:
    """A node that is up and has the topic, and its process id."""
    node = Node(KALDA, properties)
    try:
        node.start()
        node.create_topics([TOPIC], PARTITIONS)
        assert node.process is not None
        yield node, node.process.pid
    finally:
        node.close()


def measure_heavy(only: Sequence[str]) -> None:
    """Print what heavy requests do, one after the other."""
    print(f"{'request':<40}{'answer, s':>11}{'longest wait, ms':>18}{'memory, MB':>12}  answer")
    with a_node(PROPERTIES) as (node, pid):
        for name, request in heavy_requests(lambda requests: _sent(node.port, requests), only):
            print(f"{name:<40}{measure(node.port, pid, request)}", flush=True)


def measure_worst(listener: str, items: Sequence[int], only: Sequence[str]) -> None:
    """Print what the worst requests of a listener's APIs do."""
    with a_node() as (node, _):
        apis = list(announced(node.port if listener == "broker" else node.controller_port))
    if listener == "broker":
        apis += [(key, API[key].highest) for key in _HIDDEN]
    for key, version in apis:
        if only and key.name not in only:
            continue
        for count in items:
            for request in worst_requests(key, version, count):
                with a_node() as (node, pid):
                    port = node.port if listener == "broker" else node.controller_port
                    measure(port, pid, worst_requests(key, version, 1)[0])
                    done = measure(port, pid, request)
                print(f"{listener:<11}{key.name:<34}{count:>8}{done}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="*", default=[9_900, 19_900])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--listener", nargs="*", default=["broker", "controller"])
    parser.add_argument("--heavy", action="store_true", help="heavy because of what the node holds")
    parser.add_argument("--quick", action="store_true", help="9,900 items only")
    options = parser.parse_args()
    if options.quick:
        options.items = [9_900]
    if options.heavy:
        measure_heavy(options.only)
        return
    head = f"{'listener':<11}{'request':<34}{'items':>8}{'answer, s':>11}{'longest wait, ms':>18}{'memory, MB':>12}"
    print(f"{head}  {'answer':>8}")
    for listener in options.listener:
        measure_worst(listener, options.items, options.only)


if __name__ == "__main__":
    main()
