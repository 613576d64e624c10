"""A project whose storage and tables are in S3, while its driver, the link to the store and the store are killed by
SIGKILL, and while the store answers 503. A reader that is not Spark judges: each row once, the rows of a file all or
none.

`KALDA_SPARK_ROUNDS` is the number of kills. Without it the tests are left out: they take minutes, and 650 MB of
Amazon's SDK from Maven. `KALDA_SPARK_SEED` chooses other moments. The store is moto's server, whose rows end with it,
so its link is killed in its place; `KALDA_VERSITYGW` names a program (`go install` of Versity's gateway) that
keeps them in a directory, and is killed itself.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.fs
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from kalda.network.free_ports import free_ports
from kalda.pipeline.engine.status import statuses
from kalda.pipeline.files import replace_text
from waiting import wait_until

pytestmark = pytest.mark.spark
ROUNDS = int(os.environ.get("KALDA_SPARK_ROUNDS", "0"))
SEED = int(os.environ.get("KALDA_SPARK_SEED", "7"))
FILES_A_ROUND = 6
ROWS_A_FILE = 200
KEYS = 50
WAIT_S = 400
VERSITYGW = os.environ.get("KALDA_VERSITYGW", "")
TARGETS = ["store" if VERSITYGW else "link", "link", "busy", "driver", "machine"]

PROJECT = """name: numbers
storage: s3a://lake/state
libraries: [{glob: {include: a.py}}]
configuration:
  spark.sql.warehouse.dir: s3a://lake/tables
  spark.sql.shuffle.partitions: "1"
  spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC
  spark.databricks.delta.snapshotPartitions: "1"
  spark.driver.extraClassPath: "%s"
  spark.hadoop.fs.s3a.endpoint: http://127.0.0.1:%d
  spark.hadoop.fs.s3a.access.key: somebody
  spark.hadoop.fs.s3a.secret.key: secret
  spark.hadoop.fs.s3a.attempts.maximum: "1"
  spark.hadoop.fs.s3a.retry.limit: "1"
  kalda.restart.backoff.ms: "200"
  kalda.optimize.commits: "10"
"""
DEFINITIONS = """
from pyspark import pipelines as dp
from kalda.pipeline import create_auto_cdc_flow


def files():
    return spark.readStream.schema("file int, n bigint").option("maxFilesPerTrigger", "2").json("%s")


@dp.table
def numbers():
    return files()


@dp.table
def copied():
    return spark.readStream.table("numbers")


@dp.temporary_view
def changes():
    return files().selectExpr("n %% 50 AS id", "n")


dp.create_streaming_table("latest")
create_auto_cdc_flow("latest", "changes", keys=["id"], sequence_by="n")
"""


JARS = (
    "io.delta_delta-spark_4.2_*", "io.delta_delta-storage-*", "io.unitycatalog_unitycatalog-client-*",
    "org.apache.hadoop_hadoop-aws-*", "software.amazon.awssdk_bundle-*", "software.amazon.s3.analyticsaccelerator_*",
)  # fmt: skip


def jars() -> list[str]:
    """Those that Spark has resolved for an earlier session: without Maven, and not copied at each start."""
    for home in Path.home().glob(".ivy2*"):
        found = [sorted((home / "jars").glob(name)) for name in JARS]
        if all(found):
            return [str(each[-1]) for each in found]
    return []


class Store:
    """A store with a bucket, behind a link. Each of the two can be killed, the store where a directory has its rows."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._port, self.port = free_ports(2)
        self._server = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self._port)]
        if VERSITYGW:
            (root := directory / "store").mkdir()
            place = f"127.0.0.1:{self._port}"
            command = f"{VERSITYGW} --access somebody --secret secret --port {place} posix {root}"
            self._server = command.split()
        link = Path(__file__).with_name("store_link.py")
        self._link = [sys.executable, str(link), str(self.port), str(self._port)]
        self._processes = [self._started(self._server), self._started(self._link)]
        stack.callback(self.kill, 0)
        stack.callback(self.kill, 1)
        system = pyarrow.fs.S3FileSystem(
            access_key="somebody", secret_key="secret", region="us-east-1", scheme="http", allow_bucket_creation=True,
            endpoint_override=f"127.0.0.1:{self._port}",
        )  # fmt: skip

        def makes() -> bool:
            with suppress(OSError):
                system.create_dir("lake")
                return True
            return False

        wait_until(makes)

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, number: int) -> None:
        """0: the store, 1: the link."""
        self._processes[number].kill()
        self._processes[number].wait()

    def disturb(self, what: str, seconds: float) -> None:
        """For some seconds the store has been killed, or the link, or each answer is 503."""
        if what == "busy":
            self._processes[1].send_signal(signal.SIGUSR1)
            time.sleep(seconds)
            self._processes[1].send_signal(signal.SIGUSR2)
            return
        number = ["store", "link"].index(what)
        self.kill(number)
        time.sleep(seconds)
        self._processes[number] = self._started([self._server, self._link][number])
        wait_until(self._answers)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 5):
            return True
        return False

    def table(self, name: str) -> list[dict[str, Any]]:
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret",
        }  # fmt: skip
        try:
            found: list[dict[str, Any]] = (
                DeltaTable(f"s3://lake/tables/{name}", storage_options=options).to_pyarrow_table().to_pylist()
            )
        except TableNotFoundError:
            return []
        return found


