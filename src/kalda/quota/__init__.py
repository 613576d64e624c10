"""Quotas: what a client, a replica or a connection may use, and for how long it pauses when it has used more.

Pure: every call gets the time. This floor has no socket and mutes no connection: it returns the milliseconds for which
a client has to pause, and the request pipeline holds the connection.

- `entities.py`: whose quota applies to a client: eight levels of users and client ids, an operator's own class;
  throttle times
- `client_quotas.py`: the use of one quota by its clients: produce and fetch, request time
- `replication_quotas.py`: bytes a second of throttled replicas (KIP-73)
- `managers.py`: the quotas of a node, what a change of the metadata does to them; the rate of created partitions
- `explanation.py`: why a client is throttled: the steps, the measured values, what would be needed
"""
