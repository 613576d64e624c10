"""What 100,000 transactional ids cost a coordinator: memory for each, and how long a takeover lasts.

    python bench/transactional_ids.py [--ids 100000] [--partitions 1] [--rounds 3] [--quick] [--kafka]

Three nodes. Every id is initialized, which is what is kept of an id between its transactions. Memory is the growth
of the resident sets for each id. A takeover: the coordinator is killed (kill -9),
and InitProducerId requests of ids that it coordinated are sent to the nodes that are left, until each of them is
answered. Its time is counted from the kill; and from the first answer that the new coordinator loads, which leaves out
how long the death remained unnoticed. With one partition of `__transaction_state` all ids have one coordinator.
"""

from __future__ import annotations

import argparse
import signal
import socket
import time
from collections.abc import Sequence
from statistics import median

import psutil
from harness.blocking import BlockingConnection
from harness.clusters import Member, NodeGroup
from harness.systems import systems

from kalda.base.errors import ApiError
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.groups import FindCoordinatorRequest
from kalda.protocol.messages.transactions import InitProducerIdRequest

_INIT_VERSION = 4
_IN_FLIGHT = 200
_TRANSACTION = 1
_LOADING = 14
_TIMEOUT_MS = 60_000


def init(transactional_id: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
    )


def coordinator(cluster: NodeGroup, transactional_id: str) -> Member:
    """The coordinator, once there is one."""
    found: list[Member] = []

    def is_found() -> bool:
        answer = cluster.ask(FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=[transactional_id]), 4)
        if answer is not None and not answer.coordinators[0].error_code:
            found.append(cluster.members[answer.coordinators[0].node_id])
        return bool(found)

    cluster.wait(is_found, f"{transactional_id} has a coordinator")
    return found[0]


def initialize(member: Member, ids: Sequence[str]) -> list[str]:
    """Send InitProducerId for each, many in flight on one connection; those that were refused."""
    frames = []
    for name in ids:
        body = b"".join(encode_request(init(name), _INIT_VERSION, len(frames), "bench"))
        frames.append(len(body).to_bytes(4, "big") + body)
    refused = []
    with socket.create_connection(("127.0.0.1", member.port)) as peer:
        stream = peer.makefile("rb")
        sent = 0
        for at, name in enumerate(ids):
            while sent < min(len(frames), at + _IN_FLIGHT):
                batch = frames[sent : sent + _IN_FLIGHT // 2]
                peer.sendall(b"".join(batch))
                sent += len(batch)
            body = stream.read(int.from_bytes(stream.read(4), "big"))
            # A flexible header, then throttle time, error code, producer id and epoch.
            if int.from_bytes(body[9:11], "big", signed=True):
                refused.append(name)
    return refused


def fill(cluster: NodeGroup, names: Sequence[str], partitions: int) -> None:
    by_member: dict[int, list[str]] = {}
    owners: dict[int, Member] = {}
    for name in names:
        partition = coordinator_partition(name, partitions)
        if partition not in owners:
            owners[partition] = coordinator(cluster, name)
        by_member.setdefault(owners[partition].id, []).append(name)
    for number, mine in by_member.items():
        left: Sequence[str] = mine
        while left:
            left = initialize(cluster.members[number], left)


def resident(member: Member) -> int:
    assert member.process is not None
    process = psutil.Process(member.process.pid)
    return int(process.memory_info().rss)


def takeover(cluster: NodeGroup, names: Sequence[str], partitions: int) -> tuple[float, float]:
    """Kill the coordinator of the first id: seconds from the kill, and from the first answer of a successor, until one
    id of each partition that it coordinated is initialized again."""
    victim = coordinator(cluster, names[0])
    of_partition = {coordinator_partition(name, partitions): name for name in names[: 20 * partitions]}
    mine = {name for name in of_partition.values() if coordinator(cluster, name) is victim}
    began = time.perf_counter()
    first = 0.0
    victim.end(signal.SIGKILL)
    connections: dict[int, BlockingConnection] = {}
    while mine:
        for member in cluster.members.values():
            if member.process is None:
                continue
            try:
                if member.id not in connections:
                    connections[member.id] = BlockingConnection("127.0.0.1", member.port, timeout_ms=10_000)
                for name in sorted(mine):
                    code = connections[member.id].request(init(name), _INIT_VERSION).error_code
                    if not first and code in (0, _LOADING):
                        first = time.perf_counter()
                    if not code:
                        mine.discard(name)
            except (ApiError, OSError):
                connections.pop(member.id, None)
        time.sleep(0.002)
    ended = time.perf_counter()
    for connection in connections.values():
        connection.close()
    victim.start()
    cluster.wait(lambda: len(cluster.brokers()) == len(cluster.members), "the node is back")
    return ended - began, ended - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=1, help="of __transaction_state")
    parser.add_argument("--rounds", type=int, default=3, help="takeovers")
    parser.add_argument("--quick", action="store_true", help="10,000 ids, one takeover")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka too")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.ids, arguments.rounds = 10_000, 1
    names = [f"payments-service-{number:07}" for number in range(arguments.ids)]
    settings = {"transaction.state.log.num.partitions": arguments.partitions}
    for system in systems("512M", alone=not arguments.kafka):
        with NodeGroup(system, settings) as cluster:
            cluster.create("warm-up")
            fill(cluster, [f"warm-up-{number}" for number in range(2_000)], arguments.partitions)
            before = sum(map(resident, cluster.members.values()))
            led_before = resident(coordinator(cluster, names[0]))
            began = time.perf_counter()
            fill(cluster, names, arguments.partitions)
            took = time.perf_counter() - began
            grown = sum(map(resident, cluster.members.values())) - before
            led = resident(coordinator(cluster, names[0])) - led_before
            print(f"{system.name}: {len(names):,} ids in {took:.1f} s")
            print(f"  resident memory an id: {grown / len(names):,.0f} bytes over the three nodes", end="")
            print(f", {led / len(names):,.0f} at the coordinator" if arguments.partitions == 1 else "")
            taken = [takeover(cluster, names, arguments.partitions) for _ in range(arguments.rounds)]
            kills, loads = zip(*taken, strict=True)
            print(f"  takeover, s after the kill: {median(kills):.2f} ({min(kills):.2f} to {max(kills):.2f})")
            print(f"  … after the first answer of the successor: {median(loads):.2f} (to {max(loads):.2f})", flush=True)


if __name__ == "__main__":
    main()
