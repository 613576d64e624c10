"""Upkeep of a project's tables while it runs: small files are merged, and what no reader needs any more is removed.

- After `kalda.optimize.commits` commits OPTIMIZE merges files below half of `kalda.optimize.file.bytes` into files of
  up to that size. Larger ones are left alone, so a merge costs the same however old the table is.
- Once in `kalda.vacuum.interval` rows are deleted whose `kalda.retention.column` is older than `kalda.retention`, and
  VACUUM removes the files that no version within `delta.deletedFileRetentionDuration` has (7 days). Delta itself
  removes versions from its log after `delta.logRetentionDuration`.

The tables of rows that were not taken, and of deletes, are kept alike; of the first ones `kalda.quarantine.retention`
deletes rows.

Not obvious:

- A merge commits beside appends without a conflict. A writer that changes rows holds the table's lock, so that neither
  of the two has to be repeated. A writer of another process is a conflict, and the merge is repeated as one.
- A failure here ends no flow: `status` shows it, and it is tried again after a pause.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.engine.runs import TableUpkeep, interval_s
from kalda.pipeline.projects.specification import DELETED, QUARANTINE
from kalda.pipeline.session import PipelineError, Unavailable, first_line
from kalda.pipeline.tables.contracts import quoted
from kalda.pipeline.tables.tables import Tables, retrying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMITS: Final = "kalda.optimize.commits"
_FILE_BYTES: Final = "kalda.optimize.file.bytes"
_VACUUM: Final = "kalda.vacuum.interval"
_RETENTION: Final = "kalda.retention"
_COLUMN: Final = "kalda.retention.column"
_OF_QUARANTINE: Final = "kalda.quarantine.retention"
_MOMENT: Final = "moment"
"""The column of a quarantine with the time of its rows."""
_MIN_FILE_BYTES: Final = 1 << 20
_EVERY_S: Final = 1.0
_PAUSE_S: Final = 60.0
"""After a failure."""
_OPTIMIZE: Final = "spark.databricks.delta.optimize."
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS: Final = 16
"""By which VACUUM lists directories. Spark's own number is 10,000, whatever there is to list."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How one table is kept."""

    commits: int
    """After how many a merge is due; 0: never."""
    file_bytes: int
    vacuum_s: float
    """0: never."""
    retention_s: float
    """0: rows are kept."""
    column: str

    @classmethod
    def of(cls, setting: Callable[[str, str], str], place: str) -> Keeping:
        """By the settings of a table. Raises `PipelineError`."""

        def number(key: str, default: int, least: int) -> int:
            text = setting(key, str(default))
            if not text.isdecimal() or 0 < int(text) < least:
                raise PipelineError(f"{place}: {key} is {text!r}; 0 or a number from {least} on is expected")
            return int(text)

        def seconds(key: str, default: str) -> float:
            text = setting(key, default)
            return 0.0 if text.strip() == "0" else interval_s(text, f"{place}: {key}")

        found = cls(
            number(_COMMITS, 50, 2),
            number(_FILE_BYTES, 128 << 20, _MIN_FILE_BYTES) or _MIN_FILE_BYTES,
            seconds(_VACUUM, "1 day"),
            seconds(_RETENTION, "0"),
            setting(_COLUMN, ""),
        )
        if found.retention_s and not found.column:
            raise PipelineError(f"{place}: {_RETENTION} needs {_COLUMN}: the column with the time of a row")
        seconds(_OF_QUARANTINE, "0")
        return found

    @classmethod
    def of_quarantine(cls, setting: Callable[[str, str], str], place: str) -> Keeping:
        """Of the rows that the table does not take."""
        kept = setting(_OF_QUARANTINE, "0")
        own = {_RETENTION: kept, _COLUMN: _MOMENT}
        return cls.of(lambda key, default: own.get(key) or setting(key, default), place)


