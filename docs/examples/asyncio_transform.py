"""Exactly once from topic to topic: the records that are written and the offsets that were read are one transaction."""

import asyncio
import os

from kalda.aio import Admin, Consumer, Producer

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")


async def main() -> None:
    consumer = Consumer(
        bootstrap_servers=SERVERS,
        group_id="totals",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    async with consumer, Producer(bootstrap_servers=SERVERS, transactional_id="totals-1") as producer:
        consumer.subscribe(["orders"])
        records = await consumer.poll(timeout=10)
        async with producer.transaction():  # committed at the end of the block, aborted where it raises
            for record in records:
                await producer.send("payments", value=record.value, key=record.key)
            await producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())

    async with Admin(bootstrap_servers=SERVERS) as admin:
        offsets = await admin.list_group_offsets("totals")
        print({str(partition): committed.offset for partition, committed in offsets.succeeded.items()})


asyncio.run(main())
