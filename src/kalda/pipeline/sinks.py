"""Sinks of a project: topics, tables of databases, files, and whatever PySpark has a data source for, by its name.

`kalda.connection` in the options stands for a profile of this machine (`client/transport/config_files.py`). Topics and
tables of databases get each batch once. Files in append mode are Spark's own file sink, whose list of files has each
batch once; tables of Iceberg its own, whose snapshots have the query's id and the batch's number. Of another format, a
batch that is run again after a crash may be written twice, unless its own sink for streams prevents that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.pipelines.output import Sink

from kalda.base.configs.definition import InvalidConfig
from kalda.client.transport.config_files import read_profile
from kalda.pipeline.files import Place
from kalda.pipeline.files import place_of as place_of_path
from kalda.pipeline.jdbc import JdbcTable, driver_of
from kalda.pipeline.projects.definitions import place_of
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.contracts import nullable, quoted
from kalda.pipeline.tables.tables import Batch
from kalda.spark.options import CONNECTION
from kalda.spark.sink_options import EXACTLY_ONCE, write_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

TOPICS: Final = "kalda"
_JDBC: Final = "jdbc"
_OF_ENGINE: Final = ("kalda.trigger", "kalda.output.mode", "kalda.keys", "kalda.restart.")
"""Settings of flows that may be options of a sink, which has no properties."""
_FILES: Final = ("parquet", "orc", "json", "csv", "text")
_ICEBERG: Final = "iceberg"
_PATH: Final = "path"
_FILE_LIST: Final = "_spark_metadata"


def connection(name: str) -> dict[str, str]:
    """The options of a source of whatever format, by the name of a profile: those without a dot, such as `url`, `user`
    and `password` of JDBC. Topics have them by `kalda.connection`. Raises `PipelineError`."""
    try:
        found = {key: value for key, value in read_profile(name).items() if "." not in key}
    except InvalidConfig as error:
        raise PipelineError(error.message) from error
    driver = driver_of(found.get("url", ""))
    return found if driver is None else {"driver": driver, **found}


class ProjectSink:
    """One sink, with its options."""

    def __init__(self, output: Sink, specification: Specification) -> None:
        self._output = output
        self._directory = specification.directory
        self._settings = specification.session_settings

    @property
    def _place(self) -> str:
        return f"{place_of(self._output)}: sink {self._output.name}"

    @property
    def options(self) -> dict[str, str]:
        """Raises `PipelineError`."""
        given = {
            key: str(value) for key, value in self._output.options.items() if not key.lower().startswith(_OF_ENGINE)
        }
        if self._output.format == TOPICS:
            return {EXACTLY_ONCE: "true", **given}
        name = next((value for key, value in given.items() if key.lower() == CONNECTION), None)
        found = {} if name is None else connection(name)
        options = {**found, **{key: value for key, value in given.items() if key.lower() != CONNECTION}}
        path = options.get(_PATH)
        if self._output.format in _FILES and path is not None and "://" not in path:
            options[_PATH] = str(self._directory / path)
        return options

    def check(self, schema: StructType, mode: str, *, has_rules: bool) -> None:
        """Raises `PipelineError` where the sink would refuse rows with these columns."""
        kind = self._output.format
        if kind == TOPICS:
            try:
                write_options(self.options, schema, is_streaming=True)
            except ValueError as error:
                raise PipelineError(f"{self._place}: {error}") from error
        elif kind in (*_FILES, _ICEBERG) and (has_rules or mode != "append"):
            raise PipelineError(
                f"{self._place}: {kind} is appended to, and without expectations: batches that its own sink does not "
                f"write would be there twice after a crash. Put the rules onto a view before it"
            )
        elif kind == _ICEBERG and not self.options.get(_PATH):
            raise PipelineError(f"{self._place}: {_PATH} is the table of Iceberg, CATALOG.DATABASE.NAME")

    def _refuse_files_of_another(self, checkpoint: Place) -> None:
        """Spark's own sink of files leaves out the batches whose numbers are in its list. Raises `PipelineError`."""
        place = place_of_path(self.options.get(_PATH, ""), self._settings)
        is_there = self._output.format in _FILES and place is not None and (place / _FILE_LIST).is_dir()
        if is_there and not (checkpoint / "offsets").exists():
            raise PipelineError(
                f"{place} was written by a query with another checkpoint than {checkpoint}, and Spark would leave out "
                f"the batches whose numbers are in its list of files; name another path"
            )

    @property
    def format(self) -> str:
        return self._output.format

    def make(self, frame: DataFrame) -> None:
        """Make a table of Iceberg, whose sink writes to none that is not there."""
        if self._output.format == _ICEBERG:
            name = ".".join(map(quoted, self.options[_PATH].split(".")))
            columns = nullable(frame.schema).toDDL()
            frame.sparkSession.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg")

    def is_streamed(self, schema: StructType, mode: str, checkpoint: Place, has_rules: bool) -> bool:
        """Whether Spark's own writer of streams writes the rows. Raises `PipelineError` where none may write them."""
        self.check(schema, mode, has_rules=has_rules)
        self._refuse_files_of_another(checkpoint)
        return mode == "append" and not has_rules and self._output.format != _JDBC

    def write(self, frame: DataFrame, batch: Batch, keys: Sequence[str]) -> None:
        """Write a batch. Raises `PipelineError`, `Unavailable`, what Spark raises."""
        options = self.options
        if self._output.format == _JDBC:
            JdbcTable(frame.sparkSession, options, self._place).write(frame, batch, keys)
            return
        if options.get(EXACTLY_ONCE) == "true":
            options |= _of_batch(batch)
        frame.write.format(self._output.format).mode("append").options(**options).save()


def _of_batch(batch: Batch) -> Mapping[str, str]:
    name = batch.app.removeprefix("kalda-")  # as the streaming sink has it: the query's id
    return {f"{EXACTLY_ONCE}.name": name, f"{EXACTLY_ONCE}.batch": str(batch.number)}


def records_of(frame: DataFrame, key: str | None = None) -> DataFrame:
    """Columns `key`, `value`, `headers`, `partition` and `timestamp` as they are where there is a column `value`, else
    all columns as a JSON object, with the column that is named as the key. Raises `PipelineError`."""
    from pyspark.sql import functions as f

    if "value" in frame.columns:
        chosen = [name for name in ("key", "value", "headers", "partition", "timestamp") if name in frame.columns]
        return frame.select(*chosen)
    if key is not None and key not in frame.columns:
        raise PipelineError(f"key {key}: there are the columns {', '.join(frame.columns)}")
    value = f.to_json(f.struct(*(f.col(quoted(name)) for name in frame.columns))).cast("binary").alias("value")
    if key is None:
        return frame.select(value)
    return frame.select(f.col(quoted(key)).cast("string").cast("binary").alias("key"), value)
