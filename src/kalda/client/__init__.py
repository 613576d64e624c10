"""Clients of a cluster, as thin shells over sockets and a clock.

Here is what tools and Spark tasks stand on: blocking, one thread, one request after another, no loop and no thread of
its own. It knows brokers, leaders and coordinators, and how to try again; it knows no command line, and of records
only whole batches.

- `cluster_client`: connections, metadata, who leads and who coordinates, attempts until a deadline
- `metadata`: the cluster as the last answer told it
- `retry`: deadlines, backoff
- `errors`: what a failure is called, and what to do about it
- `admin`: what administrators ask for, a file a subject
- `consumer_fetcher`: batches of partitions between offsets, from their leaders
- `sender`: batches to leaders, in order, idempotent where wanted
- `group`: a member of a classic group
- `core`: decisions without I/O
"""
