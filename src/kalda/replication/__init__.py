"""Replicas: what a broker does with the partitions that the metadata gives it.

A `Partition` is one replica's state over its log: leader or follower, in-sync set, high watermark. The floor answers
produce and fetch requests in terms of partitions and offsets; it knows no socket, thread or clock: time comes as an
argument, waiting is a `Pending`, blocking work is handed to `Jobs`.

- `partition`: one replica: leadership, append, read, high watermark
- `followers`: what a leader knows of each follower, and asks of the cluster
- `in_sync`: who is in the ISR, who may join, who must leave
- `alter_partition`: ISR changes on their way to the controller
- `controller_queue`: items on their way to the controller, one request at a time
- `replica_fetcher`: a follower's fetching from one leader
- `fetch_session_handler`: the follower's end of a fetch session
- `replica_fetchers`: which partition is fetched from whom
- `waiting`: requests that wait for a partition to move: the waiting room
- `fetch`: the fetch path: read what was asked, wait for more
- `read_replica`: which replica a consumer should read from
- `fetch_session`: incremental fetch sessions (KIP-227)
- `produce`: the produce path: append, wait for the in-sync replicas
- `counters`: what replicas count, under Kafka's metric names
- `dir_moves`: replicas that move between log directories
- `replica_manager`: all partitions of a broker, kept in step with the metadata
"""
