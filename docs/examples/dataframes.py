"""Records into Polars, DuckDB and pandas, and back, as the Arrow batches that they are."""

import os

import duckdb
import polars as pl
import pyarrow as pa

from kalda import Consumer, Producer

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")

orders = pl.DataFrame({"key": ["alice", "bob", "alice"], "value": ["42", "7", "8"]})
with Producer(bootstrap_servers=SERVERS) as producer:
    producer.send_batch("orders", orders.to_arrow(), partition=0).result(timeout=30)

with Consumer(bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer:
    consumer.assign([("orders", 0)])
    batch = consumer.poll_arrow(timeout=10)
assert batch is not None, "no record came within 10 s"

print(pl.from_arrow(batch))
rows = duckdb.from_arrow(pa.Table.from_batches([batch]))
print(rows.aggregate("key, count(*) AS orders").order("orders DESC").fetchall())
print(batch.to_pandas().groupby("topic")["offset"].max())
