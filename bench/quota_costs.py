"""What quotas cost a request: one node, whose quotas are set and removed in turn while one client sends.

    python bench/quota_costs.py [--rounds 9] [--requests 50000] [--levels one|eight|time]

    one      a byte rate of the default client id
    eight    byte rates at all eight levels of entities, and for 100,000 other users and client ids
    time     a share of the event loop's time, of the default client id

It is the same process with and without, since two processes of the same program differ by more than a quota costs. The
limits are never reached. Printed are ratios of medians, with quotas over without: of the rate, and of the node's CPU of
a request.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from harness.figures import run_client
from harness.nodes import Node
from harness.systems import KALDA

from kalda.client.cluster import ClusterClient
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)

_LIMIT = 1e12
_OTHERS = 100_000
_AT_ONCE = 2_000
WORKLOADS = ("requests", "fetches")
_BYTES = ("producer_byte_rate", "consumer_byte_rate")
Entity = dict[str, str | None]
LEVELS: dict[str, tuple[tuple[str, ...], list[Entity]]] = {
    "one": (_BYTES, [{"client-id": None}]),
    "eight": (
        _BYTES,
        [
            *({"user": user, "client-id": client_id} for user in ("ANONYMOUS", None) for client_id in ("bench", None)),
            *({"user": user} for user in ("ANONYMOUS", None)),
            *({"client-id": client_id} for client_id in ("bench", None)),
        ],
    ),
    "time": (("request_percentage",), [{"client-id": None}]),
}


def alter(cluster: ClusterClient, keys: tuple[str, ...], entities: list[Entity], *, remove: bool) -> None:
    """Set or remove the limits of entities, some thousand in a request."""
    ops = [OpData(key=key, value=_LIMIT, remove=remove) for key in keys]
    entries = [
        AlterClientQuotasRequestEntryData(
            entity=[
                AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in each.items()
            ],
            ops=ops,
        )
        for each in entities
    ]
    for at in range(0, len(entries), _AT_ONCE):
        answer = cluster.any_broker(AlterClientQuotasRequest(entries=entries[at : at + _AT_ONCE]))
        if failed := [entry for entry in answer.entries if entry.error_code]:
            raise SystemExit(f"quotas were refused: {failed[0].error_message}")


def measure(node: Node, levels: str, rounds: int, requests: int) -> None:
    """Print the ratios, with quotas over without."""
    keys, entities = LEVELS[levels]
    phases = [False, True] * rounds
    if levels == "eight":
        entities = entities + [{"user": f"user-{at}", "client-id": f"client-{at}"} for at in range(_OTHERS)]
        phases = [False] * (rounds // 2) + [True] * rounds + [False] * (rounds // 2)
    seen: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    with ClusterClient(f"127.0.0.1:{node.port}") as cluster:
        was_limited = False
        for is_limited in phases:
            if is_limited is not was_limited:
                alter(cluster, keys, entities, remove=was_limited)
                time.sleep(0.3)
                was_limited = is_limited
            for workload in WORKLOADS:
                before = node.cpu_s()
                rate = run_client(workload, node, "measured", requests, 100)["per_s"]
                seen.setdefault((workload, is_limited), []).append((rate, (node.cpu_s() - before) / requests))
    for workload in WORKLOADS:
        rates, costs = (
            [median(each[at] for each in seen[workload, is_limited]) for is_limited in (False, True)] for at in (0, 1)
        )
        print(
            f"{levels:5} {workload:9} rate {rates[1] / rates[0]:.3f}, CPU of a request {costs[0] * 1e6:.2f} -> "
            f"{costs[1] * 1e6:.2f} µs ({costs[1] / costs[0]:.3f})",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--levels", choices=list(LEVELS), default="one")
    given = parser.parse_args()
    node = Node(KALDA)
    try:
        node.start()
        node.create_topics(["measured"])
        for workload in WORKLOADS:
            run_client(workload, node, "measured", 20_000, 100)
        measure(node, given.levels, given.rounds, given.requests)
    finally:
        node.close()


if __name__ == "__main__":
    main()
