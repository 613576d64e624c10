"""What Kalda's clients have for keys that other clients call differently: librdkafka's, and kafka-python's keywords.

A client refuses a key that it does not have. Where another client has it, the error says what to give in its place.
"""

from __future__ import annotations

from typing import Final

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
