"""A line on each key: of those that operators set as DescribeConfigs shows it (KIP-524), of those of clients for the
manual. Imported where it is read, at a node with the first request for it.

A key that is not here has no documentation.
"""

from __future__ import annotations

BROKER: dict[str, str] = {
    "add.partitions.to.txn.retry.backoff.max.ms": (
        "Longest time for which server-side attempts to add partitions to a transaction are repeated."
    ),
    "add.partitions.to.txn.retry.backoff.ms": (
        "Pause before a server-side attempt to add partitions to a transaction is repeated."
    ),
    "advertised.listeners": "Addresses that clients and brokers receive, where they differ from `listeners`.",
    "auto.create.topics.enable": "Whether a produce or metadata request for an unknown topic creates it.",
    "auto.leader.rebalance.enable": "Whether leadership moves back to preferred replicas automatically.",
    "background.threads": "Threads for background work.",
    "broker.heartbeat.interval.ms": "Time between a broker's heartbeats to the controller.",
    "broker.id": "Older name of node.id.",
    "broker.rack": "Rack of the broker; replicas of a partition are spread over racks.",
    "broker.session.timeout.ms": "Time without heartbeats after which a broker is fenced.",
    "compression.gzip.level": "Level used where the compression is gzip.",
    "compression.lz4.level": "Level used where the compression is lz4.",
    "compression.type": "Codec in which batches are stored; `producer` keeps the one in which they came.",
    "compression.zstd.level": "Level used where the compression is zstd.",
    "connection.failed.authentication.delay.ms": "Delay before a connection that failed to authenticate is closed.",
    "connections.max.idle.ms": "Idle connections are closed after this time.",
    "connections.max.reauth.ms": "With SASL, longest time before a connection must authenticate again; 0 is never.",
    "controlled.shutdown.enable": "Whether a stopping broker hands its leaderships over first.",
    "controller.listener.names": "Names of the listeners that controllers use.",
    "controller.quorum.append.linger.ms": "Time for which the controller gathers writes before it forces them to disk.",
    "controller.quorum.auto.join.enable": "Whether a controller that is not a voter adds itself.",
    "controller.quorum.bootstrap.servers": "host:port pairs through which the quorum is found.",
    "controller.quorum.election.backoff.max.ms": "Longest pause before a new election after one without a winner.",
    "controller.quorum.election.timeout.ms": "Time without a leader after which an election begins.",
    "controller.quorum.fetch.max.bytes": "Bytes a quorum fetch may return.",
    "controller.quorum.fetch.snapshot.max.bytes": "Bytes one piece of a snapshot may have.",
    "controller.quorum.fetch.timeout.ms": "Time without a successful fetch after which a voter stands for election.",
    "controller.quorum.request.timeout.ms": "Time that a quorum request may take.",
    "controller.quorum.retry.backoff.ms": "Pause before a quorum request is repeated.",
    "controller.quorum.voters": "Static set of voters, as id@host:port.",
    "cordoned.log.dirs": "Log directories that get no new replicas.",
    "default.replication.factor": "Replication factor of topics that are created without one.",
    "delegation.token.expiry.time.ms": "Time for which a delegation token is valid unless renewed.",
    "delegation.token.max.lifetime.ms": "Time after which a delegation token cannot be renewed.",
    "delegation.token.secret.key": "Secret that signs delegation tokens; the same on all nodes.",
    "delete.topic.enable": "Whether topics may be deleted.",
    "early.start.listeners": "Listeners that open before the authorizer is ready.",
    "fetch.max.bytes": "Bytes a fetch response may have.",
    "follower.replication.throttled.rate": "Bytes a second that throttled replicas may copy to this broker.",
    "errors.deadletterqueue.auto.create.topics.enable": (
        "Whether a missing dead letter topic is created when a share group has a dead letter for it."
    ),
    "errors.deadletterqueue.topic.name.prefix": (
        "How the names of dead letter topics of share groups must begin; empty: they have any name."
    ),
    "group.streams.assignors": (
        "Task assignors of streams groups, the default first: `sticky`, or `module:Class` in Python, whose file is "
        "loaded again when it changes."
    ),
    "group.streams.rack.aware.assignment.tags": "Client tags over whose values standby copies are to be spread.",
    "group.consumer.assignors": (
        "Server-side assignors of consumer groups, the default first: `uniform`, `range`, or `module:Class` in Python, "
        "whose file is loaded again when it changes."
    ),
    "group.consumer.heartbeat.interval.ms": "Heartbeat interval that consumer group members receive.",
    "group.consumer.max.size": "Members a consumer group may have.",
    "group.consumer.migration.policy": "Which way classic groups and consumer groups may turn into each other.",
    "group.consumer.session.timeout.ms": "Time without heartbeats after which a member leaves its consumer group.",
    "group.coordinator.append.linger.ms": "Time for which the group coordinator gathers writes; -1 adapts to the load.",
    "group.coordinator.rebalance.protocols": "Group protocols that are served.",
    "group.coordinator.threads": "Threads of the group coordinator.",
    "group.initial.rebalance.delay.ms": "Time for which a new classic group waits for more members.",
    "group.max.session.timeout.ms": "Longest session timeout that a classic member may request.",
    "group.max.size": "Members a classic group may have.",
    "group.min.session.timeout.ms": "Shortest session timeout that a classic member may request.",
    "group.share.delivery.count.limit": "Times a record is handed out in a share group before it is given up.",
    "group.share.record.lock.duration.ms": "Time for which a share consumer holds a record.",
    "initial.broker.registration.timeout.ms": "Time in which a starting broker must have registered.",
    "inter.broker.listener.name": "Listener that brokers use among themselves.",
    "kafka.metrics.polling.interval.secs": "Interval at which metrics reporters poll.",
    "kalda.authentication.timeout.ms": (
        "Time in which a new connection must have done its TLS handshake and its SASL login; then it is closed."
    ),
    "kalda.max.unauthenticated.connections": (
        "Connections of all listeners with TLS or SASL that may be in their handshake or login at a time. One more "
        "closes the oldest of them."
    ),
    "kalda.sasl.oauthbearer.allowed.files": (
        "Files that sasl.oauthbearer.assertion.* may name. Empty allows none. The system property "
        "org.apache.kafka.sasl.oauthbearer.allowed.files of Apache Kafka."
    ),
    "kalda.sasl.oauthbearer.allowed.urls": (
        "URLs that sasl.oauthbearer.jwks.endpoint.url and sasl.oauthbearer.token.endpoint.url may have. Empty allows "
        "none. The system property org.apache.kafka.sasl.oauthbearer.allowed.urls of Apache Kafka."
    ),
    "kalda.ssl.reload.interval.ms": (
        "How often the files of key stores and trust stores are looked at; changed ones are used for new connections. "
        "0: never. AlterConfigs has them read at once."
    ),
    "kalda.validate.records": (
        "Which batches of clients are stored only after their records were checked against the batch's header: all, "
        "those that are not compressed, or none. A batch whose header is wrong about its records stops consumers and "
        "the cleaner; Apache Kafka checks all."
    ),
    "kalda.client.metrics.format": (
        "Form of the records of __client_metrics, one for each data point that a client pushes: json, or protobuf for "
        "an OTLP MetricsData with that one data point."
    ),
    "kalda.client.metrics.plugins": (
        "Python classes that receive what clients push, as package.module:Class, each on a thread of its own; see "
        "kalda.broker.metrics.client_metrics_receivers."
    ),
    "kalda.corrupt.records.retention.bytes": (
        "Of the bytes that recovery cuts off damaged logs, so many are kept in each log directory, in files that end "
        "in .log.corrupt; the oldest are removed first. 0 keeps nothing."
    ),
    "kalda.dead.process.detection.enable": (
        "Whether a node whose connection broke and whose listener refuses new connections counts as dead at once: a "
        "broker is fenced, a quorum leader is replaced, without waiting for a timeout. Turn it off where a firewall, "
        "NAT or proxy between the nodes may refuse connections to a node that is running."
    ),
    "kalda.fetch.session.cache.bytes": (
        "Memory of all incremental fetch sessions, some 300 bytes a partition; a consumer's session may have an eighth "
        "of it. Fetchers for whose session there is no room are answered without one."
    ),
    "kalda.metrics.listener": (
        "host:port of an HTTP listener with what the node measures, for Prometheus at /metrics, and with the use of "
        "quotas. Whoever reaches it reads the names of topics, users and clients. Empty: there is none."
    ),
    "kalda.metrics.logs.max": (
        "Size, offsets and segments of each log are among the metrics of a node that has at most so many logs: "
        "reading them holds the event loop."
    ),
    "kalda.metrics.names": (
        "Names at /metrics: prometheus, lower case, with counters and their totals; or jmx, those of the JMX exporter "
        "without rules, for dashboards that were made for Apache Kafka behind it."
    ),
    "kalda.metrics.otlp.endpoint": (
        "URL of an OpenTelemetry collector, as http://collector:4318/v1/metrics, to which the node posts what it "
        "measures, as OTLP over HTTP. Empty: to none."
    ),
    "kalda.metrics.otlp.interval.ms": "How often the node posts its metrics to kalda.metrics.otlp.endpoint.",
    "kalda.producer.ids.max": (
        "Producer ids that all logs of this broker may hold together, each counted once for each partition that it "
        "has written to. At the limit, a new producer id has the log with the most ids release its oldest, earlier "
        "than producer.id.expiration.ms; where none can be released it is refused with POLICY_VIOLATION. An id takes "
        "0.5 to 1 kB of memory."
    ),
    "leader.imbalance.check.interval.seconds": "Interval of the check for leaders that are not the preferred ones.",
    "leader.replication.throttled.rate": "Bytes a second that throttled replicas may copy from this broker.",
    "listener.security.protocol.map": "Security protocol of each listener name.",
    "listeners": "Addresses to listen on, as NAME://host:port; no host is every interface.",
    "log.cleaner.backoff.ms": "Pause of the cleaner when there is nothing to clean.",
    "log.cleaner.dedupe.buffer.size": "Memory for the maps of keys that compaction builds, over all threads.",
    "log.cleaner.delete.retention.ms": "How long tombstones of compacted topics are kept.",
    "log.cleaner.enable": "Whether logs are compacted.",
    "log.cleaner.io.max.bytes.per.second": "Bytes that the cleaner may read and write a second.",
    "log.cleaner.max.compaction.lag.ms": "Longest time for which a record may stay uncompacted.",
    "log.cleaner.min.cleanable.ratio": "Share of a log that must be uncompacted before the cleaner takes it up.",
    "log.cleaner.min.compaction.lag.ms": "Shortest time for which a record stays uncompacted.",
    "log.cleaner.threads": "How many logs are compacted at a time; at most half of background.threads, which do it.",
    "log.cleanup.policy": "Default of cleanup.policy.",
    "log.dir": "Directory of the logs, where log.dirs is not set.",
    "log.dirs": "Directories of the logs.",
    "log.flush.interval.messages": "Number of records after which a log is forced to disk.",
    "log.flush.interval.ms": "Time after which a log is forced to disk.",
    "log.index.interval.bytes": "Bytes of log between two entries of the offset index.",
    "log.index.size.max.bytes": "Size of an offset index file.",
    "log.message.timestamp.after.max.ms": "How far a record's timestamp may lie in the future.",
    "log.message.timestamp.before.max.ms": "How far a record's timestamp may lie in the past.",
    "log.message.timestamp.type": "Whether records keep the producer's time or get the broker's.",
    "log.preallocate": "Whether a new segment's file gets its full size at once.",
    "log.retention.bytes": "Size of a partition above which its oldest segments are deleted.",
    "log.retention.check.interval.ms": "Interval of the check for segments to delete.",
    "log.retention.hours": "Age in hours above which segments are deleted; minutes and ms come first.",
    "log.retention.minutes": "Age in minutes above which segments are deleted; ms comes first.",
    "log.retention.ms": "Age above which segments are deleted; -1 keeps them for ever.",
    "log.roll.hours": "Age in hours at which a segment is closed; ms comes first.",
    "log.roll.jitter.hours": "Random hours by which a segment's roll comes earlier; ms comes first.",
    "log.roll.jitter.ms": "Random time by which a segment's roll comes earlier.",
    "log.roll.ms": "Age at which a segment is closed though it is not full.",
    "log.segment.bytes": "Size at which a segment is closed and a new one begun.",
    "log.segment.delete.delay.ms": "Time between taking a segment out of the log and removing its files.",
    "max.connection.creation.rate": "Connections that may be opened a second.",
    "max.connections": "Connections that may be open at a time.",
    "max.connections.per.ip": "Connections that one address may have open at a time.",
    "max.connections.per.ip.overrides": "Other limits for single addresses and hosts, as address:count or host:count.",
    "max.decompressed.message.bytes": (
        "Largest record that is accepted in a compressed batch, decompressed. What one batch may decompress to is "
        "bounded in any case."
    ),
    "max.incremental.fetch.session.cache.slots": "Incremental fetch sessions that are kept.",
    "max.request.partition.size.limit": "Partitions that one DescribeTopicPartitions response may list.",
    "message.max.bytes": "Largest record batch that is accepted, after compression.",
    "metadata.log.dir": "Directory of the metadata log; without it the first of log.dirs.",
    "metadata.log.max.record.bytes.between.snapshots": "Bytes of metadata records after which a snapshot is written.",
    "metadata.log.max.snapshot.interval.ms": "Time after which a snapshot of the metadata is written.",
    "metadata.log.segment.bytes": "Segment size of the metadata log.",
    "metadata.log.segment.ms": "Age at which a segment of the metadata log is closed.",
    "metadata.max.idle.interval.ms": "Interval of the no-op records that advance an idle metadata log.",
    "metadata.max.retention.bytes": "Size above which old metadata segments and snapshots are deleted.",
    "metadata.max.retention.ms": "Age above which old metadata segments and snapshots are deleted.",
    "min.insync.replicas": "With acks=all, in-sync replicas that must exist for a write to be accepted.",
    "node.id": "Number of this node in its cluster.",
    "num.io.threads": "Threads that handle requests.",
    "num.network.threads": "Threads that read and write sockets, for each listener.",
    "num.partitions": "Partitions of topics that are created without a count.",
    "num.recovery.threads.per.data.dir": "Threads that recover logs at the start, for each directory.",
    "num.replica.fetchers": "Fetchers for each broker that is copied from.",
    "offset.metadata.max.bytes": "Bytes of metadata that may come with a committed offset.",
    "offsets.commit.timeout.ms": "Time in which an offset commit must be replicated.",
    "offsets.retention.check.interval.ms": "Interval of the check for expired offsets.",
    "offsets.retention.minutes": "Time after which the offsets of a group without members expire.",
    "offsets.topic.compression.codec": "Codec of the offsets topic, by number.",
    "offsets.topic.num.partitions": "Partitions of the offsets topic.",
    "offsets.topic.replication.factor": "Replication factor of the offsets topic.",
    "offsets.topic.segment.bytes": "Segment size of the offsets topic.",
    "principal.builder.class": "What turns a connection into a principal.",
    "process.roles": "Roles of this node: broker, controller, or both.",
    "producer.id.expiration.ms": "Time after which the state of an inactive producer is removed.",
    "queued.max.request.bytes": "Bytes of requests that may wait for their response; -1 is no limit.",
    "queued.max.requests": "Requests that may wait to be handled.",
    "replica.alter.log.dirs.io.max.bytes.per.second": "Bytes a second for moving replicas between log directories.",
    "replica.fetch.backoff.ms": "Pause of a fetcher after an error.",
    "replica.fetch.max.bytes": "Bytes that a follower requests of each partition in one fetch.",
    "replica.fetch.min.bytes": "Bytes for which a follower's fetch waits.",
    "replica.fetch.response.max.bytes": "Bytes that a follower requests in one fetch.",
    "replica.fetch.wait.max.ms": "Time for which a follower's fetch waits.",
    "replica.high.watermark.checkpoint.interval.ms": "Interval at which high watermarks are written to disk.",
    "replica.lag.time.max.ms": "Time behind the leader after which a follower leaves the ISR.",
    "replica.socket.timeout.ms": "Time that a follower's request may take.",
    "request.timeout.ms": "Time that a request between nodes may take.",
    "sasl.client.callback.handler.class": (
        "Python class whose method is called for each login of this node to others: token() of OAUTHBEARER, "
        "credentials() of PLAIN and SCRAM."
    ),
    "sasl.enabled.mechanisms": "SASL mechanisms that are offered.",
    "sasl.jaas.config": "Login configuration of a SASL mechanism.",
    "sasl.login.callback.handler.class": (
        "Python class whose method token() returns a token of OAUTHBEARER for logins of this node to others."
    ),
    "sasl.login.class": "As sasl.client.callback.handler.class, which counts where both are set.",
    "sasl.login.refresh.buffer.seconds": "Time before its end at which a token is got anew at the latest.",
    "sasl.login.refresh.min.period.seconds": "Time that a token is used at least.",
    "sasl.login.refresh.window.factor": "Share of the life of a token after which it is got anew.",
    "sasl.login.refresh.window.jitter": "Largest share of the life of a token that is added to it, at random.",
    "sasl.mechanism.controller.protocol": "SASL mechanism towards controllers.",
    "sasl.mechanism.inter.broker.protocol": "SASL mechanism between brokers.",
    "security.inter.broker.protocol": "Security protocol between brokers, where inter.broker.listener.name is not set.",
    "socket.connection.setup.timeout.ms": "Time in which a connection to another node must be established.",
    "socket.listen.backlog.size": "Connections that may wait to be accepted.",
    "socket.receive.buffer.bytes": "Receive buffer of a socket; -1 is the system's.",
    "socket.request.max.bytes": "Bytes a request may have.",
    "socket.send.buffer.bytes": "Send buffer of a socket; -1 is the system's.",
    "ssl.client.auth": "Whether clients must, may or need not present a certificate.",
    "ssl.keystore.location": "File with this node's key and certificate.",
    "ssl.keystore.password": "Password of the keystore file.",
    "ssl.keystore.type": "Format of the keystore file.",
    "ssl.principal.mapping.rules": "Rules that turn a certificate's name into a principal's.",
    "ssl.truststore.location": "File with the certificates that are trusted.",
    "ssl.truststore.password": "Password of the truststore file.",
    "ssl.truststore.type": "Format of the truststore file.",
    "telemetry.max.bytes": "Bytes one push of client metrics may have.",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "Interval of the check for transactions to abort.",
    "transaction.max.timeout.ms": "Longest timeout that a transactional producer may request.",
    "transaction.partition.verification.enable": "Whether a transactional write is checked against the coordinator.",
    "transaction.state.log.min.isr": "min.insync.replicas of the transaction topic.",
    "transaction.state.log.num.partitions": "Partitions of the transaction topic.",
    "transaction.state.log.replication.factor": "Replication factor of the transaction topic.",
    "transaction.state.log.segment.bytes": "Segment size of the transaction topic.",
    "transactional.id.expiration.ms": "Time after which an unused transactional id is removed.",
    "unclean.leader.election.enable": "Whether a replica outside the ISR may lead when no other replica can.",
}
TOPIC: dict[str, str] = {
    "cleanup.policy": (
        "What happens to old segments: `delete` drops them by age and size, `compact` keeps the last record of "
        "each key; both may be listed, an empty list keeps everything."
    ),
    "compression.gzip.level": "Level used where the topic's compression is gzip.",
    "compression.lz4.level": "Level used where the topic's compression is lz4.",
    "compression.type": "Codec in which batches are stored; `producer` keeps the one in which they came.",
    "compression.zstd.level": "Level used where the topic's compression is zstd.",
    "delete.retention.ms": (
        "How long a compacted topic keeps tombstones, so that a consumer that reads from the start sees deletions."
    ),
    "errors.deadletterqueue.group.enable": "Whether share groups may write dead letters to the topic.",
    "file.delete.delay.ms": "Time between taking a segment out of the log and removing its files.",
    "flush.messages": "Number of records after which the log is forced to disk; replication makes this rarely useful.",
    "flush.ms": "Time after which the log is forced to disk; replication makes this rarely useful.",
    "follower.replication.throttled.replicas": (
        "Replicas whose copying is throttled on the follower's side, as partition:broker pairs, or * for all."
    ),
    "index.interval.bytes": "Bytes of log between two entries of the offset index.",
    "internal.segment.bytes": "Segment size below the public minimum; for tests.",
    "leader.replication.throttled.replicas": (
        "Replicas whose copying is throttled on the leader's side, as partition:broker pairs, or * for all."
    ),
    "local.retention.bytes": (
        "With tiered storage, bytes a partition keeps on local disk before old segments are dropped; -2 means "
        "retention.bytes."
    ),
    "local.retention.ms": (
        "With tiered storage, how long a partition keeps segments on local disk; -2 means retention.ms."
    ),
    "max.compaction.lag.ms": "Longest time for which a record may stay uncompacted.",
    "max.decompressed.message.bytes": (
        "Largest record that is accepted in a compressed batch, decompressed. What one batch may decompress to is "
        "bounded in any case."
    ),
    "max.message.bytes": "Largest record batch that is accepted, after compression.",
    "message.timestamp.after.max.ms": (
        "How far a record's timestamp may lie ahead of the broker's clock before the record is refused."
    ),
    "message.timestamp.before.max.ms": (
        "How far a record's timestamp may lie behind the broker's clock before the record is refused."
    ),
    "message.timestamp.type": (
        "Whether records keep the producer's time (`CreateTime`) or get the broker's (`LogAppendTime`)."
    ),
    "min.cleanable.dirty.ratio": "Share of the log that must be uncompacted before the cleaner takes it up.",
    "min.compaction.lag.ms": "Shortest time for which a record stays uncompacted.",
    "min.insync.replicas": "With acks=all, number of in-sync replicas that must exist for a write to be accepted.",
    "preallocate": "Whether a new segment's file gets its full size at once.",
    "remote.copy.lag.bytes": (
        "With tiered storage, bytes of later records after which a segment is copied; -1 is local.retention.bytes."
    ),
    "remote.copy.lag.ms": (
        "With tiered storage, age of a segment's last record after which it is copied; -1 is local.retention.ms."
    ),
    "remote.log.copy.disable": "With tiered storage, stop copying segments to it; what was copied stays readable.",
    "remote.log.delete.on.disable": (
        "Whether the remote data is deleted when tiered storage is switched off for the topic."
    ),
    "remote.storage.enable": "Whether the topic's old segments go to tiered storage.",
    "retention.bytes": "Size of a partition above which its oldest segments are deleted; -1 is no limit.",
    "retention.ms": "Age above which segments are deleted; -1 keeps them for ever.",
    "segment.bytes": "Size at which a segment is closed and a new one begun.",
    "segment.index.bytes": "Size of a segment's offset index file.",
    "segment.jitter.ms": (
        "Random time by which a segment's roll comes earlier, so that not all partitions roll at once."
    ),
    "segment.ms": "Age at which a segment is closed though it is not full.",
    "unclean.leader.election.enable": (
        "Whether a replica outside the ISR may lead when no other replica can, at the price of lost records."
    ),
}
GROUP: dict[str, str] = {
    "consumer.assignor.offload.enable": "Whether Apache Kafka assigns the consumer group's partitions in a thread.",
    "consumer.assignment.interval.ms": "Shortest time between two assignments of the group.",
    "consumer.heartbeat.interval.ms": "Interval of the members' heartbeats.",
    "consumer.session.timeout.ms": "Time without heartbeats after which a member is removed.",
    "errors.deadletterqueue.copy.record.enable": (
        "Whether a dead letter has the key and the value of its record, beside the headers that say where it is from."
    ),
    "errors.deadletterqueue.topic.name": (
        "Topic of the share group's dead letters: of records that members reject, or that were delivered too often. "
        "Empty: there are none."
    ),
    "share.assignment.interval.ms": "Shortest time between two assignments of the share group.",
    "share.assignor.offload.enable": "Whether Apache Kafka assigns the share group's partitions in a thread.",
    "share.auto.offset.reset": (
        "Where a share group begins: `latest`, `earliest`, or `by_duration:` and an ISO 8601 duration."
    ),
    "share.delivery.count.limit": "Times a record is handed out before it is given up.",
    "share.heartbeat.interval.ms": "Interval of the share members' heartbeats.",
    "share.isolation.level": "Whether records of open transactions are handed out.",
    "share.partition.max.record.locks": "Records of a partition that may be held at a time.",
    "share.record.lock.duration.ms": "Time for which a member holds a record.",
    "share.renew.acknowledge.enable": "Whether a member may prolong its hold on a record.",
    "share.session.timeout.ms": "Time without heartbeats after which a share member is removed.",
    "streams.acceptable.recovery.lag": "Offsets by which the state of a task may be behind and count as caught up.",
    "streams.assignment.interval.ms": "Shortest time between two assignments of the streams group.",
    "streams.assignor.name": "Task assignor of the streams group, one of `group.streams.assignors`; unset: the first.",
    "streams.assignor.offload.enable": "Whether Apache Kafka assigns the streams group's tasks in a thread.",
    "streams.heartbeat.interval.ms": "Interval of the streams members' heartbeats.",
    "streams.initial.rebalance.delay.ms": "Time for which a new streams group waits for more members.",
    "streams.num.standby.replicas": "Standby copies of each task's state.",
    "streams.num.warmup.replicas": "Copies of tasks that Apache Kafka may warm up before they move.",
    "streams.rack.aware.assignment.tags": "Client tags over whose values standby copies are to be spread.",
    "streams.session.timeout.ms": "Time without heartbeats after which a streams member is removed.",
    "streams.task.offset.interval.ms": "How often streams members report how far the state of their tasks is.",
}
CLIENT_METRICS: dict[str, str] = {
    "interval.ms": "Interval at which matching clients push.",
    "match": "Which clients: property=regular expression, all of which must match.",
    "metrics": "Prefixes of the names of the metrics to push; * for all, none for none.",
}


