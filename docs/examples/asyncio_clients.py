"""The asyncio clients: the same names, awaited."""

import asyncio
import os

from kalda.aio import Consumer, Producer

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")


async def main() -> None:
    async with Producer(bootstrap_servers=SERVERS) as producer:
        future = await producer.send("orders", value=b"42")  # waits for room in the buffers
        print(await future)  # waits for the acknowledgement

    async with Consumer(bootstrap_servers=SERVERS, group_id="watchers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            print(record.value)
            break


asyncio.run(main())
