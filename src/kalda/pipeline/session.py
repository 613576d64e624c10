"""The Spark session of a command: `local[*]` unless spark-submit gave another master, with quiet output.

A format whose jars are no part of PySpark is resolved by Spark from Maven when the session is made. Which module fits
which PySpark is a table here: the modules appear later than the PySpark that they are for, and some never do.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any, Final

from kalda.base.errors import KafkaError
from kalda.spark.java import enter_background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULES: Final = ("delta", "iceberg", "hadoop-aws", "hadoop-azure", "hadoop-gcp")
"""Formats and file systems that are no part of PySpark."""
_COORDINATES: Final[dict[str, dict[str, str]]] = {
    "4.1": {
        "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
    "4.2": {
        "delta": "io.delta:delta-spark_4.2_2.13:4.4.0",
        "hadoop-aws": "org.apache.hadoop:hadoop-aws:3.5.0",
        "hadoop-azure": "org.apache.hadoop:hadoop-azure:3.5.0",
        "hadoop-gcp": "org.apache.hadoop:hadoop-gcp:3.5.0",
    },
}
"""Maven coordinates, by PySpark's minor version and module: of Hadoop, those of the client that PySpark has, whose
`core-default.xml` names their classes. Each was loaded; what is not here is not published."""
_EXTRAS: Final = {"4.1": "iceberg", "4.2": "pipeline"}
"""The extra of Kalda that installs this PySpark."""
_THROWN: Final = re.compile(r"^(?:Caused by)?: [\w.$]+: (.+)$", re.MULTILINE)
"""What an exception of Java says, and each of its causes, in the text of a `Py4JJavaError`."""
_THROWN_NAME: Final = re.compile(r"^: ([\w.$]+)$", re.MULTILINE)
"""The class of one that says nothing."""
_RAISED: Final = re.compile(
    r"(?:Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?:kalda\.[\w.]+: )?|\bkalda\.[\w.]+: )(\S.*)"
)
"""What Python raised: the line of each traceback in the text of Spark that names the exception, or what is behind
the name of a class of Kalda's, without that name."""
_ANSWERED: Final = re.compile(r"software\.amazon\.awssdk\.[\w.]+: (.*?) \(Service: \w+, Status Code: (\d+),.*")
"""What the store has answered, in the text of an exception of Hadoop."""
JAVA_HAS_ENDED: Final = "Spark's Java has ended, and with it all flows: start the command again"
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
_ALL_CORES: Final = "local[*]"
_PACKAGES: Final = "spark.jars.packages"
_PROVIDED: Final = frozenset(("SPARK_JARS_PROVIDED", "SPARK_REMOTE"))
"""Variables of the environment that say that Spark has its jars elsewhere."""
_OF_QUERIES: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


class PipelineError(KafkaError):
    """A pipeline cannot run; the message has the value and the remedy."""


class Unavailable(KafkaError):
    """What a pipeline needs does not answer; when it is started again, it may."""


def _spark_version() -> str:
    import pyspark

    return pyspark.__version__


def packages_of(needs: Iterable[str], version: str) -> list[str]:
    """The Maven coordinates of these modules for this version of PySpark. Raises `PipelineError` where one has none."""
    minor = ".".join(version.split(".")[:2])
    of_version = _COORDINATES.get(minor, {})
    for name in needs:
        if name not in of_version:
            raise PipelineError(f"no jar of {name} is known for PySpark {version}: {_remedy(name)}")
    return [of_version[name] for name in needs]


def modules_of_projects() -> tuple[str, ...]:
    """The formats of this PySpark: tables are of Delta, and sinks may be of the others."""
    minor = ".".join(_spark_version().split(".")[:2])
    return tuple(name for name in _EXTENSIONS if name == "delta" or name in _COORDINATES.get(minor, {}))


def missing_jar(format_name: str, settings: Mapping[str, str]) -> str | None:
    """Why a session with these settings cannot have this format; None where nothing is known against it."""
    if format_name not in _EXTENSIONS or format_name in settings.get(_PACKAGES, "") or _PROVIDED & os.environ.keys():
        return None
    try:
        packages_of([format_name], _spark_version())
    except PipelineError as error:
        return str(error)
    return None


def _remedy(name: str) -> str:
    """What to do where the PySpark that runs has no jar of this module."""
    fitting = [minor for minor, modules in _COORDINATES.items() if name in modules]
    return (
        f"there is one for PySpark {' and '.join(fitting)} (pip install 'kalda[{_EXTRAS[fitting[-1]]}]'), or name one "
        f"that fits by --spark spark.jars.packages=GROUP:NAME:VERSION"
    )


