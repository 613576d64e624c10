"""Share groups where their partitions are led: who has which records, until when, and what became of them (KIP-932).

A member fetches records and acquires them: for as long as its lock lasts, no other member gets them. It acknowledges
them one way or another, or the lock ends and they are available again. Every change that must survive is written to the
share coordinator before it counts. All of this is a driver; it has no socket and no clock.

- `in_flight.py`: the records between the start of a share partition and the last one that was delivered
- `share_partition.py`: one share partition: acquisition, acknowledgement, locks, what is persisted
- `share_partitions.py`: those of a broker, by group and partition
- `dead_letters.py`: what a share partition hands to its group's dead letter topic; their keys and values
- `share_fetch.py`: one ShareFetch, and the sessions of members
"""
