"""Broker keys of share groups and their coordinator (KIP-932)."""

from __future__ import annotations

from kalda.base.configs.definition import (
    CLUSTER_WIDE,
    HIGH,
    INT,
    LIST,
    LOW,
    SHORT,
    STRING,
    AtLeast,
    Between,
    Items,
    Key,
)

SHARE_KEYS = (
    Key("group.share.assignment.interval.ms", INT, 1000, AtLeast(0), update=CLUSTER_WIDE),
    Key("group.share.assignors", LIST, ("simple",), Items(empty=False)),
    Key("group.share.delivery.count.limit", INT, 5, Between(2, 10)),
    Key("group.share.heartbeat.interval.ms", INT, 5000, AtLeast(1)),
    Key("group.share.initialize.retry.interval.ms", INT, 30_000, AtLeast(1), importance=LOW, internal=True),
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
    Key(
        "share.coordinator.cold.partition.snapshot.interval.ms", INT, 300_000, AtLeast(1), importance=LOW, internal=True
    ),
    Key("share.coordinator.load.buffer.size", INT, 5_242_880, AtLeast(1), importance=HIGH),
    Key("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, Between(0, 500)),
    Key("share.coordinator.state.topic.compression.codec", INT, 0, importance=HIGH),
    Key("share.coordinator.state.topic.min.isr", SHORT, 2, AtLeast(1), importance=HIGH),
    Key("share.coordinator.state.topic.num.partitions", INT, 50, AtLeast(1), importance=HIGH),
    Key("share.coordinator.state.topic.prune.interval.ms", INT, 300_000, AtLeast(1), importance=LOW, internal=True),
    Key("share.coordinator.state.topic.replication.factor", SHORT, 3, AtLeast(1), importance=HIGH),
    Key("share.coordinator.state.topic.segment.bytes", INT, 104_857_600, AtLeast(1), importance=HIGH),
    Key("share.coordinator.threads", INT, 1, AtLeast(1)),
    Key("share.coordinator.write.timeout.ms", INT, 5000, AtLeast(1), importance=HIGH),
    Key("share.fetch.purgatory.purge.interval.requests", INT, 1000),
)
