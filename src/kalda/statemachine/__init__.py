"""The one runtime of replayed state: records are appended, applied at once, and answered when they are committed.

The controller runs on it over the metadata log, and every coordinator over its internal topic. A handler computes
records from the current state; the runtime replays them, hands them to the log, and parks the answer until the commit
point passes their offset. When leadership is lost, the state is rolled back to what is committed, and every parked
answer fails.

This floor depends on no kind of record and on no log: the log, the replay function and the commit point are passed
in. It has no clock and no thread.

- `timeline.py`: dict, set and value whose past states can be read and returned to
- `offsets.py`: next write, committed and stable offsets, and metadata transactions (KIP-868)
- `runtime.py`: write, read, commit, claim, renounce
"""
