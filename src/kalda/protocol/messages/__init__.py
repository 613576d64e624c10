"""Every message of Kafka's protocol and files, in the notation of `kalda.protocol.notation`: one file a domain.

A field's annotation is its wire type; `field(...)` declares in which versions it exists, may be null, or is tagged.
Names are Kafka's. An enum before a message names the numbers in one of its fields. Import from the domain's file, so
that only messages in use are loaded:

- `admin`: Log dirs, client quotas, features: AlterReplicaLogDirs (34), DescribeLogDirs (35), client quotas (48,
  49), UpdateFeatures (57).
- `brokers`: Between brokers and the controller: AlterPartition (56), Envelope (58), BrokerRegistration (62),
  BrokerHeartbeat (63), UnregisterBroker (64), AllocateProducerIds (67), ControllerRegistration (70),
  AssignReplicasToDirs (73).
- `client_protocol`: Messages inside opaque bytes fields: consumer subscriptions and assignments, a forwarded
  principal.
- `configs`: Configs: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources
  (74).
- `consumer_groups`: Consumer groups of KIP-848: ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69).
- `control_records`: Bodies of control records: leader changes, snapshot ends, KRaft version and voters,
  transaction markers.
- `fetch`: Reading partitions: Fetch (1), ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23).
- `group_records`: Records of `__consumer_offsets`: keys and values, by record type id.
- `groups`: Classic groups: FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14),
  describe, list, delete (15, 16, 42).
- `headers`: The headers before every request and response.
- `metadata`: First requests of a client: Metadata (3), ApiVersions (18), DescribeCluster (60),
  DescribeTopicPartitions (75).
- `metadata_records`: Records of `__cluster_metadata`, by record type id.
- `offsets`: A group's offsets: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).
- `produce`: Produce (0): record batches go to partition leaders.
- `quorum`: KRaft: Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), DescribeQuorum (55), FetchSnapshot (59),
  voters (80 to 82).
- `remote_log_records`: Records of `__remote_log_metadata` (KIP-405).
- `security`: SASL (17, 36), ACLs (29 to 31), delegation tokens (38 to 41), SCRAM credentials (50, 51).
- `share`: Share groups of KIP-932: heartbeat, describe (76, 77), ShareFetch (78), ShareAcknowledge (79), offsets
  (90 to 92).
- `share_records`: Records of `__share_group_state`.
- `share_state`: A share group's persisted state (83 to 87).
- `storage_records`: Files beside a log: the producer snapshot.
- `streams`: Streams groups of KIP-1071: StreamsGroupHeartbeat (88), StreamsGroupDescribe (89).
- `telemetry`: Client telemetry of KIP-714: GetTelemetrySubscriptions (71), PushTelemetry (72).
- `topics`: Topics and their replicas: CreateTopics (19), DeleteTopics (20), CreatePartitions (37), ElectLeaders
  (43), reassignments (45, 46).
- `transaction_records`: Records of `__transaction_state`.
- `transactions`: Producers and transactions: InitProducerId (22), AddPartitionsToTxn (24) to TxnOffsetCommit (28),
  DescribeProducers (61), DescribeTransactions (65), ListTransactions (66).
"""
