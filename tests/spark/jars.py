"""Where the jars are that sessions of tests need beside those of PySpark."""

from __future__ import annotations

import os
from pathlib import Path


def connector_jars() -> list[str]:
    """The jars of Spark's own Kafka source, in the folder that `KALDA_SPARK_KAFKA_JARS` names, or that the benchmark
    has fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kalda" / "spark-kafka-4.2.0"
    folder = Path(os.environ.get("KALDA_SPARK_KAFKA_JARS", cache))
    return sorted(map(str, folder.glob("*.jar")))


def delta_jars() -> list[str]:
    """The jars of Delta for this PySpark, in the folder that `KALDA_DELTA_JARS` names, or where Spark has resolved them
    for an earlier session."""
    import pyspark

    minor = ".".join(pyspark.__version__.split(".")[:2])
    names = (f"*delta-spark_{minor}_*.jar", "*delta-storage-*.jar", "*unitycatalog-client-*.jar")
    given = os.environ.get("KALDA_DELTA_JARS")
    folders = [Path(given)] if given else [home / "jars" for home in Path.home().glob(".ivy2*")]
    for folder in folders:
        found = [sorted(folder.glob(name)) for name in names]
        if all(found):
            return [str(each[-1]) for each in found]
    return []
