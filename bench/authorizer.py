"""What an authorizer costs a node for a request, without ACLs and with 10,000.

    python bench/authorizer.py [--quick] [--rounds 50]

Two nodes differ by more than an authorizer costs, and so do two minutes of one machine. So one node in this process has
its authorizer put in and taken out again, twice in each round, in alternating order. What counts is the CPU of the
thread of its event loop for a thousand requests of a client in another process. The line "neither" compares the two
turns of each round without the authorizer: what is measured where nothing differs.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from harness.client import Raw, fetch_request, produce_request

from kalda.broker.requests.pipeline import RequestPipeline
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.acls import Acl
from kalda.testing.cluster import Cluster

_REQUESTS = 1_000
_KINDS: dict[str, tuple[Callable[[], Any], int]] = {
    "produce": (lambda: produce_request("t", 100), 9),
    "fetch": (lambda: fetch_request("t"), 11),
}
_SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def client(port: int, orders: Any) -> None:
    """The other process: sends a thousand pipelined requests of the kind that it receives the name of."""
    connections: dict[str, Raw] = {}
    while (kind := orders.recv()) is not None:
        if kind not in connections:
            request, version = _KINDS[kind]
            connections[kind] = Raw(port, request(), version)
        connections[kind].pipelined(_REQUESTS)
        orders.send(kind)


class Toggled:
    """A node whose authorizer can be taken out."""

    def __init__(self, cluster: Cluster) -> None:
        self._loop = cluster._loop
        self._pipelines = [each for each in gc.get_objects() if isinstance(each, RequestPipeline)]
        self._authorizers = [each._authorizer for each in self._pipelines]
        self._clock = self._on_loop(lambda: time.pthread_getcpuclockid(threading.get_ident()))

    def _on_loop(self, action: Callable[[], Any]) -> Any:
        done, results = threading.Event(), []

        def run() -> None:
            results.append(action())
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()
        return results[0]

    def toggle(self, is_in: bool) -> None:
        def put() -> None:
            for pipeline, authorizer in zip(self._pipelines, self._authorizers, strict=True):
                pipeline._authorizer = authorizer if is_in else None
                pipeline.renew_routes()

        self._on_loop(put)

    def cpu_s(self) -> float:
        return time.clock_gettime(self._clock)


def load_acls(bootstrap: str, count: int) -> None:
    """Those by which the client may write and read, and others: for topics and prefixes, of 500 users."""
    with CommandAdmin(bootstrap) as cluster:
        cluster.create_acls([Acl(2, "t", 3, "User:ANONYMOUS", "*", operation, 3) for operation in (3, 4)]).check()
        for start in range(0, count, 1_000):
            names = [(f"topic-{each}", 3 + each % 2, f"User:user-{each % 500}") for each in range(start, start + 1_000)]
            cluster.create_acls([Acl(2, name, pattern, user, "*", 3, 3) for name, pattern, user in names]).check()


def measure(node: Toggled, orders: Any, kind: str, rounds: int) -> str:
    def cost(is_in: bool) -> float:
        node.toggle(is_in)
        began = node.cpu_s()
        orders.send(kind)
        orders.recv()
        return (node.cpu_s() - began) / _REQUESTS

    for is_in in (True, False):
        cost(is_in)
    with_it, without, neither = [], [], []
    for number in range(rounds):
        order = (False, True, True, False) if number % 2 else (True, False, False, True)
        turns = [(is_in, cost(is_in)) for is_in in order]
        with_it.append(sum(spent for is_in, spent in turns if is_in) / 2)
        outside = [spent for is_in, spent in turns if not is_in]
        without.append(sum(outside) / 2)
        neither.append(outside[0] / outside[1])
    shares = [spent / before for spent, before in zip(with_it, without, strict=True)]
    return (
        f"{kind}: {1e6 * median(without):.2f} us without, {1e6 * median(with_it):.2f} us with: "
        f"{100 * (median(shares) - 1):+.2f} % (neither: {100 * (median(neither) - 1):+.2f} %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 2
    for name in ("kalda", "kafka.authorizer.logger"):
        logging.getLogger(name).setLevel(logging.INFO)
    for count in (0, 10_000):
        with Cluster(config=_SETTINGS) as cluster:
            cluster.create_topic("t", partitions=1)
            load_acls(cluster.bootstrap_servers, count)
            node = Toggled(cluster)
            orders, others = multiprocessing.Pipe()
            port = int(cluster.bootstrap_servers.rpartition(":")[2])
            process = multiprocessing.get_context("spawn").Process(target=client, args=(port, others))
            process.start()
            for kind in _KINDS:
                print(f"{count} ACLs, {measure(node, orders, kind, arguments.rounds)}", flush=True)
            orders.send(None)
            process.join()


if __name__ == "__main__":
    main()
