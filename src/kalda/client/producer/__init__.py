"""The producer, over `clientcore.producer`.

- `producer`, `aio_producer`: blocking, and for asyncio
- `producer_calls`: what both have in common: metrics, and why a record cannot be sent
- `delivery`: futures of records, and the calls when batches are done
"""
