"""What every client has: connections, metadata, requests, metrics.

- `errors`: the message of a failure, with advice
- `metadata`: brokers, topics and leaders, and when they have to be fetched again
- `connections`: connections to nodes, the least loaded node, requests in flight, API versions, as actions for a shell
- `requests`: metadata kept up to date, coordinators found, requests sent
- `client_metrics`: what a client measures of its connections and its I/O
- `telemetry_push`: which of them, and how (KIP-714)
"""
