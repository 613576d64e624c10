"""One Spark session for all tests marked `spark`: to start another one takes longer than most of them.

A test that needs a format of its own registers it in this session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def connector_jars() -> list[str]:
    """The jars of Spark's own Kafka source, in the folder that `KALDA_SPARK_KAFKA_JARS` names, or that the benchmark
    has fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kalda" / "spark-kafka-4.2.0"
    folder = Path(os.environ.get("KALDA_SPARK_KAFKA_JARS", cache))
    return sorted(map(str, folder.glob("*.jar")))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from kalda.spark import register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    settings = {
        # The quick compiler alone: the session is too short for the other one, which takes as long as the tests.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join(connector_jars()),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def has_connector() -> bool:
    """Whether Spark's own Kafka source is there too."""
    return bool(connector_jars())
