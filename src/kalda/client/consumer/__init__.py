"""The consumer, over `clientcore.consumer`.

- `consumer`, `aio_consumer`: blocking, and for asyncio
- `consumer_calls`: what both can do without waiting
- `consumer_io`: the blocking consumer's I/O, in the caller's thread or in the background
- `columns`: fetched batches as Arrow columns, those of Spark's Kafka source
"""
