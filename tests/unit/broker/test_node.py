"""What a node says of its properties before it starts."""

from __future__ import annotations

import pytest

from kalda.base.configs.server import ServerConfig
from kalda.broker.node import _warn_of_properties

MINIMAL = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/nowhere",
}


def warnings(caplog: pytest.LogCaptureFixture, **more: str) -> list[str]:
    _warn_of_properties(ServerConfig({**MINIMAL, **{key.replace("_", "."): value for key, value in more.items()}}))
    return [record.getMessage() for record in caplog.records]


def test_usual_properties_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog) == []


def test_an_unknown_property_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, my_own_key="1") == ["property my.own.key is not known"]


def test_nobody_is_left_to_believe_that_acls_are_enforced(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = warnings(caplog, authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    assert "enforces no ACLs" in line
