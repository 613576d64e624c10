"""Keys that are taken and not obeyed, each with the reason.

A file that starts Apache Kafka starts this node too, so its keys are known, checked, altered and described like any
other. Whoever sets one of these to something else than its default is told that nothing comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kalda.base.configs.broker import base_name, find_key
from kalda.base.configs.definition import InvalidConfig, Key
from kalda.base.configs.topic import TOPIC

_ACLS = "this release enforces no ACLs, every client may do everything"
_CLASSES = "classes of the JVM cannot be loaded, and quotas are stored but not enforced"
_TIERING = "this release has no tiered storage, all records stay in the log directories"
_QUOTAS = "quotas are stored but not enforced"
_SECURITY = "this release serves PLAINTEXT only, and authenticates nobody"
_GROUPS = "this release coordinates classic groups only"
_TRANSACTIONS = "this release coordinates no transactions"
_METRICS = "this release reports no metrics"
_TELEMETRY = "this release collects no metrics of clients"
_ONE_THREAD = "one thread reads, handles and answers requests as they come, without a queue; start more nodes instead"
_PURGATORY = "a request that waits no more is forgotten at once"
_CLEANER = "one log is compacted at a time, with all of log.cleaner.dedupe.buffer.size and buffers of fixed size"
_LINGER = "what is written while the disk is busy is forced to it together, and nothing waits for more to come"
_PREALLOCATE = "files of segments grow as they are written"
_CONNECTION = "every attempt to connect has the same time, socket.connection.setup.timeout.ms"
_CONTROLLER_TIMEOUT = "a request to the controller has the time that request.timeout.ms gives"
_BUFFERS = "the system sizes the buffers of connections that this node makes"
_LOADING = "groups are loaded a mebibyte at a time, and others are served in between"
_EARLY = "controllers' listeners take connections at once, and no authorizer has to be waited for"
_INTERNAL = "it is Kafka's own, for its tests"
_FROM_FILE = "it is read when a node starts, from its properties file"

_WHY: dict[str, tuple[str, ...]] = {
    _ACLS: ("authorizer.class.name",),
    _CLASSES: ("client.quota.callback.class",),
    _TIERING: ("follower.fetch.last.tiered.offset.enable", "log.local.retention.", "remote."),
    _QUOTAS: (
        "alter.log.dirs.replication.quota.window.",
        "controller.quota.window.",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "quota.window.",
        "replication.quota.window.",
    ),
    _SECURITY: (
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "delegation.token.",
        "principal.builder.class",
        "sasl.",
        "security.providers",
        "ssl.",
    ),
    _GROUPS: (
        "group.consumer.",
        "group.coordinator.rebalance.protocols",
        "group.share.",
        "group.streams.",
        "share.coordinator.",
        "share.fetch.",
    ),
    _TRANSACTIONS: (
        "add.partitions.to.txn.retry.backoff.",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.max.timeout.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transaction.two.phase.commit.enable",
        "transactional.id.expiration.ms",
    ),
    _METRICS: ("kafka.metrics.", "metric.reporters", "metrics."),
    _TELEMETRY: ("telemetry.max.bytes",),
    _ONE_THREAD: (
        "group.coordinator.background.threads",
        "group.coordinator.threads",
        "num.io.threads",
        "num.network.threads",
        "queued.max.requests",
    ),
    _PURGATORY: (
        "delete.records.purgatory.purge.interval.requests",
        "fetch.purgatory.purge.interval.requests",
        "producer.purgatory.purge.interval.requests",
    ),
    _CLEANER: ("log.cleaner.io.buffer.", "log.cleaner.threads"),
    _LINGER: (
        "controller.quorum.append.linger.ms",
        "group.coordinator.append.linger.ms",
        "group.coordinator.cached.buffer.max.bytes",
    ),
    _PREALLOCATE: ("log.preallocate",),
    _CONNECTION: ("socket.connection.setup.timeout.max.ms",),
    _CONTROLLER_TIMEOUT: ("controller.socket.timeout.ms",),
    _BUFFERS: ("replica.socket.receive.buffer.bytes",),
    _LOADING: ("offsets.load.buffer.size",),
    _EARLY: ("early.start.listeners",),
    _INTERNAL: (
        "controller.performance.",
        "internal.metadata.delete.delay.millis",
        "internal.metadata.max.batch.size.in.bytes",
    ),
}
"""A reason, and the keys that it holds for; one that ends in a dot stands for all that begin with it."""

_OF_TOPICS_NEVER_MADE = ("share.coordinator.state.topic.", "transaction.state.log.")
"""Every file that comes with Kafka sets these; they are of no use to anybody, and mislead nobody."""

_WHY_OF_TOPICS: dict[str, tuple[str, ...]] = {
    _TIERING: ("local.retention.", "remote."),
    _QUOTAS: ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas"),
    _PREALLOCATE: ("preallocate",),
}

_NOT_WHILE_RUNNING = (
    "background.threads",
    "config.providers",
    "listener.security.protocol.map",
    "listeners",
    "num.recovery.threads.per.data.dir",
    "producer.id.expiration.ms",
    "transaction.partition.verification.enable",
)
"""Keys that Kafka changes while it runs, and this node does not."""


def reason(name: str) -> str | None:
    """Why a broker key has no effect, with or without a listener's prefix; None for one that has, or misleads nobody.

    `reason("log.cleaner.threads")`
    """
    base = base_name(name)
    return None if base.startswith(_OF_TOPICS_NEVER_MADE) else _find(_WHY, base)


def reason_of_topic(name: str) -> str | None:
    """The same of a topic's key."""
    return _find(_WHY_OF_TOPICS, name)


def idle_properties(properties: Mapping[str, str]) -> dict[str, list[str]]:
    """By reason, the properties that are set to something else than their default and have no effect."""
    return _by_reason(
        (name, reason(name)) for name, text in properties.items() if not _is_default(find_key(name), text)
    )


def idle_changes(changes: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The same of dynamic configs that were altered; None stands for one that was taken back."""
    return _by_reason(
        (name, _FROM_FILE if base_name(name) in _NOT_WHILE_RUNNING else reason(name))
        for name, text in changes.items()
        if text is not None
    )


def idle_topic_changes(changes: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The same of a topic's configs."""
    return _by_reason(
        (name, reason_of_topic(name))
        for name, text in changes.items()
        if text is not None and not _is_default(TOPIC.get(name), text)
    )


def _find(why: Mapping[str, tuple[str, ...]], name: str) -> str | None:
    for found, keys in why.items():
        if any(name.startswith(key) if key.endswith(".") else name == key for key in keys):
            return found
    return None


def _by_reason(found: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, why in found:
        if why is not None:
            names.setdefault(why, []).append(name)
    return names


def _is_default(key: Key | None, text: str) -> bool:
    if key is None:
        return False
    try:
        return key.parse(text) == key.default
    except InvalidConfig:
        return False
