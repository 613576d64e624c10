"""What a broker's listener answers, one file a domain. The modules in `kalda.broker.modules` serve their rows.

A handler is `(context, request) -> reply` (see `kalda.broker.requests.context`). It decides nothing itself: it calls
the floor that does, and puts the result into the API's response. Each file declares the rows of its APIs, and beside
them the functions that make the response to a request which failed as a whole.

- `controller`: what a controller's listener answers
- `data`: Produce, Fetch
- `acls`: DescribeAcls, failures of CreateAcls and DeleteAcls
- `offsets`: ListOffsets, OffsetForLeaderEpoch, DeleteRecords
- `metadata`: Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator
- `groups`: the group APIs, passed to the coordinator
- `chunks`: requests of many items that a coordinator gets in pieces
- `visible_offsets`: what of the offsets of groups a caller may see
- `configs`: DescribeConfigs, ListConfigResources, the checks before AlterConfigs is forwarded
- `config_descriptions`: the answer to DescribeConfigs, made in steps
- `markers`: WriteTxnMarkers, DescribeProducers
- `describe`: client quotas, SCRAM credentials
- `telemetry`: GetTelemetrySubscriptions, PushTelemetry
- `log_dirs`: DescribeLogDirs, AlterReplicaLogDirs
- `transactions`: InitProducerId, and the other APIs of the transaction coordinator
- `sasl`: SaslHandshake, SaslAuthenticate on connections that are authenticated already
- `forwarded`: what the active controller answers
- `tokens`: delegation tokens
- `shared`: failures of APIs that both kinds of listener serve
"""
