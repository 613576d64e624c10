"""Config keys that all clients of a cluster have, and how a client's configuration is gathered.

A configuration is a mapping by Kafka's keys, snake_case keywords (`linger_ms`), or both. An unknown key is an error
that names the nearest known one; a key given twice with different values is an error that names both values.

What Kalda's clients have for keys that other clients call differently: librdkafka's, and kafka-python's keywords.

A client refuses a key that it does not have. Where another client has it, the error says what to give in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, cast

from kalda.base.configs.definition import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    AtLeast,
    Between,
    Definition,
    InvalidConfig,
    Items,
    Key,
    OneOf,
    OneOfAnyCase,
    Value,
    invalid_value,
    to_text,
)
from kalda.base.configs.oauthbearer import OAUTHBEARER_KEYS

CLIENT_SECURITY_KEYS = (
    Key("kalda.sasl.oauthbearer.allowed.files", LIST, (), Items()),
    Key("kalda.sasl.oauthbearer.allowed.urls", LIST, (), Items()),
    Key("sasl.client.callback.handler.class", CLASS, None),
    Key("sasl.jaas.config", PASSWORD, None),
    Key("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit"),
    Key("sasl.kerberos.min.time.before.relogin", LONG, 60000),
    Key("sasl.kerberos.service.name", STRING, None),
    Key("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05),
    Key("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8),
    Key("sasl.login.callback.handler.class", CLASS, None),
    Key("sasl.login.class", CLASS, None),
    Key("sasl.login.connect.timeout.ms", INT, None),
    Key("sasl.login.read.timeout.ms", INT, None),
    Key("sasl.login.refresh.buffer.seconds", SHORT, 300, Between(0, 3600)),
    Key("sasl.login.refresh.min.period.seconds", SHORT, 60, Between(0, 900)),
    Key("sasl.login.refresh.window.factor", DOUBLE, 0.8, Between(0.5, 1.0)),
    Key("sasl.login.refresh.window.jitter", DOUBLE, 0.05, Between(0.0, 0.25)),
    Key("sasl.login.retry.backoff.max.ms", LONG, 10000),
    Key("sasl.login.retry.backoff.ms", LONG, 100),
    Key("sasl.mechanism", STRING, "GSSAPI"),
    *OAUTHBEARER_KEYS,
    Key("sasl.oauthbearer.header.urlencode", BOOLEAN, False),
    Key("security.providers", STRING, None),
    Key("ssl.cipher.suites", LIST, (), Items()),
    Key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), Items()),
    Key("ssl.endpoint.identification.algorithm", STRING, "https"),
    Key("ssl.engine.factory.class", CLASS, None),
    Key("ssl.key.password", PASSWORD, None),
    Key("ssl.keymanager.algorithm", STRING, "SunX509"),
    Key("ssl.keystore.certificate.chain", PASSWORD, None),
    Key("ssl.keystore.key", PASSWORD, None),
    Key("ssl.keystore.location", STRING, None),
    Key("ssl.keystore.password", PASSWORD, None),
    Key("ssl.keystore.type", STRING, "JKS"),
    Key("ssl.protocol", STRING, "TLSv1.3"),
    Key("ssl.provider", STRING, None),
    Key("ssl.secure.random.implementation", STRING, None),
    Key("ssl.trustmanager.algorithm", STRING, "PKIX"),
    Key("ssl.truststore.certificates", PASSWORD, None),
    Key("ssl.truststore.location", STRING, None),
    Key("ssl.truststore.password", PASSWORD, None),
    Key("ssl.truststore.type", STRING, "JKS"),
)


KEYS = (
    Key("bootstrap.resolve.timeout.ms", LONG, 0, AtLeast(0)),
    Key("bootstrap.servers", LIST, (), Items()),
    Key(
        "client.dns.lookup",
        STRING,
        "use_all_dns_ips",
        OneOf("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
    Key("client.id", STRING, ""),
    Key("client.rack", STRING, ""),
    Key("connections.max.idle.ms", LONG, 540_000),
    Key("enable.metrics.push", BOOLEAN, True),
    Key("interceptor.classes", LIST, (), Items()),
    Key("metadata.cluster.check.enable", BOOLEAN, True),
    Key("metadata.max.age.ms", LONG, 300_000, AtLeast(0)),
    Key("metadata.recovery.rebootstrap.trigger.ms", LONG, 300_000, AtLeast(0)),
    Key("metadata.recovery.strategy", STRING, "rebootstrap", OneOfAnyCase("REBOOTSTRAP", "NONE")),
    Key("metric.reporters", LIST, (), Items()),
    Key("metrics.num.samples", INT, 2, AtLeast(1)),
    Key("metrics.recording.level", STRING, "INFO", OneOf("INFO", "DEBUG", "TRACE")),
    Key("metrics.sample.window.ms", LONG, 30_000, AtLeast(0)),
    Key("receive.buffer.bytes", INT, 32_768, AtLeast(-1)),
    Key("reconnect.backoff.max.ms", LONG, 1_000, AtLeast(0)),
    Key("reconnect.backoff.ms", LONG, 50, AtLeast(0)),
    Key("request.timeout.ms", INT, 30_000, AtLeast(0)),
    Key("retry.backoff.max.ms", LONG, 1_000, AtLeast(0)),
    Key("retry.backoff.ms", LONG, 100, AtLeast(0)),
    Key("security.protocol", STRING, "PLAINTEXT", OneOfAnyCase("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT")),
    Key("send.buffer.bytes", INT, 131_072, AtLeast(-1)),
    Key("socket.connection.setup.timeout.max.ms", LONG, 30_000, AtLeast(0)),
    Key("socket.connection.setup.timeout.ms", LONG, 10_000, AtLeast(0)),
    *CLIENT_SECURITY_KEYS,
)
"""The keys that clients have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What every client's configuration has; sizes in bytes, times in ms. Fields have the names of Kafka's keys."""

    bootstrap_resolve_timeout_ms: int
    """0: each call ends with its own timeout."""
    bootstrap_servers: tuple[str, ...]
    client_id: str
    connections_max_idle_ms: int
    enable_metrics_push: bool
    metadata_max_age_ms: int
    rebootstrap_trigger_ms: int
    may_rebootstrap: bool
    checks_cluster: bool
    """Whether connections name the cluster and the node that they are for (KIP-1242)."""
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    connection_setup_timeout_ms: int
    connection_setup_timeout_max_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    values: Mapping[str, Value]
    """All keys."""


C = TypeVar("C", bound=ClientConfig)
_SENT: Final = ("client.id", "client.rack", "group.id", "group.instance.id", "transactional.id")
"""Keys of clients whose values are strings in requests."""


def made(kind: type[C], values: Mapping[str, Value], **own: Any) -> C:
    """A client's configuration, of the values of all keys. A field has the value of the key of its name; `own` are
    those that have none. Raises `InvalidConfig` for a name that cannot be sent."""
    at = cast(Mapping[str, Any], values)
    for key in _SENT:
        try:
            (at.get(key) or "").encode()
        except UnicodeEncodeError:  # bytes of a command line, as Python keeps them
            raise invalid_value(key, at[key], "it is not UTF-8") from None
    own |= {
        "rebootstrap_trigger_ms": at["metadata.recovery.rebootstrap.trigger.ms"],
        "may_rebootstrap": at["metadata.recovery.strategy"].lower() == "rebootstrap",
        "checks_cluster": at["metadata.cluster.check.enable"],
        "connection_setup_timeout_ms": at["socket.connection.setup.timeout.ms"],
        "connection_setup_timeout_max_ms": at["socket.connection.setup.timeout.max.ms"],
        "values": values,
    }
    named = {each.name: at[each.name.replace("_", ".")] for each in fields(kind) if each.name not in own}
    return kind(**named, **own)


def gather(
    table: Definition, given: Mapping[str, object] | None, keywords: Mapping[str, object]
) -> tuple[dict[str, Value], dict[str, object]]:
    """Every key's value, and the values as they were given, by Kafka's key. Values that are neither text, number,
    boolean nor list (a serializer, a partitioner) are in the second only. Raises `InvalidConfig`."""
    raw: dict[str, object] = {}
    for name, value in (given or {}).items():
        if name not in table:
            raise _unknown(table, name, name)
        raw[name] = value
    for keyword, value in keywords.items():
        name = keyword.replace("_", ".")
        if name not in table:
            raise _unknown(table, keyword, name)
        if name in raw and raw[name] != value:
            raise InvalidConfig(
                f"{name} is given twice: {raw[name]!r} in the mapping, {value!r} as the keyword {keyword}; give one"
            )
        raw[name] = value
    texts = {name: text for name, value in raw.items() if (text := _as_text(table[name], value)) is not None}
    return table.parse(texts), raw


def _as_text(key: Key, value: object) -> str | None:
    """The value as in a properties file; None where it is absent, or is an object that stands for a class."""
    if value is None:
        return None
    if isinstance(value, bool | int | float | str):
        return to_text(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if key.type is CLASS or key.name == "interceptor.classes":
        return None
    raise InvalidConfig(f"Invalid value {value!r} for configuration {key.name}: a {key.type.name.lower()} is expected")


def _unknown(table: Definition, given: str, name: str) -> InvalidConfig:
    from difflib import get_close_matches

    if (why := counterpart(given)) is not None:
        return InvalidConfig(f"there is no configuration {given}: {why}")
    near = get_close_matches(name, table.names(), 1, 0.0)
    return InvalidConfig(f"there is no configuration {given}; the nearest is {near[0]}")


_LIBRDKAFKA: Final = {
    "auto.commit.enable": "enable.auto.commit",
    "batch.num.messages": "batch.size, which is in bytes",
    "compression.codec": "compression.type",
    "consume.callback.max.messages": "max.poll.records",
    "fetch.error.backoff.ms": "retry.backoff.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.queue.backoff.ms": "fetch.max.wait.ms",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "partitioner": "partitioner.class",
    "queue.buffering.max.ms": "linger.ms",
    "queued.max.messages.kbytes": "fetch.max.bytes, which is in bytes",
    "queued.min.messages": "max.poll.records",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}
LOGIN: Final = (
    "give sasl.jaas.config, such as org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="secret";'
)
"""What to do for a login, where its line is missing."""
_STORES: Final = {
    "ca": "give the file as ssl.truststore.location, with ssl.truststore.type=PEM",
    "own": "give one file with the key and the certificates as ssl.keystore.location, with ssl.keystore.type=PEM",
}
_LOGS = "clients log by Python's logging, below the name kalda"
_LIBRDKAFKA_ADVICE: Final = {
    "api.version.request": "versions are always negotiated; leave it out",
    "broker.version.fallback": "versions are always negotiated; leave it out",
    "compression.level": "give compression.gzip.level, compression.lz4.level or compression.zstd.level",
    "debug": _LOGS,
    "delivery.report.only.error": "give on_delivery to send, or use the future that it returns",
    "dr_cb": "give on_delivery to send, or use the future that it returns",
    "enable.auto.offset.store": "give enable.auto.commit=false, and commit what is processed with commit(record) or "
    "commit({(topic, partition): offset})",
    "enable.partition.eof": "compare position() with end_offsets()",
    "enable.ssl.certificate.verification": "certificates are always verified; an empty "
    "ssl.endpoint.identification.algorithm switches off the check of the host name alone",
    "error_cb": _LOGS,
    "log_cb": _LOGS,
    "log_level": _LOGS,
    "logger": _LOGS,
    "on_delivery": "give on_delivery to send, or use the future that it returns",
    "queue.buffering.max.kbytes": "give buffer.memory, which is in bytes",
    "queue.buffering.max.messages": "give buffer.memory, which bounds the bytes that wait",
    "sasl.password": LOGIN,
    "sasl.username": LOGIN,
    "socket.keepalive.enable": "it has no counterpart; leave it out",
    "socket.nagle.disable": "Nagle's algorithm is always off; leave it out",
    "ssl.ca.location": _STORES["ca"],
    "ssl.certificate.location": _STORES["own"],
    "ssl.key.location": _STORES["own"],
    "statistics.interval.ms": "metrics() returns them at any time",
    "stats_cb": "metrics() returns them at any time",
    "sticky.partitioning.linger.ms": "it has no counterpart; leave it out",
}
_KAFKA_PYTHON: Final = {
    "api.version": "versions are always negotiated; leave it out",
    "consumer.timeout.ms": "poll has a timeout, in seconds",
    "retry.backoff.jitter": "it has no counterpart; leave it out",
    "sasl.plain.password": LOGIN,
    "sasl.plain.username": LOGIN,
    "ssl.cafile": _STORES["ca"],
    "ssl.certfile": _STORES["own"],
    "ssl.check.hostname": "give ssl.endpoint.identification.algorithm, empty for no check",
    "ssl.keyfile": _STORES["own"],
}
_OFFSET_RESETS: Final = {
    "beginning": "earliest",
    "smallest": "earliest",
    "end": "latest",
    "largest": "latest",
    "error": "none",
}


def counterpart(name: str) -> str | None:
    """What Kalda has for the key `name` of another client, as the rest of a sentence; None where none has it."""
    dotted = name.replace("_", ".")
    for given in (name, dotted):
        if given in _LIBRDKAFKA:
            return f"it is librdkafka's name for {_LIBRDKAFKA[given]}"
        if given in _LIBRDKAFKA_ADVICE:
            return f"it is librdkafka's; {_LIBRDKAFKA_ADVICE[given]}"
        if given in _KAFKA_PYTHON:
            return f"it is kafka-python's; {_KAFKA_PYTHON[given]}"
    return None


def offset_reset_counterpart(policy: str) -> str | None:
    """Kafka's name for a value of `auto.offset.reset` that librdkafka takes too."""
    return _OFFSET_RESETS.get(policy)
