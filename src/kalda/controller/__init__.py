"""The KRaft controller: decides for the cluster, and writes what it decided to the metadata log.

It knows no socket, file or clock, and nothing of how the quorum replicates: it is told what is committed and who
leads, and hands over records. What a request may do is told with it. Brokers learn of decisions by reading the log.

- `quorum_controller.py`: requests, replay, becoming and ceasing to be active
- `answers.py`: what answers have in common
- `activation.py`: the first records of a new active controller
- `periodic.py`: tasks and when they are due
- `features.py`: finalized feature levels
- `cluster.py`, `heartbeats.py`: registrations; who is alive
- `suspects.py`: who may be gone, before the session ends
- `partitions.py`, `partition_index.py`: topics and partitions, and the reverse indexes over them
- `partition_change.py`: the next leader, ISR and eligible replicas of one partition
- `broker_changes.py`: brokers come, go, and lose directories
- `topics.py`, `placement.py`: topics made, grown, removed; where replicas go
- `alter_partition.py`, `elections.py`, `reassignment.py`, `directories.py`: what else changes partitions
- `configs.py`, `config_requests.py`, `config_schema.py`: dynamic configs; their requests; what is known of keys
- `producer_ids.py`, `client_quotas.py`, `scram.py`, `acls.py`: a domain each
"""
