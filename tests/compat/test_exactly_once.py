"""Exactly once from topic to topic, through processes and nodes that are killed and stopped.

Eight processes copy a topic over three nodes. In each round a node or a process is killed (SIGKILL) or stopped for a
while (SIGSTOP, then SIGCONT), which makes zombies of processes. After each round no transaction hangs: the last stable
offsets reach the high watermarks within the transactions' timeout. At the end every input is in the output once, in
order. `KALDA_EXACTLY_ONCE_ROUNDS` and `KALDA_EXACTLY_ONCE_SEED` choose the faults.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec
from copying_worker import TRANSACTION_TIMEOUT_S
from node_cluster import NodeCluster
from transactional_clients import made, visible, waited_for

pytestmark = pytest.mark.compat

ROUNDS = int(os.environ.get("KALDA_EXACTLY_ONCE_ROUNDS", "2"))
WORKERS = 8
PARTITIONS = 4
ABORT_INTERVAL_S = 1
FAILOVER_S = 15
"""Until what a killed or stopped broker has led and coordinated has a leader and a coordinator again, on a machine with
much to do."""
_WORKER = Path(__file__).with_name("copying_worker.py")
SETTINGS: dict[str, object] = {
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000 * ABORT_INTERVAL_S,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "group.min.session.timeout.ms": 1_000,
}


class Feeder:
    """Writes numbered records to each partition of the source, from a thread."""

    def __init__(self, bootstrap: str) -> None:
        self.written = [0] * PARTITIONS
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                number = self.written[partition]
                self._producer.produce("source", f"{partition}:{number:06}".encode(), b"key", partition)
                self.written[partition] += 1
            self._producer.poll(0.02)

    def stop(self) -> list[str]:
        """All records that it has written, in order."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(120) == 0
        return [
            f"{partition}:{number:06}" for partition in range(PARTITIONS) for number in range(self.written[partition])
        ]


class Worker:
    """A copying process, started again whenever it ends."""

    def __init__(self, bootstrap: str, index: int) -> None:
        self._command = [sys.executable, str(_WORKER), bootstrap, "source", "sink", "copiers", f"copier-{index}"]
        self.process = self._start()
        self.restarts = 0

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def revive(self) -> None:
        if self.process.poll() is not None:
            self.restarts += 1
            self.process = self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def disturb(chance: random.Random, cluster: NodeCluster, workers: list[Worker]) -> str:
    """One fault, healed before this returns; its name."""
    pause_s = chance.uniform(0.5, 12)
    if chance.random() < 0.5:
        node = chance.choice(list(cluster.nodes.values()))
        assert node.process is not None
        if chance.random() < 0.5:
            node.kill()
            time.sleep(pause_s / 4)
            node.start()
            return f"node {node.node_id} was killed"
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(pause_s)
        node.process.send_signal(signal.SIGCONT)
        return f"node {node.node_id} was stopped for {pause_s:.1f} s"
    worker = chance.choice(workers)
    if chance.random() < 0.5:
        worker.kill()
        return "a worker was killed"
    worker.process.send_signal(signal.SIGSTOP)
    time.sleep(pause_s)
    worker.process.send_signal(signal.SIGCONT)
    return f"a worker was stopped for {pause_s:.1f} s"


class Watermarks:
    """The high watermarks and the last stable offsets of the partitions that transactions write to."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        partitions = {"sink": PARTITIONS, "__consumer_offsets": 4}
        self._partitions = [
            confluent_kafka.TopicPartition(topic, index)
            for topic, count in partitions.items()
            for index in range(count)
        ]

    def _ends(self, isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        """The end of each partition as a consumer of that isolation sees it, without those that have no leader.

        With a client of its own: librdkafka keeps a leader epoch that ListOffsets has refused as fenced."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        latest = {each: OffsetSpec.latest() for each in self._partitions}
        ends = {}
        for partition, end in admin.list_offsets(latest, isolation_level=isolation, request_timeout=2).items():
            with suppress(confluent_kafka.KafkaException):
                ends[partition.topic, partition.partition] = end.result().offset
        return ends

    def wait_stable(self) -> float:
        """Until each last stable offset has reached the high watermark of now; how many seconds that took."""
        began = time.monotonic()
        marks: dict[tuple[str, int], int] = {}
        """The high watermarks that are not reached yet."""

        def are_listed() -> bool:
            for partition, end in self._ends(IsolationLevel.READ_UNCOMMITTED).items():
                marks.setdefault(partition, end)
            return len(marks) == len(self._partitions)

        waited_for(are_listed, "a partition has no leader", FAILOVER_S)

        def are_stable() -> bool:
            for partition, end in self._ends(IsolationLevel.READ_COMMITTED).items():
                if end >= marks.get(partition, end):
                    marks.pop(partition, None)
            return not marks

        waited_for(are_stable, f"transactions hang: {marks}", TRANSACTION_TIMEOUT_S + ABORT_INTERVAL_S + FAILOVER_S)
        return time.monotonic() - began


def test_every_input_is_in_the_output_once(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("KALDA_EXACTLY_ONCE_SEED", "7")))
    with NodeCluster(tmp_path, 3, SETTINGS) as cluster:
        cluster.start()
        for topic in ("source", "sink"):
            made(cluster.addresses, topic, PARTITIONS)
        feeder = Feeder(cluster.addresses)
        workers = [Worker(cluster.addresses, index) for index in range(WORKERS)]
        watermarks, faults = Watermarks(cluster.addresses), list[str]()
        try:
            wait_for_a_copy(cluster.addresses)
            for _ in range(ROUNDS):
                faults.append(disturb(chance, cluster, workers))
                for worker in workers:
                    worker.revive()
                print(f"{faults[-1]}; all was stable after {watermarks.wait_stable():.1f} s", flush=True)
                time.sleep(2)
            expected = feeder.stop()

            def is_copied() -> bool:
                for worker in workers:
                    worker.revive()
                return len(visible(cluster.addresses, "sink", partitions=PARTITIONS)) >= len(expected)

            waited_for(is_copied, f"the copy is not complete after {faults}", 180)
        finally:
            feeder._stop.set()
            for worker in workers:
                worker.kill()
        assert in_order(cluster.addresses) == expected, f"after {faults}"


def wait_for_a_copy(bootstrap: str) -> None:
    """Until one committed record is in the sink. It has no end that could be waited for: the copying goes on."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "witness", "log_level": 0})
    consumer.assign([confluent_kafka.TopicPartition("sink", index, 0) for index in range(PARTITIONS)])
    deadline = time.monotonic() + 120
    message = None
    while message is None or message.error() is not None:
        assert time.monotonic() < deadline, "nothing is copied"
        message = consumer.poll(1)
    consumer.close()


def in_order(bootstrap: str) -> list[str]:
    """All committed values of the sink, by partition, in the order of their offsets."""
    found: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition("sink", index, 0) for index in range(PARTITIONS)])
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "the sink has no end"
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found[message.partition()].append(message.value().decode())
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return [value for index in range(PARTITIONS) for value in found[index]]
