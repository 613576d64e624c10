"""Java found or missing, processes in the background, and where a user has a cache."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kalda.client.transport.config_files import profiles_path, read_profiles
from kalda.spark import session
from kalda.spark.java import (
    CpuWait,
    enter_background,
    java_advice,
    new_session,
    quick_workers,
    settings_of_machine,
    user_cache,
)


def java(folder: Path, version: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    program.chmod(0o755)


def test_no_java_is_one_sentence_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"no java on the PATH.*apt-get install openjdk-17-jre-headless"):
        session()


def test_the_java_of_java_home_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert "which has no bin/java" in (java_advice() or "")
    java(tmp_path / "old", "11.0.26")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert "is Java 11. Spark runs on Java 17 or 21" in (java_advice() or "")
    java(tmp_path / "new", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert java_advice() is None
    monkeypatch.setattr("os.getuid", lambda: 1_000_660_000)
    assert "user 1000660000 has no entry in /etc/passwd" in (java_advice() or "")


def test_a_session_of_spark_connect_needs_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java is where the server is."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    builder = MagicMock()
    builder.appName.return_value = builder.remote.return_value = builder
    monkeypatch.setattr(pyspark_sql, "SparkSession", MagicMock(builder=builder))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with warnings.catch_warnings(record=True):
        new_session("test", "sc://127.0.0.1:15002", {})
    builder.remote.assert_called_once_with("sc://127.0.0.1:15002")
    builder.config.assert_not_called()
    with pytest.raises(RuntimeError, match="there is no java"):
        new_session("test", None, {})


@pytest.mark.parametrize(
    ("environment", "settings", "expected"),
    [
        ({}, {}, [("spark.python.unix.domain.socket.enabled", "true")]),
        ({"PYSPARK_GATEWAY_PORT": "1"}, {}, []),
        (
            {},
            {"spark_python_unix_domain_socket_enabled": False},
            [("spark.python.unix.domain.socket.enabled", text) for text in ("true", "false")],
        ),
    ],
    ids=["default", "of spark-submit", "as the user says"],
)
def test_java_and_python_share_unix_sockets_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    settings: dict[str, object],
    expected: list[tuple[str, str]],
) -> None:
    """Over TCP, a task with a few rows waits for a delayed acknowledgement."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    builder = MagicMock()
    builder.appName.return_value = builder.config.return_value = builder
    monkeypatch.setattr(pyspark_sql, "SparkSession", MagicMock(builder=builder))
    monkeypatch.setattr("kalda.spark.java.java_advice", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    new_session("test", None, settings)
    given = [call.args for call in builder.config.call_args_list]
    assert [args for args in given if args[0] == "spark.python.unix.domain.socket.enabled"] == expected


@pytest.mark.parametrize(
    ("master", "number"),
    [
        ("local", "1"),
        ("local[3]", "3"),
        ("local[3,2]", "3"),
        ("local[*]", str(os.cpu_count())),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("", None),
    ],
)
def test_numbers_of_partitions_fit_this_machine_where_it_is_the_only_one(master: str, number: str | None) -> None:
    names = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
    assert settings_of_machine(master) == ({} if number is None else dict.fromkeys(names, number))


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({}, {}, [str(os.cpu_count())]),
        ({"spark_master": "local[5]"}, {}, ["5"]),
        ({"spark_sql_shuffle_partitions": 7}, {}, [str(os.cpu_count()), "7"]),
        ({"spark_master": "spark://host:7077"}, {}, []),
        ({}, {"SPARK_CONF_DIR": "/etc/spark"}, []),
    ],
)
def test_a_session_has_partitions_that_fit_the_machine_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], environment: dict[str, str], expected: list[str]
) -> None:
    pyspark_sql = pytest.importorskip("pyspark.sql")
    builder = MagicMock()
    builder.appName.return_value = builder.config.return_value = builder
    monkeypatch.setattr(pyspark_sql, "SparkSession", MagicMock(builder=builder))
    monkeypatch.setattr("kalda.spark.java.java_advice", lambda: None)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    new_session("test", None, settings)
    given = [call.args for call in builder.config.call_args_list]
    assert [value for name, value in given if name == "spark.sql.shuffle.partitions"] == expected


