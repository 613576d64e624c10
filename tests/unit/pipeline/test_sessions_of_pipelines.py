"""What a pipeline's session is made with, by the version of Spark; what its exceptions say."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

from kalda.cli.commands import cli
from kalda.cli.common.failures import Failure
from kalda.cli.pipeline import _failures, log_without_py4j, pipeline
from kalda.pipeline import session
from kalda.pipeline.engine.engine import RunResult
from kalda.pipeline.engine.runs import FlowReport
from kalda.pipeline.generators import snapshot
from kalda.pipeline.generators.load import Lake, Load, LoadSettings
from kalda.pipeline.generators.snapshot import SnapshotTable
from kalda.pipeline.session import first_line, packages_of, refuse_ended


@pytest.mark.parametrize(
    ("version", "module", "coordinate"),
    [
        ("4.1.4", "delta", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.1.4", "iceberg", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
        ("4.2.1", "delta", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.2.1", "hadoop-aws", "org.apache.hadoop:hadoop-aws:3.5.0"),
        ("4.2.1", "hadoop-azure", "org.apache.hadoop:hadoop-azure:3.5.0"),
        ("4.2.1", "hadoop-gcp", "org.apache.hadoop:hadoop-gcp:3.5.0"),
    ],
)
def test_each_module_has_the_jar_of_the_pyspark_that_runs(version: str, module: str, coordinate: str) -> None:
    assert packages_of([module], version) == [coordinate]


@pytest.mark.parametrize(
    ("version", "module", "remedy"),
    [
        ("4.2.1", "iceberg", "there is one for PySpark 4.1 (pip install 'kalda[iceberg]'), or "),
        ("4.3.0", "delta", "there is one for PySpark 4.1 and 4.2 (pip install 'kalda[pipeline]'), or "),
        ("5.0.0", "iceberg", "there is one for PySpark 4.1 (pip install 'kalda[iceberg]'), or "),
    ],
)
def test_a_module_without_a_jar_is_refused_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, version: str, module: str, remedy: str
) -> None:
    monkeypatch.setattr(pytest.importorskip("pyspark"), "__version__", version)
    monkeypatch.setattr("kalda.spark.java.java_advice", lambda: None)
    for name in ("SPARK_REMOTE", "SPARK_JARS_PROVIDED"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(session.PipelineError) as raised:
        session.make_session("pipeline", ["json", module])
    named = "name one that fits by --spark spark.jars.packages=GROUP:NAME:VERSION"
    assert str(raised.value) == f"no jar of {module} is known for PySpark {version}: {remedy}{named}"


def test_the_extras_install_a_pyspark_that_their_modules_fit() -> None:
    with (Path(__file__).parents[3] / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, module in (("pipeline", "delta"), ("iceberg", "iceberg")):
        (asked,) = (each for each in extras[extra] if each.startswith("pyspark["))
        minor = re.fullmatch(r"pyspark\[pipelines\]>=(\d+\.\d+),<\d+\.\d+", asked)
        assert minor is not None
        assert packages_of([module], f"{minor[1]}.0")


def test_without_java_the_refusal_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/none")
    with pytest.raises(session.PipelineError, match=r"JAVA_HOME is /none, which has no bin/java\. .*apt-get install"):
        session.make_session("pipeline")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Of sessions that are not made."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    builder = MagicMock()
    builder.appName.return_value = builder.master.return_value = builder.config.return_value = builder
    monkeypatch.setattr(pyspark_sql, "SparkSession", MagicMock(builder=builder))
    monkeypatch.setattr("kalda.spark.java.java_advice", lambda: None)
    monkeypatch.setattr(session, "prepare", lambda *_: None)
    for name in ("SPARK_REMOTE", "SPARK_JARS_PROVIDED", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    return builder


def test_a_session_has_all_formats_that_this_pyspark_has(builder: MagicMock, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, names in (("4.1.4", ["delta", "iceberg"]), ("4.2.1", ["delta"])):
        monkeypatch.setattr(session, "_spark_version", lambda version=version: version)
        builder.config.reset_mock()
        session.make_session("pipeline", session.modules_of_projects(), master="local[2]")
        found = dict(call.args for call in builder.config.call_args_list)
        assert all(name in found["spark.jars.packages"] for name in names)
        assert len(found["spark.sql.extensions"].split(",")) == len(names)


def test_java_and_the_workers_share_unix_sockets_unless_the_user_decides(builder: MagicMock) -> None:
    """Over TCP, a task with a few rows waits for a delayed acknowledgement."""
    sockets = "spark.python.unix.domain.socket.enabled"
    for settings, expected in (({}, "true"), ({sockets: "false"}, "false")):
        builder.config.reset_mock()
        session.make_session("pipeline", settings=settings, master="local[2]")
        assert dict(call.args for call in builder.config.call_args_list)[sockets] == expected


def test_the_driver_listens_where_its_workers_are(builder: MagicMock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a cluster are on other machines."""
    for master, host in (("local[2]", "127.0.0.1"), ("spark://master:7077", None)):
        monkeypatch.setenv("SPARK_MASTER", master)
        builder.config.reset_mock()
        session.make_session("pipeline")
        assert dict(call.args for call in builder.config.call_args_list).get("spark.driver.host") == host


