"""The log in Kafka's files, over an injected disk.

A partition is a directory of segments: batches as they came over the wire, with sparse indexes beside them. This floor
handles offsets, epochs, producers and files. It depends on no socket, replica, topic metadata, thread or clock:
`now_ms` is an argument.

Threads: every function runs on the thread that owns the log, except the `run` of a `Job`, which uses files and
snapshots only and may run anywhere; its `finish` runs on the owner's thread again and changes the log.

- `log`: one log: its segments, and what stands beside their records
- `dirs`: the logs of a node in its log directories
- `compaction`: the last record of each key stays

What all of them use:

- `config`: settings of topics and brokers, typed
- `values`: what goes into a log's calls and comes out of them
- `job`: work for another thread, in two halves
- `file_names`: names of files and directories
- `checkpoints`: offset checkpoints and the other small text files
- `dump`: files as printable rows, for people
"""
