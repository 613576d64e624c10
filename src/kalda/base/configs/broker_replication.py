"""Broker keys of replication, waiting requests and quota windows."""

from __future__ import annotations

from kalda.base.configs.definition import CLASS, CLUSTER_WIDE, INT, LONG, LONG_MAX, STRING, AtLeast, Key

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

DYNAMIC_ONLY_KEYS = (
    Key("follower.replication.throttled.rate", LONG, LONG_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("leader.replication.throttled.rate", LONG, LONG_MAX, AtLeast(0), update=CLUSTER_WIDE),
    Key("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, AtLeast(0), update=CLUSTER_WIDE),
)