def make_session(
    name: str,
    needs: Iterable[str] = (),
    settings: Mapping[str, str] | None = None,
    master: str | None = None,
    *,
    in_background: bool = False,
) -> SparkSession:
    """A session with Kalda's formats. `needs`: of `MODULES`. `in_background`: Java and its Python
    workers get what other processes of this machine leave; only for a local master. Raises `PipelineError`."""
    from kalda.spark.java import ending_java, java_advice, settings_of_machine, sockets_of_workers

    advice = None if os.environ.get("SPARK_REMOTE") else java_advice()
    if advice is not None:
        raise PipelineError(advice)
    try:
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError(f"pipelines run on PySpark ({error}): pip install 'kalda[spark]'") from None
    # Each exception would be a line of JSON on the screen, too.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    _expect_closed_accumulators()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = dict(_SETTINGS) | ({} if "SPARK_REMOTE" in os.environ else sockets_of_workers())
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_REMOTE" not in os.environ:
        given = os.environ.get("SPARK_MASTER", _ALL_CORES)
        builder = builder.master(given)
        if given.startswith("local"):  # the workers of a cluster connect to the driver
            chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    needed = [one for one in dict.fromkeys(needs) if one in MODULES]
    packages = (settings or {}).get(_PACKAGES)
    if not _PROVIDED & os.environ.keys():
        own = packages_of([one for one in needed if one not in (packages or "")], _spark_version())
        packages = ",".join(own if packages is None else [packages, *own]) or None
    for one in needed:
        for key, value in _EXTENSIONS.get(one, {}).items():
            chosen[key] = f"{chosen[key]},{value}" if key in chosen else value
    place = (settings or {}).get("spark.master") or master or os.environ.get("SPARK_MASTER", _ALL_CORES)
    if "SPARK_REMOTE" not in os.environ:
        chosen |= settings_of_machine(place)
    chosen |= settings or {}
    if packages is not None:
        chosen[_PACKAGES] = packages
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with ending_java(enter_background if in_background and place.startswith("local") else None):
            spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        if packages is None:
            raise
        said = first_line(error).removesuffix(".")
        raise PipelineError(
            f"Spark could not be started with {packages} from Maven: {said}. Where Maven cannot be reached, put "
            f"the jars into Spark's folder jars and set SPARK_JARS_PROVIDED=1"
        ) from error
    prepare(spark, settings)
    return spark


def _expect_closed_accumulators() -> None:
    """PySpark's server of accumulators prints a stack where Java closes the connection, as it does where a query is
    stopped in a batch. Other errors of it are still printed."""
    from pyspark import accumulators

    def handle_error(server: BaseServer, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            BaseServer.handle_error(server, request, client_address)

    for name in ("AccumulatorTCPServer", "AccumulatorUnixServer"):
        if (server := getattr(accumulators, name, None)) is not None:  # the second since PySpark 4.1
            server.handle_error = handle_error


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


@contextmanager
def settings_of(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings of Spark; after the block it has its own again."""
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)


def refuse_ended(spark: SparkSession) -> None:
    """Raises `PipelineError` where the session's Java has ended: nothing that is tried again would be better."""
    if getattr(spark, "_jvm", None) is None:  # of Spark Connect
        return
    try:
        is_ended = bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # whatever py4j raises where Java does not answer
        is_ended = True
    if is_ended:
        raise PipelineError(JAVA_HAS_ENDED)


def is_of_java(error: BaseException) -> bool:
    """Whether the connection to Java has failed, and not another one."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(frame.f_globals.get("__name__")).startswith("py4j.") for frame in frames)


def refuse_options(given: Iterable[str], own: Mapping[str, str]) -> None:
    """Raises `PipelineError` where an option of the source is given that a pipeline sets itself: it would have no
    effect. `own`: such options, and what to use instead."""
    names = {name.lower(): name for name in own}
    for option in given:
        if (name := names.get(option.lower())) is not None:
            raise PipelineError(f"option {name}: {own[name]}")


def first_line(error: BaseException) -> str:
    """What an exception of Spark says, and its first cause, without the Java stack; where Python raised it in a worker,
    what that says; where a store of Amazon's kind has answered, its words and its status."""
    return _ANSWERED.sub(r"\1 (HTTP \2)", _first_line(error))


def _first_line(error: BaseException) -> str:
    raised = _RAISED.findall(str(error))
    if raised:
        return str(raised[-1])[:500]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_of_java = lines and lines[0].startswith("An error occurred while calling")
    thrown = (_THROWN.findall(str(error)) or _THROWN_NAME.findall(str(error))) if is_of_java else []
    if thrown:  # by Java, and of a kind that PySpark has no class for
        shown, below = thrown[0][:500], thrown[-1][:500]
        return shown if below in shown else f"{shown.removesuffix('.')}: {below}"
    said = [line for line in lines if not line.startswith(("at ", "Caused by", "Traceback", "File "))]
    shown = (said or lines or [type(error).__name__])[0][:500]
    first = error
    while (cause := getattr(first, "_cause", None)) is not None:  # of PySpark's exceptions
        first = cause
    below = "" if first is error else _first_line(first)
    return shown if not below or below in shown else f"{shown.removesuffix('.')}: {below}"
