"""A directory that `load` fills: a table of records, the offsets up to which it has them, one load at a time.

    LAKE/table=events/topic=T/date=D/*.parquet      records with a value of the declared format
    LAKE/table=quarantine/topic=T/date=D/*.parquet  all others, as bytes and with the reason
    LAKE/_spark_metadata                            the files that are committed (Spark's file sink)
    LAKE/_kalda/load.json                           what the load was started with
    LAKE/_kalda/checkpoint                          Spark's checkpoint: the offsets of each batch

A batch's good and bad records are one commit of the file sink: a reader of the lake sees both or neither. Files of a
batch that was not committed are no part of the table; Spark's reader passes them over, and the next load deletes them,
so after a load the directory has exactly the table's files, for any other reader too.

The sink's list of files has all files in its latest entry (spark.sql.streaming.fileSink.log.compactInterval=1), which
one rename replaces: so compaction is atomic.

Not obvious:

- Two queries never write one lake: Spark skips batch ids that are in the sink's log. `compactInterval` is 1, so that
  one rename replaces the list of all files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from kalda.pipeline.files import OWN, check_directory, locked, read_state, replace_text
from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS: Final = "events"
QUARANTINE: Final = "quarantine"
PARTITIONED_BY: Final = ("table", "topic", "date")
RECORDS: Final = "records"
"""The directory of an Iceberg table within the lake."""
SINK_LOG: Final = "_spark_metadata"
COMPACTING: Final = "compacting-"
"""The beginning of the names of directories in `_kalda` in which compaction writes its files."""


@dataclass(frozen=True, slots=True)
class SinkFile:
    """A committed file, as the file sink lists it."""

    path: Path
    size_bytes: int
    entry: Mapping[str, Any]


class Lake:
    """One lake. Its directory is made by the first load."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._given = os.fspath(path)
        self.path = Path(path).resolve()
        """Without links and `..`: Spark's list of files has the paths of the files as they were when it was written."""

    @property
    def checkpoint(self) -> Path:
        return self.path / OWN / "checkpoint"

    @property
    def settings_file(self) -> Path:
        return self.path / OWN / "load.json"

    def settings(self) -> dict[str, Any] | None:
        """What the lake's load was started with; None before the first. Raises `PipelineError` where it is damaged."""
        return read_state(self.settings_file, {"topics": list, "format": str, "value": str})

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        replace_text(self.settings_file, json.dumps(settings, indent=1, sort_keys=True) + "\n")

    def check(self) -> None:
        """Raises `PipelineError` where the directory cannot be a lake."""
        check_directory(self._given, self.settings_file, "lake")

    @contextmanager
    def locked(self, spark: SparkSession | None = None) -> Iterator[None]:
        """Held while the lake is written, by `spark`. Raises `PipelineError` where another process holds it, or the
        directory cannot be a lake."""
        self.check()
        refusal = f"{self.path}: another process is loading it; wait for its end"
        with locked(self.path / OWN / "lock", refusal, spark):
            yield

    def has_lost_its_checkpoint(self) -> bool:
        """Whether there are records, and no checkpoint that says up to which offsets. A new one would begin again with
        the batch 0, and the file sink passes over batches whose numbers it has."""
        written = (SINK_LOG, "_delta_log", f"{RECORDS}/data")
        return not (self.checkpoint / "offsets").exists() and any((self.path / name).exists() for name in written)

    # -- files

    def last_entry(self) -> Path | None:
        """The latest entry of the file sink's log."""
        try:
            names = os.listdir(self.path / SINK_LOG)
        except FileNotFoundError:
            return None
        numbered = [(int(digits), name) for name in names if (digits := name.removesuffix(".compact")).isdigit()]
        return self.path / SINK_LOG / max(numbered)[1] if numbered else None

    def files(self) -> list[SinkFile]:
        """The committed files."""
        entry = self.last_entry()
        if entry is None:
            return []
        if not entry.name.endswith(".compact"):
            raise PipelineError(f"{entry}: this list of files was written by another query than a load of Kalda")
        lines = entry.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines[1:]]
        files = [SinkFile(_path_of(each["path"]), int(each["size"]), each) for each in found]
        moved = next((each.path for each in files if not each.path.is_relative_to(self.path)), None)
        if moved is not None:
            raise PipelineError(f"{self.path} was moved: its list of files has {moved}. Load into a new directory")
        return files

    def uncommitted(self) -> list[Path]:
        """Data files that are no part of the table: a batch that did not end wrote them, or compaction replaced them.
        Only while the lake is locked."""
        committed = {each.path for each in self.files()}
        return [path for path in self.path.glob("table=*/**/*.parquet") if path not in committed]

    def remove_uncommitted(self) -> int:
        """Delete them, and what a compaction that did not end has left; returns how many of the former there were."""
        for staging in (self.path / OWN).glob(f"{COMPACTING}*"):
            shutil.rmtree(staging)
        paths = self.uncommitted()
        for path in paths:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        return len(paths)

    def table_path(self, format_name: str) -> Path:
        """What Spark's reader of that format is given."""
        return self.path / RECORDS if format_name == "iceberg" else self.path

    def frame(self, spark: SparkSession, table: str = EVENTS) -> DataFrame:
        """One of the lake's two tables."""
        return self.rows(spark).where(f"table = '{table}'").drop("table")

    def rows(self, spark: SparkSession) -> DataFrame:
        """Both tables."""
        from pyspark.sql.types import StringType, StructField, StructType

        kind = (self.settings() or {}).get("format", "parquet")
        rows = spark.read.format(kind).load(str(self.table_path(kind)))
        if kind != "parquet" or rows.schema["topic"].dataType == StringType():
            return rows
        # The topic is in the names of directories, from which Spark makes the number 7 of a topic named 007.
        topic = StructField("topic", StringType())
        schema = StructType([topic if field.name == "topic" else field for field in rows.schema.fields])
        return spark.read.schema(schema).parquet(str(self.path))


def _path_of(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
