"""What quotas cost a request: one node, whose quotas are set and removed in turn while one client sends.

    python bench/quota_costs.py [--quick] [--rounds 40] [--requests 5000] [--levels one|eight|beside|time]

    one      a byte rate of the default client id
    eight    byte rates at all eight levels of entities, and for 100,000 other users and client ids
    beside   byte rates at all eight levels; 100,000 other users and client ids have a quota of another kind throughout
    time     a share of the event loop's time, of the default client id

It is the same process with and without, since two processes of the same program differ by more than a quota costs. The
limits are never reached. A round is a turn of requests with quotas and one without, in alternating order; of `eight`,
whose quotas take seconds to be set, a quarter of all turns of one kind follow each other. Printed is the median over
all rounds of the ratio of the node's CPU time, with quotas over without, and the error of that median.
"""

from __future__ import annotations

import argparse
import time
from statistics import median, quantiles

from harness.client import Raw, fetch_request, produce_request
from harness.nodes import Node
from harness.systems import KALDA

from kalda.cli.common.command_admin import CommandAdmin
from kalda.clientcore.administration import ANY, Ask, single
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)

_LIMIT = 1e12
_OTHERS = 100_000
_AT_ONCE = 2_000
_TOPIC = "measured"
_BYTES = ("producer_byte_rate", "consumer_byte_rate")
Entity = dict[str, str | None]
_ALL_LEVELS: list[Entity] = [
    *({"user": user, "client-id": client_id} for user in ("ANONYMOUS", None) for client_id in ("bench", None)),
    *({"user": user} for user in ("ANONYMOUS", None)),
    *({"client-id": client_id} for client_id in ("bench", None)),
]
LEVELS: dict[str, tuple[tuple[str, ...], list[Entity]]] = {
    "one": (_BYTES, [{"client-id": None}]),
    "eight": (_BYTES, _ALL_LEVELS),
    "beside": (_BYTES, _ALL_LEVELS),
    "time": (("request_percentage",), [{"client-id": None}]),
}


def alter(cluster: CommandAdmin, keys: tuple[str, ...], entities: list[Entity], *, remove: bool) -> None:
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
        answer = cluster.run(
            "the quotas", single(Ask(ANY, AlterClientQuotasRequest(entries=entries[at : at + _AT_ONCE])))
        )
        if failed := [entry for entry in answer.entries if entry.error_code]:
            raise SystemExit(f"quotas were refused: {failed[0].error_message}")


def settle(node: Node) -> None:
    """Wait until the node is idle: a hundred thousand changes are followed by a snapshot of the metadata."""
    idle_cpu_s = 0.02
    used = idle_cpu_s
    while used >= idle_cpu_s:
        before = node.cpu_s()
        time.sleep(1)
        used = node.cpu_s() - before


def measure(node: Node, levels: str, rounds: int, requests: int) -> None:
    """Print the ratios, with quotas over without."""
    keys, entities = LEVELS[levels]
    phase = 1
    others: list[Entity] = [{"user": f"user-{at}", "client-id": f"client-{at}"} for at in range(_OTHERS)]
    if levels == "eight":
        entities = entities + others
        phase = max(1, rounds // 4)
    clients = {
        "Produce": Raw(node.port, produce_request(_TOPIC, 100), 9),
        "Fetch": Raw(node.port, fetch_request(_TOPIC), 11),
    }
    costs: dict[tuple[str, bool], list[float]] = {(name, is_on): [] for name in clients for is_on in (False, True)}
    with CommandAdmin(f"127.0.0.1:{node.port}") as cluster:
        if levels == "beside":
            alter(cluster, ("controller_mutation_rate",), others, remove=False)
            settle(node)
        was_limited = False
        for is_limited in [each for _ in range(rounds // phase // 2) for each in (False, True, True, False)]:
            if is_limited is not was_limited:
                alter(cluster, keys, entities, remove=was_limited)
                was_limited = is_limited
                if phase > 1:
                    settle(node)
            for _ in range(phase):
                for name, client in clients.items():
                    client.pipelined(500)  # the first requests make the route and the sensors
                    before = node.cpu_s()
                    client.pipelined(requests)
                    costs[name, is_limited].append((node.cpu_s() - before) / requests * 1e6)
    for name in clients:
        without, limited = costs[name, False], costs[name, True]
        ratios = [one / other for one, other in zip(limited, without, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        print(
            f"{levels:6} {name:7} CPU of a request {median(without):.2f} -> {median(limited):.2f} µs, "
            f"ratio {median(ratios):.4f} ± {0.93 * (high - low) / len(ratios) ** 0.5:.4f} of {len(ratios)} rounds",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--levels", choices=list(LEVELS), default="one")
    parser.add_argument("--quick", action="store_true", help="four rounds")
    given = parser.parse_args()
    if given.quick:
        given.rounds = 4
    node = Node(KALDA)
    try:
        node.start()
        node.create_topics([_TOPIC])
        Raw(node.port, produce_request(_TOPIC, 100), 9).pipelined(20_000)
        measure(node, given.levels, given.rounds, given.requests)
    finally:
        node.close()


if __name__ == "__main__":
    main()
