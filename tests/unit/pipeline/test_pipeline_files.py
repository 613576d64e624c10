"""The parts of pipelines that need neither Spark nor a cluster: files, bounds, reports, pictures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kalda.base.ids import TopicPartition
from kalda.cli.commands import cli
from kalda.pipeline.chart import ChartLine, Panel, save_chart
from kalda.pipeline.checkpoints import Checkpoint
from kalda.pipeline.derive import alone, make_views
from kalda.pipeline.lake import Lake, SinkFile
from kalda.pipeline.load import _merge, from_json
from kalda.pipeline.project import read_project
from kalda.pipeline.running import QueryProgress
from kalda.pipeline.session import PipelineError
from kalda.pipeline.snapshot import SnapshotTable
from kalda.pipeline.status import statuses
from kalda.pipeline.topics import TopicQuestions
from kalda.pipeline.values import ValueFormat, schema_text

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def checkpoint(home: Path, ends: list[dict[str, int]], committed: int) -> Path:
    (home / "offsets").mkdir(parents=True)
    (home / "commits").mkdir()
    for number, end in enumerate(ends):
        described = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_000 * number, "conf": {}})
        (home / "offsets" / str(number)).write_text(f"v1\n{described}\n{json.dumps({'a': end})}")
        if number < committed:
            (home / "commits" / str(number)).write_text("v1\n{}")
    (home / "offsets" / ".9.crc").write_text("")
    return home


def test_a_checkpoint_has_the_offsets_of_committed_batches(tmp_path: Path) -> None:
    found = Checkpoint(checkpoint(tmp_path, [{"0": 5}, {"0": 9, "1": 2}, {"0": 20, "1": 2}], committed=2))
    assert found.committed() == {A0: 9, A1: 2}
    batches = found.batches()
    assert [(batch.number, batch.committed_ms is None) for batch in batches] == [(0, False), (1, False), (2, True)]
    assert batches[1].ends == ({A0: 9, A1: 2},)
    assert Checkpoint(tmp_path / "none").committed() == {}
    assert found.has_planned_batch()
    assert not Checkpoint(tmp_path / "none").has_planned_batch()
    assert not Checkpoint(checkpoint(tmp_path / "ended", [{"0": 5}], committed=1)).has_planned_batch()


def test_status_of_a_checkpoint_counts_the_records_of_its_batches(tmp_path: Path) -> None:
    (found,) = statuses(checkpoint(tmp_path, [{"0": 5}, {"0": 9, "1": 2}], committed=2), {})
    assert [batch.records for batch in found.batches] == [5, 6]
    assert (found.kind, found.lag, sum(found.done.values())) == ("query", None, 11)
    (many,) = statuses(checkpoint(tmp_path / "many", [{"0": 10 * n} for n in range(60)], committed=60), {})
    assert {batch.records for batch in many.batches} == {10}  # of the first that is shown, too
    for path in (tmp_path / "offsets", tmp_path / "offsets" / "0"):
        with pytest.raises(PipelineError, match="neither a lake"):
            statuses(path, {})
    assert Lake(tmp_path / "offsets" / "0").settings() is None  # a single file can be replayed


def entry(path: Path, size: int) -> str:
    return json.dumps({"path": f"file://{path}", "size": size, "isDir": False, "action": "add"})


def test_a_lake_has_the_files_of_the_last_entry_and_removes_others(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    folder = tmp_path / "table=events" / "topic=a" / "date=2026-01-01"
    folder.mkdir(parents=True)
    paths = [folder / f"part-{n}.parquet" for n in range(3)]
    for path in paths:
        path.write_bytes(b"x")
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "9.compact").write_text("v1\n" + entry(paths[0], 1))
    (log / "10.compact").write_text("v1\n" + entry(paths[0], 1) + "\n" + entry(paths[2], 1))
    assert [file.path for file in lake.files()] == [paths[0], paths[2]]
    staging = tmp_path / "_kalda" / "compacting-1"  # of a compaction that was killed
    staging.mkdir(parents=True)
    (staging / "part-0.parquet").write_bytes(b"x")
    assert lake.remove_uncommitted() == 1
    assert [path.exists() for path in paths] == [True, False, True]
    assert not staging.exists()
    moved = Lake(tmp_path.rename(tmp_path.with_name("moved")))
    with pytest.raises(PipelineError, match=r"moved was moved: its list of files has .*part-0.parquet"):
        moved.remove_uncommitted()
    assert len(list(moved.path.rglob("*.parquet"))) == 2


def test_merged_files_are_on_the_disk_before_the_list_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power could leave a list of empty files, and the next load would delete what they replace."""
    folder = tmp_path / "lake" / "table=events"
    folder.mkdir(parents=True)
    small = [SinkFile(folder / name, 1, {}) for name in ("a.parquet", "b.parquet")]

    class Frame:
        """Writes one file, whatever is read."""

        def __getattr__(self, _: str) -> Any:
            return lambda *_: self

        @property
        def write(self) -> Frame:
            return self

        def parquet(self, *paths: str) -> Frame:
            if "compacting" in paths[0]:
                Path(paths[0]).mkdir(parents=True)
                (Path(paths[0]) / "merged.parquet").write_bytes(b"rows")
            return self

    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.fstat(opened).st_ino))
    frame: Any = Frame()
    frame.read = frame
    (entry,) = _merge(frame, Lake(tmp_path / "lake"), small, 100)
    merged = folder / "compacted-merged.parquet"
    assert entry["path"] == merged.as_uri()
    assert synced == [merged.stat().st_ino, folder.stat().st_ino]


