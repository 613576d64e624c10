"""Log compaction: the last record of each key stays.

- `cleaner`: which logs are cleaned, in which order, how far; one cleaning of one log, in steps
- `passes`: what compaction keeps, batch by batch, and the two passes over the files
"""
