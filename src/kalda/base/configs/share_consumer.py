"""The share consumer's config keys (KIP-932), and its configuration as values.

Its keys are the consumer's, without those of positions and of other kinds of groups, and two of its own. Of what the
group decides for all its members, such as where it begins, a share consumer has no keys: they are the group's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from kalda.base.configs import client
from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.definition import STRING, Definition, InvalidConfig, Key, OneOfAnyCase
from kalda.base.share_states import AcquireMode

_BY_GROUP: Final = {
    "auto.offset.reset": "share.auto.offset.reset",
    "heartbeat.interval.ms": "share.heartbeat.interval.ms",
    "isolation.level": "share.isolation.level",
    "session.timeout.ms": "share.session.timeout.ms",
}
"""The consumer's keys that are the group's here, and how they are called there."""
_OF_OTHER_GROUPS: Final = (
    "auto.commit.interval.ms",
    "enable.auto.commit",
    "exclude.internal.topics",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "interceptor.classes",
    "max.partition.fetch.bytes",
    "partition.assignment.strategy",
)
KEYS = (
    Key("share.acknowledgement.mode", STRING, "implicit", OneOfAnyCase("IMPLICIT", "EXPLICIT")),
    Key("share.acquire.mode", STRING, "batch_optimized", OneOfAnyCase("BATCH_OPTIMIZED", "RECORD_LIMIT")),
)
SHARE_CONSUMER = Definition(
    sorted((*(key for key in CONSUMER if key.name not in _BY_GROUP and key.name not in _OF_OTHER_GROUPS), *KEYS))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerConfig(client.ClientConfig):
    """A share consumer's configuration; sizes in bytes, times in ms. Fields have the names of Kafka's keys."""

    client_rack: str
    allow_auto_create_topics: bool
    check_crcs: bool
    default_api_timeout_ms: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str
    is_explicit: bool
    """`share.acknowledgement.mode=explicit`."""
    acquire_mode: AcquireMode
    max_poll_interval_ms: int
    max_poll_records: int
    given: Mapping[str, object]
    """The keys that were given, with the values as they were given: objects for deserializers and the like."""


def share_consumer_config(given: Mapping[str, object] | None, keywords: Mapping[str, object]) -> ShareConsumerConfig:
    """The configuration of a mapping and keywords. Raises `InvalidConfig`."""
    for name in (*(given or {}), *(keyword.replace("_", ".") for keyword in keywords)):
        if name in _BY_GROUP:
            raise InvalidConfig(
                f"{name} cannot be set for a share consumer: the group decides it, by its configuration "
                f"{_BY_GROUP[name]} (kalda configs)"
            )
        if name in _OF_OTHER_GROUPS:
            raise InvalidConfig(f"{name} cannot be set for a share consumer: it is of other consumers")
    values, raw = client.gather(SHARE_CONSUMER, given, keywords)
    at = cast(Mapping[str, Any], values)
    if not at["bootstrap.servers"]:
        raise InvalidConfig("bootstrap.servers is missing: host:port pairs of some brokers are expected")
    if at["group.id"] is None:
        raise InvalidConfig("group.id is missing: a share consumer is a member of a share group")
    return client.made(
        ShareConsumerConfig,
        values,
        is_explicit=at["share.acknowledgement.mode"].lower() == "explicit",
        acquire_mode=AcquireMode[at["share.acquire.mode"].upper()],
        given=raw,
    )
