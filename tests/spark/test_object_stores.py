"""A project whose storage and tables are in S3 (moto's server), while its driver, and the link to the store, are killed
by SIGKILL. A reader that is not Spark judges: each row once, the rows of a file all or none.

`KALDA_SPARK_ROUNDS` is the number of kills of the driver; the link is killed twice as often. Without it the test is
left out: it takes minutes, and 650 MB of Amazon's SDK from Maven. `KALDA_SPARK_SEED` chooses other moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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

PROJECT = """name: numbers
storage: s3a://lake/state
libraries: [{glob: {include: a.py}}]
configuration:
  spark.sql.warehouse.dir: s3a://lake/tables
  spark.sql.shuffle.partitions: "1"
  spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
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


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


class Store:
    """A store with a bucket, behind a link that can be killed."""

    def __init__(self, stack: ExitStack) -> None:
        self._port, self.port = free_ports(2)
        stack.enter_context(process("-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)))
        stack.callback(self.kill)
        self.start()
        system = pyarrow.fs.S3FileSystem(
            access_key="a", secret_key="b", region="us-east-1", scheme="http", allow_bucket_creation=True,
            endpoint_override=f"127.0.0.1:{self._port}",
        )  # fmt: skip

        def makes() -> bool:
            with suppress(OSError):
                system.create_dir("lake")
                return True
            return False

        wait_until(makes)

    def start(self) -> None:
        link = Path(__file__).with_name("store_link.py")
        self._link = subprocess.Popen([sys.executable, str(link), str(self.port), str(self._port)])

    def kill(self) -> None:
        self._link.kill()
        self._link.wait()

    def table(self, name: str) -> list[dict[str, Any]]:
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
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

    def __init__(self, project: Path) -> None:
        self._project = project
        self._log = project / "run.log"
        self._environment = {**os.environ, **({"SPARK_JARS_PROVIDED": "1"} if jars() else {})}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "kalda", "pipeline", "run", str(self._project), "--follow"]
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def check(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-3_000:]

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
    assert set(Counter(row["n"] for row in rows).values()) <= {1}
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


@pytest.mark.skipif(not ROUNDS, reason="takes minutes: set KALDA_SPARK_ROUNDS to the number of kills")
def test_every_row_in_a_store_whatever_is_killed(tmp_path: Path) -> None:
    randomly, total = random.Random(SEED), 0
    (arriving := tmp_path / "arriving").mkdir()
    with ExitStack() as stack:
        store = Store(stack)
        (tmp_path / "spark-pipeline.yml").write_text(PROJECT % (":".join(jars()), store.port))
        (tmp_path / "a.py").write_text(DEFINITIONS % arriving)
        run = Run(tmp_path)
        stack.callback(run.stop)

        def outlast(holds: Callable[[], bool], what: str) -> None:
            """As `wait_until`, but each question reads a whole table."""
            until_s = time.monotonic() + WAIT_S
            while not holds():
                run.check()
                assert time.monotonic() < until_s, what
                time.sleep(1)

        for number in range(3 * ROUNDS):
            before, total = total, fill(arriving, total)
            count = before + randomly.randrange(1, FILES_A_ROUND) * ROWS_A_FILE
            outlast(lambda: judge(store) >= count, f"{count} rows")  # noqa: B023
            time.sleep(randomly.random() * 2)  # the moment of the kill
            if number % 3 < 2:
                store.kill()
                time.sleep(randomly.random() * 4)
                store.start()
            else:
                run.kill(alone=bool(randomly.randrange(2)))
                run.start()
            print(f"round {number}: {judge(store)} of {total} rows", flush=True)
        outlast(lambda: judge(store) == total, f"{total} rows")
        print(f"all {total} rows", flush=True)
        expected = {number % KEYS: number for number in range(total)}
        outlast(lambda: {row["id"]: row["n"] for row in store.table("latest")} == expected, "the latest of each key")
        assert {each.state for each in statuses(tmp_path, {})} <= {"running", "restarting"}
        run.stop()
        assert judge(store) == total
        assert {each.state for each in statuses(tmp_path, {})} == {"stopped"}
