"""One log: its segments, and what stands beside their records.

One segment:

- `segment`: one log file with its indexes; the segments of a log
- `index`: offset index and time index
- `txn_index`: aborted transactions of a segment

The log:

- `log`: the log: append, read, roll, close
- `state`: what a log has, without appending to it; what it asks of whoever holds it; what is not synced yet
- `offsets`: the offsets of one log, and which leader epoch began where
- `loader`: opening a log: cheaply after a clean stop, by recovery after any other
- `reads`: where the batches that are read come from, and who waits for them; those that leaders have appended last
- `snapshot_jobs`: reads on another thread, begun again while files change under them: of batches, of the offset of a
  time, of aborted transactions, and the opening of files that are about to be appended to
- `corrupt_files`: what recovery has cut off, kept for a while

Beside the records:

- `producer_state`: the producers of a log, and how many the logs of a node hold together
- `producer_snapshot`: producer state as a file
- `deletion`: what is taken off a log: at its end by truncation, at its beginning by retention
"""
