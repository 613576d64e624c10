"""SIGKILL of a streaming job, of its Python worker and of each of three nodes in turn; the job continues from its
checkpoint: row for row. Nodes are processes of their own, as `kalda cluster up` starts them.

`KALDA_SPARK_ROUNDS` is the number of kills of each kind. Without it the tests are left out: a round takes a minute.
`KALDA_SPARK_SEED` chooses other moments.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from kalda import Admin, Consumer, Producer
from kalda.cli.local import layout as layouts
from kalda.cli.local import starting
from kalda.cli.local.process import NodeProcess, wait_until_ended
from kalda.client.admin.topics import NewTopic
from kalda.pipeline.generators.load import Lake

pytestmark = pytest.mark.spark
JOB = Path(__file__).with_name("crashing_job.py")
ROUNDS = int(os.environ.get("KALDA_SPARK_ROUNDS", "0"))
SEED = int(os.environ.get("KALDA_SPARK_SEED", "7"))
ROWS_A_ROUND = 10_000


class Nodes:
    """Three nodes, each a broker and a controller."""

    def __init__(self, directory: Path) -> None:
        self._layout = layouts.make(directory, 3, 3, host="127.0.0.1", rack="one", overrides={})
        self._layout.save()
        self.servers = self._layout.bootstrap_servers

    def start(self) -> None:
        """Start those that are not running, and wait until all serve."""
        starting.start_missing(self._layout, [])
        starting.wait_until_all_serve(self._layout, 60, lambda _: None)

    def kill(self, *node_ids: int) -> None:
        killed: list[NodeProcess] = []
        for node_id in node_ids:
            killed.append(starting.process_of(self._layout, self._layout.place(node_id)))
            killed[-1].send(signal.SIGKILL)
        assert not wait_until_ended(killed, 30)


class Job:
    """A job that is started again whenever it has ended, from its checkpoint."""

    def __init__(self, servers: str, checkpoint: Path, mode: str) -> None:
        self._command = [sys.executable, str(JOB), servers, str(checkpoint), mode]
        self._log = checkpoint.with_suffix(".log")
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def wait_for_batches(self, count: int) -> None:
        """Until the job has reported so often; it reports once a second."""
        while count:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            count -= line.startswith("batch")
            if not line:
                self.kill()
                assert self.starts < 10 * ROUNDS + 10, self._log.read_text()[-5_000:]
                self.start()

    def kill_worker(self, randomly: random.Random) -> None:
        """One of the Python processes that run tasks, or the daemon that forks them."""
        while True:
            with suppress(psutil.NoSuchProcess):  # the job or the worker has just ended
                family = psutil.Process(self._process.pid).children(recursive=True)
                found = [each for each in family if any("pyspark.daemon" in part for part in _command(each))]
                if found:
                    randomly.choice(found).send_signal(signal.SIGKILL)
                    return
            self.wait_for_batches(1)

    def kill_driver(self) -> None:
        """The driver alone: its Java ends by itself, while the job may run again already."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """As a machine that is switched off: the driver, its JVM and all workers."""
        if self._process.poll() is not None:
            return
        driver = psutil.Process(self._process.pid)
        family = [*driver.children(recursive=True), driver]
        for each in family:
            try:
                each.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=30)
        self._process.wait()


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def values(servers: str, topic: str) -> Counter[bytes]:
    """The committed values of a topic."""
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([(topic, each.partition) for each in consumer.partitions_for(topic).partitions])
        consumer.seek_to_beginning()
        ends = consumer.end_offsets()
        found: Counter[bytes] = Counter()
        while any(consumer.position(each) < ends[each] for each in consumer.assignment()):
            found.update(one.value for one in consumer.poll(0.2, max_records=10_000))
        return found


def fill(servers: str, first: int, count: int) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(first, first + count):
            producer.send("in", str(number).encode(), partition=number % 3)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    three = Nodes(tmp_path / "nodes")
    try:
        three.start()
        with Admin({"bootstrap.servers": three.servers}) as admin:
            admin.create_topics([NewTopic("in", 3), NewTopic("out", 3)]).check()
        yield three
    finally:
        three.kill(1, 2, 3)


def stored(checkpoint: Path) -> Counter[bytes]:
    """The rows that the mode `foreach` has written."""
    with sqlite3.connect(f"{checkpoint}.db") as database:
        return Counter(bytes(value) for (value,) in database.execute("select value from rows"))


def loaded(checkpoint: Path) -> Counter[bytes]:
    """The rows of the lake's table."""
    table = Lake(checkpoint).table
    if not (table / "_delta_log").exists():
        return Counter()
    return Counter(DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist())


@pytest.mark.skipif(not ROUNDS, reason="takes minutes: set KALDA_SPARK_ROUNDS to the number of kills of each kind")
@pytest.mark.parametrize("mode", ["once", "plain", "foreach", "load"])
def test_every_row_whatever_is_killed(nodes: Nodes, tmp_path: Path, mode: str) -> None:
    """The driver, a worker and a node are killed in turn, at a random moment of a batch. Each row is there once; with
    the plain sink at least once."""
    randomly = random.Random(SEED)
    servers, checkpoint, total = nodes.servers, tmp_path / "job", 0
    outcome: Callable[[], Counter[bytes]] = {
        "foreach": lambda: stored(checkpoint),
        "load": lambda: loaded(checkpoint),
    }.get(mode, lambda: values(servers, "out"))
    job = Job(servers, checkpoint, mode)
    try:
        for number in range(3 * ROUNDS):
            fill(servers, total, ROWS_A_ROUND)
            total += ROWS_A_ROUND
            job.wait_for_batches(randomly.randrange(1, 3))
            if number % 3 == 0:
                (job.kill if randomly.randrange(2) else job.kill_driver)()
                job.start()
            elif number % 3 == 1:
                job.kill_worker(randomly)
            else:
                node = 1 + (SEED + number // 3) % 3
                nodes.kill(node)
                nodes.start()
        for _ in range(120):
            job.wait_for_batches(1)
            found = outcome()
            if len(found) >= total:
                break
        assert found.keys() == values(servers, "in").keys()
        assert len(found) == total
        assert mode == "plain" or found == values(servers, "in")
    finally:
        job.kill()
