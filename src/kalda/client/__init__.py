"""Clients of a cluster, as thin shells over sockets and a clock.

Decisions are those of the floor `clientcore`. A blocking client runs them on a thread of its own, an asyncio client on
its loop. The command line, the embedded cluster and Spark use these clients too.

- `producer`, `consumer`, `admin`: a package for each client
- `keywords`: the keywords of their constructors, for type checkers
- `other_clients`: names of other clients, which are answered with Kalda's
- `transport`: what they stand on: sockets, threads, loops
"""