@pytest.mark.parametrize(("error", "is_shown"), [(EOFError(), False), (BrokenPipeError(), False), (ValueError(), True)])
def test_java_that_closes_the_connection_of_accumulators_is_no_stack_on_stderr(
    builder: MagicMock, capsys: pytest.CaptureFixture[str], error: Exception, is_shown: bool
) -> None:
    accumulators = pytest.importorskip("pyspark.accumulators")
    session.make_session("pipeline")
    server = object.__new__(accumulators.AccumulatorTCPServer)
    try:
        raise error
    except type(error):
        server.handle_error(None, ("", 0))
    assert ("ValueError" in capsys.readouterr().err) is is_shown


def test_settings_that_the_user_has_chosen_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kalda.spark.register", lambda _: None)
    zone = "spark.sql.session.timeZone"
    conf = {zone: "Europe/Berlin"}
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=conf.__setitem__, get=conf.get), dataSource=MagicMock())
    session.prepare(spark, {zone: "Europe/Berlin"})
    assert conf.pop(zone) == "Europe/Berlin"
    assert len(conf) == 1
    session.prepare(spark)
    assert conf[zone] == "UTC"


def test_an_error_of_spark_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("pyspark.errors")

    def fail(*_: object, in_background: bool) -> None:
        raise errors.AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/none.\n\tat org.apache.spark.X")

    monkeypatch.setattr(session, "make_session", fail)
    result = CliRunner().invoke(pipeline, ["replay", "s3a://none", "--to", "t", "--name", "n"])
    assert (result.exit_code, result.output) == (
        1,
        "kalda: Spark: [PATH_NOT_FOUND] Path does not exist: file:/none.\n",
    )


def test_ctrl_c_while_spark_starts_ends_as_in_other_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, in_background: bool = False) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "make_session", interrupt)
    monkeypatch.setattr(Lake, "agreed", lambda *_: Load(LoadSettings(("t",)), {}))
    for command in (
        ["load", "t", "--to", str(tmp_path / "lake")],
        ["replay", str(tmp_path), "--to", "t", "--name", "n"],
    ):
        result = CliRunner().invoke(cli, ["pipeline", *command])
        assert (result.exit_code, result.output.splitlines()[-1]) == (130, "Interrupted.")
        assert ("--foreground lets it take all" in result.output) == (command[0] == "load")


def test_an_interrupted_call_of_java_is_no_stack_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("kalda"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("kalda"), "propagate", True)
    log_without_py4j()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        logging.exception("KeyboardInterrupt while sending command.")
    in_py4j = logging.LogRecord(
        "root", logging.ERROR, "/site-packages/py4j/java_gateway.py", 1, "reentrant", None, None
    )
    logging.getLogger().handle(in_py4j)
    logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
    logging.getLogger("kalda.client").warning("said")
    assert capsys.readouterr().err == "said\n"


