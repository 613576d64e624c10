"""An assignor of consumer groups in Python, on a node: it is used, and loaded again when its file changes."""

from __future__ import annotations

from os import utime
from pathlib import Path
from typing import Any

import pytest
from harness.blocking import BlockingConnection

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.groups import ConsumerGroupHeartbeatRequest, FindCoordinatorRequest
from kalda.testing import Cluster
from waiting import wait_until

ASSIGNOR = '''
class Mine:
    """The first member gets one partition of each topic."""

    name = "mine"

    def assign(self, spec):
        yield from ()
        first = min(spec.members)
        return {each: dict.fromkeys(spec.topics, frozenset({ONLY})) if each == first else {} for each in spec.members}
'''
_SECOND_NS = 1_700_000_000_000_000_000


class Member:
    """Of the group `g`, by raw heartbeats."""

    def __init__(self, connection: BlockingConnection, member_id: str) -> None:
        self._connection = connection
        self._id = member_id
        self._epoch = 0
        self.partitions: list[int] = []

    def beat(self) -> list[int]:
        """What it has afterwards. It gives back at once what it is to give back."""
        owned: list[Any] | None = [] if self._epoch == 0 else None
        while (assigned := self._send(owned)) is not None:
            self.partitions = [number for topic in assigned for number in topic.partitions]
            owned = assigned
        return self.partitions

    def _send(self, owned: list[Any] | None) -> list[Any] | None:
        """What is assigned to it; None where that is as before."""
        answer = self._connection.request(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=self._id,
                member_epoch=self._epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["t"],
                server_assignor="mine",
                topic_partitions=owned,
            )
        )
        if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return None
        assert not answer.error_code, answer
        self._epoch = answer.member_epoch
        now = None if answer.assignment is None else answer.assignment.topic_partitions
        return None if now == owned else now


def test_an_assignor_in_python_is_loaded_anew_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def put(source: str, modified_ns: int) -> None:
        """Replace the file at once."""
        written = tmp_path / "written"
        written.write_text(ASSIGNOR + source)
        utime(written, ns=(modified_ns, modified_ns))
        written.replace(tmp_path / "our_assignors.py")

    caplog.set_level("INFO", "kalda.classes")
    put("ONLY = 2\n", _SECOND_NS)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"group.consumer.assignors": "our_assignors:Mine,uniform", "group.consumer.assignment.interval.ms": "0"}
    with Cluster(config=config) as cluster:
        cluster.create_topic("t", partitions=4)
        host, port = cluster.bootstrap_servers.split(":")
        with BlockingConnection(host, int(port)) as connection:
            find = FindCoordinatorRequest(coordinator_keys=["g"])
            wait_until(lambda: not connection.request(find).coordinators[0].error_code, "the group has a coordinator")
            first = Member(connection, "a")
            wait_until(lambda: first.beat() == [2], "the first target")
            put("ONLY = \n", _SECOND_NS + 1)
            wait_until(lambda: "cannot be loaded" in caplog.text, "the file is refused")
            put("ONLY = 3\n", _SECOND_NS + 2)
            wait_until(lambda: "loaded anew" in caplog.text, "the file is loaded")
            assert first.beat() == [2], "a new class by itself rebalances nothing"
            second = Member(connection, "b")
            second.beat()
            wait_until(lambda: first.beat() == [3], "the target by the new class")
