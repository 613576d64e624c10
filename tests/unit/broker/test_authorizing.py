"""A node's authorizer: fed by the metadata, or an operator's own class that is loaded anew."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.configs.server import ServerConfig
from kalda.broker.requests.node_authorizer import STANDARD, NodeAuthorizer
from kalda.metadata.image import EMPTY, MetadataDelta, Provenance
from kalda.protocol.access import Caller
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kalda.protocol.messages.security import AclOperation, AclResourceType

READ, TOPIC = AclOperation.READ, AclResourceType.TOPIC
ALICE = Caller(principal="User:alice", client_host="10.0.0.1")
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}


class Hand:
    """Timers and jobs that run when the test says so."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later_ms(self, delay_ms: int, action: Any) -> Any:
        self.due.append(action)
        return SimpleNamespace(cancel=lambda: None)

    def run(self, work: Any, finish: Any) -> None:
        finish(work(), None)

    def fire(self) -> None:
        due, self.due = self.due, []
        for action in due:
            action()


def node_authorizer(path: str, hand: Hand, **more: str) -> NodeAuthorizer:
    config = ServerConfig({**PROPERTIES, "authorizer.class.name": path, **more})
    found = NodeAuthorizer.of(config, hand, hand)  # type: ignore[arg-type]
    assert found is not None
    return found


def record(number: int, permission: int = 3) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=number.to_bytes(16, "big"),
        resource_type=TOPIC,
        resource_name="t",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=READ,
        permission_type=permission,
    )


def test_every_image_is_the_base_of_the_decisions_after_it() -> None:
    """Entries come and go between requests: each decision is one of the newest image, however often it was made
    before."""
    authorizer = node_authorizer(STANDARD, Hand())
    decisions = authorizer.authorizer
    loaded: list[bool] = []
    authorizer.when_loaded(lambda: loaded.append(True))
    image, denies = EMPTY, False
    for offset in range(1, 60):
        delta = MetadataDelta(image)
        if offset == 1:
            delta.replay(record(1))
        elif offset % 3 == 0:
            denies = not denies
            removed = RemoveAccessControlEntryRecord(id=(2).to_bytes(16, "big"))
            delta.replay(record(2, 2) if denies else removed)
        image = delta.apply(Provenance(offset, 1, 0, True))
        authorizer.on_metadata_update(delta, image, None)  # type: ignore[arg-type]
        for _ in range(2):
            assert decisions.allows(ALICE, READ, TOPIC, "t", False) is not denies
    assert loaded == [True]


def test_a_listener_that_waits_for_the_entries() -> None:
    authorizer = node_authorizer(STANDARD, Hand())
    opened: list[str] = []
    authorizer.when_loaded(lambda: opened.append("gate"))
    assert opened == []
    authorizer.on_metadata_update(MetadataDelta(EMPTY), EMPTY, None)  # type: ignore[arg-type]
    assert opened == ["gate"]


SOURCE = """
class Mine:
    def configure(self, configs):
        self.name = configs["our.topic"]
    def authorize(self, request, actions):
        return [{decision} for action in actions]
"""


def test_a_changed_class_is_loaded_anew_and_a_broken_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "authorizer_that_changes.py"

    def write(text: str, when: int) -> None:
        file.write_text(text)
        os.utime(file, ns=(when, when))
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    write(SOURCE.format(decision="action.resource_name == self.name"), 10**18)
    hand = Hand()
    found = node_authorizer("authorizer_that_changes.Mine", hand, **{"our.topic": "t", "super.users": "User:root"})
    found.start()
    allows = found.authorizer.allows
    assert allows(ALICE, READ, TOPIC, "t")
    assert not allows(ALICE, READ, TOPIC, "u")
    assert allows(Caller(principal="User:root"), READ, TOPIC, "u")
    write("this is no Python", 10**18 + 1)
    hand.fire()
    assert allows(ALICE, READ, TOPIC, "t")
    assert "The former one stays" in caplog.text
    # Of the length, and in the second, of the first one, whose bytecode Python has kept.
    write(
        SOURCE.format(decision="action.resource_name == 'u'".ljust(len("action.resource_name == self.name"))),
        10**18 + 2,
    )
    hand.fire()
    assert allows(ALICE, READ, TOPIC, "u")
    write(SOURCE.format(decision="1 // 0"), 10**18 + 3)
    hand.fire()
    assert not allows(ALICE, READ, TOPIC, "u")
    assert "is denied" in caplog.text
    assert not found.authorizer.allows_on_any(ALICE, READ, TOPIC)


@pytest.mark.parametrize("path", ["kafka.security.authorizer.AclAuthorizer", "org.example.Mine", "plain"])
def test_a_class_that_cannot_be_used_stops_the_start(path: str) -> None:
    with pytest.raises(ValueError, match=r"authorizer\.class\.name"):
        node_authorizer(path, Hand())
