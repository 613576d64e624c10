"""Group coordination: who consumes what, and how far each group is, kept in `__consumer_offsets`.

Requests come decoded, with the time; answers that must wait are `Pending`. Which topics exist is looked up through an
interface (`Topics`); authorization is done before and after.

- `group_coordinator.py`: every request, on the shard of its group
- `shard.py`: one partition: replay, expiration
- `classic_group.py`: a classic group's members, generation and protocol
- `classic_protocol.py`: JoinGroup, SyncGroup, Heartbeat, LeaveGroup
- `rebalance.py`: the barriers and timers of a rebalance
- `offsets.py`: committed offsets: commit, fetch, delete, expire, transactions' markers
- `offset_fetch.py`: OffsetFetch's shapes by version
- `counters.py`: rates and counts of rebalances and offsets
- `records.py`: the log's records and their bytes
- `config.py`: broker configs
"""
