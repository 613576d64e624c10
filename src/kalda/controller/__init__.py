"""The KRaft controller: makes the decisions of the cluster, and writes them as records to the metadata log.

It uses no socket, file or clock, and does not depend on how the quorum replicates. The quorum calls it with committed
records and with changes of the leader; it passes records to the quorum. The rights of a request's sender come with the
request. Brokers read decisions from the log.

- `quorum_controller.py`: requests, becoming and ceasing to be active
- `replay.py`: which manager applies which record
- `event_queue.py`: one event at a time; those that decide in steps, what waits behind them, which are slow, which fail;
  what a new active controller writes first; periodic tasks
- `config.py`: what a controller is made with
- `answers.py`: error fields of responses, and the limit of records for each request
- `features.py`: finalized feature levels
- `cluster.py`: registrations, and unclean elections that wait until a session would have ended; sessions of brokers
- `liveness.py`: which brokers are alive, and that the others are fenced
- `partitions.py`: topics and partitions, and the reverse indexes over them
- `partition_change.py`: the next leader, ISR and eligible replicas of one partition
- `broker_changes.py`: effects on partitions when brokers are fenced, unfenced, shut down, or lose directories; in
  several events for a broker of many partitions that leaves
- `topics.py`, `placement.py`: creating, growing and removing topics; placing replicas
- `replica_reports.py`, `elections.py`, `reassignment.py`: other requests that change partitions
- `configs.py`, `config_schema.py`: dynamic configs; their requests; types and defaults of keys
- `producer_ids.py`, `client_quotas.py`, `acls.py`: a domain each
- `credentials`: SCRAM credentials, delegation tokens
"""
