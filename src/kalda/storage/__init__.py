"""The log in Kafka's files, over an injected disk.

A partition is a directory of segments: batches as they came over the wire, with sparse indexes beside them. This floor
knows offsets, epochs, producers and files; it does not know sockets, replicas, topics' metadata, threads or time
(`now_ms` comes as an argument).

Threads: every function runs on the thread that owns the log, save the `run` of a `Job`, which touches files and
snapshots only and may run anywhere; its `finish` goes back to the owner and changes the log.

- `config`: settings of topics and brokers, typed
- `values`: what goes into a log's calls and comes out of them
- `job`: work for another thread, in two halves
- `hooks`: what a log asks of whoever keeps it
- `naming`: names of files and directories
- `index`: offset index and time index
- `txn_index`: aborted transactions of a segment
- `segment`: one log file with its indexes
- `segments`: the sorted segments of a log
- `producer_state`: idempotence and transactions, per producer
- `producer_limit`: how many producer ids all logs may hold
- `producer_snapshot`: producer state as a file
- `leader_epochs`: which leader epoch began at which offset
- `checkpoints`: offset checkpoints and the other small text files
- `checkpoint_file`: an offset checkpoint that jobs replace, the newest contents winning
- `offsets`: the offsets of a log and their order
- `log`: the log: append, read, roll, flush
- `appending`: which batches of a buffer are appended, for replicas and raft leaders
- `loading`: opening a log, cleanly or by recovery
- `corrupt_files`: what recovery has cut off, kept for a while
- `recovery`: of one segment, batch by batch
- `open_files`: files of logs that rest are closed where descriptors run short
- `opening`: files of logs that are about to be appended to, on another thread
- `reading`: where the batches that are read come from, and who waits for them
- `recent_appends`: large batches that leaders have appended last, in memory for their followers
- `repeated_reads`: reads on another thread, begun again while files change under them
- `aborted`: the aborted transactions that a range of a log overlaps
- `searching`: offsets by time
- `flushing`: what is not synced yet, and the job that syncs it
- `truncating`: taking back what was appended
- `retention`: what may be deleted, and deleting it
- `log_dir`: one log directory with its marker and checkpoints
- `log_dirs`: the directories of a node: which are online, where a new log goes
- `future_logs`: replicas on their way to another directory
- `log_manager`: the logs of a node, from its start to its stop
- `upkeep`: what is due in them again and again
- `compaction`: what compaction keeps, batch by batch
- `compaction_passes`: finding the last offset of each key, and writing what is kept, in slices on threads
- `cleaning`: the compaction of one log, in steps
- `cleaner`: which logs are compacted, in which order, how far; and which cannot be
- `dump`: files as printable rows
"""
