"""Decisions of clients, without sockets, clocks or threads.

- `partitioner`: the partition of a key
- `assignors`: which member of a group gets which partitions
- `consumer_protocol`: the subscriptions and assignments that members of a classic group exchange
- `transaction_manager`: a producer's transactions: its state, and its requests to coordinators
- `transaction_errors`: failures of transactions by what the application has to do
- `transactions_seen`: which batches of a fetch belong to aborted transactions
"""
