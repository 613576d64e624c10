"""Keys that Kafka does not have. All begin with `kalda.`, so that no later release of Kafka can define the same key."""

from __future__ import annotations

from kalda.base.configs.definition import BOOLEAN, STRING, Key, OneOf

KALDA_KEYS = (
    Key("kalda.dead.process.detection.enable", BOOLEAN, True),
    Key("kalda.validate.records", STRING, "all", OneOf("all", "uncompressed", "none")),
)
