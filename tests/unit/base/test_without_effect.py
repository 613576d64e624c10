"""Every key is either read somewhere in the source, or has a reason why it has no effect."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import kalda
from kalda.base.configs.broker import BROKER, DYNAMIC, DYNAMIC_ONLY
from kalda.base.configs.topic import BROKER_SYNONYMS, TOPIC
from kalda.base.configs.without_effect import (
    _ONLY_AT_START,
    _REASONS,
    _TOPIC_REASONS,
    idle_changes,
    idle_properties,
    idle_topic_changes,
    reason,
    reason_of_topic,
)
from kalda.storage.config import LogConfig

SOURCE = Path(kalda.__file__).parent
READERS = ("addresses.py", "server.py")
"""The modules of `base/configs` that read values. The others have tables and checks only."""
TOOLS = ("cli", "client", "clientcore", "sim", "spark", "testing")
"""Packages that set keys of nodes, and read none."""
CHECKED_ONLY = {"remote.log.storage.system.enable"}
DEFAULTS_OF_TOPICS = {name: key for key, sources in BROKER_SYNONYMS.items() for name, _ in sources}


@cache
def quoted() -> frozenset[str]:
    """All string literals in the node's source that may be keys."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        where = path.relative_to(SOURCE)
        if where.parts[0] in TOOLS or (where.parts[:2] == ("base", "configs") and where.name not in READERS):
            continue
        found.update(re.findall(r'"([a-z][a-z.]*[a-z])"', path.read_text()))
    return frozenset(found)


def is_read_of_topic(name: str) -> bool:
    return name.replace(".", "_") in LogConfig._fields or name in quoted()


def is_read(name: str) -> bool:
    if name in DEFAULTS_OF_TOPICS and reason_of_topic(DEFAULTS_OF_TOPICS[name]) is None:
        return is_read_of_topic(DEFAULTS_OF_TOPICS[name])
    return name in quoted() and name not in CHECKED_ONLY


@pytest.mark.parametrize("name", sorted(key.name for table in (BROKER, DYNAMIC_ONLY) for key in table))
def test_a_broker_key_is_read_or_has_a_reason(name: str) -> None:
    assert is_read(name) is (reason(name) is None)


@pytest.mark.parametrize("name", TOPIC.names())
def test_a_topic_key_is_read_or_has_a_reason(name: str) -> None:
    assert is_read_of_topic(name) is (reason_of_topic(name) is None) or name == "remote.storage.enable"


def test_every_reason_holds_for_a_key() -> None:
    """For a key that is misspelled in these tables no reason would ever be found."""
    brokers, topics = {*BROKER.names(), *DYNAMIC_ONLY.names()}, set(TOPIC.names())
    tables = ((brokers, _REASONS), (topics, _TOPIC_REASONS))
    for valid, reasons in tables:
        for key in (each for keys in reasons.values() for each in keys):
            assert any(name.startswith(key) if key.endswith(".") else name == key for name in valid), key
    assert set(_ONLY_AT_START) <= DYNAMIC


def test_values_equal_to_the_default_are_not_reported() -> None:
    assert idle_properties({"num.io.threads": "8", "log.preallocate": "false", "node.id": "1", "who.knows": "x"}) == {}
    ((why, names),) = idle_properties({"num.io.threads": "9", "log.retention.ms": "5"}).items()
    assert names == ["num.io.threads"]
    assert "one thread" in why
    listener = "listener.name.external.ssl.provider"
    assert list(idle_properties({listener: "BC"}).values()) == [[listener]]


def test_keys_that_every_file_of_kafka_sets_are_not_reported() -> None:
    stock = {"transaction.state.log.replication.factor": "1", "share.coordinator.state.topic.min.isr": "1"}
    assert idle_properties(stock) == {}


def test_dynamic_changes() -> None:
    changes = {"num.io.threads": "8", "background.threads": "4", "log.cleaner.threads": None, "message.max.bytes": "9"}
    found = idle_changes(changes)
    assert sorted(found.values()) == [["background.threads"], ["num.io.threads"]]
    assert any("when a node starts" in why for why in found)


def test_a_topics_configs() -> None:
    changes = {"preallocate": "true", "remote.storage.enable": "false", "retention.ms": "1", "local.retention.ms": None}
    assert list(idle_topic_changes(changes).values()) == [["preallocate"]]
