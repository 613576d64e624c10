"""Keys that Kafka does not have. All begin with `kalda.`, so that no later release of Kafka can define the same key."""

from __future__ import annotations

from kalda.base.configs.definition import BOOLEAN, INT, LIST, LONG, STRING, AtLeast, Items, Key, OneOf

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
