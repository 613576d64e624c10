"""The Spark session of a command: `local[*]` unless spark-submit gave another master, with quiet output.

A table format whose jars are not on the class path is resolved by Spark from Maven when the session is made; where
that fails, the message names the jars.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kalda.pipeline.background import enter_background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final[dict[str, str]] = {
    "delta": "io.delta:delta-spark_{minor}_{scala}:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{minor}_{scala}:1.12.0",
    "avro": "org.apache.spark:spark-avro_{scala}:{spark}",
    "protobuf": "org.apache.spark:spark-protobuf_{scala}:{spark}",
}
"""Maven coordinates of what is not part of PySpark."""
_RAISED: Final = re.compile(
    r"(?:Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?:kalda\.[\w.]+: )?|\bkalda\.[\w.]+: )(\S.*)"
)
"""What Python raised: the line of each traceback in the text of Spark that names the exception, or what is behind
the name of a class of Kalda's, without that name."""
_SCALA: Final = "2.13"
_EXTENSIONS: Final[dict[str, dict[str, str]]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
}
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",  # a command says what has failed; this would print a Java stack for each attempt
}
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_COMPACT_INTERVAL: Final = "spark.sql.streaming.fileSink.log.compactInterval"
_OF_QUERIES: Final = {
    _TIME_ZONE: "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    _COMPACT_INTERVAL: "1",  # see `lake`
}


class PipelineError(Exception):
    """A pipeline cannot run; the message has the value and the remedy."""


def _spark_version() -> str:
    import pyspark

    return pyspark.__version__


def packages_of(needs: Iterable[str]) -> list[str]:
    """The Maven coordinates of these formats."""
    spark = _spark_version()
    minor = ".".join(spark.split(".")[:2])
    return [PACKAGES[name].format(scala=_SCALA, spark=spark, minor=minor) for name in needs if name in PACKAGES]


def make_session(
    name: str,
    needs: Iterable[str] = (),
    settings: Mapping[str, str] | None = None,
    master: str | None = None,
    *,
    in_background: bool = False,
) -> SparkSession:
    """A session with Kalda's formats. `needs`: delta, iceberg, avro, protobuf. `in_background`: Java and its Python
    workers get what other processes of this machine leave; only for a local master. Raises `PipelineError`."""
    from kalda.spark.java import ending_java, java_advice, sockets_of_workers

    advice = None if os.environ.get("SPARK_REMOTE") else java_advice()
    if advice is not None:
        raise PipelineError(advice)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError(f"pipelines run on PySpark ({error}): pip install 'kalda[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = dict(_SETTINGS) | ({} if "SPARK_REMOTE" in os.environ else sockets_of_workers())
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_REMOTE" not in os.environ:
        builder = builder.master(os.environ.get("SPARK_MASTER", "local[*]"))
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    needed = [one for one in dict.fromkeys(needs) if one in PACKAGES]
    if needed and "SPARK_JARS_PROVIDED" not in os.environ:
        chosen["spark.jars.packages"] = ",".join(packages_of(needed))
    for one in needed:
        chosen |= _EXTENSIONS.get(one, {})
    chosen |= settings or {}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    is_local = (chosen.get("spark.master") or master or os.environ.get("SPARK_MASTER", "local")).startswith("local")
    try:
        with ending_java(enter_background if in_background and is_local else None):
            spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        if not needed:
            raise
        raise PipelineError(
            f"Spark could not be started with {', '.join(packages_of(needed))} from Maven: {first_line(error)}. Where "
            f"there are others that fit Spark {_spark_version()}, name them by --spark spark.jars.packages=...; or put "
            f"the jars into Spark's folder jars and set SPARK_JARS_PROVIDED=1"
        ) from error
    prepare(spark, settings)
    return spark


def prepare(spark: SparkSession, chosen: Collection[str] | None = None) -> None:
    """Kalda's formats, and the settings of queries but those that the user has `chosen`, for a session that was made
    elsewhere."""
    from kalda.spark import register
    from kalda.spark.segments import register_segments

    register(spark)
    register_segments(spark)
    for name, value in _OF_QUERIES.items():
        if name not in (chosen or ()):
            spark.conf.set(name, value)


def check_settings_of_lakes(spark: SparkSession) -> None:
    """Raises `PipelineError` where a session has other settings than a lake needs: its dates are those of UTC, and each
    entry of its list has all files."""
    for name in (_TIME_ZONE, _COMPACT_INTERVAL):
        if (found := spark.conf.get(name)) != _OF_QUERIES[name]:
            raise PipelineError(f"--spark {name}={found}: a load needs {_OF_QUERIES[name]}; leave it out")


def batch_limit(rows: int, *, to_the_end: bool) -> dict[str, str]:
    """The source's option that bounds a batch; none for a query that has one batch only."""
    return {} if ends_after_a_batch(to_the_end=to_the_end) else {"maxOffsetsPerTrigger": str(rows)}


def ends_after_a_batch(*, to_the_end: bool) -> bool:
    """Whether a query ends after its first batch: one `to_the_end` of its topics with Spark 4.1, which has no admission
    control for sources in Python. Where it continues, that batch is the one that had been planned."""
    from kalda.spark.source import HAS_ADMISSION_CONTROL

    return to_the_end and not HAS_ADMISSION_CONTROL


def refuse_options(given: Iterable[str], own: Mapping[str, str]) -> None:
    """Raises `PipelineError` where an option of the source is given that a pipeline sets itself: it would have no
    effect. `own`: such options, and what to use instead."""
    names = {name.lower(): name for name in own}
    for option in given:
        if (name := names.get(option.lower())) is not None:
            raise PipelineError(f"option {name}: {own[name]}")


def first_line(error: BaseException) -> str:
    """What an exception of Spark says, and its first cause, without the Java stack; where Python raised it in a worker,
    what that says."""
    raised = _RAISED.findall(str(error))
    if raised:
        return str(raised[-1])[:500]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "Caused by", "Traceback", "File "))]
    shown = (said or lines or [type(error).__name__])[0][:500]
    first = error
    while (cause := getattr(first, "_cause", None)) is not None:  # of PySpark's exceptions
        first = cause
    below = "" if first is error else first_line(first)
    return shown if not below or below in shown else f"{shown.removesuffix('.')}: {below}"
