"""The log in Kafka's files, over an injected disk.

A partition is a directory of segments: batches as they came over the wire, with sparse indexes beside them. This floor
handles offsets, epochs, producers and files. It depends on no socket, replica, topic metadata, thread or clock:
`now_ms` is an argument.

Threads: every function runs on the thread that owns the log, except the `run` of a `Job`, which uses files and
snapshots only and may run anywhere; its `finish` runs on the owner's thread again and changes the log.

What all files use:

- `config`: settings of topics and brokers, typed
- `values`: what goes into a log's calls and comes out of them
- `job`: work for another thread, in two halves
- `naming`: names of files and directories
- `offsets`: the offsets of a log and their order

One segment:

- `segment`: one log file with its indexes
- `index`: offset index and time index
- `txn_index`: aborted transactions of a segment
- `recovery`: of one segment, batch by batch

One log:

- `log`: the log: append, read, roll, close
- `state`: what a log has, without appending to it; what it asks of whoever holds it
- `segments`: the sorted segments of a log
- `appending`: which batches of a buffer are appended, for replicas and raft leaders
- `loading`: opening a log, cleanly or by recovery
- `opening`: files of logs that are about to be appended to, on another thread
- `reading`: where the batches that are read come from, and who waits for them
- `recent_appends`: large batches that leaders have appended last, in memory for their followers
- `snapshot_jobs`: reads on another thread, begun again while files change under them
- `aborted`: the aborted transactions that a range of a log overlaps
- `searching`: offsets by time
- `flushing`: what is not synced yet, and the job that syncs it
- `truncating`: taking back what was appended
- `retention`: what may be deleted, and deleting it
- `open_files`: files of logs that rest are closed where descriptors run short
- `corrupt_files`: what recovery has cut off, kept for a while

Beside the records of a log:

- `producer_state`: idempotence and transactions, per producer
- `producer_limit`: how many producer ids all logs may hold, and which make room
- `producer_snapshot`: producer state as a file
- `leader_epochs`: which leader epoch began at which offset
- `checkpoints`: offset checkpoints and the other small text files
- `checkpoint_file`: an offset checkpoint that jobs replace, the newest contents winning

The logs of a node:

- `log_manager`: the logs of a node, from its start to its stop
- `log_dir`: one log directory with its marker and checkpoints
- `log_dirs`: the directories of a node: which are online, where a new log goes
- `future_logs`: replicas on their way to another directory
- `upkeep`: what is due in them again and again

Compaction, and a view for people:

- `cleaner`: which logs are compacted, in which order, how far; and which cannot be
- `cleaning`: the compaction of one log, in steps
- `compaction`: what compaction keeps, batch by batch
- `compaction_passes`: finding the last offset of each key, and writing what is kept, in slices on threads
- `dump`: files as printable rows
"""
