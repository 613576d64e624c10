"""A machine without a Java that Spark can use: what the message says."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kalda.spark import session
from kalda.spark.java import java_advice, new_session, quick_workers, settings_of_machine


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
