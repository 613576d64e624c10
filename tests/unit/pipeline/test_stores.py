"""Places in object stores: a real S3 API (moto's server) on loopback, and stores that refuse."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from pyarrow import fs

from kalda.cli.pipeline import pipeline
from kalda.network.free_ports import free_ports
from kalda.pipeline import files, stores
from kalda.pipeline.engine.engine import running_alone
from kalda.pipeline.engine.runs import FlowReport, FlowState, RunReport
from kalda.pipeline.engine.status import statuses
from kalda.pipeline.files import Lease, is_locked, locked, place_of, read_state, remove_tree, replace_text, times_in
from kalda.pipeline.projects.specification import Specification, read_specification
from kalda.pipeline.session import PipelineError, Unavailable
from kalda.pipeline.stores import StorePath, store_settings
from kalda.pipeline.tables.tables import Batch, Tables
from waiting import wait_until

BUCKET = "lake"


def settings_of(port: int) -> dict[str, str]:
    own = {"endpoint": f"http://127.0.0.1:{port}", "access.key": "somebody", "secret.key": "a secret"}
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in own.items()}


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, str]]:
    """Spark's, for a store with a bucket."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while server.poll() is None:
                try:
                    urlopen(f"http://127.0.0.1:{port}/moto-api/").close()
                    break
                except OSError:
                    time.sleep(0.05)
            made = fs.S3FileSystem(
                access_key="a", secret_key="b", region="us-east-1", scheme="http", allow_bucket_creation=True,
                endpoint_override=f"127.0.0.1:{port}",
            )  # fmt: skip
            made.create_dir(BUCKET)
            yield settings_of(port)
        finally:
            server.kill()


@contextmanager
def answering(status: int, code: str) -> Iterator[dict[str, str]]:
    """A store that answers all requests alike."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = f"<Error><Code>{code}</Code><Message>so it is</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield settings_of(server.server_port)
        finally:
            server.shutdown()
            thread.join()


def store(uri: str, settings: dict[str, str]) -> StorePath:
    found = place_of(uri, settings)
    assert isinstance(found, StorePath)
    return found


def test_a_place_in_a_store_is_used_as_a_path(settings: dict[str, str]) -> None:
    place = store(f"s3://{BUCKET}/a/b/", settings)
    file = place / "state" / "run.json"
    assert (str(place), str(file), file.name) == ("s3a://lake/a/b", "s3a://lake/a/b/state/run.json", "run.json")
    assert "secret" not in repr(place)
    assert read_state(file, {}) is None
    assert (place.exists(), times_in(place)) == (False, {})
    for number in (1, 2):
        replace_text(file, json.dumps({"number": number}))
        assert read_state(file, {"number": int}) == {"number": number}
    assert abs(times_in(place / "state")["run.json"] - time.time()) < 60
    assert ((place / "state").is_dir(), list(times_in(place))) == (True, ["state"])
    with pytest.raises(PipelineError, match=r"run\.json has more than 3 bytes"):
        files.read_text(file, 3)
    file.unlink()
    file.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        file.read_text()
    replace_text(place / "x" / "y", "")
    remove_tree(place)
    remove_tree(place)
    assert not place.exists()


def test_a_place_is_a_path_or_in_a_store_that_is_known() -> None:
    assert place_of("a b", beside=Path("/p")) == Path("/p/a b")
    assert place_of("file:///a%20b") == Path("/a b")
    assert str(place_of("abfss://lake@one.dfs.core.windows.net/t")) == "abfss://lake@one.dfs.core.windows.net/t"
    assert place_of("ftp://a/b") is None
    assert place_of("s3:///b") is None


def test_a_store_that_refuses_is_one_sentence(settings: dict[str, str]) -> None:
    other = store("s3a://other/a", settings)
    assert other.problem() == "s3a://other/a: there is no bucket other"
    with pytest.raises(Unavailable, match=r"s3a://other/a/x: NO_SUCH_BUCKET"):
        replace_text(other / "x", "")
    assert store(f"s3a://{BUCKET}/a", settings).problem() is None
    for status, code, said in ((403, "AccessDenied", "ACCESS_DENIED"), (503, "SlowDown", ".*HTTP status 503")):
        with answering(status, code) as refusing:
            place = store("s3a://lake/a", refusing)
            with pytest.raises(Unavailable, match=rf"s3a://lake/a/x: ({said})"):
                read_state(place / "x", {})
    gone = store("s3a://lake/a", settings_of(free_ports(1)[0]))
    assert "Could not connect to server" in (gone.problem() or "")


PROJECT = """name: shop
storage: s3://{bucket}/state
libraries: [{{glob: {{include: a.py}}}}]
configuration:
  spark.sql.warehouse.dir: s3a://{bucket}/tables
