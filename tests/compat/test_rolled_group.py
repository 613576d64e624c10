"""Members of a group roll from the classic protocol to that of KIP-848 and back, while records flow: none is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from lone_node import LoneNode

from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.topics import NewTopic
from waiting import wait_until

pytestmark = pytest.mark.compat

MEMBERS = 3
PARTITIONS = 6


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[LoneNode]:
    """A node on which members of both protocols notice a rebalance at once."""
    config = {
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.heartbeat.interval.ms": 100,
        "group.consumer.assignment.interval.ms": 0,
    }
    with LoneNode(tmp_path / "kalda", config) as node:
        node.format()
        node.start()
        yield node
        node.stop()


class Reader:
    """A consumer in a thread of its own, until it is closed, which commits what it has read."""

    def __init__(self, address: str, protocol: str, seen: dict[bytes, int]) -> None:
        settings: dict[str, object] = {
            "bootstrap.servers": address,
            "group.id": "rolled",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "client.id": protocol,
        }
        if protocol == "classic":
            settings |= {"heartbeat.interval.ms": 100, "session.timeout.ms": 10_000}
        self._consumer = Consumer(settings)
        self._seen = seen
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._consumer.subscribe(["flow"])
        self._thread.start()

    def _read(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                value = bytes(message.value() or b"")
                self._seen[value] = self._seen.get(value, 0) + 1
        self._consumer.close()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()


class Writer:
    """Writes numbered records in a thread, until it is closed."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
        self.acknowledged: set[bytes] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stopping.is_set():
            value = b"%d" % number
            self._producer.produce("flow", value, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
            time.sleep(0.002)
        self._producer.flush()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add(bytes(message.value() or b""))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()


def test_none_is_lost_while_members_roll_both_ways(quick: LoneNode) -> None:
    seen: dict[bytes, int] = {}
    with CommandAdmin(quick.address) as admin:
        admin.create_topics([NewTopic("flow", PARTITIONS, 1)]).check()
        readers = [Reader(quick.address, "classic", seen) for _ in range(MEMBERS)]
        writer = Writer(quick.address)
        kinds = []

        def is_settled() -> bool:
            group = admin.describe_groups(["rolled"]).succeeded.get("rolled")
            if group is None:
                return False
            owned = [partition for member in group.members for partition in member.partitions]
            return group.state == "Stable" and len(group.members) == MEMBERS and len(set(owned)) == PARTITIONS

        try:
            wait_until(is_settled)
            for protocol in ("consumer", "classic"):
                for place in range(MEMBERS):
                    readers[place].close()
                    readers[place] = Reader(quick.address, protocol, seen)
                    wait_until(is_settled)
                    kinds.append(admin.describe_groups(["rolled"]).value("rolled").type)
            writer.close()
            wait_until(lambda: writer.acknowledged <= seen.keys())
        finally:
            writer.close()
            for reader in readers:
                reader.close()
    assert kinds == ["consumer"] * 5 + ["classic"]
    assert len(writer.acknowledged) > 100
