"""The metrics of a node, by Kafka's names, and which of Kafka's there are not, with the reason.

`docs/metrics.md` is made from these tables: `python -m kalda.telemetry.catalog > docs/metrics.md`. A test compares it
with them, and them with what a running node has.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kalda.telemetry.names import family_of


class Metric(NamedTuple):
    """A metric of a node."""

    name: str
    meaning: str
    tags: str = ""
    """Names of its tags, with commas."""
    is_counter: bool = False


_BROKER_TOPIC = "kafka.server:type=BrokerTopicMetrics"
_PARTITION = "topic,partition"
_REPLICA_MANAGER = "kafka.server:type=ReplicaManager"

_LOAD_TIMES = (
    Metric("partition-load-time-avg", "mean time in which partitions of the coordinator's topic were loaded, in ms"),
    Metric("partition-load-time-max", "the longest one"),
)

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
    "kafka.server:type=KafkaServer": (Metric("BrokerState", "1 starting, 2 recovery, 3 running, 6, 7 shutting down"),),
    "kafka.server:type=MetadataLoader": (
        Metric("CurrentMetadataVersion", "the level of metadata.version"),
        Metric("CurrentControllerId", "the active controller, -1 where there is none"),
        Metric("HandleLoadSnapshotCount", "snapshots of the metadata that were loaded"),
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
        Metric("group-count", "the same as NumGroups", "protocol"),
        *_LOAD_TIMES,
    ),
    "kafka.server:type=transaction-coordinator-metrics": _LOAD_TIMES,
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager": (
        Metric("UnknownDestinationQueueSize", "markers that failed, or whose partitions have no leader"),
        Metric("LogAppendRetryQueueSize", "transactions that are complete, but could not be recorded as such yet"),
    ),
    "kafka.server:type=AddPartitionsToTxnManager": (
        Metric("VerificationTimeMs", "mean time of a verification of a transaction"),
        Metric("VerificationFailureRate", "partitions that were not confirmed", "", True),
    ),
    "kafka.log:type=Log": (
        Metric("Size", "bytes of the log; these four where there are at most kalda.metrics.logs.max logs", _PARTITION),
        Metric("LogStartOffset", "its first offset", _PARTITION),
        Metric("LogEndOffset", "the next offset that is appended", _PARTITION),
        Metric("NumLogSegments", "its segments", _PARTITION),
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
    ),
    "kafka.log:type=LogManager": (
        Metric("OfflineLogDirectoryCount", "log directories that have failed"),
        Metric("LogDirectoryOffline", "1 where this one has", "logDirectory"),
        Metric("CordonedLogDirectoryCount", "log directories that get no new replica (cordoned.log.dirs)"),
        Metric("LogDirectoryCordoned", "1 where this one gets none", "logDirectory"),
    ),
    "kafka.log:type=LogCleanerManager": (
        Metric("max-dirty-percent", "of the logs that are to be compacted"),
        Metric("uncleanable-partitions-count", "logs that cannot be compacted", "logDirectory"),
        Metric("uncleanable-bytes", "bytes of these logs that would be compacted", "logDirectory"),
        Metric("time-since-last-run-ms", "since the cleaner last searched for a log; -1 before the first time"),
    ),
    "kalda.server:type=EventLoop": (
        Metric("MaxDelayMs", "Kalda's own: the longest time for which no request was served"),
        Metric("DelaysOver100Ms", "Kalda's own: how often that was more than 100 ms", "", True),
    ),
}
"""By domain and type."""

ABSENT: Final[dict[str, str]] = {
    "RequestMetrics: RequestQueueTimeMs, ResponseQueueTimeMs, ResponseSendTimeMs": (
        "one event loop reads, handles and answers; there are no queues between threads. What waits for the loop is in "
        "EventLoop MaxDelayMs"
    ),
    "RequestMetrics: MessageConversionsTimeMs, TemporaryMemoryBytes": "batches are never converted or copied",
    "RequestChannel, SocketServer: queue sizes, NetworkProcessorAvgIdlePercent, RequestHandlerAvgIdlePercent": (
        "there are no such threads; request-time of all clients and exempt-request-time add up to the busy part"
    ),
    "BrokerTopicMetrics: ...MessageConversionsPerSec, Invalid...PerSec, Bytes- and NoKey...PerSec, Reassignment...": (
        "old formats are not written and nothing is converted; the others are not counted, their error codes are"
    ),
    "BrokerTopicMetrics: Remote..., ...Share...; ShareGroupMetrics, ShareSessionCache, share-coordinator-metrics": (
        "there are no tiered storage and no share groups"
    ),
    "FetcherLagMetrics; ReplicaFetcherManager, ReplicaAlterLogDirsManager: MinFetchRate, DeadThreadCount, "
    "FailedPartitionsCount": (
        "MaxLag is the largest lag, and there would be as many others as partitions: `kalda topics describe` shows "
        "which replicas are in sync. There are no threads, and a partition that fails is fetched again, or its "
        "directory is offline"
    ),
    "Produce, Fetch, Request, ControllerMutation: queue-size": (
        "a muted connection stands in no queue; `kalda quotas top` shows who pauses"
    ),
    "SnapshotEmitter; EventQueueOperations...": "not counted: snapshots, and operations that time out, are logged",
    "...-channel-metrics, alter-partition-, directory-assignments-, forwarding-, heartbeat-, registration-metrics": (
        "of Kafka's own network clients between nodes; RequestMetrics has their requests at the node that answers"
    ),
    "socket-server-metrics by networkProcessor; Acceptor, Processor; ForwardingManager; BrokerMetadataListener": (
        "one event loop has no such threads and queues; connections are counted by listener"
    ),
    "AvgIdleRatio; node-metrics, app-info, kafka-metrics-count, linux-disk-...-bytes, ClusterId; FinalizedLevel": (
        "`kalda features` and `kalda cluster` show versions and levels; the machine's own exporter has its disks"
    ),
    "broker-metadata-metrics: metadata-load-error-count": "a node that cannot load a committed record stops",
    "LogFlushStats": "flushes are jobs of threads; the watchdog logs those that take long",
    "LogCleaner: cleaner-recopy-, max-buffer-utilization-percent, max-clean-time-, max-compaction-delay-secs, "
    "DeadThreadCount; Log: RetentionSizeInPercent": "not measured: the log line of each compaction has its figures",
    "raft-metrics: poll-idle-ratio-avg; current-state, current-vote-directory-id; number-unknown-voter-connections": (
        "the quorum has no thread of its own; a text is no metric, and `kalda quorum` shows it; only known voters are "
        "connected to"
    ),
    "coordinators: event-, background- and batch-..., thread-idle-ratio, rebalance and offset rates": (
        "coordinators have no threads and no queues of their own; RequestsPerSec counts requests"
    ),
    "kafka.server:type=SessionExpireListener, ZooKeeperClientMetrics, KafkaRequestHandlerPool, kafka.utils": (
        "ZooKeeper, the pool of handler threads and the JVM do not exist here"
    ),
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
        "is set.",
        "",
        "With `kalda.metrics.otlp.endpoint=URL` a node posts the same names to an OpenTelemetry collector, by HTTP and",
        "in Protobuf: counters as cumulative sums, everything else as gauges. OpenTelemetry's own classes",
        "(`opentelemetry-proto`) read these messages without an unknown field.",
        "",
        "What clients measure themselves they push where it is subscribed (KIP-714): `kalda client-metrics alter",
        "--name all --metrics '*'`. Seen in the topic `__client_metrics`, with `kalda client-metrics tail`, and as a",
        "table of Spark (`kalda.spark.client_metrics`): 96 metrics of a producer and 107 of a consumer of Apache Kafka",
        "4.3.1, which push by default; 10 and 13 of librdkafka 2.16 with `enable.metrics.push=true`; 44 and 28 of",
        "Kalda's own clients.",
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
