"""No key is taken in silence: it is read somewhere, or a reason is given why it has no effect."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import kalda
from kalda.base.configs.broker import BROKER, DYNAMIC, DYNAMIC_ONLY
from kalda.base.configs.topic import BROKER_SYNONYMS, TOPIC
from kalda.base.configs.without_effect import (
    _NOT_WHILE_RUNNING,
    _OF_TOPICS_NEVER_MADE,
    _WHY,
    _WHY_OF_TOPICS,
    idle_changes,
    idle_properties,
    idle_topic_changes,
    reason,
    reason_of_topic,
)
from kalda.storage.config import LogConfig

SOURCE = Path(kalda.__file__).parent
READERS = ("listeners.py", "server_values.py")
"""Of the modules of configs, those that read values for others; the rest only has tables and checks."""
TOOLS = ("cli", "client", "sim", "spark", "testing")
"""They set keys of nodes, and read none."""
CHECKED_ONLY = {"early.start.listeners", "remote.log.storage.system.enable"}
DEFAULTS_OF_TOPICS = {name: key for key, sources in BROKER_SYNONYMS.items() for name, _ in sources}


@cache
def quoted() -> frozenset[str]:
    """All texts in the node's source that may be keys."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        where = path.relative_to(SOURCE)
        if where.parts[0] in TOOLS or (where.parts[:2] == ("base", "configs") and where.name not in READERS):
            continue
        found.update(re.findall(r'"([a-z][a-z.]*[a-z])"', path.read_text()))
    return frozenset(found)


def is_read_of_topic(name: str) -> bool:
    return name.replace(".", "_") in LogConfig.__dataclass_fields__ or name in quoted()


def is_read(name: str) -> bool:
    if name in DEFAULTS_OF_TOPICS and reason_of_topic(DEFAULTS_OF_TOPICS[name]) is None:
        return is_read_of_topic(DEFAULTS_OF_TOPICS[name])
    return name in quoted() and name not in CHECKED_ONLY


@pytest.mark.parametrize("name", sorted(key.name for table in (BROKER, DYNAMIC_ONLY) for key in table))
def test_a_brokers_key_is_read_or_said_to_do_nothing(name: str) -> None:
    if not name.startswith(_OF_TOPICS_NEVER_MADE):
        assert is_read(name) is (reason(name) is None)


@pytest.mark.parametrize("name", TOPIC.names())
def test_a_topics_key_is_read_or_said_to_do_nothing(name: str) -> None:
    assert is_read_of_topic(name) is (reason_of_topic(name) is None) or name == "remote.storage.enable"


def test_every_reason_holds_for_a_key() -> None:
    """A key that is spelled wrong here would be one that nobody is told of."""
    brokers, topics = {*BROKER.names(), *DYNAMIC_ONLY.names()}, set(TOPIC.names())
    for known, reasons in ((brokers, _WHY), (brokers, {"": _OF_TOPICS_NEVER_MADE}), (topics, _WHY_OF_TOPICS)):
        for key in (each for keys in reasons.values() for each in keys):
            assert any(name.startswith(key) if key.endswith(".") else name == key for name in known), key
    assert set(_NOT_WHILE_RUNNING) <= DYNAMIC


def test_only_what_differs_from_its_default_is_worth_a_word() -> None:
    assert idle_properties({"num.io.threads": "8", "log.preallocate": "false", "node.id": "1", "who.knows": "x"}) == {}
    ((why, names),) = idle_properties({"num.io.threads": "9", "log.retention.ms": "5"}).items()
    assert names == ["num.io.threads"]
    assert "one thread" in why
    listener = "listener.name.external.ssl.keystore.location"
    assert list(idle_properties({listener: "/keys"}).values()) == [[listener]]


def test_what_every_file_of_kafkas_sets_misleads_nobody() -> None:
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
