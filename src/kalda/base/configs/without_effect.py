"""Keys that are accepted but have no effect, each with the reason.

A properties file that starts Apache Kafka starts this node too, so all of Kafka's keys are checked, altered and
described. Where one of the keys below is set to another value than its default, the node logs that it has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kalda.base.configs.broker import base_name, find_key
from kalda.base.configs.definition import InvalidConfig, Key
from kalda.base.configs.topic import TOPIC

_TIERING = "this release has no tiered storage, all records stay in the log directories"
_JAVA = "it concerns Java's security providers and random sources; OpenSSL and the system's are used here"
_KERBEROS = "tickets are got by the key table, or from the cache that kinit fills, when a connection needs one"
_NO_WARMUP = "tasks of streams groups move without copies that warm up, as in Apache Kafka 4.4"
_ONE_ASSIGNOR = "share groups have the assignor simple"
_JAVA_CLASSES = "it names a class of Java, which cannot be loaded"
_ASSIGNORS_IN_STEPS = "assignors always run in short steps between requests, so a large group delays no other client"
_METRICS = "kalda.metrics.listener serves metrics, over windows of fixed length; reporters of Java cannot be loaded"
_ONE_THREAD = "one thread reads, handles and answers requests as they come, without a queue; start more nodes instead"
_PURGATORY = "a request that no longer waits is removed at once"
_CLEANER = "compaction reads and writes with buffers of fixed size, and fills its map of keys up to nine tenths"
_LINGER = "writes that arrive during a flush are flushed together by the next one, and no flush is delayed for more"
_PREALLOCATE = "files of segments grow as they are written"
_CONNECTION = "every attempt to connect has the same timeout, socket.connection.setup.timeout.ms"
_CONTROLLER_TIMEOUT = "a request to the controller has the timeout request.timeout.ms"
_BUFFERS = "the operating system sizes the buffers of connections that this node opens"
_LOADING = "coordinators load their topics a mebibyte at a time, and other requests are served in between"
_INTERNAL = "Kafka has it for its own tests"
_FROM_FILE = "it is read when a node starts, from its properties file"

_REASONS: dict[str, tuple[str, ...]] = {
    _TIERING: ("follower.fetch.last.tiered.offset.enable", "log.local.retention.", "log.remote.", "remote."),
    _JAVA: (
        "security.providers",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ),
    _KERBEROS: (
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
    ),
    _NO_WARMUP: (
        "group.streams.max.warmup.replicas",
        "group.streams.num.warmup.replicas",
    ),
    _ONE_ASSIGNOR: ("group.share.assignors",),
    _JAVA_CLASSES: (
        "group.share.dlq.manager.class.name",
        "group.share.persister.class.name",
        "group.streams.topology.description.plugin.class",
    ),
    _ASSIGNORS_IN_STEPS: (
        "group.consumer.assignor.offload.enable",
        "group.share.assignor.offload.enable",
        "group.streams.assignor.offload.enable",
    ),
    _METRICS: ("kafka.metrics.", "metric.reporters", "metrics."),
    _ONE_THREAD: (
        "group.coordinator.background.threads",
        "group.coordinator.threads",
        "num.io.threads",
        "num.network.threads",
        "queued.max.requests",
        "share.coordinator.threads",
    ),
    _PURGATORY: (
        "share.fetch.purgatory.purge.interval.requests",
        "delete.records.purgatory.purge.interval.requests",
        "fetch.purgatory.purge.interval.requests",
        "producer.purgatory.purge.interval.requests",
    ),
    _CLEANER: ("log.cleaner.io.buffer.",),
    _LINGER: (
        "controller.quorum.append.linger.ms",
        "group.coordinator.append.linger.ms",
        "group.coordinator.cached.buffer.max.bytes",
        "share.coordinator.append.linger.ms",
        "share.coordinator.cached.buffer.max.bytes",
    ),
    _PREALLOCATE: ("log.preallocate",),
    _CONNECTION: ("socket.connection.setup.timeout.max.ms",),
    _CONTROLLER_TIMEOUT: ("controller.socket.timeout.ms",),
    _BUFFERS: ("replica.socket.receive.buffer.bytes",),
    _LOADING: (
        "offsets.load.buffer.size",
        "share.coordinator.load.buffer.size",
        "transaction.state.log.load.buffer.size",
    ),
    _INTERNAL: (
        "internal.metadata.delete.delay.millis",
        "internal.metadata.max.batch.size.in.bytes",
    ),
}
"""Keys by the reason why they have no effect. An entry that ends in a dot stands for all keys that begin with it."""

_TOPIC_REASONS: dict[str, tuple[str, ...]] = {
    _TIERING: ("local.retention.", "remote."),
    _PREALLOCATE: ("preallocate",),
}

_ONLY_AT_START = (
    "background.threads",
    "config.providers",
    "listener.security.protocol.map",
    "listeners",
    "num.recovery.threads.per.data.dir",
)
"""Keys whose dynamic changes take effect in Kafka at once, and in this node after a restart with a changed file."""


def reason(name: str) -> str | None:
    """Why a broker key, with or without a listener's prefix, has no effect; None for a key that has one."""
    return _find(_REASONS, base_name(name))


def reason_of_topic(name: str) -> str | None:
    """Why a topic key has no effect; None for one that has."""
    return _find(_TOPIC_REASONS, name)


def idle_properties(properties: Mapping[str, str]) -> dict[str, list[str]]:
    """By reason, the properties that have no effect and are set to another value than their default."""
    return _by_reason(
        (name, reason(name)) for name, text in properties.items() if not _is_default(find_key(name), text)
    )


def idle_changes(changes: Mapping[str, str | None]) -> dict[str, list[str]]:
    """By reason, the altered dynamic configs that have no effect; the value None stands for a deleted config."""
    return _by_reason(
        (name, _FROM_FILE if base_name(name) in _ONLY_AT_START else reason(name))
        for name, text in changes.items()
        if text is not None
    )


def idle_topic_changes(changes: Mapping[str, str | None]) -> dict[str, list[str]]:
    """By reason, the altered configs of a topic that have no effect and are set to another value than their default."""
    return _by_reason(
        (name, reason_of_topic(name))
        for name, text in changes.items()
        if text is not None and not _is_default(TOPIC.get(name), text)
    )


def idle_group_changes(changes: Mapping[str, str | None]) -> dict[str, list[str]]:
    """By reason, the altered configs of a group that have no effect, as the broker key of the same name has none."""
    return _by_reason((name, reason(f"group.{name}")) for name, text in changes.items() if text is not None)


def _find(reasons: Mapping[str, tuple[str, ...]], name: str) -> str | None:
    for why, keys in reasons.items():
        if any(name.startswith(key) if key.endswith(".") else name == key for key in keys):
            return why
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
