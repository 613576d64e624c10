"""That every order is everywhere exactly once: in the log, among the bills, in the windows, in the lake. The topics are
read to their ends, as any consumer reads them; nothing that the processes counted is taken from them but the shop's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kalda.cli.demo.children import Report
from kalda.cli.demo.member import BILLS
from kalda.cli.demo.nodes import PARTITIONS
from kalda.cli.demo.shop import ORDERS

_READ_S = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """What is in one place. `lost` and `twice` are numbers of orders; None where the place has only sums."""

    place: str
    orders: int
    cents: int
    lost: int | None = None
    twice: int | None = None


def found_in(place: str, orders: Mapping[int, int], records: int, cents: int, made: int) -> Found:
    """What is in a topic with these `orders`, by number the count of records. The shop numbers from 1 to `made`."""
    lost = sum(number not in orders for number in range(1, made + 1))
    return Found(place, records, cents, lost, sum(count - 1 for count in orders.values()))


def read_topic(servers: str, topic: str, place: str, made: int) -> Found:
    """Read a topic to its end. Raises `TimeoutError` where that takes too long."""
    from kalda import Consumer

    orders: dict[int, int] = {}
    cents = records = 0
    partitions = [(topic, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + _READ_S
    with Consumer(bootstrap_servers=servers, client_id="proof", isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(*partitions)
        while any(each.offset < ends[partition] for partition, each in _positions(consumer, ends).items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {topic} was not read to its end in {_READ_S:.0f} s")
            for record in consumer.poll(0.5, 10_000):
                row = json.loads(record.value or b"{}")
                orders[row["number"]] = orders.get(row["number"], 0) + 1
                cents += row["cents"]
                records += 1
    return found_in(place, orders, records, cents, made)


def _positions(consumer: Any, ends: Mapping[Any, int]) -> dict[Any, Any]:
    from kalda import OffsetAndEpoch

    positions = consumer.positions()
    return {partition: positions.get(partition, OffsetAndEpoch(0)) for partition in ends}


def proof(
    servers: str, closing: Report, windows: Mapping[str, Mapping[str, int]] | None, lake: Report | None
) -> list[Found]:
    """What was made, then what is in each place. `closing` is the shop's last report, `lake` Spark's."""
    made: int = closing["made"]
    found = [
        Found("made by the shop", made, closing["cents"]),
        read_topic(servers, ORDERS, f"in topic {ORDERS}", made),
        read_topic(servers, BILLS, f"in topic {BILLS}", made),
    ]
    if windows is not None:
        cents = sum(row["cents"] for row in windows.values())
        found.append(Found("sum of Spark's windows", sum(row["orders"] for row in windows.values()), cents))
    if lake is not None:
        lost, twice = made - lake["different"], lake["orders"] - lake["different"]
        found.append(Found("in the lake (Parquet)", lake["orders"], lake["cents"], lost, twice))
    return found


def holds(found: list[Found]) -> bool:
    """Whether there were orders, and all places have the same as the first."""
    first = found[0]
    same = all((each.orders, each.cents) == (first.orders, first.cents) for each in found)
    return first.orders > 0 and same and not any(each.lost or each.twice for each in found)
