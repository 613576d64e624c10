"""A machine without a Java that Spark can use: what the message says."""

from __future__ import annotations

import warnings
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kalda.spark import session
from kalda.spark.java import java_advice, new_session


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
    assert [call.args for call in builder.config.call_args_list] == expected