def test_a_directory_with_the_files_of_others_becomes_no_lake(tmp_path: Path) -> None:
    """Parquet files of the same layout would be deleted as files of a batch that was not committed."""
    theirs = tmp_path / "table=x" / "1.parquet"
    theirs.parent.mkdir()
    theirs.write_bytes(b"x")
    for one in (Lake(tmp_path), SnapshotTable(tmp_path)):
        with pytest.raises(PipelineError, match=r"is not empty, and no (lake|snapshot)"), one.locked():
            pass
    assert list(tmp_path.rglob("*")) == [theirs.parent, theirs]
    lake = Lake(tmp_path / "new")
    with lake.locked():
        lake.write_settings({"topics": [], "format": "parquet", "value": "bytes"})
    with pytest.raises(PipelineError, match="is not empty, and no snapshot"), SnapshotTable(lake.path).locked():
        pass
    with lake.locked():
        pass


@pytest.mark.parametrize("path", ["s3a://bucket/lake", "", "a*", "a{b,c}", "a\nb"])
def test_a_path_that_is_no_directory_or_a_pattern_is_refused(path: str) -> None:
    for one in (Lake(path), SnapshotTable(path)):
        with pytest.raises(PipelineError, match=r"not a URI|has no name|has none of"):
            one.check()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("_kalda/load.json", "{"),
        ("_kalda/load.json", "[]"),
        ("_kalda/load.json", "[" * 100_000),
        ("_kalda/load.json", '{"topics": "x"}'),
        ("_kalda/snapshot.json", '{"topic": 5}'),
        ("_kalda/load.json", "\udcff"),
    ],
)
def test_a_damaged_state_is_one_sentence(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / "_kalda").mkdir()
    (tmp_path / file).write_text(text, errors="surrogateescape")
    with pytest.raises(PipelineError, match=r"is damaged|is not a text"):
        statuses(tmp_path, {}, asks=False)


