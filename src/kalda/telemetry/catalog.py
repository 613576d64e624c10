"""The metrics of a node, by Kafka's names, and which of Kafka's there are not, with the reason.

`docs/metrics.md` is made from these tables: `python -m kalda.telemetry.catalog > docs/metrics.md`. A test compares it
with them, and them with what a running node has.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kalda.telemetry.exposition import family_of


class Metric(NamedTuple):
    """A metric of a node."""

    name: str
    meaning: str
    tags: str = ""
    """Names of its tags, with commas."""
    is_counter: bool = False


_BROKER_TOPIC = "kafka.server:type=BrokerTopicMetrics"
_PARTITION = "topic,partition"
_GROUP_PARTITION = "consumergroup,topic,partition"
_REPLICA_MANAGER = "kafka.server:type=ReplicaManager"

_SOFTWARE = "clientSoftwareName,clientSoftwareVersion,listener"
_DISKS = (
    Metric("linux-disk-read-bytes", "bytes that the process has read from disks"),
    Metric("linux-disk-write-bytes", "bytes that it has written"),
)

_LOAD_TIMES = (
    Metric("partition-load-time-avg", "mean time in which partitions of the coordinator's topic were loaded, in ms"),
    Metric("partition-load-time-max", "the longest one"),
)


def _meter(name: str, meaning: str) -> tuple[Metric, Metric]:
    return Metric(f"{name}-rate", f"{meaning}, a second"), Metric(f"{name}-count", f"{meaning}, since the start")


METRICS: Final[dict[str, tuple[Metric, ...]]] = {
    _BROKER_TOPIC: (
        Metric("BytesInPerSec", "bytes of batches that producers sent; of all topics, and of each", "topic", True),
        Metric("BytesOutPerSec", "bytes of records sent to consumers", "topic", True),
        Metric("MessagesInPerSec", "records that producers sent", "topic", True),
        Metric("TotalProduceRequestsPerSec", "partitions in Produce requests", "topic", True),
        Metric("FailedProduceRequestsPerSec", "of these, those that failed by a fault of the broker", "topic", True),
        Metric("TotalFetchRequestsPerSec", "partitions that Fetch requests read", "topic", True),
        Metric("FailedFetchRequestsPerSec", "of these, those that failed by a fault of the broker", "topic", True),
        Metric("ReplicationBytesInPerSec", "bytes copied from leaders", "", True),
        Metric("ReplicationBytesOutPerSec", "bytes sent to followers", "", True),
        Metric("ReassignmentBytesInPerSec", "of these, copied for a replica that is being added", "", True),
        Metric("ReassignmentBytesOutPerSec", "of these, sent to replicas that are being added", "", True),
        Metric("BytesRejectedPerSec", "bytes of batches that were too large", "topic", True),
        Metric("NoKeyCompactedTopicRecordsPerSec", "records refused: without a key, in a compacted topic", "", True),
        Metric("InvalidMagicNumberRecordsPerSec", "batches refused: of an old format", "", True),
        Metric("InvalidMessageCrcRecordsPerSec", "batches refused: by their CRC", "", True),
        Metric("InvalidOffsetOrSequenceRecordsPerSec", "batches refused: by offsets, counts or sequences", "", True),
        Metric("ProduceMessageConversionsPerSec", "records compressed anew, as compression.type demands", "", True),
    ),
    "kafka.network:type=RequestMetrics": (
        Metric("RequestsPerSec", "requests by API and version", "request,version", True),
        Metric("RequestBytes", "mean size of requests; of one in seventeen, as the times", "request"),
        Metric("ErrorsPerSec", "error codes in responses, but NONE; Metadata's are not counted", "request,error", True),
        Metric("ThrottleTimeMs", "pauses of throttled clients, in ms, by the API of the request", "request,quantile"),
        Metric("LocalTimeMs", "for how long a request holds the event loop", "request,quantile"),
        Metric("RemoteTimeMs", "for how long its answer waits for others", "request,quantile"),
        Metric("TotalTimeMs", "both", "request,quantile"),
    ),
    "kafka.server:type=socket-server-metrics": (
        Metric("connection-accept-rate", "new connections a second, by listener or address", "listener,ip"),
        Metric("broker-connection-accept-rate", "new connections a second, of all listeners that are not protected"),
        Metric("connection-accept-throttle-time", "mean wait of connections for their listener's rate, ms", "listener"),
        Metric("ip-connection-accept-throttle-time", "mean wait due of an address over its rate, ms", "listener"),
        Metric("connection-count", "open connections", "listener"),
        Metric("connection-creation-total", "connections made", "listener"),
        Metric("connection-close-total", "connections that have ended", "listener"),
        Metric("connections", "open connections, by the software of the client: the 100 most frequent", _SOFTWARE),
        Metric("successful-authentication-total", "connections that have authenticated", "listener"),
        Metric("failed-authentication-total", "logins that have failed", "listener"),
        Metric("successful-reauthentication-total", "sessions that were renewed", "listener"),
        Metric("failed-reauthentication-total", "renewals that have failed", "listener"),
        Metric("expired-connections-killed-count", "connections closed as their session had ended", "listener"),
    ),
    "kafka.network:type=SocketServer": (
        Metric("MemoryPoolUsed", "bytes of requests that are not answered"),
        Metric("MemoryPoolAvailable", "what is left of queued.max.request.bytes"),
        Metric("NetworkProcessorAvgIdlePercent", "the idle share of the event loop, from 0 to 1, of about a minute"),
    ),
    "kafka.server:type=KafkaRequestHandlerPool": (
        Metric("RequestHandlerAvgIdlePercent", "the same: one event loop does the work of both pools of threads"),
    ),
    "kafka.server:type=ForwardingManager": (
        Metric("QueueLength", "requests forwarded to the controller that are not answered"),
        Metric("RemoteTimeMs", "from when a request is forwarded until it is answered", "quantile"),
    ),
    "kafka.server:type=DelayedProduceMetrics": (
        Metric("ExpiresPerSec", "partitions whose records were not committed in time", "", True),
    ),
    "kafka.server:type=DelayedFetchMetrics": (
        Metric("ExpiresPerSec", "fetches answered as their time was up: of consumers, followers", "fetcherType", True),
    ),
    "kafka.cluster:type=Partition": (
        Metric("InSyncReplicasCount", "of a partition led here; these six where there are few, as of Log", _PARTITION),
        Metric("ReplicasCount", "likewise", _PARTITION),
        Metric("UnderReplicated", "1 where a replica is not in sync", _PARTITION),
        Metric("UnderMinIsr", "1 with fewer replicas in sync than min.insync.replicas", _PARTITION),
        Metric("AtMinIsr", "1 with just as many", _PARTITION),
        Metric("LastStableOffsetLag", "offsets from the last stable offset to the high watermark", _PARTITION),
    ),
    "kafka.server:type=SnapshotEmitter": (
        Metric("LatestSnapshotGeneratedBytes", "size of the latest snapshot of the metadata log"),
        Metric("LatestSnapshotGeneratedAgeMs", "since this node has written one; since its start before the first"),
    ),
    "kafka.server:type=node-metrics": (
        Metric("minimum-supported-level", "of a feature, by this node", "feature-name"),
        Metric("maximum-supported-level", "likewise", "feature-name"),
    ),
    "kafka.server:type=app-info": (Metric("start-time-ms", "when the node was started", "id"),),
    "kafka.server:type=ControllerServer": _DISKS,
    "kafka.log:type=LogFlushStats": (Metric("LogFlushRateAndTimeMs", "for how long files were synced", "quantile"),),
    "kafka.log:type=LogCleaner": (
        Metric("cleaner-recopy-percent", "bytes written of bytes read, of the last compaction of each thread"),
        Metric("max-buffer-utilization-percent", "how much of its memory the map of keys has used, likewise"),
        Metric("max-clean-time-secs", "how long it took, likewise"),
        Metric("max-compaction-delay-secs", "by how much max.compaction.lag.ms is exceeded"),
    ),
    "kafka.utils:type=Throttler": (Metric("cleaner-io", "bytes read and written by compactions", "", True),),
    "kafka.server:type=KafkaServer": (
        Metric("BrokerState", "1 starting, 2 recovery, 3 running, 6, 7 shutting down"),
        *_DISKS,
    ),
    _REPLICA_MANAGER: (
        Metric("PartitionCount", "replicas of this broker"),
        Metric("LeaderCount", "partitions that it leads"),
        Metric("OfflineReplicaCount", "replicas in log directories that have failed"),
        Metric("UnderReplicatedPartitions", "partitions led here of which a replica is not in sync"),
        Metric("UnderMinIsrPartitionCount", "partitions led here with fewer replicas in sync than min.insync.replicas"),
        Metric("AtMinIsrPartitionCount", "partitions led here with just as many"),
        Metric("PartitionsWithLateTransactionsCount", "partitions with a transaction that is open for too long"),
        Metric("ReassigningPartitions", "partitions led here that are being reassigned"),
        Metric("ProducerIdCount", "idempotent producers of all replicas here, each once a partition"),
        Metric("IsrExpandsPerSec", "replicas that came into sync", "", True),
        Metric("IsrShrinksPerSec", "replicas that fell out of sync", "", True),
        Metric("FailedIsrUpdatesPerSec", "in-sync sets that the controller has refused", "", True),
    ),
    "kafka.server:type=DelayedOperationPurgatory": (
        Metric("PurgatorySize", "partitions that waiting requests watch", "delayedOperation"),
        Metric("NumDelayedOperations", "waiting requests", "delayedOperation"),
    ),
    "kafka.server:type=LeaderReplication": (Metric("byte-rate", "bytes a second to throttled followers"),),
    "kafka.server:type=FollowerReplication": (Metric("byte-rate", "bytes a second of throttled followers"),),
    "kafka.server:type=AlterLogDirsReplication": (
        Metric("byte-rate", "bytes a second that moves between log directories copy"),
    ),
    "kafka.server:type=Produce": (
        Metric("byte-rate", "bytes a second, as the quota counts them", "user,client-id"),
        Metric("throttle-time", "mean of the pauses of throttled clients, in ms", "user,client-id"),
    ),
    "kafka.server:type=Fetch": (
        Metric("byte-rate", "bytes a second, as the quota counts them", "user,client-id"),
        Metric("throttle-time", "mean of the pauses of throttled clients, in ms", "user,client-id"),
    ),
    "kafka.server:type=Request": (
        Metric("request-time", "percent of the event loop's time, as the quota counts it", "user,client-id"),
        Metric("throttle-time", "mean of the pauses of throttled clients, in ms", "user,client-id"),
        Metric("exempt-request-time", "percent of the event loop's time for requests that count for no quota"),
    ),
    "kafka.server:type=ControllerMutation": (
        Metric("tokens", "mutations that the quota allows at once", "user,client-id"),
        Metric("mutation-rate", "partitions created and deleted a second", "user,client-id"),
        Metric("throttle-time", "mean of the pauses of throttled clients, in ms", "user,client-id"),
    ),
    "kafka.server:type=client-metrics": (
        Metric("instance-count", "clients that push metrics, or have read what they are to push"),
        Metric("unknown-subscription-request-count", "pushes under an id that is not the client's"),
        Metric("throttle-count", "requests of telemetry that came too early"),
        Metric("plugin-export-count", "pushes whose metrics were handed to the sinks"),
        Metric("plugin-error-count", "pushes that could not be read, or that a plugin lost"),
        Metric("topic-record-count", "Kalda's own: records appended to __client_metrics"),
        Metric("topic-dropped-count", "Kalda's own: records for it that were lost"),
    ),
    "kafka.server:type=MetadataLoader": (
        Metric("CurrentMetadataVersion", "the level of metadata.version"),
        Metric("CurrentControllerId", "the active controller, -1 where there is none"),
        Metric("HandleLoadSnapshotCount", "snapshots of the metadata that were loaded"),
        Metric("FinalizedLevel", "of each feature that is on", "featureName"),
    ),
    "kafka.server:type=broker-metadata-metrics": (
        Metric("last-applied-record-offset", "of the metadata log"),
        Metric("last-applied-record-timestamp", "its time"),
        Metric("last-applied-record-lag-ms", "how old it is"),
        Metric("metadata-apply-error-count", "faults while metadata was applied"),
        Metric("ignored-static-voters", "1 where the voters are in the metadata log, not in the configuration"),
    ),
    "kafka.server:type=raft-metrics": (
        Metric("current-leader", "of the metadata quorum, -1 where there is none"),
        Metric("current-epoch", "of the quorum"),
        Metric("current-vote", "the candidate that this node has voted for, -1 where there is none"),
        Metric("high-watermark", "of the metadata log"),
        Metric("log-end-offset", "of this node's replica"),
        Metric("log-end-epoch", "of its last record"),
        Metric("number-of-voters", "of the quorum"),
        Metric("number-of-observers", "replicas of the metadata log beside the voters; counted by its leader"),
        Metric("uncommitted-voter-change", "1 while a change of the voters is not committed, on the leader"),
        Metric("commit-latency-avg", "ms from the append of a batch to its commit, on the leader"),
        Metric("commit-latency-max", "the longest of these"),
        Metric("election-latency-avg", "ms from standing for election until there is a leader"),
        Metric("election-latency-max", "the longest of these"),
        Metric("append-records-rate", "records a second that this node has appended as the leader"),
        Metric("fetch-records-rate", "records a second that it has fetched as a follower"),
    ),
    "kafka.controller:type=KafkaController": (
        Metric("ActiveControllerCount", "1 on the active controller"),
        Metric("ActiveBrokerCount", "brokers that are not fenced"),
        Metric("FencedBrokerCount", "brokers that are"),
        Metric("ControlledShutdownBrokerCount", "brokers that are shutting down"),
        Metric("BrokerRegistrationState", "10 fenced, 20 shutting down, 30 active", "broker"),
        Metric("IgnoredStaticVoters", "as ignored-static-voters"),
        Metric("GlobalTopicCount", "topics"),
        Metric("GlobalPartitionCount", "partitions"),
        Metric("OfflinePartitionsCount", "partitions without a leader"),
        Metric("PreferredReplicaImbalanceCount", "partitions that are not led by their first replica"),
        Metric("NewActiveControllersCount", "how often this node became the active controller"),
        Metric("TimedOutBrokerHeartbeatCount", "brokers that it has fenced because they sent no heartbeat in time"),
        Metric("TimeSinceLastHeartbeatReceivedMs", "of each broker, on the active controller", "broker"),
        Metric("EventQueueOperationsStartedCount", "events that the active controller has begun"),
        Metric("EventQueueOperationsTimedOutCount", "parts of requests whose timeout was over before their turn"),
        Metric("MetadataErrorCount", "faults of the controller"),
        Metric("LastAppliedRecordOffset", "of the metadata log"),
        Metric("LastAppliedRecordTimestamp", "its time"),
        Metric("LastAppliedRecordLagMs", "how old it is"),
        Metric("LastCommittedRecordOffset", "of the metadata log"),
    ),
    "kafka.controller:type=ControllerStats": (
        Metric("UncleanLeaderElectionsPerSec", "leaders that were elected out of sync", "", True),
        Metric("ElectionFromEligibleLeaderReplicasPerSec", "leaders out of the eligible replicas (ELR)", "", True),
    ),
    "kafka.controller:type=ControllerEventManager": (
        Metric("EventQueueTimeMs", "for how long events that were due have waited for the loop", "quantile"),
        Metric("EventQueueProcessingTimeMs", "for how long events hold the active controller", "quantile"),
    ),
    "kafka.coordinator.group:type=GroupMetadataManager": (
        Metric("NumGroups", "groups that this broker coordinates"),
        Metric("NumOffsets", "offsets that these have committed"),
        *(
            Metric(f"NumGroups{state}", f"of these, those that are {state}")
            for state in ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead")
        ),
    ),
    "kafka.server:type=group-coordinator-metrics": (
        Metric("group-count", "groups coordinated here; of the classic protocol the same as NumGroups", "protocol"),
        Metric(
            "consumer-group-count", "consumer groups of KIP-848, by state; reading it visits their members", "state"
        ),
        Metric("share-group-count", "share groups, by state", "state"),
        Metric("streams-group-count", "streams groups, by state", "state"),
        Metric("num-partitions", "partitions of __consumer_offsets led here: loading, active, failed", "state"),
        *_meter("group-completed-rebalance", "rebalances of classic groups whose assignment was committed"),
        *_meter("consumer-group-rebalance", "group epochs of consumer groups raised by subscriptions or their topics"),
        *_meter("share-group-rebalance", "group epochs of share groups raised by subscriptions or their topics"),
        *_meter("streams-group-rebalance", "group epochs of streams groups raised by members, topics or configs"),
        *_meter("offset-commit", "offsets committed, those in transactions included"),
        *_meter("offset-expiration", "offsets that have expired"),
        *_meter("offset-deletion", "offsets deleted by OffsetDelete"),
        *_LOAD_TIMES,
    ),
    "kafka.server:type=transaction-coordinator-metrics": _LOAD_TIMES,
    "kafka.server:type=ShareSessionCache": (
        Metric("ShareSessionsCount", "share sessions"),
        Metric("SharePartitionsCount", "partitions in them"),
        Metric("ShareSessionEvictionsPerSec", "share sessions that ended with their connection", "", True),
    ),
    "kafka.server:type=ShareGroupMetrics": (
        Metric("RecordAcknowledgementsPerSec", "records that members of share groups acknowledged", "ackType", True),
        Metric("DeadLetterQueueRecordCount", "records written to dead letter topics", "group", True),
        Metric("DeadLetterQueueTotalProduceRequestsPerSec", "batches sent to dead letter topics", "group", True),
        Metric("DeadLetterQueueFailedProduceRequestsPerSec", "those that failed, and are sent again", "group", True),
    ),
    "kafka.server:type=share-coordinator-metrics": (
        Metric("num-partitions", "partitions of __share_group_state led here: loading, active, failed", "state"),
        Metric("write-rate", "writes of the state of share partitions, a second"),
        Metric("write-total", "writes of the state of share partitions, since the start"),
        Metric("write-latency-avg", "mean time of a WriteShareGroupState until its records are committed, in ms"),
        Metric("write-latency-max", "the longest one"),
        Metric("last-pruned-offset", "the offset up to which records of the topic were deleted", _PARTITION),
        *_LOAD_TIMES,
    ),
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager": (
        Metric("UnknownDestinationQueueSize", "markers that failed, or whose partitions have no leader"),
        Metric("LogAppendRetryQueueSize", "transactions that are complete, but could not be recorded as such yet"),
    ),
    "kafka.server:type=AddPartitionsToTxnManager": (
        Metric("VerificationTimeMs", "mean time of a verification of a transaction"),
        Metric("VerificationFailureRate", "partitions that were not confirmed", "", True),
    ),
    "kafka.log:type=Log": (
        Metric("Size", "bytes of the log; these five where there are at most kalda.metrics.logs.max logs", _PARTITION),
        Metric("LogStartOffset", "its first offset", _PARTITION),
        Metric("LogEndOffset", "the next offset that is appended", _PARTITION),
        Metric("NumLogSegments", "its segments", _PARTITION),
        Metric("RetentionSizeInPercent", "its size of retention.bytes; 0 without that limit", _PARTITION),
    ),
    "kafka.server:type=AssignmentsManager": (
        Metric("QueuedReplicaToDirAssignments", "directories of replicas that the controller is to record"),
    ),
    "kafka.server:type=FetchSessionCache": (
        Metric("NumIncrementalFetchSessions", "fetch sessions that this broker holds"),
        Metric("NumIncrementalFetchPartitionsCached", "partitions in them"),
        Metric("IncrementalFetchSessionEvictionsPerSec", "those removed to make room for others", "", True),
    ),
    "kafka.server:type=ReplicaFetcherManager": (
        Metric("MaxLag", "offsets by which the follower that is furthest behind is behind its leader", "clientId"),
        Metric("FailedPartitionsCount", "followers that are given up, until a retry or with their disk", "clientId"),
    ),
    "kafka.server:type=FetcherLagMetrics": (
        Metric("ConsumerLag", "likewise of each partition followed here; where they are few", f"clientId,{_PARTITION}"),
    ),
    "kafka.server:type=ReplicaAlterLogDirsManager": (
        Metric("MaxLag", "offsets by which a copy for another directory is behind its log, at most", "clientId"),
        Metric("FailedPartitionsCount", "copies whose last step has failed, and is tried again", "clientId"),
    ),
    "kafka.log:type=LogManager": (
        Metric("OfflineLogDirectoryCount", "log directories that have failed"),
        Metric("LogDirectoryOffline", "1 where this one has", "logDirectory"),
        Metric("CordonedLogDirectoryCount", "log directories that get no new replica (cordoned.log.dirs)"),
        Metric("LogDirectoryCordoned", "1 where this one gets none", "logDirectory"),
        Metric("remainingLogsToRecover", "logs that are still to be opened, while the node starts", "dir"),
    ),
    "kafka.log:type=LogCleanerManager": (
        Metric("max-dirty-percent", "of the logs that are to be compacted"),
        Metric("uncleanable-partitions-count", "logs that cannot be compacted", "logDirectory"),
        Metric("uncleanable-bytes", "bytes of these logs that would be compacted", "logDirectory"),
        Metric("time-since-last-run-ms", "since the cleaner last searched for a log; -1 before the first time"),
    ),
    "kafka.consumergroup": (
        Metric("current_offset", "committed by a group that this broker coordinates", _GROUP_PARTITION),
        Metric("lag", "records behind it, where this broker has a replica of the partition", _GROUP_PARTITION),
    ),
    "process": (
        Metric("cpu_seconds", "of the node's process, since its start", "", True),
        Metric("resident_memory_bytes", "of the process"),
        Metric("open_fds", "descriptors that are open"),
        Metric("max_fds", "descriptors that may be"),
        Metric("start_time_seconds", "when the process was started, since 1970"),
    ),
    "kalda.server:type=EventLoop": (
        Metric("MaxDelayMs", "Kalda's own: the longest time for which no request was served"),
        Metric("DelaysOver100Ms", "Kalda's own: how often that was more than 100 ms", "", True),
    ),
}
"""By domain and type."""

ABSENT: Final[dict[str, str]] = {
    "RequestMetrics: RequestQueueTimeMs, ResponseQueueTimeMs, ResponseSendTimeMs; RequestChannel": (
        "one event loop reads, handles and answers; there are no queues between threads. What waits for the loop is in "
        "EventLoop MaxDelayMs"
    ),
    "RequestMetrics: MessageConversionsTimeMs, TemporaryMemoryBytes; BrokerTopicMetrics: FetchMessageConversions...": (
        "no batch is converted for a consumer, and compressing anew is a part of LocalTimeMs"
    ),
    "BrokerTopicMetrics: Remote..., ...Share...; DelayedRemote...Metrics; ShareGroupMetrics: PartitionLoadTimeMs, "
    "InFlight..., FetchLock..., TopicPartitions...; Persister-channel-metrics": (
        "there is no tiered storage; share partitions are in memory, and are acquired from without a lock"
    ),
    "group-coordinator-metrics: streams-group-topology-description-...": (
        "descriptions of topologies are stored by a plugin of Java, which cannot be loaded"
    ),
    "group- and share-coordinator-metrics: event-, background- and batch-..., thread-idle-ratio-avg": (
        "the coordinator has no threads, no queue of events and no batches that linger: it runs within the request. "
        "LocalTimeMs of JoinGroup, OffsetCommit and the others is event-processing-time, RemoteTimeMs the purgatory's"
    ),
    "FetcherStats; ReplicaFetcherManager, ReplicaAlterLogDirsManager: MinFetchRate, DeadThreadCount": (
        "requests of followers are in RequestMetrics of their leader, bytes in ReplicationBytesInPerSec. There are no "
        "threads that could die"
    ),
    "Produce, Fetch, Request, ControllerMutation: queue-size": (
        "a muted connection stands in no queue; `kalda quotas top` shows who pauses"
    ),
    "...-channel-metrics, alter-partition-, directory-assignments-, forwarding-, heartbeat-, registration-metrics": (
        "of Kafka's own network clients between nodes; RequestMetrics has their requests at the node that answers"
    ),
    "socket-server-metrics: request-, response-, incoming-, outgoing-, io-, select-..., reauthentication-latency; "
    "by networkProcessor; Acceptor, Processor": (
        "there are no threads with selectors of their own; requests are counted by API and by version. Counts are of a "
        "listener, and Prometheus makes rates of them"
    ),
    "SocketServer: ExpiredConnectionsKilledCount; socket-server-metrics: MemoryPool...Depleted...": (
        "expired-connections-killed-count is of each listener; memory is used up where MemoryPoolAvailable is 0"
    ),
    "ForwardingManager: QueueTimeMs; BrokerMetadataListener": (
        "a request is sent when it is forwarded, and a batch of metadata is applied when it has arrived: there are no "
        "queues. Long batches are in EventLoop MaxDelayMs"
    ),
    "ControllerEventManager, MetadataLoader: AvgIdleRatio; raft-metrics: poll-idle-ratio-avg": (
        "controller, loader and quorum have no threads of their own; RequestHandlerAvgIdlePercent is of all"
    ),
    "app-info: version, commit-id; KafkaServer: ClusterId; raft-metrics: current-state, current-vote-directory-id": (
        "a text is no metric; `kalda cluster` and `kalda quorum` show them"
    ),
    "raft-metrics: number-unknown-voter-connections": "only known voters are connected to",
    "kafka-metrics-count; yammer-metrics-count": "who scrapes them counts them",
    "broker-metadata-metrics: metadata-load-error-count": "a node that cannot load a committed record stops",
    "LogCleaner: DeadThreadCount": "compactions are steps on threads that do not end; uncleanable logs are counted",
    "LogManager: remainingSegmentsToRecover": (
        "a log is recovered by one job of a thread; remainingLogsToRecover counts the logs"
    ),
    "kafka.server:type=SessionExpireListener, ZooKeeperClientMetrics; DelayedOperationPurgatory: AlterAcls, Remote..., "
    "ShareFetch": "ZooKeeper, requests of ACLs that wait and tiered storage do not exist; ShareFetch waits as Fetch",
    "client-metrics: counts by client_instance_id, rates, plugin-export-time": (
        "clients make these ids up, so a node has the sums; the topic __client_metrics has each client"
    ),
}
"""Of Kafka's documented metrics, those that a node does not have, and why."""


