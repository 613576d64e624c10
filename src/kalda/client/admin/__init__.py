"""Administration of a cluster: functions over a `ClusterClient` that return values or raise `ApiError`.

Each function uses one API or two, and keeps no state. A function that handles several topics, groups or partitions
raises the first failure, and its message names the one that failed.

The `*_plans` are what `kalda.Admin` and `kalda.aio.Admin` run: batched, with an error for each item.

- `operations`: the table of which both faces are made: signatures, docstrings, and the plan of each call
- `acls`: access rules and filters of them, as values
- `topic_plans`: topics, partitions, offsets by time, records, elections, reassignments
- `group_plans`: groups and their offsets, transactions, producers
- `cluster_plans`: configs, brokers, the quorum, features, quotas, ACLs, SCRAM credentials
- `token_plans`: delegation tokens
- `access`: access control entries, SCRAM credentials, delegation tokens
- `topics`: list, describe, create, delete, add partitions
- `configs`: describe and alter, of topics, brokers and groups
- `quotas`: quotas of users, client ids and addresses
- `groups`: list, describe, delete; their offsets
- `transactions`: list and describe; producers of partitions; end what hangs
- `offsets`: offsets of partitions by time; deletion of records
- `nodes`: brokers, log directories
- `features`: finalized and supported levels, and their update
- `quorum`: the metadata quorum, and its voters
- `elections`: leader elections on request
- `reassignments`: moving replicas to other brokers and directories
"""
