"""The process of a member of the group: it reads orders and writes a bill for each.

The bills and the offsets of the orders that were read are one transaction. Where the member is killed in one, the
broker aborts it, and the member that takes over begins with the same orders: each has one bill, however it ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kalda.cli.demo.children import end_of_input, report
from kalda.cli.demo.shop import ORDERS

if TYPE_CHECKING:
    from kalda import Consumer, Producer, Record, TopicPartition

BILLS = "bills"
GROUP = "billing"
SESSION_TIMEOUT_MS = 6_000
_TRANSACTION_TIMEOUT_MS = 5_000
_BETWEEN_S = 0.2
"""Between the begins of two transactions."""
_MAX_RECORDS = 2_000


def main(servers: str, name: str) -> int:
    """Be a member until the end of the input."""
    from kalda import Consumer, Producer

    ended = end_of_input()
    consumer = Consumer(
        bootstrap_servers=servers,
        group_id=GROUP,
        client_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=500,
    )
    producer = Producer(
        bootstrap_servers=servers,
        client_id=name,
        transactional_id=f"{GROUP}-{name}",
        transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        compression_type="zstd",
    )

    def show(_: Iterable[TopicPartition]) -> None:
        report(at=time.time(), partitions=sorted(each.partition for each in consumer.assignment()))

    with consumer, producer:
        consumer.subscribe([ORDERS], on_assigned=show, on_revoked=show, on_lost=show)
        read = 0
        while not ended.is_set():
            began = time.monotonic()
            records = consumer.poll(0.2, _MAX_RECORDS)
            if records and _bill(consumer, producer, records):
                read += len(records)
            report(at=time.time(), read=read, partitions=sorted(each.partition for each in consumer.assignment()))
            ended.wait(max(0.0, began + _BETWEEN_S - time.monotonic()))
    return 0


def _bill(consumer: Consumer, producer: Producer, records: list[Record]) -> bool:
    """Bill these orders in one transaction. False where it was aborted: the same orders are read again then, by this
    member or by those that own the partitions now."""
    from kalda import AbortableTransactionError

    try:
        with producer.transaction():
            for record in records:
                order = json.loads(record.value or b"")
                bill = {name: order[name] for name in ("number", "customer", "cents")}
                producer.send(BILLS, json.dumps(bill).encode(), record.key)
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
    except AbortableTransactionError as error:
        print(f"a transaction was aborted: {error}", file=sys.stderr, flush=True)
        for partition, committed in consumer.committed(*consumer.assignment()).items():
            if committed is None:
                consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, committed)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
