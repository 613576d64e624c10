"""Group coordination: who consumes what, and how far each group is, kept in `__consumer_offsets`.

Requests come decoded, with the time; answers that must wait are `Pending`. Which topics exist is looked up through an
interface (`KnownTopics`); authorization is done before and after.

- `group_coordinator.py`: every request, on the shard of its group
- `shard.py`: one partition: replay, which kind of group an id has, expiration
- `classic_group.py`: a classic group's members, generation and protocol
- `classic_protocol.py`: JoinGroup, SyncGroup, Heartbeat, LeaveGroup
- `rebalance.py`: the barriers and timers of a rebalance: when JoinGroup and SyncGroup are answered, who is expelled
- `rebalance_history.py`: the last rebalances, for operators
- `kind_group.py`: what a group of any of the kinds below has: members, their targets, epochs; replay and records
- `kind_protocol.py`: what groups of all kinds have in common in a partition, and what their heartbeats do alike: sizes,
  sessions, static members, target assignments
- `consumer_group.py`: consumer groups of KIP-848: the replayed state of one; all of one partition, sessions
- `consumer_protocol.py`: ConsumerGroupHeartbeat; the target assignment of a group epoch
- `classic_members.py`: JoinGroup, SyncGroup, Heartbeat, LeaveGroup of classic members in one
- `migration.py`: a classic group becomes one, and back
- `share_group.py`: share groups of KIP-932: the replayed state of one, and its records; all of one partition
- `share_protocol.py`: ShareGroupHeartbeat
- `share_offsets.py`: the offsets of share groups: describe, alter, delete; the end of a group's state
- `streams/`: streams groups of KIP-1071
- `offsets.py`: committed offsets: commit, fetch, delete, expire, transactions' markers
- `offset_requests.py`: requests on committed offsets, and OffsetFetch's shapes by version
- `records.py`: the log's records and their bytes
- `descriptions.py`: ConsumerGroupDescribe, ShareGroupDescribe, StreamsGroupDescribe; who waits for whom in a rebalance
- `config.py`: configs of all kinds: the broker's, and those that a group has instead; the topics that groups subscribe
  to
"""
