"""What every client has: connections, metadata, requests, metrics.

- `cluster_values`: brokers, topics and partitions as values, and bootstrap addresses
- `errors`: the message of a failure, with advice
- `backoff`: the pause before the next attempt
- `metadata`: brokers, topics and leaders, and when they have to be fetched again
- `connections`: connections to nodes, the least loaded node, requests in flight, API versions, as actions for a shell
- `requests`: metadata kept up to date, coordinators found, requests sent
- `client_metrics`: what a client measures of its connections and its I/O
- `own_metrics`: when a client pushes its own metrics
- `telemetry_push`: which of them, and how (KIP-714)
"""
