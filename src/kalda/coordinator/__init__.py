"""Group coordination: who consumes what, and how far they are, kept in `__consumer_offsets`.

Replayed state on `kalda.statemachine`: a shard for each partition that this node leads. It knows no socket, no clock
and no loop: requests come decoded with the time, answers that must wait are `Pending`, timers run in `poll`. Whoever
owns the log appends for it and tells it the high watermark; whoever owns the metadata answers its questions about
topics; authorization is done before and after.

- `group_coordinator.py`: the service: every request, routed to its shard
- `shard.py`: one partition: loading, replay, writing, expiration
- `classic_group.py`: a classic group's members, generation and protocol
- `classic_protocol.py`: JoinGroup, SyncGroup, Heartbeat, LeaveGroup
- `rebalance.py`: the barriers and timers of a rebalance
- `subscription.py`: the topics in a consumer's metadata
- `offsets.py`: committed offsets: commit, fetch, delete, expire, transactions' markers
- `offset_fetch.py`: OffsetFetch's shapes by version
- `records.py`: the log's records and their bytes
- `routing.py`: which partition a group lives in
- `timers.py`: a deterministic heap of timers
- `answers.py`: answers that may have to wait
- `errors.py`: the log's errors in a client's words
- `config.py`: broker configs
"""
