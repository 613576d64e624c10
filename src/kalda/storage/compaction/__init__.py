"""Log compaction: the last record of each key stays.

- `cleaner`: which logs are compacted, in which order, how far; and which cannot be
- `cleaning_run`: the compaction of one log, in steps
- `passes`: finding the last offset of each key, and writing what is kept, in slices on threads
- `rules`: what is kept, batch by batch; record by record in `kalda.records.compaction`
"""
