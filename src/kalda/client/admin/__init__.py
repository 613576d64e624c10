"""Administration of a cluster: values, and plans that yield requests and return values (see `administration`).

`kalda.Admin`, `kalda.aio.Admin`, the commands and Spark run these plans: batched, with an error for each item.

- `admin_client`, `aio_admin`: the blocking admin client and the asyncio one
- `admin_driven`: what both run on their I/O
- `operations`: the table of which both faces are made: signatures, docstrings, and the plan of each call
- `acls`: access rules and filters of them, as values
- `access`: access rules, SCRAM credentials, delegation tokens
- `topics`: create, list, describe, delete, add partitions; wait for new ones
- `offsets`: offsets of partitions by time; deletion of records
- `reassignments`: leader elections, moving replicas to other brokers
- `configs`: describe and alter, of topics, brokers, groups and client-metrics subscriptions
- `group_values`: groups of all types, as values
- `groups`: list, describe, delete; their offsets and members; where share groups begin
- `transactions`: list and describe; producers of partitions; abort, fence
- `nodes`: brokers, their APIs, log directories
- `quorum`: the metadata quorum, and its voters
- `features`: finalized and supported levels, and their update
- `quotas`: quotas of users, client ids and addresses
"""
