"""A consumer: a member of a group, and one that reads partitions by itself."""

import os

from kalda import Consumer

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")

with Consumer({"bootstrap.servers": SERVERS, "group.id": "billing", "auto.offset.reset": "earliest"}) as consumer:
    consumer.subscribe(["orders"])
    for number, record in enumerate(consumer, 1):
        print(record.partition, record.offset, record.key, record.value)
        if number == 10:
            break
    consumer.commit()

with Consumer(bootstrap_servers=SERVERS) as reader:
    reader.assign([("orders", 0)])
    reader.seek(("orders", 0), 0)
    for record in reader.poll(timeout=5, max_records=100):
        print(record.timestamp_ms, record.value)
