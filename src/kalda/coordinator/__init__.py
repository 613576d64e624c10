"""Coordinators: replayed state over internal topics, on the runtime of `kalda.statemachine`.

Each kind of coordinator is a package, and keeps its state in an internal topic: a shard for each partition that this
node leads. What all kinds have in common is here. A coordinator has no socket, clock or loop: a driver brings the time,
the batches of a partition that is loaded, and its high watermark; it appends to the log, and calls when timers are due.

- `internal_topics.py`: which internal topic belongs to which coordinator, and which of its partitions to a key
- `runtime.py`: the partitions that this node leads: load, retry, give up; timers, write timeouts
- `partition.py`: one partition: its shard's interface, loading, writing, commits
- `timers.py`: a deterministic heap of timers
- `answers.py`: answers that may have to wait, and the log's errors as a client of a coordinator gets them
- `groups/`: the group coordinator, key type 0, over `__consumer_offsets`
- `transactions/`: the transaction coordinator, key type 1, over `__transaction_state`
- `share/`: the share coordinator, key type 2, over `__share_group_state`
"""
