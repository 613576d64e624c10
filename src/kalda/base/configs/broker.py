"""The table of broker and controller keys, and what makes a key's value dynamic.

A key may have synonyms: several keys for one value, in order of precedence and perhaps in other units. It may be
overridden for one listener as `listener.name.<listener>.<key>` (KIP-103), which counts as a synonym before the key.
"""

from __future__ import annotations

import re

from kalda.base.configs.broker_groups import GROUPS_KEYS
from kalda.base.configs.broker_kalda import KALDA_KEYS
from kalda.base.configs.broker_log import LOG_KEYS
from kalda.base.configs.broker_node import NODE_KEYS
from kalda.base.configs.broker_quorum import QUORUM_KEYS
from kalda.base.configs.broker_replication import DYNAMIC_ONLY_KEYS, REPLICATION_KEYS
from kalda.base.configs.broker_security import SECURITY_KEYS
from kalda.base.configs.broker_share import SHARE_KEYS
from kalda.base.configs.broker_tiering import TIERING_KEYS
from kalda.base.configs.broker_transactions import TRANSACTIONS_KEYS
from kalda.base.configs.definition import PER_BROKER, READ_ONLY, Definition, Key

BROKER = Definition(
    sorted(
        (
            *GROUPS_KEYS,
            *KALDA_KEYS,
            *LOG_KEYS,
            *NODE_KEYS,
            *QUORUM_KEYS,
            *REPLICATION_KEYS,
            *SECURITY_KEYS,
            *SHARE_KEYS,
            *TIERING_KEYS,
            *TRANSACTIONS_KEYS,
        )
    )
)
DYNAMIC_ONLY = Definition(DYNAMIC_ONLY_KEYS)
"""Keys that exist only as dynamic configs: replication throttles."""

DYNAMIC = frozenset(key.name for key in (*BROKER, *DYNAMIC_ONLY) if key.update is not READ_ONLY)
PER_BROKER_ONLY = frozenset(key.name for key in BROKER if key.update is PER_BROKER)
CLUSTER_LEVEL_LISTENER = frozenset({"max.connection.creation.rate", "max.connections", "num.network.threads"})
"""Keys that may be set for a listener of the whole cluster."""
LISTENER_SECURITY = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Keys that change dynamically only with a listener's prefix."""

_SYNONYM_GROUPS = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
_SYNONYMS = {name: group for group in _SYNONYM_GROUPS for name in group} | {
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
}
_LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)
_MECHANISM_KEYS = (
    "connections.max.reauth.ms",
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)


def base_name(name: str) -> str:
    """The key without the prefix of its listener and of its SASL mechanism."""
    found = _LISTENER_PREFIX.fullmatch(name)
    if found is None:
        return name
    base = found.group(1)
    for key in _MECHANISM_KEYS:
        if base.endswith("." + key):
            return key
    return base


def has_listener_prefix(name: str) -> bool:
    """True of `listener.name.<listener>.<key>`."""
    return _LISTENER_PREFIX.fullmatch(name) is not None


def find_key(name: str) -> Key | None:
    """The key of a name, with or without a listener's prefix; None where it is unknown."""
    base = base_name(name)
    return BROKER.get(base) or DYNAMIC_ONLY.get(base)


def synonyms(name: str, match_listener: bool = True) -> tuple[str, ...]:
    """The names under which a value is looked up, in order of precedence."""
    if match_listener and has_listener_prefix(name):
        return (name, base_name(name))
    return _SYNONYMS.get(name, (name,))


def is_dynamic(name: str) -> bool:
    """True where the value may change without a restart. `name` has no listener prefix, as in Kafka's own check."""
    return name in DYNAMIC


def is_sensitive(name: str) -> bool:
    """True where the value is never shown: that of a password, and of a key that is in no table."""
    key = find_key(name)
    return key is None or key.sensitive