@pytest.mark.parametrize(
    ("lines", "records"),
    [
        (b"\xff", None),
        (b'v1\n{"batchTimestampMs": "x"}\n{"a": {"0": 5}}', 5),
        (b'v1\n{"batchTimestampMs": 99999999999999999}\n{"a": {"0": 5, "\xc2\xb2": 5}}', 5),
        (b'v1\n{"batchTimestampMs": null}\n' + b"[" * 100_000, 0),
    ],
)
def test_a_damaged_checkpoint_is_shown_as_far_as_it_can_be_read(
    tmp_path: Path, lines: bytes, records: int | None
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(lines)
    (tmp_path / "offsets" / "\u00b2").write_bytes(b"")
    (tmp_path / "commits").write_bytes(b"")
    result = CliRunner().invoke(cli, ["pipeline", "status", str(tmp_path), "--json"])
    assert (result.exit_code, json.loads(result.output)[0]["records in it"]) == (0, records)


def test_status_asks_the_cluster_as_the_options_say(tmp_path: Path) -> None:
    checkpoint(tmp_path, [{"0": 5}], committed=1)
    options = ["-o", "kafka.bootstrap.servers=localhost:1", "-o", "kafka.security.protocol=TLS"]
    result = CliRunner().invoke(cli, ["pipeline", "status", str(tmp_path), *options])
    assert result.exit_code == 1
    assert "Invalid value TLS for configuration security.protocol" in result.output


def test_one_process_loads_a_lake(tmp_path: Path) -> None:
    wanted = pytest.raises(PipelineError, match="another process is loading it")
    with Lake(tmp_path).locked(), wanted, Lake(tmp_path).locked():
        pass


def test_one_process_makes_a_version_of_a_snapshot(tmp_path: Path) -> None:
    wanted = pytest.raises(PipelineError, match="another process is bringing it up to date")
    with SnapshotTable(tmp_path).locked(), wanted, SnapshotTable(tmp_path).locked():
        pass


def test_one_process_writes_a_derived_table(tmp_path: Path) -> None:
    text = '[derived.a]\nsql = "SELECT 1"\npath = "a"\n[derived.b]\nsql = "SELECT 2"\npath = "b"\n'
    both = read_project(project(tmp_path, text))
    with alone(both, ["a"]):
        with alone(both, ["b"]):  # another one of the same project
            pass
        with pytest.raises(PipelineError, match=r"\[derived.a\]: another process is running it"), alone(both):
            pass
    with pytest.raises(PipelineError, match="nothing of the project is named c: a, b"), alone(both, ["c"]):
        pass
    with alone(both, ["a", "a"]):
        pass
    view = read_project(project(tmp_path, '[derived.v]\nsql = "SELECT 1"\n'))
    with pytest.raises(PipelineError, match=r"\[derived.v\] has neither topic nor path"), alone(view):
        pass


def test_tasks_get_what_a_projects_module_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's Python cannot import a module that is beside the project file."""
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    name = f"beside_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "class Frame:\n    def createOrReplaceTempView(self, name):\n        self.view = name\n"
        "def made(spark):\n    return Frame()\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = project(tmp_path, f'[derived.d]\npython = "{name}:made"\npath = "d"\n')
    spark: Any = None
    pickled = cloudpickle.dumps(make_views(spark, read_project(path))["d"])
    monkeypatch.delitem(sys.modules, name)
    sys.path.remove(str(tmp_path))
    assert cloudpickle.loads(pickled).view == "d"


def test_a_report_is_counted_once() -> None:
    progress = QueryProgress()
    source = {"numInputRows": 7, "endOffset": '{"a": {"0": 7}}', "latestOffset": '{"a": {"0": 9}}'}
    report = {"batchId": 0, "batchDuration": 500, "sources": [source]}
    for _ in range(3):
        progress.add(report)
    assert (progress.rows, progress.batches, progress.lag, progress.rows_per_second) == (7, 1, 2, 14.0)


@pytest.mark.parametrize("offsets", [{}, {"a": 5}, {"a": {"x": 5}}, {"a": {"0": -3}}, {"a": {"0": 2**63}}, [1]])
def test_offsets_that_are_none(offsets: Any) -> None:
    with pytest.raises(PipelineError, match="are expected"):
        from_json(offsets)


def test_brokers_that_are_no_addresses_are_one_sentence() -> None:
    for servers in (":", "h:99999", "\x1b:1"):
        with pytest.raises(PipelineError, match="HOST:PORT is expected"):
            TopicQuestions({"kafka.bootstrap.servers": servers})


def project(home: Path, text: str) -> Path:
    path = home / "hosts.toml"
    path.write_text(text)
    return path


GOOD = """
[options]
"kafka.bootstrap.servers" = "localhost:1"
[topics.events]
topic = "host-events"
value = "json"
schema = "kind string"
[derived.windows]
sql = "SELECT 1"
topic = "out"
key = "kind"
"""


def test_a_project_file(tmp_path: Path) -> None:
    found = read_project(project(tmp_path, GOOD))
    assert (found.name, found.topics["events"].topic, found.derived["windows"].exactly_once) == (
        "hosts",
        "host-events",
        True,
    )
    assert found.place("x.parquet") == str(tmp_path / "x.parquet")
    assert found.place("s3a://b/x") == "s3a://b/x"
    assert [status.state for status in statuses(tmp_path / "hosts.toml", {}, asks=False)] == ["never started"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('sql = "SELECT 1"', "", "give one of sql and python"),
        ('key = "kind"', 'keys = "kind"', r"\[derived.windows\] has no keys"),
        ('topic = "out"', 'topic = "out"\npath = "x"', "give one of topic and path"),
        ('topic = "out"', 'path = "x"\nmode = "update"', "files are only appended to"),
        ('schema = "kind string"', "", "value format json needs a schema"),
        ('"kafka.bootstrap.servers" = "localhost:1"', "", "lacks kafka.bootstrap.servers"),
        ("[topics.events]", "[topics.events", r"hosts.toml: "),
        ("[topics.events]", "[topics.events]\nrows_a_batch = 0", "rows_a_batch is 0"),
        ("[topics.events]", "[topics.windows]", "windows is there 2 times"),
        (
            "[derived.windows]",
            '[derived.x]\nsql="s"\npath="p"\n[derived.y]\nsql="s"\npath="p"\n[derived.windows]',
            "p is",
        ),
        ("[derived.windows]", '[derived."../../windows"]', r"\.\./windows.*letters of ASCII"),
        ('key = "kind"', "key = 5", r"\[derived.windows\]: key is 5, not of type str"),
        ('key = "kind"', 'exactly_once = "false"', "exactly_once is 'false', not of type bool"),
        ('schema = "kind string"', "schema = [1]", r"schema is \[1\]"),
        ("[options]", "checkpoints = 5\n[options]", "checkpoints is 5"),
        ("[options]", "tables = 5\n[options]", r"tables is 5; tables \[tables.NAME\]"),
        ('[options]\n"', 'options = 5\n[topics.x]\n"', r"\[options\] is a table"),
        ('"kafka.bootstrap.servers"', "kafka.bootstrap.servers", "write names with dots in quotes"),
        ("[options]", "x = " + "[" * 10_000, "nested too deeply"),
        ("[options]", "#" + "x" * (1 << 20) + "\n[options]", "has more than 1048576 bytes"),
    ],
)
def test_a_wrong_project_file_is_one_sentence(tmp_path: Path, before: str, after: str, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        read_project(project(tmp_path, GOOD.replace(before, after)))


def test_each_side_of_a_project_gets_the_options_that_it_has(tmp_path: Path) -> None:
    """The others would be refused there as misspelt; what neither has is refused by both."""
    both = '"kafka.client.id" = "c"\n"kafka.nothing" = 1\n'
    read = '"kafka.isolation.level" = "read_uncommitted"\nfailOnDataLoss = false\n'
    written = '"kafka.compression.type" = "lz4"\n"kalda.exactly.once.check" = false\n'
    found = read_project(project(tmp_path, GOOD.replace("[topics", both + read + written + "[topics")))
    shared = {"kafka.bootstrap.servers": "localhost:1", "kafka.client.id": "c", "kafka.nothing": "1"}
    assert found.source_options == shared | {
        "kafka.isolation.level": "read_uncommitted",
        "failOnDataLoss": "false",
    }
    assert found.sink_options == shared | {"kafka.compression.type": "lz4", "kalda.exactly.once.check": "false"}


def test_value_formats_name_what_they_lack(tmp_path: Path) -> None:
    for name, words in (("jsno", "are possible"), ("avro", "needs a schema"), ("protobuf", "file of descriptors")):
        with pytest.raises(PipelineError, match=words):
            ValueFormat(name)
    (tmp_path / "s.ddl").write_text("a int\n")
    assert schema_text(str(tmp_path / "s.ddl")) == "a int"
    assert schema_text("a int") == "a int"
    with pytest.raises(PipelineError, match="no such file"):
        schema_text(str(tmp_path / "t.ddl"))


def test_a_chart_is_a_png_or_one_html_file(tmp_path: Path) -> None:
    lines = [ChartLine("<a>", [0, 1, 2], [1, 3, 2]), ChartLine("$x_{b$\x1b", [0, 1, 2], [0, 0, 5])]
    panels = [Panel("one", "records", lines, stacked=True), Panel("two", "seconds", lines)]
    save_chart(tmp_path / "c.png", "$\\title$", panels)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    save_chart(tmp_path / "c.html", "t & t", panels, (("name",), [["<script>"]]))
    text = (tmp_path / "c.html").read_text()
    assert "<svg" in text
    assert "&lt;script&gt;" in text
    assert "src=" not in text
    with pytest.raises(PipelineError, match=r"\.png or \.html"):
        save_chart(tmp_path / "c.gif", "t", panels)


def test_a_file_in_another_encoding_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "schema.avsc").write_bytes(b'{"type":\n "record", "doc": "Gr\xf6\xdfe"}')
    with pytest.raises(PipelineError, match=r"schema\.avsc, line 2, is not a text in UTF-8: it has the byte 0xf6"):
        schema_text(str(tmp_path / "schema.avsc"))
