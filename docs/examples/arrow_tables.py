"""Tables in and out, without a Python object for a row."""

import os

import pyarrow as pa

from kalda import Consumer, Producer

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")

table = pa.table({"key": ["alice", "bob"], "value": ["42", "7"]})
with Producer(bootstrap_servers=SERVERS) as producer:
    written = producer.send_batch("orders", table).result(timeout=30)
    print(written)

with Consumer(bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer:
    consumer.assign([("orders", 0)])
    batch = consumer.poll_arrow(timeout=5)
    if batch is not None:
        print(batch.schema.names, batch.num_rows)
