"""Eight members of a group copy a topic while one after the other is killed and replaced.

Without transactions every record is copied at least once, with transactions exactly once. `KALDA_REBALANCES` is the
number of kills, 3 by default.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_node import LoneNode

import kalda
from kalda.client.admin.topics import NewTopic

pytestmark = pytest.mark.compat
MEMBER = Path(__file__).with_name("copying_member.py")
MEMBERS = PARTITIONS = 8
ROUNDS = int(os.environ.get("KALDA_REBALANCES", "3"))
RECORDS_A_ROUND = 200
ROUND_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    settings = {
        "group.min.session.timeout.ms": 1_000,
        "group.initial.rebalance.delay.ms": 0,
        "transaction.state.log.num.partitions": 4,
        "offsets.topic.num.partitions": 4,
    }
    with LoneNode(tmp_path_factory.mktemp("eight"), settings) as running:
        running.format()
        running.start()
        yield running


class Members:
    """The processes, by their place."""

    def __init__(self, servers: str, name: str, is_transactional: bool, log: Path) -> None:
        self._arguments = [sys.executable, str(MEMBER), servers, f"{name}-group", f"{name}-in", f"{name}-out"]
        self._name = name
        self._is_transactional = is_transactional
        self._log = log
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, place: int) -> None:
        own = [f"{self._name}-{place}"] if self._is_transactional else []
        source = str(Path(kalda.__file__).parents[1])
        with self._log.open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": source}
            self._processes[place] = subprocess.Popen([*self._arguments, *own], stderr=log, env=environment)

    def kill(self, place: int) -> None:
        process = self._processes.pop(place)
        process.kill()
        process.wait()

    def replace_ended(self) -> None:
        """Members that were fenced have ended."""
        for place, process in list(self._processes.items()):
            if process.poll() is not None:
                self.start(place)

    def stop(self) -> None:
        for place in list(self._processes):
            self.kill(place)


def copied(consumer: kalda.Consumer, found: Counter[bytes], expected: int, members: Members) -> None:
    """Read copies until there are `expected` different ones."""
    until_s = time.monotonic() + ROUND_S
    while len(found) < expected:
        assert time.monotonic() < until_s, f"{len(found)} of {expected} records were copied"
        found.update(record.value for record in consumer.poll(0.2))
        members.replace_ended()


@pytest.mark.parametrize("is_transactional", [False, True], ids=["at-least-once", "exactly-once"])
def test_every_record_is_copied(is_transactional: bool, node: LoneNode, tmp_path: Path) -> None:
    rng, found = random.Random(8), Counter[bytes]()
    name = f"eight-{is_transactional}"
    with kalda.Admin(bootstrap_servers=node.address) as admin:
        admin.create_topics([NewTopic(f"{name}-{end}", PARTITIONS, 1) for end in ("in", "out")]).check()
    members = Members(node.address, name, is_transactional, tmp_path / "members.log")
    reading = {"bootstrap.servers": node.address, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    sent = 0
    try:
        for place in range(MEMBERS):
            members.start(place)
        with kalda.Producer(bootstrap_servers=node.address) as producer, kalda.Consumer(reading) as consumer:
            consumer.assign([(f"{name}-out", partition) for partition in range(PARTITIONS)])
            for _ in range(ROUNDS):
                before = sent
                for sent in range(before + 1, before + RECORDS_A_ROUND + 1):
                    producer.send(f"{name}-in", b"%d" % sent, partition=sent % PARTITIONS)
                copied(consumer, found, before + RECORDS_A_ROUND // 4, members)
                place = rng.randrange(MEMBERS)
                members.kill(place)
                members.start(place)
                copied(consumer, found, sent, members)
            found.update(record.value for record in consumer.poll(1.0))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'members.log').read_text()[-3_000:]}") from error
    finally:
        members.stop()
    assert found.keys() == {b"%d" % number for number in range(1, sent + 1)}
    if is_transactional:
        assert {value: count for value, count in found.items() if count > 1} == {}
