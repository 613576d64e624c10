"""A producer: single records, callbacks, and a transaction."""

import os

from kalda import Producer

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")

with Producer({"bootstrap.servers": SERVERS, "linger.ms": 5}) as producer:
    future = producer.send("orders", value=b'{"total": 42}', key=b"alice", headers=[("trace", b"7")])
    written = future.result(timeout=30)
    print(f"{written.topic}-{written.partition} at offset {written.offset}")

    def delivered(metadata: object, error: Exception | None) -> None:
        if error is not None:
            print(f"not written: {error}")

    for number in range(1_000):
        producer.send("orders", value=b"%d" % number, on_delivery=delivered)
    producer.flush()

with Producer(bootstrap_servers=SERVERS, transactional_id="billing-1") as producer, producer.transaction():
    producer.send("orders", value=b"all of these")
    producer.send("payments", value=b"or none of them")
