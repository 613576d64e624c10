"""The share coordinator: what share groups have acknowledged, over `__share_group_state` (KIP-932).

The broker that leads a partition hands its records out to the members of a share group, and persists here how far each
of them is. The group coordinator initializes and deletes this state; no other part reads or writes it.

- `records.py`: the key of a share partition; the records of `__share_group_state`, and their bytes
- `shard.py`: one partition of the topic: the state of share partitions, how new batches replace old ones, snapshots,
  pruning
- `share_coordinator.py`: the requests 83 to 87
"""
