"""The process that makes orders: customers buy things of a few kinds, at a constant rate.

The producer is idempotent and waits for all in-sync replicas. An order counts as made when it was acknowledged.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

from kalda.cli.demo.children import end_of_input, report

ORDERS = "orders"
PRICES = {"books": (8_00, 35_00), "music": (5_00, 22_00), "games": (15_00, 70_00), "garden": (4_00, 120_00)}
"""Cents, from and to, of each kind of goods."""
SCHEMA = "number long, customer string, kind string, cents long"
_FIRST = ("Ava", "Ben", "Chloe", "Dan", "Eve", "Finn", "Grace", "Hugo", "Iris", "Jack", "Kim", "Leo", "Maya", "Noah")
_LAST = ("Adler", "Brook", "Chen", "Diaz", "Evans", "Fox", "Garcia", "Haas", "Ito", "Jones", "Kaya", "Lopez", "Meyer")
_TICK_S = 0.02
_REPORT_S = 0.2
_FLUSH_S = 60.0


def orders(seed: int) -> Iterator[dict[str, Any]]:
    """Orders, numbered from 1, without end."""
    chance = random.Random(seed)
    kinds, weights = list(PRICES), (5, 3, 2, 1)
    number = 0
    while True:
        number += 1
        kind = chance.choices(kinds, weights)[0]
        customer = f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"
        yield {"number": number, "customer": customer, "kind": kind, "cents": chance.randint(*PRICES[kind])}


def main(servers: str, rate: float) -> int:
    """Make orders until the end of the input. Exit code 1 where one was not written."""
    from kalda import Producer

    made = cents = 0
    failures: list[str] = []
    ended = end_of_input()
    producer = Producer(
        bootstrap_servers=servers,
        client_id="shop",
        acks="all",
        enable_idempotence=True,
        compression_type="zstd",
        linger_ms=20,
    )

    def send(order: dict[str, Any]) -> None:
        def on_delivery(_: object, error: Exception | None) -> None:
            nonlocal made, cents
            if error is None:
                made += 1
                cents += order["cents"]
            else:
                failures.append(str(error))

        producer.send(ORDERS, json.dumps(order).encode(), order["customer"].encode(), on_delivery=on_delivery)

    source = orders(seed=7)
    began = reported = time.monotonic()
    sent = 0
    while not ended.wait(_TICK_S):
        now = time.monotonic()
        while sent < (now - began) * rate:
            send(next(source))
            sent += 1
        if now - reported >= _REPORT_S:
            reported = now
            report(at=time.time(), made=made)
    producer.flush(_FLUSH_S)
    producer.close()
    report(at=time.time(), made=made, sent=sent, cents=cents, failures=failures[:3])
    return 1 if failures or made != sent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
