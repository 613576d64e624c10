"""The modules of a broker: one file for each area that it serves. `services` makes them, in order.

Nothing here decides: a module makes the objects of the floors below and the handlers over them, and connects these to
metadata, dynamic configs and the end of the node.

- `module`: `Module`, the manual for a new one; `BrokerContext`, what all modules may use
- `connections`: limits of listeners and connections
- `replication`: the replicas of this broker: Produce, Fetch, offsets; fetchers, proposed ISRs
- `log_dirs`: where replicas are: directory assignments, moves, cordoned directories
- `coordinators`: the table of coordinators, which the modules of their kinds add to
- `markers`: markers and producers of transactions, in the partitions of this broker
- `groups`: the group coordinator
- `metadata`: reads of the cluster's metadata: Metadata, FindCoordinator, quotas, SCRAM users
- `forwarding`: what the active controller answers
- `client_metrics`: metrics that clients push, and where they go
- `configs`: described and altered configs
- `producers`: producer ids
- `transactions`: the transaction coordinator, and the markers that it sends
- `partitions`: opens, leads, follows and deletes partitions, as the metadata demands
- `log_maintenance`: retention, checkpoints, flushes, compaction

What modules share:

- `broker_side`: with the broker role: the logs, the order of the start and of the stop
- `services`: what a broker serves clients with: the list of its modules
- `metadata_cache`: the newest image, and the responses made from it
- `auto_topics`: topics that are created by the first request that names them
- `coordinator_table`: the table of this broker's coordinators, by internal topic
- `producer_ids`: producer ids, from blocks that the controller allocates
- `transaction_markers`: sends the markers of ended transactions
"""
