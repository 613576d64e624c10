"""The tables of a project: Delta, each in a directory of the warehouse, and in the session's catalog while it runs.

Every write is one commit of Delta that also has what makes it idempotent (`txnAppId`: the flow's query, `txnVersion`:
its batch) and, in `userMetadata`, the offsets that its rows come from. So rows and offsets are in the table together or
not at all, and a batch that is run again after a crash changes nothing. Delta refuses a commit that another writer has
overtaken; such a write is run again as one.

Not obvious:

- `CREATE TABLE ... LOCATION` of a directory that has a table takes its columns; of another one it makes the table.
- A flow's batch has a session of its own, in which settings of Delta for one statement disturb no other flow.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from pyspark.pipelines.output import MaterializedView, Output, Table
from pyspark.sql.types import StructType

from kalda.pipeline.engine.query import Checkpoint
from kalda.pipeline.files import Place, remove_tree, times_in
from kalda.pipeline.files import place_of as placed
from kalda.pipeline.projects.definitions import place_of
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError, first_line, settings_of
from kalda.pipeline.stores import StorePath
from kalda.pipeline.tables.contracts import RESCUED, Difference, difference, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG: Final = "_delta_log"
_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
_LOG_RETENTION: Final = "delta.logRetentionDuration"
"""Delta's own 30 days are 2.6 million files of a table with a commit a second, and each commit lists them. A reader
that is 7 days behind finds removed files anyway."""
_CHECKPOINTS: Final = "delta.checkpointInterval"
"""In commits. Delta's own 10 are one each 10 s, in which a batch waits until all files of the table are listed."""
_WIDENING: Final = "delta.enableTypeWidening"
"""Only where a definition sets it: it keeps readers away that do not have this feature, such as delta-rs."""
_CONTENTION: Final = (
    "ConcurrentModificationException",
    "DELTA_CONCURRENT_",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.2
_STORE_LOOKS_S: Final = 10.0
_APP: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_KEEPS: Final = "spark.databricks.delta.merge.materializeSource"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit belongs to: the batch of a flow's query."""

    flow: str
    app: str
    """The query's id, which lasts as long as its checkpoint."""
    number: int
    offsets: tuple[Any, ...] = ()

    @classmethod
    def of(cls, flow: str, checkpoint: Place, number: int) -> Batch:
        try:
            lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
            offsets = tuple(json.loads(line) for line in lines[2:])
        except (OSError, ValueError):
            offsets = ()
        return cls(flow, f"kalda-{Checkpoint(checkpoint).query_id}", number, offsets)

    @property
    def metadata(self) -> str:
        return json.dumps({"flow": self.flow, "batch": self.number, "offsets": self.offsets})

    def options(self) -> dict[str, str]:
        return {"txnAppId": self.app, "txnVersion": str(self.number), "userMetadata": self.metadata}


def retrying(write: Callable[[], None], sleep: Callable[[float], None] = time.sleep) -> None:
    """Run a write until no other writer has overtaken it; each pause is twice the one before, and random."""
    for attempt in range(_ATTEMPTS):
        try:
            write()
            return
        except Exception as error:
            if attempt == _ATTEMPTS - 1 or not _is_contention(error):
                raise
        sleep(random.uniform(0, _PAUSE_S * 2**attempt))


def _is_contention(error: BaseException) -> bool:
    return any(each in str(error) for each in _CONTENTION)


class Tables:
    """The tables of one project in one session."""

    def __init__(self, spark: SparkSession, specification: Specification) -> None:
        self._spark = spark
        self._specification = specification
        self._stack = ExitStack()
        self._registered: set[str] = set()
        """Those that are in the catalog."""
        self._versions: dict[str, int] = {}
        """Those that were found last."""
        self.look_s = _STORE_LOOKS_S if isinstance(specification.warehouse, StorePath) else 0.0
        """How long to wait between two looks at a version: a store is paid for each."""
        self.on_change: Callable[[str, str], None] = lambda table, change: None
        """Called with each change of a table's columns."""

    def __enter__(self) -> Tables:
        self._stack.enter_context(_database(self._spark, self._specification.database))
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the catalog as it was. The tables have directories of their own, which stay."""
        self._stack.close()

    def path(self, name: str) -> Place:
        return self._specification.place(name)

    def exists(self, name: str) -> bool:
        return (self.path(name) / LOG).is_dir()

    def version(self, name: str) -> int:
        """Of the table's newest commit; -1 where there is no table. The search begins at the last checkpoint of the
        log, or at the version that was found last, so that it costs the same however many commits there are. Raises
        `Unavailable`."""
        number, known = self._last_checkpoint(name), self._versions.get(name, -1)
        if known > number and self._commit(name, known).exists():
            number = known
        while self._commit(name, number + 1).exists():
            number += 1
        self._versions[name] = number
        return number

    def _last_checkpoint(self, name: str) -> int:
        try:
            file = self.path(name) / LOG / "_last_checkpoint"
            return int(json.loads(file.read_text(encoding="utf-8"))["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def _commit(self, name: str, version: int) -> Place:
        return self.path(name) / LOG / f"{version:020}.json"

    def sql_path(self, name: str) -> str:
        """The table in a statement of any session."""
        return f"delta.{quoted(str(self.path(name)))}"

    def read(self, name: str, session: SparkSession | None = None) -> DataFrame:
        """The rows as of now."""
        return (session or self._spark).read.format("delta").load(str(self.path(name)))

    def schema(self, name: str) -> StructType:
        return self.read(name).schema

    def rows_of_last_commit(self, name: str) -> int:
        """How many rows the last write has put into the table."""
        for line in self._commit(name, self.version(name)).read_text(encoding="utf-8").splitlines():
            if (found := json.loads(line).get("commitInfo")) is not None:
                return int(found.get("operationMetrics", {}).get("numOutputRows", 0))
        return 0

    def make(self, name: str, output: Table, columns: StructType, contract: str) -> None:
        """Put the table into the catalog, and make it where there is none. Where there is one, it gets the new columns
        that its contract lets in. Raises `PipelineError`."""
        if self._is_half_made(name):
            remove_tree(self.path(name))
        if self.exists(name):
            self._register(name, output, None)
            self._set_properties(name, output)
            self._change(name, output, columns, contract)
        else:
            self._register(name, output, columns)

    def _is_half_made(self, name: str) -> bool:
        """Whether a run was killed while it made the table, before the first commit: Delta refuses such a directory."""
        path = self.path(name)
        is_log = set(times_in(path)) <= {LOG} and self.exists(name)
        return is_log and all(each.startswith(("_", ".")) for each in times_in(path / LOG))

    def _register(self, name: str, output: Table, columns: StructType | None) -> None:
        if name in self._registered:
            return
        path = self.path(name)
        _make_database(self._spark, name.partition(".")[0])
        self._refuse_other(name, path)
        parts = [f"CREATE TABLE IF NOT EXISTS {_sql_name(name)}"]
        if columns is not None:
            if not columns.fields:
                raise PipelineError(f"{place_of(output)}: {name} has no columns")
            parts.append(f"({columns.toDDL()})")
        parts.append(f"USING delta LOCATION {_text(str(path))}")
        if columns is not None:
            if output.partition_cols:
                parts.append(f"PARTITIONED BY ({', '.join(map(quoted, output.partition_cols))})")
            if output.cluster_by:
                parts.append(f"CLUSTER BY ({', '.join(map(quoted, output.cluster_by))})")
            if output.comment:
                parts.append(f"COMMENT {_text(output.comment)}")
            properties = {_CHECKPOINTS: "50", **output.table_properties}
            if _FILE_RETENTION not in properties:  # Delta refuses a log that is shorter than this
                properties.setdefault(_LOG_RETENTION, "interval 7 days")
            parts.append(f"TBLPROPERTIES {_pairs(properties)}")
        try:
            self._spark.sql(" ".join(parts))
        except Exception as error:
            raise PipelineError(f"{place_of(output)}: table {name} cannot be made: {first_line(error)}") from error
        self._stack.callback(self._spark.sql, f"DROP TABLE IF EXISTS {_sql_name(name)}")
        self._registered.add(name)

    def _refuse_other(self, name: str, path: Place) -> None:
        if not self._spark.catalog.tableExists(name):
            return
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {_sql_name(name)}").where("col_name = 'Location'").collect()
        found = rows[0]["data_type"].removeprefix("file:") if rows else ""
        if placed(found) != path:
            raise PipelineError(f"the catalog has a table {name} at {found or 'no place'}; the project's is at {path}")

    def check_change(self, name: str, output: Output, columns: StructType) -> Difference:
        """Raises `PipelineError` where the table's rows have no place for one of these columns."""
        found = difference(self.schema(name), columns)
        may_widen = isinstance(output, Table) and _is_true(output.table_properties.get(_WIDENING))
        if found.other or (found.wider and not may_widen):
            widen = "" if found.other else f"set {_WIDENING} to true (readers then need Delta's typeWidening), "
            raise PipelineError(
                f"{place_of(output)}: table {name}: {found.text}, and the table has rows. Cast the column, {widen}set "
                f"kalda.schema.contract to rescue or freeze, or --full-refresh {name}"
            )
        return found

    def _change(self, name: str, output: Table, columns: StructType, contract: str) -> None:
        if isinstance(output, MaterializedView):  # replaced as a whole, with types of whatever kind
            found = Difference(difference(self.schema(name), columns).new, (), ())
        elif contract == "evolve":
            found = self.check_change(name, output, columns)
        else:
            kept = [field for field in columns.fields if field.name == RESCUED]
            found = difference(self.schema(name), StructType(kept))
        if found.new or found.wider:
            self._widen(name, found)

    def _set_properties(self, name: str, output: Table) -> None:
        """Give the table those of Delta's own properties that the definition has by now."""
        wanted = {key: str(value) for key, value in output.table_properties.items() if key.startswith("delta.")}
        if not wanted:
            return
        # By Java alone: PySpark's way to bring rows here is a socket, which a busy machine opens too late.
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {_sql_name(name)}")._jdf.collectAsList()
        known = {rows.get(index).getString(0): rows.get(index).getString(1) for index in range(rows.size())}
        changed = {key: value for key, value in wanted.items() if known.get(key) != value}
        if changed:
            self._alter(f"{_sql_name(name)} SET TBLPROPERTIES {_pairs(changed)}")

    def _alter(self, rest: str) -> None:
        def write() -> None:
            self._spark.sql(f"ALTER TABLE {rest}")

        retrying(write)

    def _widen(self, name: str, found: Difference) -> None:
        rows = self._spark.createDataFrame([], StructType([*found.new, *found.wider]))
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        retrying(lambda: writer.option("userMetadata", f"schema: {found.text}").save(str(self.path(name))))
        self._spark.catalog.refreshTable(name)
        self.on_change(name, found.text)

    def append(self, frame: DataFrame, name: str, batch: Batch) -> None:
        """Add the rows, once for each batch. One task a core writes: else each partition of the batch would make a file
        of its own."""
        cores = frame.sparkSession.sparkContext.defaultParallelism
        writer = frame.coalesce(cores).write.format("delta").mode("append").options(**batch.options())
        retrying(lambda: writer.save(str(self.path(name))))

    def replace(self, frame: DataFrame, name: str, batch: Batch | None = None) -> None:
        """Put these rows in the place of all, in one commit: readers see the old ones or the new ones."""
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        options = {} if batch is None else batch.options()
        retrying(lambda: writer.options(**options).save(str(self.path(name))))

    def upsert(self, frame: DataFrame, name: str, keys: list[str], batch: Batch) -> None:
        """Put each row in the place of that with the same keys, or add it."""
        same = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
        self.merge(frame, name, f"ON {same} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *", batch)

    def merge(self, frame: DataFrame, name: str, rest: str, batch: Batch, *, is_kept: bool = False) -> None:
        """MERGE the rows, `s`, into the table, `t`, once for each batch. `rest`: behind USING. `is_kept`: whether Spark
        keeps the rows, so that MERGE need not."""
        session = frame.sparkSession
        view = "kalda_batch_" + re.sub(r"\W", "_", batch.flow)
        frame.createOrReplaceTempView(view)
        settings = {_APP: batch.app, _VERSION: str(batch.number), _METADATA: batch.metadata}
        if is_kept:
            settings[_KEEPS] = "none"

        def write() -> None:
            with settings_of(session, settings):
                session.sql(f"MERGE INTO {self.sql_path(name)} AS t USING `{view}` AS s {rest}")

        try:
            retrying(write)
        finally:
            session.catalog.dropTempView(view)

    def empty(self, name: str, columns: StructType | None = None, partitions: Sequence[str] = ()) -> None:
        """Remove the rows of a table, if there is one; `columns` it has from then on."""
        if self.exists(name):
            rows = self.read(name).limit(0) if columns is None else self._spark.createDataFrame([], columns)
            writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            retrying(lambda: writer.partitionBy(*partitions).save(str(self.path(name))))


class ScratchTables:
    """Tables without rows, which are in the session's catalog for a block: what a project would make."""

    def __init__(self, spark: SparkSession, specification: Specification) -> None:
        self._spark = spark
        self._specification = specification
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> ScratchTables:
        self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="kalda-check-")))
        self._stack.enter_context(_database(self._spark, self._specification.database))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def make(self, name: str, columns: StructType) -> None:
        _make_database(self._spark, name.partition(".")[0])
        self._count += 1
        place = self._directory / str(self._count)
        place.mkdir()  # a stream of a table needs its directory
        self._spark.catalog.createTable(name, str(place), "parquet", columns)
        self._stack.callback(self._spark.sql, f"DROP TABLE IF EXISTS {_sql_name(name)}")


def _make_database(spark: SparkSession, name: str) -> None:
    if name != "default":
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(name)}")


@contextmanager
def _database(spark: SparkSession, name: str) -> Iterator[None]:
    """The block's names without a database are in this one."""
    before = spark.catalog.currentDatabase()
    _make_database(spark, name)
    spark.catalog.setCurrentDatabase(name)
    try:
        yield
    finally:
        spark.catalog.setCurrentDatabase(before)


def _sql_name(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))


def _pairs(properties: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{_text(key)} = {_text(str(value))}' for key, value in properties.items())})"


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