@pytest.mark.parametrize(
    ("master", "number"),
    [
        ("local[2]", signal.SIGINT),
        ("spark://127.0.0.1:7077", signal.SIGINT),
        ("spark://127.0.0.1:7077", signal.SIGTERM),
    ],
)
def test_an_interrupted_start_of_spark_leaves_no_java(
    monkeypatch: pytest.MonkeyPatch, master: str, number: signal.Signals
) -> None:
    """That Java is in the background, where it runs the tasks itself. It is a lower priority here: where others use all
    cores, a process of the class SCHED_IDLE may neither start nor end for minutes."""
    pyspark = pytest.importorskip("pyspark")
    started: list[subprocess.Popen[bytes]] = []
    in_background: list[bool] = []

    class Builder:
        """Of a session: is interrupted when Java has been started, and before it has answered."""

        def appName(self, _: str) -> Builder:  # noqa: N802
            return self

        def master(self, _: str) -> Builder:
            return self

        def config(self, *_: str) -> Builder:
            return self

        def getOrCreate(self) -> None:  # noqa: N802
            started.append(pyspark.java_gateway.Popen(["sleep", "600"], preexec_fn=lambda: None))
            in_background.append(os.getpriority(os.PRIO_PROCESS, started[0].pid) > priority)
            assert os.getpgid(started[0].pid) == started[0].pid, "a signal to the command's group reaches Java"
            signal.raise_signal(number)

    priority = os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr(session, "enter_background", lambda: os.nice(1))
    monkeypatch.setattr("kalda.spark.java.java_advice", lambda: None)
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", None)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
    with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        session.make_session("pipeline", settings={"spark.master": master}, in_background=True)
    assert number == signal.SIGINT or ended.value.code == 143  # type: ignore[union-attr]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert in_background == [master.startswith("local")]
    assert started[0].wait(60) == -signal.SIGKILL
    assert pyspark.java_gateway.Popen is subprocess.Popen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 0)])
def test_a_load_that_a_signal_has_stopped_before_its_end_has_not_succeeded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int | None, code: int
) -> None:
    in_background: list[bool] = []

    def make(*_: object, **given: bool) -> SimpleNamespace:
        in_background.append(given["in_background"])
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(session, "make_session", make)
    done = FlowReport("records", "default.records", "StreamingTable"), RunResult(True, number)
    monkeypatch.setattr(Lake, "load", lambda *_, **__: done)
    monkeypatch.setattr(Lake, "agreed", lambda *_: Load(LoadSettings(("t",)), {}))
    monkeypatch.setattr(Lake, "totals", lambda *_: [])
    arguments = ["pipeline", "load", "t", "--to", str(tmp_path / "lake")]
    assert CliRunner().invoke(cli, arguments).exit_code == code
    assert CliRunner().invoke(cli, [*arguments, "--foreground"]).exit_code == code
    assert CliRunner().invoke(cli, [*arguments, "--follow"]).exit_code == 0
    assert CliRunner().invoke(cli, [*arguments, "--follow", "--background"]).exit_code == 0
    assert in_background == [True, False, False, True]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "w.py", line 1, in main\n    write()\n    ^^^^^^^\nOSError: away\n\n'
            "During handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "w.py", line 2, in main\n    end()\n'
            "kalda.base.errors.ApiError: PRODUCER_FENCED: a newer producer\n\n\tat org.apache.spark.X(Y.scala:1)\n",
            "PRODUCER_FENCED: a newer producer",
        ),
        (
            "An error occurred while calling o7.save.\n: org.apache.spark.SparkException: [T] it failed. SQLSTATE: 1\n"
            "\tat a.B(C.scala:1)\nCaused by: java.lang.Exception: it broke\n\t... 1 more\n"
            "Caused by: java.io.IOException: the disk is full\n\t... 2 more\n",
            "[T] it failed. SQLSTATE: 1: the disk is full",
        ),
        (
            "An error occurred while calling o7.save.\n: java.lang.NullPointerException\n\tat a.B(C.scala:1)\n",
            "java.lang.NullPointerException",
        ),
        ("[STREAM_FAILED] it failed\n=== Streaming Query ===\n", "[STREAM_FAILED] it failed"),
        ("[X] Failed to create it: kalda.spark.options.OptionError: option a = '1': no\n\tat x", "option a = '1': no"),
    ],
)
def test_what_an_exception_of_spark_says(text: str, said: str) -> None:
    assert first_line(RuntimeError(text)) == said