_NO_EFFECT: dict[str, tuple[str, ...]] = {
    "No effect: it concerns Java.": (
        "security.providers",
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ),
    "No effect: tickets are got by the key table, or from the cache that `kinit` fills.": (
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
    ),
}

CLIENT: dict[str, str] = {
    "acks": (
        "Which replicas must have a record before it is acknowledged: all in sync (`all`), the leader (`1`), none "
        "(`0`)."
    ),
    "allow.auto.create.topics": "Whether subscribing to an unknown topic may create it, where the brokers allow that.",
    "auto.commit.interval.ms": "Time between automatic commits.",
    "auto.offset.reset": (
        "Where a partition without a committed offset begins: `earliest`, `latest`, `by_duration:PT1H` (that long "
        "ago), `none` (raise)."
    ),
    "batch.size": "Bytes up to which records of one partition are gathered in a batch.",
    "bootstrap.controllers": (
        "host:port pairs of some controllers, for requests to them instead of to brokers; excludes `bootstrap.servers`."
    ),
    "bootstrap.resolve.timeout.ms": (
        "Time from its first attempt after which a client fails for good where no bootstrap host has an address. With "
        "0 there is no such time: each attempt to connect resolves names, and calls end with their own timeouts."
    ),
    "bootstrap.servers": "host:port pairs of some brokers, from which the client learns of all others.",
    "buffer.memory": "Bytes of records that may wait to be sent or acknowledged; beyond them `send` waits.",
    "buffer.memory.allocation.strategy": (
        "How batches take `buffer.memory`: `batch.size` at once (`full`), or as records are appended (`incremental`, "
        "KIP-1332), so that batches of many partitions share a small memory; growing copies them."
    ),
    "check.crcs": "Whether the checksums of batches are compared.",
    "client.dns.lookup": "Every address of a host is tried in turn (`use_all_dns_ips`); the other value has no effect.",
    "client.id": "Name of the client in the brokers' logs, metrics and quotas; without one it gets a numbered name.",
    "client.rack": "Rack of the client. A consumer reads from a replica there, where the brokers allow it.",
    "compression.gzip.level": "Level used where `compression.type` is gzip.",
    "compression.lz4.level": "Level used where `compression.type` is lz4.",
    "compression.type": "Codec of batches.",
    "compression.zstd.level": "Level used where `compression.type` is zstd.",
    "connections.max.idle.ms": "Connections without requests are closed after this time; -1 is never.",
    "default.api.timeout.ms": "Time that a call may take, with all its attempts, where it is given no timeout.",
    "default.list.key.serde.inner": "Type of the elements of keys, for Kafka's ListSerializer and ListDeserializer.",
    "default.list.key.serde.type": "No effect: lists of Python are written and returned.",
    "default.list.value.serde.inner": "Type of the elements of values, as `default.list.key.serde.inner`.",
    "default.list.value.serde.type": "No effect, as `default.list.key.serde.type`.",
    "delivery.timeout.ms": "Time after which a record is acknowledged or has failed, with lingering and all attempts.",
    "enable.auto.commit": "Whether the offsets of processed records are committed by `poll` and `close`.",
    "enable.idempotence": "Whether brokers drop the second copy of a batch that is sent again, and keep the order.",
    "enable.metrics.push": (
        "Whether the client sends its metrics to the cluster, as far as the cluster subscribes to them (KIP-714)."
    ),
    "exclude.internal.topics": "Whether a pattern leaves internal topics out.",
    "fetch.max.bytes": (
        "Bytes that a response may have, and that may be buffered in all; a first batch that is larger is "
        "returned all the same."
    ),
    "fetch.max.wait.ms": "Time for which a broker waits for `fetch.min.bytes`.",
    "fetch.min.bytes": "Bytes for which a broker waits before it answers.",
    "group.id": "Consumer group of the consumer; without one it only reads assigned partitions and commits nothing.",
    "group.instance.id": "Name of a static member, whose partitions stay its own through a restart (KIP-345).",
    "share.acknowledgement.mode": (
        "`implicit`: the next poll or commit accepts what polls have returned. `explicit`: the application "
        "acknowledges each record."
    ),
    "share.acquire.mode": (
        "`batch_optimized`: brokers hand out whole record batches. `record_limit`: never more than `max.poll.records`."
    ),
    "group.protocol": "`classic`, or `consumer` where the brokers assign partitions (KIP-848).",
    "group.remote.assignor": "The brokers' assignor for `group.protocol=consumer`; without one they choose.",
    "heartbeat.interval.ms": "Time between heartbeats to the coordinator of a classic group.",
    "interceptor.classes": (
        "Objects of producers and consumers that see, and may change, each record before it is sent or returned."
    ),
    "isolation.level": "`read_committed` returns no records of open and aborted transactions.",
    "kalda.sasl.oauthbearer.allowed.files": "Files that `sasl.oauthbearer.assertion.*` may name; no other one is read.",
    "kalda.sasl.oauthbearer.allowed.urls": "URLs of token endpoints and token files that may be used; no other one is.",
    "key.deserializer": (
        "What bytes of keys become: a type, as `key.serializer` names them, or an object, a class or a function of "
        "your own."
    ),
    "key.serializer": (
        "How keys become bytes: `bytes`, `str`, `int` and `long` (eight bytes), `integer`, `short`, `float` and "
        "`double` (eight bytes), `float32`, `bool`, `uuid`, `json`, `void`, `list[…]` of these, the class names of "
        "Kafka's serializers, or an object, a class or a function of your own."
    ),
    "linger.ms": "Time for which a batch that is not full waits for more records.",
    "max.block.ms": (
        "Time for which `send` waits for metadata and for memory, and for which calls of transactions wait."
    ),
    "max.in.flight.requests.per.connection": (
        "Requests to one broker that may be without a response; at most 5 with idempotence."
    ),
    "max.partition.fetch.bytes": "Bytes of one partition that a response may have, and that are buffered ahead.",
    "max.poll.interval.ms": "Time between two calls of `poll` after which the consumer leaves its group.",
    "max.poll.records": "Records that `poll` returns at most.",
    "max.request.size": "Bytes that a request, and so a record, may have.",
    "metadata.cluster.check.enable": (
        "Name the cluster and the broker that a connection is for. Another one, to which an address or a load balancer "
        "led, says so, and the bootstrap servers are used again (KIP-1242). Not with `metadata.recovery.strategy=none`."
    ),
    "metadata.max.age.ms": "Metadata is fetched again after this time, also where nothing has changed.",
    "metadata.max.idle.ms": "A topic to which nothing was sent for this time leaves the client's metadata.",
    "metadata.recovery.rebootstrap.trigger.ms": (
        "Time without an answer to metadata requests after which the bootstrap servers are used again."
    ),
    "metadata.recovery.strategy": (
        "What follows where no known broker can be reached: `rebootstrap` uses the bootstrap servers again, "
        "`none` goes on with the known ones."
    ),
    "metric.reporters": "No effect: `metrics()` of a client returns its metrics.",
    "metrics.num.samples": "Windows over which a rate, an average or a maximum of `metrics()` reaches back.",
    "metrics.recording.level": "No effect: all metrics are recorded.",
    "metrics.sample.window.ms": "Length of a window of `metrics()`.",
    "partition.assignment.strategy": "Assignors that the members of a classic group may use, the preferred one first.",
    "partitioner.adaptive.partitioning.enable": (
        "Whether partitions whose leaders are slow get fewer of the records without a key."
    ),
    "partitioner.availability.timeout.ms": (
        "Partitions of a leader that has taken nothing for this time get no records without a key; 0 is never."
    ),
    "partitioner.class": (
        "What chooses partitions: an object with `partition(...)`, a class of such or its name `package.module.Class`, "
        "or `org.apache.kafka.clients.producer.RoundRobinPartitioner`. Without one, keys choose by murmur2, and "
        "records without a key stick to a partition for a batch."
    ),
    "partitioner.ignore.keys": "Whether keys are not used to choose partitions.",
    "partitioner.rack.aware": "Whether records without a key go to leaders in `client.rack`, where it has some.",
    "receive.buffer.bytes": "Size of a socket's receive buffer (SO_RCVBUF); -1 leaves it to the system.",
    "reconnect.backoff.max.ms": "Longest pause before a node is connected to again.",
    "reconnect.backoff.ms": "Pause before a node is connected to again after a failure; it doubles with each failure.",
    "request.timeout.ms": "Time after which a request without a response has failed, and its connection is closed.",
    "retries": (
        "How often a producer sends a batch again that was refused for a passing reason, within "
        "`delivery.timeout.ms`. No effect on admin clients, which repeat requests until `default.api.timeout.ms`."
    ),
    "retry.backoff.max.ms": "Longest pause before a request is repeated.",
    "retry.backoff.ms": "Pause before a request is repeated after a failure; it doubles with each failure.",
    "sasl.jaas.config": "Login module and its options, such as user name and password.",
    "sasl.client.callback.handler.class": (
        "Python class, as `package.module:Class`, whose method is called for each login: `token()` of OAUTHBEARER, "
        "`credentials()` of PLAIN and SCRAM, which returns user name and password. Kafka's own names are the default."
    ),
    "sasl.kerberos.service.name": "Kerberos principal that brokers run as, as `kafka`.",
    "sasl.kerberos.ticket.renew.window.factor": "Share of the life of a ticket after which it is got anew.",
    "sasl.login.callback.handler.class": (
        "Python class, as `package.module:Class`, whose method `token()` returns a token of OAUTHBEARER. Kafka's "
        "`OAuthBearerUnsecuredLoginCallbackHandler` makes one by the login line, its `OAuthBearerLoginCallbackHandler` "
        "gets it from `sasl.oauthbearer.token.endpoint.url`."
    ),
    "sasl.login.class": (
        "Python class like that of `sasl.client.callback.handler.class`, which counts where both are set."
    ),
    "sasl.login.connect.timeout.ms": "Time for connecting to a token endpoint; 10 s where it is not set.",
    "sasl.login.read.timeout.ms": "Time for which a token endpoint may send nothing; 10 s where it is not set.",
    "sasl.login.refresh.buffer.seconds": "Time before its end at which a token is got anew at the latest.",
    "sasl.login.refresh.min.period.seconds": (
        "Time that a token is used at least. This and `sasl.login.refresh.buffer.seconds` have no effect on a token "
        "whose life is shorter than both together."
    ),
    "sasl.login.refresh.window.factor": "Share of the life of a token after which it is got anew.",
    "sasl.login.refresh.window.jitter": (
        "Largest share of the life of a token that is added to `sasl.login.refresh.window.factor`, at random."
    ),
    "sasl.login.retry.backoff.max.ms": "Time for which a request to a token endpoint is repeated.",
    "sasl.login.retry.backoff.ms": "Time before the first repetition; then twice as long each time.",
    "sasl.mechanism": ("Mechanism of the login: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER` or `GSSAPI`."),
    "sasl.oauthbearer.allow.unverified.audience": (
        "Whether signed tokens of any audience are accepted where `sasl.oauthbearer.expected.audience` is not set."
    ),
    "sasl.oauthbearer.allow.unverified.issuer": (
        "Whether signed tokens of any issuer are accepted where `sasl.oauthbearer.expected.issuer` is not set."
    ),
    "sasl.oauthbearer.assertion.algorithm": "Signature of assertions: `RS256` or `ES256`.",
    "sasl.oauthbearer.assertion.claim.aud": "Claim `aud` of assertions.",
    "sasl.oauthbearer.assertion.claim.exp.seconds": "Time for which an assertion is valid.",
    "sasl.oauthbearer.assertion.claim.iss": (
        "Claim `iss` of assertions. Where it is set, an assertion takes the place of the client secret."
    ),
    "sasl.oauthbearer.assertion.claim.jti.include": "Whether each assertion has an id of its own, the claim `jti`.",
    "sasl.oauthbearer.assertion.claim.nbf.seconds": "Time before it is made from which an assertion is valid.",
    "sasl.oauthbearer.assertion.claim.sub": "Claim `sub` of assertions.",
    "sasl.oauthbearer.assertion.file": "File with an assertion, which is sent in place of the client secret.",
    "sasl.oauthbearer.assertion.private.key.file": "File with the key that signs assertions, as PEM (PKCS #8).",
    "sasl.oauthbearer.assertion.private.key.passphrase": "Passphrase of the key that signs assertions.",
    "sasl.oauthbearer.assertion.template.file": "JSON file whose objects `header` and `payload` assertions begin with.",
    "sasl.oauthbearer.client.credentials.client.id": "Client id with which a token is requested.",
    "sasl.oauthbearer.client.credentials.client.secret": "Secret with which a token is requested.",
    "sasl.oauthbearer.clock.skew.seconds": "Seconds by which the clocks may differ, where a client checks signatures.",
    "sasl.oauthbearer.expected.audience": "Audiences, one of which a token names, where a client checks signatures.",
    "sasl.oauthbearer.expected.issuer": "Issuer of tokens, where a client checks signatures.",
    "sasl.oauthbearer.header.urlencode": "Whether client id and secret are encoded as in a URL before they are sent.",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "Time after which the keys of signatures are read anew.",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "Time for which reading the keys of signatures is repeated.",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "Time before that is repeated; then twice as long each time.",
    "sasl.oauthbearer.jwks.endpoint.url": "Keys of signatures. Where it is set, a client checks its tokens by them.",
    "sasl.oauthbearer.jwt.retriever.class": (
        "How tokens are got: the default by a client id and a secret or an assertion, or from a file; Kafka's "
        "`JwtBearerJwtRetriever` by an assertion alone (RFC 7523); or a Python class with a method `retrieve()`."
    ),
    "sasl.oauthbearer.jwt.validator.class": (
        "How a token is checked before it is used: by its claims, where the default finds no "
        "`sasl.oauthbearer.jwks.endpoint.url`, else by its signature too; or a Python class with a method "
        "`validate(token)`."
    ),
    "sasl.oauthbearer.scope": "Scope of the requested token.",
    "sasl.oauthbearer.scope.claim.name": "Claim with the scope of a token, where a client checks signatures.",
    "sasl.oauthbearer.sub.claim.name": "Claim with the name of the principal.",
    "sasl.oauthbearer.token.endpoint.url": "Where tokens are requested, or read (`file:`).",
    "security.protocol": (
        "Whether connections are encrypted (`SSL`), authenticated by SASL (`SASL_PLAINTEXT`), both (`SASL_SSL`) "
        "or neither."
    ),
    "send.buffer.bytes": "Size of a socket's send buffer (SO_SNDBUF); -1 leaves it to the system.",
    "session.timeout.ms": "Time without heartbeats after which a member is removed from its classic group.",
    "socket.connection.setup.timeout.max.ms": "Longest time that an attempt to connect may take.",
    "socket.connection.setup.timeout.ms": (
        "Time that the first attempt to connect may take; it doubles with each failure."
    ),
    "ssl.cipher.suites": "Cipher suites that may be used; without it OpenSSL's defaults.",
    "ssl.enabled.protocols": "Versions of TLS that may be used.",
    "ssl.endpoint.identification.algorithm": (
        "`https` compares a broker's certificate with its host name; empty does not."
    ),
    "ssl.engine.factory.class": "No effect: OpenSSL makes the connections.",
    "ssl.key.password": "Password of the private key.",
    "ssl.keystore.certificate.chain": "Certificates of the client, as PEM text.",
    "ssl.keystore.key": "Private key of the client, as PEM text.",
    "ssl.keystore.location": "File with the client's private key and certificates.",
    "ssl.keystore.password": "Password of that file.",
    "ssl.keystore.type": "Format of that file: `PEM`, `PKCS12` or `JKS`.",
    "ssl.protocol": "No effect: `ssl.enabled.protocols` decides.",
    "ssl.truststore.certificates": "Certificates that the client trusts, as PEM text.",
    "ssl.truststore.location": "File with the certificates that the client trusts; without one the system's.",
    "ssl.truststore.password": "Password of that file.",
    "ssl.truststore.type": "Format of that file: `PEM`, `PKCS12` or `JKS`.",
    "transaction.timeout.ms": "Time after which the coordinator aborts a transaction that was not ended.",
    "transaction.two.phase.commit.enable": (
        "Whether an external coordinator decides on transactions (KIP-939): they never expire, and may be prepared "
        "with `prepare_transaction`. The brokers have to allow it by the same key."
    ),
    "transactional.id": "Name that makes the producer transactional, and by which it fences its predecessors.",
    "value.deserializer": "What bytes of values become, as `key.deserializer`.",
    "value.serializer": "How values become bytes, as `key.serializer`.",
    **{key: text for text, keys in _NO_EFFECT.items() for key in keys},
}
