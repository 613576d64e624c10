"""The consumers, over `clientcore.consumer` and `clientcore.share_consumer`.

- `consumer`, `aio_consumer`: blocking, and for asyncio
- `consumer_calls`: what both can do without waiting
- `share_consumer`, `aio_share_consumer`, `share_calls`: likewise for share groups
- `common_calls`, `blocking_shell`, `aio_shell`: what both kinds have in common
- `consumer_io`: a blocking consumer's I/O, in the caller's thread or in the background
- `columns`: fetched batches as Arrow columns, those of Spark's Kafka source
"""