def test_an_exception_of_spark_says_what_caused_it() -> None:
    class Captured(Exception):
        """As PySpark makes of Java's exceptions."""

        def __init__(self, text: str, cause: Exception | None = None) -> None:
            super().__init__(text)
            self._cause = cause

    full = Captured("java.io.IOException: No space left on device\n\tat java.base/x")
    failed = Captured("[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake.", full)
    assert first_line(Captured("[STREAM_FAILED] Task failed.", Captured("Task failed", failed))) == (
        "[STREAM_FAILED] Task failed: java.io.IOException: No space left on device"
    )


def test_what_a_store_has_answered_is_said_with_its_status() -> None:
    text = (
        "An error occurred while calling o1.load.\n: java.nio.file.AccessDeniedException: s3a://lake/t: getFileStatus "
        "on s3a://lake/t: software.amazon.awssdk.services.s3.model.S3Exception: Forbidden (Service: S3, Status Code: "
        "403, Request ID: null):null\n\tat org.apache.hadoop.fs.s3a.S3AUtils.translateException(S3AUtils.java:289)"
    )
    assert first_line(RuntimeError(text)) == "s3a://lake/t: getFileStatus on s3a://lake/t: Forbidden (HTTP 403)"


def test_java_that_has_ended_is_one_sentence() -> None:
    """Also where what cleans up behind it fails, since it needs Java too. A session of Spark Connect has none here."""
    spark = MagicMock()
    spark.sparkContext._jsc.sc().isStopped.return_value = False
    refuse_ended(spark)
    refuse_ended(SimpleNamespace())  # type: ignore[arg-type]
    spark.sparkContext._jsc.sc.side_effect = ConnectionRefusedError  # as py4j raises it

    def command() -> None:
        with _failures():
            try:
                refuse_ended(spark)
            finally:
                spark.sparkContext._jsc.sc()

    said = r"^Spark's Java has ended, and with it all flows: start the command again$"
    with pytest.raises(Failure, match=said):
        command()

    def refuse(module: str) -> None:
        with _failures():
            exec("raise ConnectionRefusedError", {"__name__": module})

    with pytest.raises(Failure, match=said):
        refuse("py4j.clientserver")
    with pytest.raises(ConnectionRefusedError):
        refuse("kalda.registry")


def test_an_interrupted_snapshot_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A signal before the first batch leaves no table."""
    table = SnapshotTable(tmp_path / "users")
    questions = MagicMock()
    questions.return_value.__enter__.return_value.ends.return_value = {}
    questions.return_value.__enter__.return_value.topic_id.return_value = "id"
    flow = FlowReport("current", "default.current", "StreamingTable")
    monkeypatch.setattr(snapshot, "TopicQuestions", questions)
    monkeypatch.setattr(SnapshotTable, "run", lambda *_: (flow, RunResult(True, signal.SIGINT)))
    with table.alone():
        taken = table.take(MagicMock(), "users", {})
    assert (taken.version, taken.keys, taken.signal) == (-1, 0, signal.SIGINT)
    monkeypatch.setattr(session, "make_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    done = CliRunner().invoke(cli, ["pipeline", "snapshot", "users", "--to", str(tmp_path / "users")])
    assert (done.exit_code, done.stdout) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "nothere", "--to", "orders", "--name", "x"], "nothere: there is no such file"),
        (["mirror", "a", "--from", "nope", "--to", "b", "--state", "s"], "there is no profile nope"),
    ],
)
def test_what_is_not_there_is_said_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KALDA_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.setattr(session, "make_session", lambda *_, **__: pytest.fail("Spark was started"))
    done = CliRunner().invoke(cli, ["pipeline", *arguments])
    assert done.exit_code == 1
    assert said in done.stderr
