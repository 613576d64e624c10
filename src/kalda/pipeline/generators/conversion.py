"""What earlier versions have made as projects: `kalda pipeline convert PATH`.

- A lake of Parquet becomes a table of Delta with exactly the files that Spark's list of them has; files of batches that
  were not committed, and those that were put together into others, are removed. A lake of Delta keeps its table.
- A snapshot's directory gets a project; its next run reads the topic from its start.
- A file of topics and queries (TOML) gets a project beside it, with the checkpoints of its queries.

The conversion can be repeated where it was interrupted. Nothing may write or read the directory meanwhile.

Not obvious:

- The first batch that the project runs may be one that the earlier version has written and did not note in the
  checkpoint. So the table gets a commit without rows that has the identity of the last batch that it has: Delta then
  leaves out that batch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from kalda.pipeline.engine.query import Checkpoint
from kalda.pipeline.files import OWN, locked, read_state
from kalda.pipeline.generators.derive import DerivedDirectory, read_derived
from kalda.pipeline.generators.generated import GENERATED
from kalda.pipeline.generators.load import ISOLATION, RECORDS, Lake, Load, LoadSettings
from kalda.pipeline.generators.snapshot import SnapshotTable, snapshot_project
from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.tables import LOG
from kalda.spark.options import STOP

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

_FILE_LIST: Final = "_spark_metadata"
_SETTINGS: Final = ("value", "schema", "message", "descriptor", "registry", "key", "until")


def convert(
    path: Path, options: Mapping[str, str], session: Callable[[], AbstractContextManager[SparkSession]]
) -> list[str]:
    """Convert what is at a path; returns what was done, in sentences. `options`: of the source, where what is converted
    does not have them. `session` makes a session with Delta, where one is needed. Raises `PipelineError`."""
    if path.suffix == ".toml":
        directory = DerivedDirectory(read_derived(path))
        with directory.alone():
            directory.begin()
        return [f"{path} is the project {directory.path} now: kalda pipeline run {directory.path}"]
    path = path.resolve()
    lake, taken = (read_state(path / OWN / f"{name}.json", {}) for name in ("load", "snapshot"))
    if any(each is not None and GENERATED in each for each in (lake, taken)):
        raise PipelineError(f"{path} is a project already")
    if lake is None and taken is None:
        raise PipelineError(f"{path}: neither a lake nor a snapshot nor a TOML file of an earlier version")
    with locked(path / OWN / "lock", f"{path}: another process is writing it; wait for its end"):
        if taken is not None:
            return _convert_snapshot(path, taken, options)
        assert lake is not None
        if lake["format"] not in ("parquet", "delta"):
            raise PipelineError(
                f"{path} is a lake of {lake['format']}, which stays as it is: read it as before, and load what comes "
                f"later into a new directory"
            )
        with session() as spark:
            return _convert_lake(spark, path, lake, options)


def _convert_snapshot(path: Path, taken: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    project = snapshot_project(taken["topic"], options, path.name)
    (path / "current").unlink(missing_ok=True)
    for version in path.glob("v=*"):
        shutil.rmtree(version)
    (path / OWN / "snapshot.json").unlink()
    SnapshotTable(path).write(project, {"topic": taken["topic"], "topic_id": "", "read_ms": 0, "starts": {}})
    return [
        f"{path} is a project now; its table is made again from the start of topic {taken['topic']} by the next "
        f"kalda pipeline snapshot {taken['topic']} --to {path}"
    ]


def _convert_lake(spark: SparkSession, path: Path, lake: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    table, checkpoint = path / RECORDS, path / OWN / "checkpoint"
    said = []
    if lake["format"] == "parquet" and (path / _FILE_LIST).exists():
        removed = _remove_others(path)
        if not (path / LOG).exists() and not (table / LOG).exists():
            place = str(path).replace("`", "``")
            spark.sql(f"CONVERT TO DELTA parquet.`{place}` PARTITIONED BY (table string, topic string, date date)")
        said.append(f"{removed} files that were no part of the table were deleted")
    last = _last_batch(path, Checkpoint(checkpoint).query_id, lake["format"])
    if last is not None and (path / LOG).exists():
        _mark(spark, path, f"kalda-{Checkpoint(checkpoint).query_id}", last)
    table.mkdir(exist_ok=True)
    for each in [*path.glob("table=*"), path / LOG]:
        if each.exists():
            os.rename(each, table / each.name)
    now = path / OWN / "kalda" / "checkpoints" / RECORDS
    if checkpoint.exists():
        now.parent.mkdir(parents=True, exist_ok=True)
        os.rename(checkpoint, now)
    shutil.rmtree(path / _FILE_LIST, ignore_errors=True)
    given = {ISOLATION: lake.get("isolation", "read_uncommitted"), **options}
    if lake.get("bootstrap"):
        given.setdefault("kafka.bootstrap.servers", lake["bootstrap"])
    kept: dict[str, Any] = {name: lake.get(name) for name in _SETTINGS}
    settings = LoadSettings(tuple(lake["topics"]), given, **kept)
    bounds = dict(lake.get("since") or {"startingOffsets": "earliest"})
    if lake.get("ends"):
        bounds[STOP] = json.dumps(lake["ends"])
    Lake(path).begin(Load(settings, bounds))
    rows = spark.read.format("delta").load(str(table)).count() if (table / LOG).exists() else 0
    said.append(f"{path} is a project now: its table {table} of Delta has {rows:,} rows, and kalda pipeline load --to "
                f"{path} continues it")  # fmt: skip
    return said


def _entries(path: Path) -> list[tuple[int, Path]]:
    """The entries of Spark's list of files, the latest last."""
    found = [(each.name.removesuffix(".compact"), each) for each in (path / _FILE_LIST).iterdir()]
    return sorted((int(digits), each) for digits, each in found if digits.isdigit())


def _remove_others(path: Path) -> int:
    """Delete data files that are not in the list; returns how many there were."""
    entries = _entries(path)
    if not entries or not entries[-1][1].name.endswith(".compact"):
        raise PipelineError(f"{path / _FILE_LIST}: this list was written by another query than a load of Kalda")
    lines = entries[-1][1].read_text(encoding="utf-8").splitlines()[1:]
    listed = {Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines}
    moved = next((each for each in listed if not each.is_relative_to(path)), None)
    if moved is not None:
        raise PipelineError(f"{path} was moved: its list of files has {moved}. Move it back to convert it")
    others = [each for each in path.glob("table=*/**/*.parquet") if each not in listed]
    for each in others:
        each.unlink()
        each.with_name(f".{each.name}.crc").unlink(missing_ok=True)
    return len(others)


def _last_batch(path: Path, query: str | None, kind: str) -> int | None:
    """The number of the last batch that the table has; None where it has none."""
    if kind == "parquet":
        return _entries(path)[-1][0] if (path / _FILE_LIST).is_dir() else None
    commits = (line for file in (path / LOG).glob("[0-9]*.json") for line in file.read_text("utf-8").splitlines())
    found = (json.loads(line).get("txn") for line in commits)
    return max((each["version"] for each in found if each is not None and each["appId"] == query), default=None)


def _mark(spark: SparkSession, path: Path, app: str, batch: int) -> None:
    rows = spark.read.format("delta").load(str(path)).limit(0)
    writer = rows.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", str(batch))
    writer.save(str(path))