class Upkeep:
    """The upkeep of all tables of one run, one after the other on a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        tables: Tables,
        keeping: Mapping[str, tuple[Keeping, Keeping]],
        records: dict[str, TableUpkeep],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`keeping`: by table, how it and its quarantine are kept. `records`: what was done so far; continued here."""
        self._spark = spark
        self._session: SparkSession | None = None
        """Made at the first use: its settings disturb no flow."""
        self._tables = tables
        self._keeping: dict[str, Keeping] = {}
        for name, (own, of_quarantine) in keeping.items():
            self._keeping |= {name: own, name + DELETED: own, name + QUARANTINE: of_quarantine}
        self._records = records
        self._now = now
        self._locks = {name: threading.Lock() for name in self._keeping}
        self._thread = ThreadPoolExecutor(1, "upkeep")
        self._future: Future[None] | None = None
        self._looks_s = 0.0
        self._is_closed = False
        self._pauses: dict[str, float] = {}
        """Until when a table is left alone after a failure."""

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Held by a writer that changes rows of the table, and does not only append."""
        lock = self._locks.get(name)
        if lock is None:
            yield
        else:
            with lock:
                yield

    def step(self) -> None:
        """Begin what is due, unless something goes on. Called again and again while the project runs."""
        if self._now() < self._looks_s or (self._future is not None and not self._future.done()):
            return
        self._looks_s = self._now() + max(_EVERY_S, self._tables.look_s)
        for name in self._keeping:
            if self._is_due(name):
                self._future = self._thread.submit(self.keep, name)
                return

    def finish(self) -> None:
        """Do what is due, at the end of a run that is not stopped."""
        for name in self._keeping:
            if self._is_due(name):
                self.keep(name)

    def close(self) -> None:
        """Interrupt what goes on, and begin nothing more: the next run does it."""
        self._is_closed = True
        if self._session is not None and self._future is not None and not self._future.done():
            self._session.interruptAll()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _is_due(self, name: str) -> bool:
        if self._now() < self._pauses.get(name, 0):
            return False
        try:
            return any(self._due(name))
        except Unavailable:
            self._pauses[name] = self._now() + _PAUSE_S
            return False

    def _due(self, name: str) -> tuple[bool, bool]:
        """Whether the table needs a merge, and whether it needs a removal."""
        version = self._tables.version(name)
        if version < 0:
            return False, False
        how, now_ms = self._keeping[name], int(self._now() * 1000)
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = TableUpkeep(vacuumed_ms=now_ms)
        if record.merged_version > version:  # the table was made anew
            record.merged_version = -1
        merges = bool(how.commits) and version - record.merged_version >= how.commits
        return merges, bool(how.vacuum_s) and now_ms - record.vacuumed_ms >= how.vacuum_s * 1000

    def keep(self, name: str) -> None:
        """Do what is due for one table; a failure is kept in its record."""
        record = self._records[name]
        try:
            merges, removes = self._due(name)
            if merges:
                self._merge(name, record)
            if removes:
                self._remove(name, record)
            record.error = None
        except Exception as error:
            if self._is_closed:
                return
            record.error = first_line(error)
            self._pauses[name] = self._now() + _PAUSE_S

    def _merge(self, name: str, record: TableUpkeep) -> None:
        size = self._keeping[name].file_bytes
        found: list[Mapping[str, Any]] = []

        def write() -> None:
            session = self._of_own()
            session.conf.set(f"{_OPTIMIZE}maxFileSize", str(size))
            session.conf.set(f"{_OPTIMIZE}minFileSize", str(size // 2))
            found.append(self._row(f"OPTIMIZE {self._tables.sql_path(name)}"))

        with self.writing(name):
            retrying(write)
        record.merged_version = self._tables.version(name)
        if removed := int(found[-1].get("metrics", {}).get("numFilesRemoved", 0)):
            record.merges += 1
            record.files_merged += removed
            record.merged_ms = int(self._now() * 1000)

    def _remove(self, name: str, record: TableUpkeep) -> None:
        how, table = self._keeping[name], self._tables.sql_path(name)
        if how.retention_s:
            until = f"timestamp_millis({int((self._now() - how.retention_s) * 1000)})"
            found: list[Mapping[str, Any]] = []
            with self.writing(name):
                retrying(lambda: found.append(self._row(f"DELETE FROM {table} WHERE {quoted(how.column)} < {until}")))
            record.rows_deleted += max(0, int(found[-1].get("num_affected_rows", 0)))
        self._row(f"VACUUM {table}")
        record.vacuums += 1
        record.vacuumed_ms = int(self._now() * 1000)

    def _of_own(self) -> SparkSession:
        if self._session is None:
            self._session = self._spark.newSession()
            self._session.conf.set(_LISTING, str(_LISTING_TASKS))
            cores = self._spark.sparkContext.defaultParallelism
            self._session.conf.set(f"{_OPTIMIZE}maxThreads", str(max(1, cores // 2)))  # the others are for the flows
        return self._session

    def _row(self, statement: str) -> Mapping[str, Any]:
        """The first row of a statement's answer, by Java alone."""
        found: Mapping[str, Any] = json.loads(self._of_own().sql(statement)._jdf.toJSON().head())
        return found
