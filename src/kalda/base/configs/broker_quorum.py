"""Keys of the metadata quorum, the controller, and of a broker's session with it."""

from __future__ import annotations

from kalda.base.configs.definition import BOOLEAN, INT, LIST, LONG, LONG_MAX, REQUIRED, STRING, AtLeast, Items, Key
from kalda.base.configs.quorum_addresses import BootstrapServers, Voters

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
