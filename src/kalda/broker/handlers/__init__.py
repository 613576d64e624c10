"""What a broker's listener answers, one file a domain. The modules in `kalda.broker.modules` map APIs to these.

A handler is `(context, request) -> response`, or a `Pending` of one where it must wait. It decides nothing itself: it
asks the floor that knows, and says the result in the words of the API.

- `data`: Produce, Fetch
- `offsets`: ListOffsets, OffsetForLeaderEpoch, DeleteRecords
- `metadata`: Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator
- `groups`: the group APIs, handed to the coordinator
- `configs`: DescribeConfigs, ListConfigResources
- `describe`: DescribeProducers, client quotas, SCRAM credentials
- `log_dirs`: DescribeLogDirs, AlterReplicaLogDirs
- `producers`: InitProducerId
"""
