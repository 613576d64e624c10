"""Every message of Kafka's protocol and files, in the notation of `kalda.protocol.notation`: one file a domain.

A field's annotation is its wire type; `field(...)` declares in which versions it exists, may be null, or is tagged.
Names are Kafka's. An enum before a message names the numbers in one of its fields. Import from the domain's file, so
that only messages in use are loaded:

- `admin`: Configs (32, 33, 44, 74), log dirs (34, 35), client quotas (48, 49), UpdateFeatures (57), telemetry of
  clients (71, 72).
- `brokers`: Between brokers and the controller: AlterPartition (56), Envelope (58), BrokerRegistration (62),
  BrokerHeartbeat (63), UnregisterBroker (64), AllocateProducerIds (67), ControllerRegistration (70),
  AssignReplicasToDirs (73).
- `client_protocol`: Messages inside opaque bytes fields: consumer subscriptions and assignments, a forwarded
  principal.
- `group_records`, `transaction_records`, `share_records`: Records of coordinators, by record type id.
- `groups`: Classic groups and consumer groups (KIP-848): FindCoordinator (10), join, sync, heartbeat, leave,
  describe, list, delete (11 to 16, 42, 68, 69), offsets (8, 9, 47).
- `headers`: The headers before every request and response.
- `log_records`: Control records; files beside a log.
- `metadata_records`: Records of `__cluster_metadata`, by record type id.
- `metadata`: First requests of a client: Metadata (3), ApiVersions (18), DescribeCluster (60),
  DescribeTopicPartitions (75).
- `partitions`: Produce (0), Fetch (1), ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23).
- `quorum`: KRaft: Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), DescribeQuorum (55), FetchSnapshot (59),
  voters (80 to 82).
- `remote_log_records`: Records of `__remote_log_metadata` (KIP-405).
- `security`: SASL (17, 36), ACLs (29 to 31), delegation tokens (38 to 41), SCRAM credentials (50, 51).
- `share`: Share groups of KIP-932: heartbeat, describe (76, 77), ShareFetch (78), ShareAcknowledge (79), their
  persisted state (83 to 87), offsets (90 to 92).
- `streams`: Streams groups of KIP-1071: StreamsGroupHeartbeat (88), StreamsGroupDescribe (89).
- `topics`: Topics and their replicas: CreateTopics (19), DeleteTopics (20), CreatePartitions (37), ElectLeaders
  (43), reassignments (45, 46).
- `transactions`: Producers and transactions: InitProducerId (22), AddPartitionsToTxn (24) to TxnOffsetCommit (28),
  DescribeProducers (61), DescribeTransactions (65), ListTransactions (66).
"""
