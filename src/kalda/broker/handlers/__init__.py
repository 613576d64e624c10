"""What the listeners of brokers and controllers answer, one file a domain: handlers, their rows, and on a broker the
module around them.

A handler is `(context, request) -> reply` (see `kalda.broker.requests.context`). It decides nothing itself: it calls
the floor that does, and puts the result into the API's response. Each file declares the rows of its APIs, and beside
them the functions that make the response to a request which failed as a whole. A module (`kalda.broker.module`) makes
the objects of the floors below and the handlers over them, and connects these to dynamic configs and the end of the
node.

- `services`: what a broker serves clients with: the list of its modules
- `data`: Produce, Fetch; the replicas of this broker, fetchers, proposed ISRs
- `offsets`: ListOffsets, OffsetForLeaderEpoch, DeleteRecords
- `metadata`: Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator
- `groups`: the group APIs, and the group coordinator
- `group_kinds`: which kinds of groups are served now, and their APIs
- `consumer_groups`: the APIs of consumer groups of KIP-848
- `visible_offsets`: what of the offsets of groups a caller may see
- `transactions`: InitProducerId, the other APIs of the transaction coordinator, and the coordinator
- `share`: ShareFetch, ShareAcknowledge; share partitions, and the channels to their coordinators
- `share_groups`: the APIs of share groups and of their offsets
- `streams_groups`: the APIs of streams groups of KIP-1071
- `share_coordinators`: the way from share partitions and groups to share coordinators
- `share_state`: the APIs of the share coordinator, and the coordinator
- `markers`: WriteTxnMarkers, DescribeProducers
- `configs`: DescribeConfigs, ListConfigResources, the checks before AlterConfigs is forwarded
- `log_dirs`: DescribeLogDirs, AlterReplicaLogDirs; directory assignments, moves, cordoned directories
- `connections`: limits of listeners and connections; SaslHandshake, SaslAuthenticate after a login
- `describe`: client quotas, SCRAM credentials
- `tokens`: delegation tokens
- `telemetry`: GetTelemetrySubscriptions, PushTelemetry; where pushed metrics go
- `forwarded`: what the active controller answers
- `controller`: what a controller's listener answers
- `shared`: failures of APIs that both kinds of listener serve
"""