"""
DEFINITIONS = """
from pyspark import pipelines as dp

@dp.materialized_view
def numbers():
    return spark.range(3)
"""


def project(directory: Path, settings: dict[str, str], bucket: str = BUCKET) -> Path:
    lines = [f"  {name}: '{value}'\n" for name, value in settings.items()]
    (directory / "spark-pipeline.yml").write_text(PROJECT.format(bucket=bucket) + "".join(lines))
    (directory / "a.py").write_text(DEFINITIONS)
    return directory


def test_the_status_of_a_project_in_a_store_needs_no_spark(tmp_path: Path, settings: dict[str, str]) -> None:
    specification = read_specification(project(tmp_path, settings))
    assert specification.modules == ["delta", "hadoop-aws", "hadoop-aws"]
    (found,) = statuses(tmp_path, {})
    assert found.state == "never started"
    report = RunReport(specification, "once")
    flow = FlowReport("orders", "default.orders", "StreamingTable", FlowState.RUNNING)
    report.flows = {"orders": flow}
    report.save(at_once=True)
    checkpoint = specification.checkpoint("orders")
    for number, end in enumerate((5, 9)):
        lines = ["v1", json.dumps({"batchTimestampMs": 1_704_067_200_000 + number}), json.dumps({"events": {"0": end}})]
        replace_text(checkpoint / "offsets" / str(number), "\n".join(lines))
    replace_text(checkpoint / "commits" / "0", "v1\n{}")
    with pytest.raises(FileNotFoundError):
        (checkpoint / "metadata").read_text()
    replace_text(checkpoint / "metadata", '{"id":"a-query"}')
    (found,) = statuses(tmp_path, {})
    assert (found.state, found.done, [batch.records for batch in found.batches]) == (
        "killed", {next(iter(found.done)): 5}, [5, 4]
    )  # fmt: skip
    (same,) = statuses(str(checkpoint), {}, settings)
    assert same.done == found.done
    batch = Batch.of("orders", checkpoint, 1)
    assert (batch.app, batch.offsets) == ("kalda-a-query", ({"events": {"0": 9}},))
    with answering(503, "SlowDown") as refusing, pytest.raises(Unavailable):
        Batch.of("orders", store(str(checkpoint), refusing), 1)  # not a batch of a query without id
    assert asdict(flow)["state"] == "running"


def test_the_version_of_a_table_in_a_store(tmp_path: Path, settings: dict[str, str]) -> None:
    tables = Tables(None, read_specification(project(tmp_path, settings)))  # type: ignore[arg-type]
    assert (str(tables.path("default.t")), tables.version("default.t")) == ("s3a://lake/tables/t", -1)
    log = tables.path("default.t") / "_delta_log"
    for version in (0, 1, 2):
        replace_text(log / f"{version:020}.json", "{}")
    assert tables.version("default.t") == 2
    replace_text(log / f"{3:020}.json", "{}")
    assert (tables.version("default.t"), tables.exists("default.t")) == (3, True)


def test_check_finds_a_bucket_that_is_not_there(tmp_path: Path, settings: dict[str, str]) -> None:
    project(tmp_path, settings, "nowhere")
    run = CliRunner().invoke(pipeline, ["check", str(tmp_path), "--no-spark"], standalone_mode=False)
    assert " ".join(str(run.exception).split()) == (
        "s3a://nowhere/state: there is no bucket nowhere s3a://nowhere/tables: there is no bucket nowhere"
    )
    good = project(tmp_path, settings)
    assert CliRunner().invoke(pipeline, ["check", str(good), "--no-spark"], standalone_mode=False).exception is None


def test_keys_come_from_a_profile_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text("[lake]\nfs.s3a.access.key = 'somebody'\nfs.s3a.secret.key = 'a secret'\nurl = 'x'\n")
    monkeypatch.setenv("KALDA_PROFILES", str(profiles))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3 = "spark.hadoop.fs.s3a."
    specification = read_specification(project(tmp_path, {"kalda.storage.connection": "lake"}))
    assert "a secret" not in repr(specification)
    assert specification.session_settings == {
        "spark.sql.warehouse.dir": "s3a://lake/tables",
        f"{s3}access.key": "somebody",
        f"{s3}secret.key": "a secret",
        f"{s3}endpoint": "http://127.0.0.1:9",
        f"{s3}endpoint.region": "us-east-1",
        f"{s3}path.style.access": "true",
    }
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert store_settings({f"{s3}endpoint": "https://s3.eu-west-1.amazonaws.com"}) == {}
    with pytest.raises(PipelineError, match="there is no profile other"):
        read_specification(project(tmp_path, {"kalda.storage.connection": "other"}))


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("hdfs://one:9000/a", "HDFS is for tables, not for state"),
        ("ftp://one/a", "'ftp://one/a' is neither a directory"),
    ],
)
def test_a_storage_that_cannot_keep_state_is_refused(tmp_path: Path, storage: str, said: str) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(f"name: a\nstorage: {storage}\nlibraries: []\n")
    with pytest.raises(PipelineError, match=said):
        read_specification(tmp_path)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorePath:
    """In a store whose times are exact to nanoseconds."""
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    (tmp_path / BUCKET / "lock").mkdir(parents=True)
    monkeypatch.setattr(stores, "_opened", lambda *_: system)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StorePath("s3a", BUCKET, "lock")


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda name: monkeypatch.setattr(files, "_machine", lambda: name)


def lease(place: StorePath, expires_s: float = 60.0) -> Lease:
    return Lease(place, "another one runs", 0.01, expires_s)


def test_a_lock_in_a_store_is_refused_while_its_holder_lives(place: StorePath, machines: Callable[[str], None]) -> None:
    machines("one")
    with lease(place) as held:
        machines("two")
        with pytest.raises(PipelineError, match="another one runs"), lease(place):
            raise AssertionError
        assert not held.is_lost
        assert files.is_held(place)
        machines("one")  # whose lock of files says it
        assert not files.is_held(place)
    with lease(place):
        assert len(place.times_in()) == 1
    assert place.times_in() == {}


def test_the_lock_of_a_process_that_has_ended_is_taken(place: StorePath, machines: Callable[[str], None]) -> None:
    replace_text(place / "one-killed", "")
    machines("two")
    with lease(place, 0.05):
        assert "one-killed" not in place.times_in()
    replace_text(place / "two-killed", "")
    with lease(place):  # of the same machine: at once
        assert "two-killed" not in place.times_in()


def test_a_batch_asks_whether_the_lock_is_held(place: StorePath) -> None:
    with Lease(place, "another one runs") as held:
        held.ask()
        assert not held.is_lost
        remove_tree(place)
        held.ask()
        assert held.is_lost


def test_who_has_lost_a_lock_stops(place: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "Lease", lambda where, refusal: lease(where))
    assert not is_locked(place)
    with locked(place, "another one runs"):
        files.check_held(place, asks=True)
        assert is_locked(place)
        with pytest.raises(PipelineError, match="another one runs"), locked(place, "another one runs"):
            raise AssertionError
        held = files._leases[place]
        remove_tree(place)
        wait_until(lambda: held.is_lost)
        with pytest.raises(PipelineError, match="was taken by another machine"):
            files.check_held(place)
    assert not is_locked(place)


def test_two_machines_with_state_of_their_own_and_the_same_tables(
    place: StorePath, tmp_path: Path, machines: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is beside the tables, since the state is not seen by both."""
    monkeypatch.setattr(files, "Lease", lambda where, refusal: Lease(where, refusal, 0.01))
    settings = {"spark.sql.warehouse.dir": f"s3a://{BUCKET}/lock"}
    (tmp_path / BUCKET / "lock/_kalda/shop.run.lock").mkdir(parents=True)
    of_one, of_two = (
        Specification(tmp_path / "p.yml", "shop", tmp_path / name, "default", settings, ()) for name in ("one", "two")
    )
    machines("one")
    with running_alone(of_one):
        assert list((place / "_kalda/shop.run.lock").times_in())
        machines("two")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of two"))
        with pytest.raises(PipelineError, match=r"project shop .*another run"), running_alone(of_two):
            raise AssertionError
    with running_alone(of_two):
        files.check_held(of_two.lock, asks=True)


def test_hdfs_without_a_hadoop_says_where_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Unable to load libjvm: libjvm.so: cannot open shared object file")

    monkeypatch.setattr(stores, "_opened", refuse)
    with pytest.raises(Unavailable, match=r"hdfs://one:9000/lake: Unable to load libjvm.*JAVA_HOME and HADOOP_HOME"):
        StorePath("hdfs", "one:9000", "lake").times_in()
