"""What administrators ask of a cluster: functions over a `ClusterClient`, which answer with values or raise `ApiError`.

Each is one API or two; nothing here keeps state. Where several things are asked for at once, the first failure is
raised, and says of which thing it is.

- `topics`: list, describe, create, delete, add partitions
- `configs`: describe and alter, of topics, brokers and groups
- `groups`: list, describe, delete; their offsets
- `offsets`: offsets of partitions by time; deletion of records
- `nodes`: brokers, log directories
- `features`: finalized and supported levels, and their update
- `quorum`: the metadata quorum, and who votes in it
- `elections`: leader elections that are asked for
- `reassignments`: replicas on their way to other brokers
"""