def page() -> str:
    """The text of `docs/metrics.md`."""
    lines = [
        "# Metrics of a node",
        "",
        "<!-- Made by `python -m kalda.telemetry.catalog`; a test compares it with the code. -->",
        "",
        "Set `kalda.metrics.listener=HOST:PORT`. Prometheus reads `/metrics`, and what clients push at",
        "`/client-metrics`; `kalda metrics` shows the same as a table. Names, groups and tags are Kafka's. In",
        "OpenMetrics a name is of lower case letters, digits and underscores, as the JMX exporter makes it for Kafka's",
        "usual dashboards; a counter ends in `_total`, without `PerSec`. Requests are measured only where the listener",
        "is set. Each MBean of an Apache Kafka 4.3.1 with load on it is in one of these tables, or in the last one.",
        "",
        "`process` has Prometheus's own names for a process, `kafka.consumergroup` those that dashboards of lag read",
        "from exporters; offsets are there where they are at most `kalda.metrics.logs.max`. Where the coordinator of a",
        "group has no replica of a partition, the lag is `kafka_log_log_logendoffset` of its leader less",
        "`kafka_consumergroup_current_offset`.",
        "",
        "With `kalda.metrics.otlp.endpoint=URL` a node posts the same names to an OpenTelemetry collector, by HTTP and",
        "in Protobuf: counters as cumulative sums, everything else as gauges. OpenTelemetry's own classes",
        "(`opentelemetry-proto`) read these messages without an unknown field.",
        "",
        "What clients measure themselves they push where it is subscribed (KIP-714): `kalda client-metrics alter",
        "--name all --metrics '*'`. Seen in the topic `__client_metrics`, with `kalda client-metrics tail`, and as a",
        "table of Spark (`kalda.spark.client_metrics`): 96 metrics of a producer and 107 of a consumer of Apache Kafka",
        "4.3.1, which push by default; 10 and 13 of librdkafka 2.16 with `enable.metrics.push=true`; those of",
        "Apache Kafka's, by the same names, of Kalda's own clients, whose `metrics()` returns them too.",
        "",
    ]
    for group in sorted(METRICS):
        lines += [f"## {group}", "", "| name | tags | Prometheus | what it is |", "| --- | --- | --- | --- |"]
        for metric in METRICS[group]:
            family = family_of_metric(group, metric)
            tags = metric.tags.replace(",", ", ")
            lines.append(f"| {metric.name} | {tags} | `{family}` | {metric.meaning} |")
        lines.append("")
    lines += ["## Kafka's that a node does not have", "", "| metrics | why |", "| --- | --- |"]
    lines += [f"| {names} | {why} |" for names, why in ABSENT.items()]
    return "\n".join(lines) + "\n"


def family_of_metric(group: str, metric: Metric) -> str:
    """The name under which Prometheus stores it."""
    from kalda.base.sensors import SensorName

    family = family_of(SensorName(group, metric.name), metric.is_counter)
    return f"{family}_total" if metric.is_counter else family


if __name__ == "__main__":
    print(page(), end="")
