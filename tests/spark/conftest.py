"""One Spark session for all tests marked `spark`: to start another one takes longer than most of them.

A test that needs a format of its own registers it in this session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from databases import driver_jars
from jars import connector_jars, delta_jars


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from kalda.spark import register

    # For the Python that Java starts: a test that needs a profile writes the file.
    os.environ["KALDA_PROFILES"] = str(tmp_path_factory.mktemp("profiles") / "profiles.toml")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    settings = {
        # The quick compiler alone: the session is too short for the other one, which takes as long as the tests.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join([*connector_jars(), *delta_jars(), *driver_jars()]),
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if delta_jars():
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()
    del os.environ["KALDA_PROFILES"]


@pytest.fixture(scope="session")
def has_connector() -> bool:
    """Whether Spark's own Kafka source is there too."""
    return bool(connector_jars())


@pytest.fixture(scope="session")
def has_delta() -> bool:
    """Whether the session has tables of Delta."""
    return bool(delta_jars())
