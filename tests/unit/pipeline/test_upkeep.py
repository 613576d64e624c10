"""When the upkeep of a table is due, and what a failure leaves."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kalda.pipeline.engine.runs import TableUpkeep, upkeep_of
from kalda.pipeline.engine.upkeep import Keeping, Upkeep
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.tables import Tables


class PaperSession:
    """In the place of Spark: keeps statements, and answers as Delta does."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.settings: dict[str, str] = {}
        self.failures: list[Exception] = []
        self.conf = self
        self.set = self.settings.__setitem__
        self.newSession = lambda: self
        self.sparkContext = SimpleNamespace(defaultParallelism=4)
        self.interrupted = threading.Event()
        self.interruptAll = self.interrupted.set

    def sql(self, statement: str) -> Any:
        self.statements.append(statement.split()[0])
        if self.failures:
            raise self.failures.pop(0)
        return self

    @property
    def _jdf(self) -> Any:
        return self

    def toJSON(self) -> Any:  # noqa: N802
        return self

    def head(self) -> str:
        return json.dumps({"metrics": {"numFilesRemoved": 5}, "num_affected_rows": 7})


class Table:
    """A log of commits, and the upkeep of its table."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.session = PaperSession()
        specification = Specification(directory / "p.yml", "p", directory, "default", {}, ())
        self.tables = Tables(self.session, specification)  # type: ignore[arg-type]
        self.log = self.tables.path("default.t") / "_delta_log"
        self.log.mkdir(parents=True)
        self.now_s = 1000.0
        self.records: dict[str, TableUpkeep] = {}
        named = {f"kalda.{key.replace('_', '.')}": value for key, value in settings.items()}
        keeping = Keeping.of(lambda key, default: named.get(key, default), "a.py:1")
        self.upkeep = Upkeep(
            self.session,  # type: ignore[arg-type]
            self.tables,
            {"default.t": (keeping, keeping)},
            self.records,
            lambda: self.now_s,
        )

    def commit(self, *versions: int) -> None:
        for version in versions:
            (self.log / f"{version:020}.json").touch()

    @property
    def record(self) -> TableUpkeep:
        return self.records["default.t"]


def test_a_version_is_found_from_the_last_checkpoint(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert table.tables.version("default.t") == -1
    table.commit(0, 1, 2)
    assert table.tables.version("default.t") == 2
    table.commit(10, 11)  # those between were removed
    (table.log / "_last_checkpoint").write_text('{"version": 10, "size": 3}')
    assert table.tables.version("default.t") == 11
    (table.log / "_last_checkpoint").write_text("{")
    assert table.tables.version("default.t") == 11  # it is known by now
    table.tables._versions.clear()
    assert table.tables.version("default.t") == 2


def test_a_merge_is_due_after_so_many_commits(tmp_path: Path) -> None:
    table = Table(tmp_path, optimize_commits="3", optimize_file_bytes=str(8 << 20), vacuum_interval="0")
    table.commit(0, 1)
    table.upkeep.finish()
    assert table.session.statements == []
    table.commit(2)
    table.upkeep.finish()
    assert table.session.statements == ["OPTIMIZE"]
    assert table.session.settings == {
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
        "spark.databricks.delta.optimize.maxThreads": "2",  # of four cores
        "spark.databricks.delta.optimize.maxFileSize": str(8 << 20),
        "spark.databricks.delta.optimize.minFileSize": str(4 << 20),
    }
    assert (table.record.merges, table.record.files_merged, table.record.merged_version) == (1, 5, 2)
    table.commit(3, 4)
    table.upkeep.finish()
    assert len(table.session.statements) == 1
    again = upkeep_of({"upkeep": {"default.t": {"merged_version": 2, "merges": 1, "of a later version": 0}}})
    assert again == {"default.t": TableUpkeep(merged_version=2, merges=1)}


def test_removals_are_due_by_time_and_a_conflict_repeats_one(tmp_path: Path) -> None:
    table = Table(tmp_path, optimize_commits="0", vacuum_interval="1 hour", retention="2 days", retention_column="at")
    table.commit(0)
    table.upkeep.finish()
    assert table.session.statements == []
    table.now_s += 3600
    table.session.failures.append(RuntimeError("[DELTA_CONCURRENT_APPEND] another writer"))
    table.upkeep.finish()
    assert table.session.statements == ["DELETE", "DELETE", "VACUUM"]
    assert (table.record.rows_deleted, table.record.vacuums, table.record.error) == (7, 1, None)


def test_a_failure_is_shown_and_tried_again_after_a_pause(tmp_path: Path) -> None:
    table = Table(tmp_path, optimize_commits="2", vacuum_interval="0")
    table.commit(0, 1)
    table.session.failures.append(RuntimeError("the disk is full"))
    table.upkeep.finish()
    table.upkeep.finish()
    assert table.session.statements == ["OPTIMIZE"]
    assert table.record.error == "the disk is full"
    table.now_s += 60
    table.upkeep.finish()
    assert (table.record.merges, table.record.error) == (1, None)


def test_a_merge_waits_for_a_writer_that_changes_rows(tmp_path: Path) -> None:
    table = Table(tmp_path, optimize_commits="2", vacuum_interval="0")
    table.commit(0, 1)
    with table.upkeep.writing("default.t"):
        table.upkeep.step()
        assert table.session.statements == []
    table.upkeep.close()
    assert table.session.statements == ["OPTIMIZE"]


def test_the_end_of_a_run_interrupts_a_merge_which_is_no_failure(tmp_path: Path) -> None:
    table = Table(tmp_path, optimize_commits="2", vacuum_interval="0")
    table.commit(0, 1)
    began = threading.Event()

    def sql(statement: str) -> Any:
        began.set()
        assert table.session.interrupted.wait(30)
        raise RuntimeError("cancelled")

    table.session.sql = sql  # type: ignore[method-assign]
    table.upkeep.step()
    assert began.wait(30)
    table.upkeep.close()
    assert (table.record.merges, table.record.error) == (0, None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimize_commits": "1"}, "kalda.optimize.commits is '1'; 0 or a number from 2 on"),
        ({"optimize_file_bytes": "10"}, "kalda.optimize.file.bytes is '10'"),
        ({"vacuum_interval": "daily"}, "kalda.vacuum.interval is 'daily'; an interval such as '5 seconds'"),
        ({"retention": "1 day"}, "kalda.retention needs kalda.retention.column"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        Table(tmp_path, **settings)
