"""The table of broker and controller keys, and what makes a key's value dynamic.

A key may have synonyms: several keys for one value, in order of precedence and perhaps in other units. It may be
overridden for one listener as `listener.name.<listener>.<key>` (KIP-103), which counts as a synonym before the key.
"""

from __future__ import annotations

import re

from kalda.base.configs.addresses import BootstrapServers, Voters
from kalda.base.configs.definition import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    PASSWORD,
    PER_BROKER,
    READ_ONLY,
    REQUIRED,
    SHORT,
    STRING,
    AtLeast,
    Between,
    Definition,
    GzipLevel,
    Items,
    Key,
    NonEmpty,
    OneOf,
    OneOfAnyCase,
)
from kalda.base.configs.oauthbearer import OAUTHBEARER_KEYS

NODE_KEYS = (
    Key("advertised.listeners", LIST, None, Items(empty=False, null=True)),
    Key("alter.config.policy.class.name", CLASS, None),
    Key("auto.create.topics.enable", BOOLEAN, True),
    Key("background.threads", INT, 10, AtLeast(1), update=CLUSTER_WIDE),
    Key("broker.id", INT, -1),
    Key("broker.rack", STRING, None),
    Key("config.providers", LIST, (), Items(), update=CLUSTER_WIDE),
    Key("connections.max.idle.ms", LONG, 600_000),
    Key("controlled.shutdown.enable", BOOLEAN, True),
    Key("create.topic.policy.class.name", CLASS, None),
    Key("default.replication.factor", INT, 1),
    Key("delete.topic.enable", BOOLEAN, True),
    Key("inter.broker.listener.name", STRING, None),
    Key("kafka.metrics.polling.interval.secs", INT, 10, AtLeast(1)),
    Key("kafka.metrics.reporters", LIST, (), Items()),
    Key(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        update=PER_BROKER,
    ),
    Key("listeners", LIST, ("PLAINTEXT://:9092",), Items(empty=False), update=PER_BROKER),
    Key("max.connection.creation.rate", INT, INT_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("max.connections", INT, INT_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("max.connections.per.ip", INT, INT_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("max.connections.per.ip.overrides", STRING, "", update=CLUSTER_WIDE),
    Key("max.decompressed.message.bytes", INT, 2_147_483_639, Between(1, 2_147_483_639), update=CLUSTER_WIDE),
    Key("max.request.partition.size.limit", INT, 2000, AtLeast(1)),
    Key("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), Items(), update=CLUSTER_WIDE),
    Key("metrics.num.samples", INT, 2, AtLeast(1)),
    Key("metrics.recording.level", STRING, "INFO"),
    Key("metrics.sample.window.ms", LONG, 30_000, AtLeast(1)),
    Key("node.id", INT, REQUIRED, AtLeast(0)),
    Key("num.io.threads", INT, 8, AtLeast(1), update=CLUSTER_WIDE),
    Key("num.network.threads", INT, 3, AtLeast(1), update=CLUSTER_WIDE),
    Key("num.partitions", INT, 1, AtLeast(1)),
    Key("process.roles", LIST, REQUIRED, Items("broker", "controller", empty=False)),
    Key("queued.max.request.bytes", LONG, -1),
    Key("queued.max.requests", INT, 500, AtLeast(1)),
    Key("request.timeout.ms", INT, 30_000),
    Key("socket.connection.setup.timeout.max.ms", LONG, 30_000),
    Key("socket.connection.setup.timeout.ms", LONG, 10_000),
    Key("socket.listen.backlog.size", INT, 50, AtLeast(1)),
    Key("socket.receive.buffer.bytes", INT, 102_400),
    Key("socket.request.max.bytes", INT, 104_857_600, AtLeast(1)),
    Key("socket.send.buffer.bytes", INT, 102_400),
    Key("telemetry.max.bytes", INT, 1_048_576, AtLeast(1)),
)
"""The node itself: identity, listeners, sockets, threads, metrics, topics created by default."""


QUORUM_KEYS = (
    Key("auto.leader.rebalance.enable", BOOLEAN, True),
    Key("broker.heartbeat.interval.ms", INT, 2000),
    Key("broker.session.timeout.ms", INT, 9000),
    Key("controller.listener.names", LIST, REQUIRED, Items(empty=False)),
    Key("controller.performance.always.log.threshold.ms", LONG, 2000, AtLeast(0), internal=True),
    Key("controller.performance.sample.period.ms", LONG, 60_000, AtLeast(100), internal=True),
    Key("controller.quorum.append.linger.ms", INT, 25, AtLeast(0)),
    Key("controller.quorum.auto.join.enable", BOOLEAN, False),
    Key("controller.quorum.bootstrap.servers", LIST, (), BootstrapServers()),
    Key("controller.quorum.election.backoff.max.ms", INT, 1000, AtLeast(0)),
    Key("controller.quorum.election.timeout.ms", INT, 1000, AtLeast(0)),
    Key("controller.quorum.fetch.max.bytes", INT, 1_048_576, AtLeast(1)),
    Key("controller.quorum.fetch.snapshot.max.bytes", INT, 1_048_576, AtLeast(1)),
    Key("controller.quorum.fetch.timeout.ms", INT, 2000, AtLeast(0)),
    Key("controller.quorum.request.timeout.ms", INT, 2000, AtLeast(0)),
    Key("controller.quorum.retry.backoff.ms", INT, 20, AtLeast(0)),
    Key("controller.quorum.voters", LIST, (), Voters()),
    Key("controller.quota.window.num", INT, 11, AtLeast(1)),
    Key("controller.quota.window.size.seconds", INT, 1, AtLeast(1)),
    Key("controller.socket.timeout.ms", INT, 30_000),
    Key("early.start.listeners", LIST, None, Items(null=True)),
    Key("initial.broker.registration.timeout.ms", INT, 60_000),
    Key("internal.metadata.delete.delay.millis", LONG, 60_000, internal=True),
    Key("internal.metadata.log.segment.bytes", INT, None, internal=True),
    Key("internal.metadata.max.batch.size.in.bytes", INT, 8_388_608, internal=True),
    Key("leader.imbalance.check.interval.seconds", LONG, 300, AtLeast(1)),
    Key("metadata.log.dir", STRING, None),
    Key("metadata.log.max.record.bytes.between.snapshots", LONG, 20_971_520, AtLeast(1)),
    Key("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, AtLeast(0)),
    Key("metadata.log.segment.bytes", INT, 1_073_741_824, AtLeast(8_388_608)),
    Key("metadata.log.segment.ms", LONG, 604_800_000),
    Key("metadata.max.idle.interval.ms", INT, 500, AtLeast(0)),
    Key("metadata.max.retention.bytes", LONG, 104_857_600),
    Key("metadata.max.retention.ms", LONG, 604_800_000),
    Key("server.max.startup.time.ms", LONG, LONG_MAX, AtLeast(0), internal=True),
    Key("unclean.leader.election.interval.ms", LONG, 300_000, AtLeast(1), internal=True),
    Key("unstable.api.versions.enable", BOOLEAN, False, internal=True),
    Key("unstable.feature.versions.enable", BOOLEAN, False, internal=True),
)
"""The metadata quorum, the controller, and a broker's session with it."""


LOG_KEYS = (
    Key("compression.gzip.level", INT, -1, GzipLevel(), update=CLUSTER_WIDE),
    Key("compression.lz4.level", INT, 9, Between(1, 17), update=CLUSTER_WIDE),
    Key(
        "compression.type",
        STRING,
        "producer",
        OneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        update=CLUSTER_WIDE,
    ),
    Key("compression.zstd.level", INT, 3, Between(-131_072, 22), update=CLUSTER_WIDE),
    Key("cordoned.log.dirs", LIST, (), Items(null=True), update=PER_BROKER),
    Key("log.cleaner.backoff.ms", LONG, 15_000, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, update=CLUSTER_WIDE),
    Key("log.cleaner.delete.retention.ms", LONG, 86_400_000, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.cleaner.enable", BOOLEAN, True),
    Key("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, update=CLUSTER_WIDE),
    Key("log.cleaner.io.buffer.size", INT, 524_288, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.cleaner.io.max.bytes.per.second", DOUBLE, DOUBLE_MAX, update=CLUSTER_WIDE),
    Key("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, AtLeast(1), update=CLUSTER_WIDE),
    Key("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, Between(0, 1), update=CLUSTER_WIDE),
    Key("log.cleaner.min.compaction.lag.ms", LONG, 0, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.cleaner.threads", INT, 1, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.cleanup.policy", LIST, ("delete",), Items("compact", "delete"), update=CLUSTER_WIDE),
    Key("log.dir", LIST, ("/tmp/kafka-logs",), Items(empty=False)),
    Key("log.dir.failure.timeout.ms", LONG, 30_000, AtLeast(1)),
    Key("log.dirs", LIST, None, Items(empty=False, null=True)),
    Key("log.flush.interval.messages", LONG, LONG_MAX, AtLeast(1), update=CLUSTER_WIDE),
    Key("log.flush.interval.ms", LONG, None, update=CLUSTER_WIDE),
    Key("log.flush.offset.checkpoint.interval.ms", INT, 60_000, AtLeast(0)),
    Key("log.flush.scheduler.interval.ms", LONG, LONG_MAX),
    Key("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, AtLeast(0)),
    Key("log.index.interval.bytes", INT, 4096, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.index.size.max.bytes", INT, 10_485_760, AtLeast(4), update=CLUSTER_WIDE),
    Key("log.initial.task.delay.ms", LONG, 30_000, AtLeast(0), internal=True),
    Key("log.message.timestamp.after.max.ms", LONG, 3_600_000, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.message.timestamp.before.max.ms", LONG, LONG_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("log.message.timestamp.type", STRING, "CreateTime", OneOf("CreateTime", "LogAppendTime"), update=CLUSTER_WIDE),
    Key("log.preallocate", BOOLEAN, False, update=CLUSTER_WIDE),
    Key("log.retention.bytes", LONG, -1, update=CLUSTER_WIDE),
    Key("log.retention.check.interval.ms", LONG, 300_000, AtLeast(1)),
    Key("log.retention.hours", INT, 168),
    Key("log.retention.minutes", INT, None),
    Key("log.retention.ms", LONG, None, update=CLUSTER_WIDE),
    Key("log.roll.hours", INT, 168, AtLeast(1)),
    Key("log.roll.jitter.hours", INT, 0, AtLeast(0)),
    Key("log.roll.jitter.ms", LONG, None, update=CLUSTER_WIDE),
    Key("log.roll.ms", LONG, None, update=CLUSTER_WIDE),
    Key("log.segment.bytes", INT, 1_073_741_824, AtLeast(1_048_576), update=CLUSTER_WIDE),
    Key("log.segment.delete.delay.ms", LONG, 60_000, AtLeast(0), update=CLUSTER_WIDE),
    Key("message.max.bytes", INT, 1_048_588, AtLeast(0), update=CLUSTER_WIDE),
    Key("min.insync.replicas", INT, 1, AtLeast(1), update=CLUSTER_WIDE),
    Key("num.recovery.threads.per.data.dir", INT, 2, AtLeast(1), update=CLUSTER_WIDE),
    Key("num.replica.alter.log.dirs.threads", INT, None),
    Key("unclean.leader.election.enable", BOOLEAN, False, update=CLUSTER_WIDE),
)
"""The log: segments, retention, compaction; most are defaults of topic configs."""


REPLICATION_KEYS = (
    Key("alter.log.dirs.replication.quota.window.num", INT, 11, AtLeast(1)),
    Key("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, AtLeast(1)),
    Key("client.quota.callback.class", CLASS, None),
    Key("delete.records.purgatory.purge.interval.requests", INT, 1),
    Key("fetch.max.bytes", INT, 57_671_680, AtLeast(1024)),
    Key("fetch.purgatory.purge.interval.requests", INT, 1000),
    Key("max.incremental.fetch.session.cache.slots", INT, 1000, AtLeast(0)),
    Key("num.replica.fetchers", INT, 1, AtLeast(1), update=CLUSTER_WIDE),
    Key("producer.purgatory.purge.interval.requests", INT, 1000),
    Key("quota.window.num", INT, 11, AtLeast(1)),
    Key("quota.window.size.seconds", INT, 1, AtLeast(1)),
    Key("replica.fetch.backoff.ms", INT, 1000, AtLeast(0)),
    Key("replica.fetch.max.bytes", INT, 1_048_576, AtLeast(0)),
    Key("replica.fetch.min.bytes", INT, 1),
    Key("replica.fetch.response.max.bytes", INT, 10_485_760, AtLeast(0)),
    Key("replica.fetch.wait.max.ms", INT, 500),
    Key("replica.high.watermark.checkpoint.interval.ms", LONG, 5000),
    Key("replica.lag.time.max.ms", LONG, 30_000),
    Key("replica.selector.class", STRING, None),
    Key("replica.socket.receive.buffer.bytes", INT, 65_536),
    Key("replica.socket.timeout.ms", INT, 30_000),
    Key("replication.quota.window.num", INT, 11, AtLeast(1)),
    Key("replication.quota.window.size.seconds", INT, 1, AtLeast(1)),
)
"""Replication, waiting requests and quota windows."""

DYNAMIC_ONLY_KEYS = (
    Key("follower.replication.throttled.rate", LONG, LONG_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("leader.replication.throttled.rate", LONG, LONG_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, AtLeast(0), update=CLUSTER_WIDE),
)


SECURITY_KEYS = (
    Key("authorizer.class.name", STRING, ""),
    Key("connection.failed.authentication.delay.ms", INT, 100, AtLeast(0)),
    Key("connections.max.reauth.ms", LONG, 0),
    Key("delegation.token.expiry.check.interval.ms", LONG, 3_600_000, AtLeast(1)),
    Key("delegation.token.expiry.time.ms", LONG, 86_400_000, AtLeast(1)),
    Key("delegation.token.max.lifetime.ms", LONG, 604_800_000, AtLeast(1)),
    Key("delegation.token.secret.key", PASSWORD, None),
    Key(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        update=PER_BROKER,
    ),
    Key("sasl.client.callback.handler.class", CLASS, None),
    Key("sasl.enabled.mechanisms", LIST, ("GSSAPI",), Items(), update=PER_BROKER),
    Key("sasl.jaas.config", PASSWORD, None, update=PER_BROKER),
    Key("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", update=PER_BROKER),
    Key("sasl.kerberos.min.time.before.relogin", LONG, 60_000, update=PER_BROKER),
    Key("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), Items(), update=PER_BROKER),
    Key("sasl.kerberos.service.name", STRING, None, update=PER_BROKER),
    Key("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, update=PER_BROKER),
    Key("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, update=PER_BROKER),
    Key("sasl.login.callback.handler.class", CLASS, None),
    Key("sasl.login.class", CLASS, None),
    Key("sasl.login.connect.timeout.ms", INT, None),
    Key("sasl.login.read.timeout.ms", INT, None),
    Key("sasl.login.refresh.buffer.seconds", SHORT, 300, update=PER_BROKER),
    Key("sasl.login.refresh.min.period.seconds", SHORT, 60, update=PER_BROKER),
    Key("sasl.login.refresh.window.factor", DOUBLE, 0.8, update=PER_BROKER),
    Key("sasl.login.refresh.window.jitter", DOUBLE, 0.05, update=PER_BROKER),
    Key("sasl.login.retry.backoff.max.ms", LONG, 10_000),
    Key("sasl.login.retry.backoff.ms", LONG, 100),
    Key("sasl.mechanism.controller.protocol", STRING, "GSSAPI"),
    Key("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", update=PER_BROKER),
    *OAUTHBEARER_KEYS,
    Key("sasl.server.callback.handler.class", CLASS, None),
    Key("sasl.server.max.receive.size", INT, 524_288),
    Key("security.inter.broker.protocol", STRING, "PLAINTEXT", OneOf("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    Key("security.providers", STRING, None),
    Key("ssl.allow.dn.changes", BOOLEAN, False),
    Key("ssl.allow.san.changes", BOOLEAN, False),
    Key("ssl.cipher.suites", LIST, (), Items(), update=PER_BROKER),
    Key("ssl.client.auth", STRING, "none", OneOf("required", "requested", "none"), update=PER_BROKER),
    Key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), Items(), update=PER_BROKER),
    Key("ssl.endpoint.identification.algorithm", STRING, "https", update=PER_BROKER),
    Key("ssl.engine.factory.class", CLASS, None, update=PER_BROKER),
    Key("ssl.key.password", PASSWORD, None, update=PER_BROKER),
    Key("ssl.keymanager.algorithm", STRING, "SunX509", update=PER_BROKER),
    Key("ssl.keystore.certificate.chain", PASSWORD, None, update=PER_BROKER),
    Key("ssl.keystore.key", PASSWORD, None, update=PER_BROKER),
    Key("ssl.keystore.location", STRING, None, update=PER_BROKER),
    Key("ssl.keystore.password", PASSWORD, None, update=PER_BROKER),
    Key("ssl.keystore.type", STRING, "JKS", update=PER_BROKER),
    Key("ssl.principal.mapping.rules", STRING, "DEFAULT"),
    Key("ssl.protocol", STRING, "TLSv1.3", update=PER_BROKER),
    Key("ssl.provider", STRING, None, update=PER_BROKER),
    Key("ssl.secure.random.implementation", STRING, None, update=PER_BROKER),
    Key("ssl.trustmanager.algorithm", STRING, "PKIX", update=PER_BROKER),
    Key("ssl.truststore.certificates", PASSWORD, None, update=PER_BROKER),
    Key("ssl.truststore.location", STRING, None, update=PER_BROKER),
    Key("ssl.truststore.password", PASSWORD, None, update=PER_BROKER),
    Key("ssl.truststore.type", STRING, "JKS", update=PER_BROKER),
)
"""TLS, SASL, tokens and authorization."""


GROUPS_KEYS = (
    Key("group.consumer.assignment.interval.ms", INT, 1000, AtLeast(0), update=CLUSTER_WIDE),
    Key("group.consumer.assignor.offload.enable", BOOLEAN, True, update=CLUSTER_WIDE, internal=True),
    Key("group.consumer.assignors", LIST, ("uniform", "range"), Items(empty=False)),
    Key("group.consumer.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("group.consumer.max.assignment.interval.ms", INT, 15_000, AtLeast(0)),
    Key("group.consumer.max.heartbeat.interval.ms", INT, 15_000, AtLeast(1)),
    Key("group.consumer.max.session.timeout.ms", INT, 60_000, AtLeast(1)),
    Key("group.consumer.max.size", INT, INT_MAX, AtLeast(1)),
    Key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        OneOfAnyCase("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    ),
    Key("group.consumer.min.assignment.interval.ms", INT, 0, AtLeast(0)),
    Key("group.consumer.min.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("group.consumer.min.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("group.consumer.regex.refresh.interval.ms", INT, 600_000, AtLeast(10_000), internal=True),
    Key("group.consumer.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("group.coordinator.append.linger.ms", INT, -1, AtLeast(-1)),
    Key("group.coordinator.background.threads", INT, 2, AtLeast(1)),
    Key("group.coordinator.cached.buffer.max.bytes", INT, 1_048_588, AtLeast(524_288), update=CLUSTER_WIDE),
    Key(
        "group.coordinator.rebalance.protocols",
        LIST,
        ("classic", "consumer", "streams"),
        Items("consumer", "classic", "share", "streams", empty=False),
    ),
    Key("group.coordinator.threads", INT, 4, AtLeast(1)),
    Key("group.initial.rebalance.delay.ms", INT, 3000),
    Key("group.max.session.timeout.ms", INT, 1_800_000),
    Key("group.max.size", INT, INT_MAX, AtLeast(1)),
    Key("group.min.session.timeout.ms", INT, 6000),
    Key("group.streams.acceptable.recovery.lag", LONG, 10_000, AtLeast(0), internal=True),
    Key("group.streams.assignment.interval.ms", INT, 1000, AtLeast(0), update=CLUSTER_WIDE),
    Key("group.streams.assignor.offload.enable", BOOLEAN, True, update=CLUSTER_WIDE, internal=True),
    Key("group.streams.assignors", LIST, ("sticky",), Items(empty=False)),
    Key("group.streams.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("group.streams.initial.rebalance.delay.ms", INT, 3000, AtLeast(0)),
    Key("group.streams.max.assignment.interval.ms", INT, 15_000, AtLeast(0)),
    Key("group.streams.max.heartbeat.interval.ms", INT, 15_000, AtLeast(1)),
    Key("group.streams.max.session.timeout.ms", INT, 60_000, AtLeast(1)),
    Key("group.streams.max.size", INT, INT_MAX, AtLeast(1)),
    Key("group.streams.max.standby.replicas", INT, 2, AtLeast(0)),
    Key("group.streams.max.warmup.replicas", INT, 20, AtLeast(0), internal=True),
    Key("group.streams.min.assignment.interval.ms", INT, 0, AtLeast(0)),
    Key("group.streams.min.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("group.streams.min.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("group.streams.min.task.offset.interval.ms", INT, 15_000, AtLeast(1), internal=True),
    Key("group.streams.num.standby.replicas", INT, 0, AtLeast(0)),
    Key("group.streams.num.warmup.replicas", INT, 2, AtLeast(0), internal=True),
    Key("group.streams.rack.aware.assignment.tags", LIST, (), Items()),
    Key("group.streams.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("group.streams.task.offset.interval.ms", INT, 60_000, AtLeast(1), internal=True),
    Key("group.streams.topology.description.plugin.class", CLASS, None),
    Key("offset.metadata.max.bytes", INT, 4096),
    Key("offsets.commit.timeout.ms", INT, 5000, AtLeast(1)),
    Key("offsets.load.buffer.size", INT, 5_242_880, AtLeast(1)),
    Key("offsets.retention.check.interval.ms", LONG, 600_000, AtLeast(1)),
    Key("offsets.retention.minutes", INT, 10_080, AtLeast(1)),
    Key("offsets.topic.compression.codec", INT, 0),
    Key("offsets.topic.num.partitions", INT, 50, AtLeast(1)),
    Key("offsets.topic.replication.factor", SHORT, 3, AtLeast(1)),
    Key("offsets.topic.segment.bytes", INT, 104_857_600, AtLeast(1)),
)
"""The group coordinator and committed offsets."""


TRANSACTIONS_KEYS = (
    Key("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, AtLeast(0)),
    Key("add.partitions.to.txn.retry.backoff.ms", INT, 20, AtLeast(1)),
    Key("producer.id.expiration.check.interval.ms", INT, 600_000, AtLeast(1), internal=True),
    Key("producer.id.expiration.ms", INT, 86_400_000, AtLeast(1), update=CLUSTER_WIDE),
    Key("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, AtLeast(1)),
    Key("transaction.max.timeout.ms", INT, 900_000, AtLeast(1)),
    Key("transaction.partition.verification.enable", BOOLEAN, True, update=CLUSTER_WIDE),
    Key("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, AtLeast(1)),
    Key("transaction.state.log.load.buffer.size", INT, 5_242_880, AtLeast(1)),
    Key("transaction.state.log.min.isr", INT, 2, AtLeast(1)),
    Key("transaction.state.log.num.partitions", INT, 50, AtLeast(1)),
    Key("transaction.state.log.replication.factor", SHORT, 3, AtLeast(1)),
    Key("transaction.state.log.segment.bytes", INT, 104_857_600, AtLeast(1)),
    Key("transaction.two.phase.commit.enable", BOOLEAN, False),
    Key("transactional.id.expiration.ms", INT, 604_800_000, AtLeast(1)),
)
"""Transactions and producer state."""


SHARE_KEYS = (
    Key("errors.deadletterqueue.auto.create.topics.enable", BOOLEAN, False, update=CLUSTER_WIDE),
    Key("errors.deadletterqueue.topic.name.prefix", STRING, "dlq.", update=CLUSTER_WIDE),
    Key("group.share.assignment.interval.ms", INT, 1000, AtLeast(0), update=CLUSTER_WIDE),
    Key("group.share.assignor.offload.enable", BOOLEAN, True, update=CLUSTER_WIDE, internal=True),
    Key("group.share.assignors", LIST, ("simple",), Items(empty=False)),
    Key("group.share.delivery.count.limit", INT, 5, Between(2, 10)),
    Key(
        "group.share.dlq.manager.class.name",
        STRING,
        "org.apache.kafka.server.share.dlq.DefaultShareGroupDLQManager",
        internal=True,
    ),
    Key("group.share.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("group.share.initialize.retry.interval.ms", INT, 30_000, AtLeast(1), internal=True),
    Key("group.share.max.assignment.interval.ms", INT, 15_000, AtLeast(0)),
    Key("group.share.max.delivery.count.limit", INT, 10, Between(5, 25)),
    Key("group.share.max.heartbeat.interval.ms", INT, 15_000, AtLeast(1)),
    Key("group.share.max.partition.max.record.locks", INT, 4000, Between(2000, 10_000)),
    Key("group.share.max.record.lock.duration.ms", INT, 60_000, Between(30_000, 3_600_000)),
    Key("group.share.max.session.timeout.ms", INT, 60_000, AtLeast(1)),
    Key("group.share.max.share.sessions", INT, 2000, AtLeast(1)),
    Key("group.share.max.size", INT, 200, Between(1, 1000)),
    Key("group.share.min.assignment.interval.ms", INT, 0, AtLeast(0)),
    Key("group.share.min.delivery.count.limit", INT, 2, Between(2, 5)),
    Key("group.share.min.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("group.share.min.partition.max.record.locks", INT, 100, Between(100, 2000)),
    Key("group.share.min.record.lock.duration.ms", INT, 15_000, Between(1000, 30_000)),
    Key("group.share.min.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("group.share.partition.max.record.locks", INT, 2000, Between(100, 10_000)),
    Key(
        "group.share.persister.class.name",
        STRING,
        "org.apache.kafka.server.share.persister.DefaultStatePersister",
        internal=True,
    ),
    Key("group.share.record.lock.duration.ms", INT, 30_000, Between(1000, 3_600_000)),
    Key("group.share.session.timeout.ms", INT, 45_000, AtLeast(1)),
    Key("share.coordinator.append.linger.ms", INT, -1, AtLeast(-1)),
    Key("share.coordinator.cached.buffer.max.bytes", INT, 1_048_588, AtLeast(524_288), update=CLUSTER_WIDE),
    Key("share.coordinator.cold.partition.snapshot.interval.ms", INT, 300_000, AtLeast(1), internal=True),
    Key("share.coordinator.load.buffer.size", INT, 5_242_880, AtLeast(1)),
    Key("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, Between(0, 500)),
    Key("share.coordinator.state.topic.compression.codec", INT, 0),
    Key("share.coordinator.state.topic.min.isr", SHORT, 2, AtLeast(1)),
    Key("share.coordinator.state.topic.num.partitions", INT, 50, AtLeast(1)),
    Key("share.coordinator.state.topic.prune.interval.ms", INT, 300_000, AtLeast(1), internal=True),
    Key("share.coordinator.state.topic.replication.factor", SHORT, 3, AtLeast(1)),
    Key("share.coordinator.state.topic.segment.bytes", INT, 104_857_600, AtLeast(1)),
    Key("share.coordinator.threads", INT, 1, AtLeast(1)),
    Key("share.coordinator.write.timeout.ms", INT, 5000, AtLeast(1)),
    Key("share.fetch.purgatory.purge.interval.requests", INT, 1000),
)
"""Share groups and their coordinator (KIP-932)."""


TIERING_KEYS = (
    Key("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, update=CLUSTER_WIDE),
    Key("log.local.retention.bytes", LONG, -2, AtLeast(-2), update=CLUSTER_WIDE),
    Key("log.local.retention.ms", LONG, -2, AtLeast(-2), update=CLUSTER_WIDE),
    Key("log.remote.copy.lag.bytes", LONG, -1, AtLeast(-1), update=CLUSTER_WIDE),
    Key("log.remote.copy.lag.ms", LONG, 0, AtLeast(-1), update=CLUSTER_WIDE),
    Key("remote.fetch.max.wait.ms", INT, 500, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.list.offsets.request.timeout.ms", LONG, 30_000, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.index.file.cache.total.size.bytes", LONG, 1_073_741_824, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.index.file.cache.ttl.ms", LONG, 900_000, AtLeast(-1), internal=True),
    Key("remote.log.manager.copier.thread.pool.size", INT, 10, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.manager.copy.quota.window.num", INT, 11, AtLeast(1)),
    Key("remote.log.manager.copy.quota.window.size.seconds", INT, 1, AtLeast(1)),
    Key("remote.log.manager.expiration.thread.pool.size", INT, 10, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.manager.fetch.quota.window.num", INT, 11, AtLeast(1)),
    Key("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, AtLeast(1)),
    Key("remote.log.manager.follower.thread.pool.size", INT, 2, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.manager.task.interval.ms", LONG, 30_000, AtLeast(1)),
    Key("remote.log.manager.task.retry.backoff.max.ms", LONG, 30_000, AtLeast(1), internal=True),
    Key("remote.log.manager.task.retry.backoff.ms", LONG, 500, AtLeast(1), internal=True),
    Key("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, Between(0, 0.5), internal=True),
    Key("remote.log.manager.thread.pool.size", INT, 2, AtLeast(1)),
    Key("remote.log.metadata.custom.metadata.max.bytes", INT, 128, AtLeast(0)),
    Key(
        "remote.log.metadata.manager.class.name",
        STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        NonEmpty(),
    ),
    Key("remote.log.metadata.manager.class.path", STRING, None),
    Key("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", NonEmpty()),
    Key("remote.log.metadata.manager.listener.name", STRING, None, NonEmpty()),
    Key("remote.log.reader.max.pending.tasks", INT, 100, AtLeast(1)),
    Key("remote.log.reader.threads", INT, 10, AtLeast(1), update=CLUSTER_WIDE),
    Key("remote.log.storage.manager.class.name", STRING, None, NonEmpty()),
    Key("remote.log.storage.manager.class.path", STRING, None),
    Key("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", NonEmpty()),
    Key("remote.log.storage.system.enable", BOOLEAN, False),
)
"""Tiered storage (KIP-405)."""


KALDA_KEYS = (
    Key("kalda.authentication.timeout.ms", INT, 30_000, AtLeast(1)),
    Key("kalda.client.metrics.format", STRING, "json", OneOf("json", "protobuf")),
    Key("kalda.client.metrics.plugins", LIST, (), Items()),
    Key("kalda.corrupt.records.retention.bytes", LONG, 1_073_741_824, AtLeast(0)),
    Key("kalda.dead.process.detection.enable", BOOLEAN, True),
    Key("kalda.fetch.session.cache.bytes", LONG, 268_435_456, AtLeast(0)),
    Key("kalda.max.unauthenticated.connections", INT, 1_000, AtLeast(1)),
    Key("kalda.metrics.listener", STRING, ""),
    Key("kalda.metrics.logs.max", INT, 2_000, AtLeast(0)),
    Key("kalda.metrics.names", STRING, "prometheus", OneOf("prometheus", "jmx")),
    Key("kalda.metrics.otlp.endpoint", STRING, ""),
    Key("kalda.metrics.otlp.interval.ms", INT, 60_000, AtLeast(1_000)),
    Key("kalda.producer.ids.max", INT, 2_000_000, AtLeast(1)),
    Key("kalda.sasl.oauthbearer.allowed.files", LIST, (), Items()),
    Key("kalda.sasl.oauthbearer.allowed.urls", LIST, (), Items()),
    Key("kalda.ssl.reload.interval.ms", INT, 60_000, AtLeast(0)),
    Key("kalda.validate.records", STRING, "all", OneOf("all", "uncompressed", "none")),
)
"""Keys that Kafka does not have. All begin with `kalda.`, so that no later release of Kafka can define the same key."""


BROKER = Definition(
    sorted(
        (
            *GROUPS_KEYS,
            *KALDA_KEYS,
            *LOG_KEYS,
            *NODE_KEYS,
            *QUORUM_KEYS,
            *REPLICATION_KEYS,
            *SECURITY_KEYS,
            *SHARE_KEYS,
            *TIERING_KEYS,
            *TRANSACTIONS_KEYS,
        )
    )
)
DYNAMIC_ONLY = Definition(DYNAMIC_ONLY_KEYS)
"""Keys that exist only as dynamic configs: replication throttles."""

DYNAMIC = frozenset(key.name for key in (*BROKER, *DYNAMIC_ONLY) if key.update is not READ_ONLY)
PER_BROKER_ONLY = frozenset(key.name for key in BROKER if key.update is PER_BROKER)
CLUSTER_LEVEL_LISTENER = frozenset({"max.connection.creation.rate", "max.connections", "num.network.threads"})
"""Keys that may be set for a listener of the whole cluster."""
LISTENER_SECURITY = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Keys that change dynamically only with a listener's prefix."""

_SYNONYM_GROUPS = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
_SYNONYMS = {name: group for group in _SYNONYM_GROUPS for name in group} | {
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
}
_LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)
_MECHANISM_KEYS = (
    "connections.max.reauth.ms",
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)


def base_name(name: str) -> str:
    """The key without the prefix of its listener and of its SASL mechanism."""
    found = _LISTENER_PREFIX.fullmatch(name)
    if found is None:
        return name
    base = found.group(1)
    for key in _MECHANISM_KEYS:
        if base.endswith("." + key):
            return key
    return base


def has_listener_prefix(name: str) -> bool:
    """True of `listener.name.<listener>.<key>`."""
    return _LISTENER_PREFIX.fullmatch(name) is not None


def find_key(name: str) -> Key | None:
    """The key of a name, with or without a listener's prefix; None where it is unknown."""
    base = base_name(name)
    return BROKER.get(base) or DYNAMIC_ONLY.get(base)


def synonyms(name: str, match_listener: bool = True) -> tuple[str, ...]:
    """The names under which a value is looked up, in order of precedence."""
    if match_listener and has_listener_prefix(name):
        return (name, base_name(name))
    return _SYNONYMS.get(name, (name,))


def is_dynamic(name: str) -> bool:
    """True where the value may change without a restart. `name` has no listener prefix, as in Kafka's own check."""
    return name in DYNAMIC


def is_sensitive(name: str) -> bool:
    """True where the value is never shown: that of a password, and of a key that is in no table."""
    key = find_key(name)
    return key is None or key.sensitive
