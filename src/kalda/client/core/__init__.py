"""What clients decide, without sockets, clocks or threads.

- `partitioner`: which partition a key goes to
- `assignors`: which member of a group gets which partitions
- `consumer_protocol`: what members of a classic group tell each other
- `transactions_seen`: which batches of a fetch belong to aborted transactions
"""