def test_workers_do_not_compile_pyspark_each_time(tmp_path: Path) -> None:
    """Java has a home with PySpark's files instead of its archive, the second time the same one. A home of the user's
    and another Python stay, and so it is where nothing can be written."""
    pyspark = pytest.importorskip("pyspark")
    home = Path(pyspark.__file__).parent
    command = [f"{home}/./bin/spark-submit", "pyspark-shell"]
    given = {"XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):
        (program, shell), environment = quick_workers(command, given)
        other = Path(environment["SPARK_HOME"])
        assert (Path(program).resolve(), shell) == ((home / "bin" / "spark-submit").resolve(), "pyspark-shell")
        assert (other / "jars").resolve() == (home / "jars").resolve()
        assert sorted(each.name for each in (other / "python" / "lib" / "pyspark.zip").iterdir()) == ["py4j", "pyspark"]
    assert [each.name for each in (tmp_path / "kalda").iterdir()] == [other.name]
    (tmp_path / "file").touch()
    unwritable = {"XDG_CACHE_HOME": f"{tmp_path}/file"}
    for own in ({"PYSPARK_PYTHON": "/usr/bin/python3"}, {"SPARK_HOME": str(home)}, unwritable):
        assert quick_workers(command, given | own) == (command, given | own)
    assert quick_workers(command, given | {"PYSPARK_PYTHON": sys.executable})[0][0] == program


_SHOWN = """
import os
print(os.sched_getscheduler(0), os.getsid(0) == os.getpid(), open("/proc/self/autogroup").read())
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="needs Linux with autogroups")
@pytest.mark.parametrize("has_autogroups", [True, False])
def test_a_process_in_the_background_gets_what_others_leave(
    monkeypatch: pytest.MonkeyPatch, has_autogroups: bool
) -> None:
    monkeypatch.setattr("kalda.spark.java._has_autogroups", lambda: has_autogroups)
    shown = subprocess.check_output([sys.executable, "-c", _SHOWN], preexec_fn=enter_background, text=True).split()
    assert shown[:2] == [str(os.SCHED_IDLE), str(has_autogroups)]
    # A process that began no session may be in no autogroup, as in a container: its file is empty.
    assert not has_autogroups or shown[-1] == "19"


def test_without_that_class_it_has_the_lowest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    command = [sys.executable, "-c", "import os; print(os.nice(0))"]
    assert subprocess.check_output(command, preexec_fn=enter_background, text=True).strip() == "19"


def test_processes_that_could_run_and_hardly_do_wait_for_the_cpu(tmp_path: Path) -> None:
    def threads(state: str, *ticks: int) -> None:
        for number, used in enumerate(ticks):
            folder = tmp_path / "7" / "task" / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stat").write_text(f"{number} (Executor (1)) {state} 1 1 1 0 -1 0 0 0 0 0 {used} {used} 0 0")

    own = tmp_path / "5" / "task" / "5"
    own.mkdir(parents=True)
    (own / "children").write_text("7 ")
    wait = CpuWait(tmp_path, 5)
    threads("R", 100, 100)
    assert not wait.is_long(10.0)  # nothing to compare with
    threads("R", 102, 101)
    assert wait.is_long(11.0)  # 0.06 of a core
    threads("S", 102, 101)
    assert not wait.is_long(12.0)  # they have nothing to do
    threads("R", 110, 110)
    assert not wait.is_long(13.0)
    assert not CpuWait(tmp_path, 6).is_long(14.0)  # a process without others


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of temporary files of a process whose user has no name and no home that can be written."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "KALDA_PROFILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_user_with_a_home_has_the_cache_there(tmp_path: Path) -> None:
    assert user_cache({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "kalda"
    assert user_cache({"HOME": "/", "XDG_CACHE_HOME": "/c"}) == Path("/c/kalda")


def test_a_user_without_a_home_has_it_among_temporary_files(temporary: Path) -> None:
    expected = temporary / f"kalda-{os.getuid()}"
    for environment in ({}, {"HOME": "/"}, {"HOME": "/is/not/there"}):
        assert user_cache(environment) == expected
    assert expected.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_another_user_has_made_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    (temporary / f"kalda-{other}").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(PermissionError, match="belongs to another user"):
        user_cache({})


def test_a_user_without_a_home_has_no_profiles(temporary: Path) -> None:
    assert read_profiles() == {}
    assert profiles_path() == Path("~/.config/kalda/profiles.toml")
