"""The consumers, over `clientcore.consumer` and `clientcore.share_consumer`.

- `consumer`, `aio_consumer`: blocking, and for asyncio
- `consumer_calls`: what both can do
- `share_consumer`, `aio_share_consumer`, `share_calls`: likewise for share groups
- `common_calls`: what both kinds have in common; `blocking_shell`, `aio_shell`: I/O that runs them, and their waiting
- `columns`: fetched batches as Arrow columns, those of Spark's Kafka source
"""
