"""One log: its segments, and what stands beside their records.

One segment:

- `segment`: one log file with its indexes; when the next one has to follow
- `index`: offset index and time index
- `txn_index`: aborted transactions of a segment
- `recovery`: of one segment, batch by batch

The log:

- `log`: the log: append, read, roll, close
- `state`: what a log has, without appending to it; what it asks of whoever holds it; what is not synced yet
- `offsets`: the offsets of a log and their order
- `segments`: the sorted segments of a log
- `loader`: opening a log, cleanly or by recovery
- `reads`: where the batches that are read come from, and who waits for them; those that leaders have appended last
- `snapshot_jobs`: reads on another thread, begun again while files change under them: of batches, of the offset of a
  time, of aborted transactions, and the opening of files that are about to be appended to
- `truncation`: taking back what was appended
- `retention`: what may be deleted, and deleting it
- `corrupt_files`: what recovery has cut off, kept for a while

Beside the records:

- `producer_state`: idempotence and transactions, per producer
- `producer_limit`: how many producer ids all logs may hold, and which make room
- `producer_snapshot`: producer state as a file
- `leader_epochs`: which leader epoch began at which offset
"""