class Run:
    """`kalda pipeline run --follow`, which is started again when it was killed."""

    def __init__(self, project: Path, machine: str = "") -> None:
        """`machine`: of which it seems to be, with locks of its own."""
        self._project = project
        self._log = project / f"run{machine}.log"
        self._environment = {**os.environ, **({"SPARK_JARS_PROVIDED": "1"} if jars() else {})}
        self._of_machine: list[str] = []
        if machine:
            self._of_machine = ["unshare", "--mount"]
            self._environment["XDG_CACHE_HOME"] = str(project / f"cache{machine}")
        self.start()

    def start(self) -> None:
        command = [*self._of_machine, sys.executable, "-m", "kalda", "pipeline", "run", str(self._project), "--follow"]
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def check(self) -> None:
        assert self._process.poll() is None, self.said()

    def said(self) -> str:
        return self._log.read_text()[-3_000:]

    def wait(self) -> int:
        return self._process.wait(WAIT_S)

    def signal_all(self, number: int) -> None:
        """The driver, its Java and all workers, each of which may be of another group of processes."""
        driver = psutil.Process(self._process.pid)
        for each in [driver, *driver.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def kill(self, *, alone: bool) -> None:
        """The driver `alone`, while its Java ends by itself; or all, as a machine that is switched off."""
        driver = psutil.Process(self._process.pid)
        family = [driver] if alone else [*driver.children(recursive=True), driver]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(WAIT_S)


def judge(store: Store) -> int:
    """How many rows the reader has: of each file all or none, and each once."""
    rows = store.table("numbers")
    for each in (rows, store.table("copied")):
        assert set(Counter(row["n"] for row in each).values()) <= {1}
    assert set(Counter(row["file"] for row in rows).values()) <= {ROWS_A_FILE}
    assert set(Counter(row["id"] for row in store.table("latest")).values()) <= {1}
    return len(rows)


def fill(arriving: Path, first: int) -> int:
    """Files that begin with this row; returns the next one."""
    for number in range(first // ROWS_A_FILE, first // ROWS_A_FILE + FILES_A_ROUND):
        rows = range(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)
        text = "".join(json.dumps({"file": number, "n": n}) + "\n" for n in rows)
        replace_text(arriving / f"{number}.json", text)
    return first + FILES_A_ROUND * ROWS_A_FILE


def outlast(run: Run, holds: Callable[[], bool], what: str) -> None:
    """As `wait_until`, but each question reads a whole table, and `run` has not ended meanwhile."""
    until_s = time.monotonic() + WAIT_S
    while not holds():
        run.check()
        assert time.monotonic() < until_s, f"{what}\n{run.said()}"
        time.sleep(1)


def has_all(store: Store, total: int) -> bool:
    expected = {number % KEYS: number for number in range(total)}
    return (
        judge(store) == total == len(store.table("copied"))
        and {row["id"]: row["n"] for row in store.table("latest")} == expected
    )


@pytest.mark.skipif(not ROUNDS, reason="takes minutes: set KALDA_SPARK_ROUNDS to the number of kills")
def test_every_row_in_a_store_whatever_is_killed(tmp_path: Path) -> None:
    randomly, total = random.Random(SEED), 0
    (arriving := tmp_path / "arriving").mkdir()
    with ExitStack() as stack:
        store = Store(stack, tmp_path)
        (tmp_path / "spark-pipeline.yml").write_text(PROJECT % (":".join(jars()), store.port))
        (tmp_path / "a.py").write_text(DEFINITIONS % arriving)
        run = Run(tmp_path)
        stack.callback(run.stop)

        targets: list[str] = []
        for number in range(ROUNDS):
            targets = targets or randomly.sample(TARGETS, len(TARGETS))
            before, total = total, fill(arriving, total)
            count = before + randomly.randrange(1, FILES_A_ROUND) * ROWS_A_FILE
            outlast(run, lambda: judge(store) >= count, f"{count} rows")  # noqa: B023
            time.sleep(randomly.random() * 2)  # the moment of the kill
            what = targets.pop()
            if what in ("driver", "machine"):
                run.kill(alone=what == "driver")
                run.start()
            else:
                store.disturb(what, randomly.random() * 4)
            print(f"round {number + 1}: {what}, {judge(store)} of {total} rows", flush=True)
        outlast(run, lambda: has_all(store, total), f"{total} rows, and the latest of each key")
        assert {each.state for each in statuses(tmp_path, {})} <= {"running", "restarting"}
        run.stop()
        assert judge(store) == total
        assert {each.state for each in statuses(tmp_path, {})} == {"stopped"}


@pytest.mark.skipif(not ROUNDS, reason="takes minutes: set KALDA_SPARK_ROUNDS")
@pytest.mark.skipif(shutil.which("unshare") is None or os.getuid() != 0, reason="needs a root that may unshare mounts")
def test_a_machine_that_sleeps_while_another_one_takes_its_lock(tmp_path: Path) -> None:
    """A run is halted in the middle of its work for longer than its lock lasts, another machine goes on with the same
    project, and the first one wakes up: it ends with a sentence, and no row is there twice or lacks. A third run is
    refused."""
    randomly, total = random.Random(SEED), 0
    (arriving := tmp_path / "arriving").mkdir()
    with ExitStack() as stack:
        store = Store(stack, tmp_path)
        (tmp_path / "spark-pipeline.yml").write_text(PROJECT % (":".join(jars()), store.port))
        (tmp_path / "a.py").write_text(DEFINITIONS % arriving)
        total = fill(arriving, total)
        run = Run(tmp_path, "0")
        for number in range(1, ROUNDS + 1):
            stack.callback(run.stop)
            outlast(run, lambda: judge(store) == total, f"{total} rows")  # noqa: B023
            before, total = total, fill(arriving, total)
            count = before + randomly.randrange(FILES_A_ROUND) * ROWS_A_FILE
            outlast(run, lambda: judge(store) >= count, f"{count} rows")  # noqa: B023
            time.sleep(randomly.random() * 2)  # the moment of its sleep
            run.signal_all(signal.SIGSTOP)
            other = Run(tmp_path, str(number))
            stack.callback(other.stop)
            outlast(other, lambda: judge(store) == total, f"{total} rows by the other machine")  # noqa: B023
            third = Run(tmp_path, f"{number}b")
            assert third.wait() == 1, third.said()
            assert "another run is writing its tables" in third.said()
            total = fill(arriving, total)
            time.sleep(randomly.random() * 4)  # the moment at which it wakes up
            run.signal_all(signal.SIGCONT)
            assert run.wait() == 1, run.said()
            assert "was taken by another machine" in run.said()
            outlast(other, lambda: has_all(store, total), f"{total} rows, and the latest of each key")  # noqa: B023
            print(f"round {number}: {total} rows", flush=True)
            run = other
        other.stop()
        assert has_all(store, total)
