"""Streams groups (KIP-1071): the members of one Kafka Streams application, its topology, and who runs which task.

- `member.py`: a member as a value, and its records
- `group.py`: the replayed state of a group, and its records; all groups of one partition, sessions
- `protocol.py`: StreamsGroupHeartbeat; the target assignment of a group epoch
- `topology.py`: a topology against the topics that exist
"""
