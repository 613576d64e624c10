"""Quotas: what a client, a replica or a connection may use, and for how long it pauses when it has used more.

Pure: every call gets the time. This floor has no socket and mutes no connection: it returns the milliseconds for which
a client has to pause, and the request pipeline holds the connection.

- `entities.py`: whose quota applies to a client: eight levels of users and client ids
- `client_quotas.py`: the use of one quota by its clients: produce and fetch, request time
- `mutations.py`: partitions created and deleted: a token bucket, strict or permissive (KIP-599)
- `replication_quotas.py`: bytes a second of throttled replicas (KIP-73)
- `managers.py`: the quotas of a node, and what a change of the metadata does to them
- `callback.py`: the interface of an operator's own class that decides whose quota applies
- `decisions.py`: throttle times, and what is kept of the last ones
- `explanation.py`: why a client is throttled: the steps, the measured values, what would be needed
"""
