"""One Spark session for all tests marked `spark`: to start another one takes longer than most of them.

A test that needs a format of its own registers it in this session.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import driver_jars
from jars import connector_jars, delta_jars
from quick_spark import SETTINGS


def python_of_workers(directory: Path) -> Path:
    """A command for Spark's Python processes. Spark puts an archive first on their path, whose modules are compiled at
    each start: the installed package is there compiled."""
    command = directory / "python"
    path = shlex.quote(str(Path(__file__).parent))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return command


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from kalda.spark import register

    directory = tmp_path_factory.mktemp("session")
    builder = SparkSession.builder.master("local[2]").appName("tests")
    settings = SETTINGS | {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join([*connector_jars(), *delta_jars(), *driver_jars()]),
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "warm_daemon",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    if delta_jars():
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    for name, value in settings.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        # For the Python that Java starts: a test that needs a profile writes the file.
        patch.setenv("KALDA_PROFILES", str(directory / "profiles.toml"))
        patch.setenv("PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON", str(python_of_workers(directory))))
        session = builder.getOrCreate()
        register(session)
        yield session
        session.stop()


@pytest.fixture(scope="session")
def has_connector() -> bool:
    """Whether Spark's own Kafka source is there too."""
    return bool(connector_jars())


@pytest.fixture(scope="session")
def has_delta() -> bool:
    """Whether the session has tables of Delta."""
    return bool(delta_jars())
