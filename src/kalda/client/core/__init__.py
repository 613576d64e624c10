"""Decisions of clients, without sockets, clocks or threads.

- `partitioner`: the partition of a key
- `assignors`: which member of a group gets which partitions
- `consumer_protocol`: the subscriptions and assignments that members of a classic group exchange
- `transactions_seen`: which batches of a fetch belong to aborted transactions
"""
