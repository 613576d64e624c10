"""The parts of pipelines that need neither Spark nor a cluster: files, bounds, reports, pictures."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kalda.base.ids import TopicPartition
from kalda.cli.commands import cli
from kalda.pipeline.engine.query import Checkpoint, QueryProgress
from kalda.pipeline.engine.status import ChartLine, Panel, save_chart, statuses
from kalda.pipeline.formats.values import ValueFormat, schema_text
from kalda.pipeline.generators.conversion import convert
from kalda.pipeline.generators.derive import DerivedDirectory, derived_project, read_derived
from kalda.pipeline.generators.load import Lake, Load, LoadSettings, offsets_of
from kalda.pipeline.generators.snapshot import SnapshotTable, snapshot_project
from kalda.pipeline.projects.check import read_project
from kalda.pipeline.session import PipelineError
from kalda.pipeline.topics import TopicQuestions

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


def test_status_of_a_checkpoint_counts_the_records_of_its_batches(tmp_path: Path) -> None:
    (found,) = statuses(checkpoint(tmp_path, [{"0": 5}, {"0": 9, "1": 2}], committed=2), {})
    assert [batch.records for batch in found.batches] == [5, 6]
    assert (found.kind, found.lag, sum(found.done.values())) == ("query", None, 11)
    (many,) = statuses(checkpoint(tmp_path / "many", [{"0": 10 * n} for n in range(60)], committed=60), {})
    assert {batch.records for batch in many.batches} == {10}  # of the first that is shown, too
    for path in (tmp_path / "offsets", tmp_path / "offsets" / "0"):
        with pytest.raises(PipelineError, match="neither a project"):
            statuses(path, {})
    assert Lake(tmp_path / "offsets" / "0").state() is None  # a single file can be replayed


OPTIONS = {"kafka.bootstrap.servers": "localhost:1"}


def test_commands_write_projects_of_their_own(tmp_path: Path) -> None:
    """Definition files that Python and Spark's decorators take; and a file that was edited stays."""
    lake, table = Lake(tmp_path / "lake"), SnapshotTable(tmp_path / "t")
    load = Load(
        LoadSettings(("a", "b"), OPTIONS, "json", 'n INT COMMENT "x"', key="string"), {"startingOffsets": "latest"}
    )
    specification = lake.begin(load)
    state = {"topic": "a", "topic_id": "", "read_ms": 0, "starts": {}}
    for found, outputs, flow in (
        (specification, ["default.records"], "records"),
        (table.write(snapshot_project("a", OPTIONS, "t"), state), ["records", "default.current"], "records"),
    ):
        read = read_project(found)
        assert read is not None
        definitions, readings = read
        definitions.check()
        assert list(definitions.outputs) == outputs
        assert flow in readings
    file = lake.path / "definitions" / "load.py"
    assert file.stat().st_mode & 0o077 == 0  # options may have passwords
    lake.begin(load, {"kafka.fetch.max.bytes": "1"})
    edited = file.read_text() + "# edited\n"
    assert "fetch.max.bytes" in edited
    file.write_text(edited)
    assert lake.begin(load) == specification
    assert file.read_text() == edited
    printed = CliRunner().invoke(cli, ["pipeline", "snapshot", "a", "--to", str(tmp_path / "new"), "--print"]).output
    assert printed.startswith("# -- spark-pipeline.yml\nname: ")
    assert 'sequence_by="offset"' in printed


def test_another_format_than_delta_is_refused(tmp_path: Path) -> None:
    arguments = ["pipeline", "load", "t", "--to", str(tmp_path / "lake"), "--format", "parquet"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "a load fills a table of Delta, whose files are Parquet; leave it out" in result.output


def entry(path: Path) -> str:
    return json.dumps({"path": f"file://{path}", "size": 1, "isDir": False, "action": "add"})


def test_a_lake_that_was_moved_is_not_converted(tmp_path: Path) -> None:
    folder = tmp_path / "table=events" / "topic=a" / "date=2026-01-01"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"x")
    for name in ("_spark_metadata", "_kalda"):
        (tmp_path / name).mkdir()
    (tmp_path / "_spark_metadata" / "9.compact").write_text("v1\n")
    (tmp_path / "_spark_metadata" / "10.compact").write_text("v1\n" + entry(folder / "part-0.parquet"))
    (tmp_path / "_kalda" / "load.json").write_text('{"topics": ["a"], "format": "parquet", "value": "bytes"}')
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    with pytest.raises(PipelineError, match=r"moved was moved: its list of files has .*part-0.parquet"):
        convert(moved, {}, nullcontext)
    assert len(list(moved.rglob("*.parquet"))) == 1
    (moved / "_kalda" / "load.json").write_text('{"topics": ["a"], "format": "iceberg", "value": "bytes"}')
    with pytest.raises(PipelineError, match="is a lake of iceberg, which stays as it is"):
        convert(moved, {}, nullcontext)


def test_a_directory_with_the_files_of_others_becomes_no_lake(tmp_path: Path) -> None:
    """Parquet files of the same layout would be deleted as files of a batch that was not committed."""
    theirs = tmp_path / "table=x" / "1.parquet"
    theirs.parent.mkdir()
    theirs.write_bytes(b"x")
    for one in (Lake(tmp_path), SnapshotTable(tmp_path)):
        with pytest.raises(PipelineError, match=r"is not empty, and no (lake|snapshot)"), one.alone():
            pass
    assert list(tmp_path.rglob("*")) == [theirs.parent, theirs]
    lake = Lake(tmp_path / "new")
    with lake.alone():
        lake.begin(Load(LoadSettings(("a",), OPTIONS), {}))
    with pytest.raises(PipelineError, match="is not empty, and no snapshot"), SnapshotTable(lake.path).alone():
        pass
    with lake.alone(), pytest.raises(PipelineError, match="another process is writing this lake"), lake.alone():
        pass


@pytest.mark.parametrize("path", ["s3a://bucket/lake", "", "a*", "a{b,c}", "a\nb"])
def test_a_path_that_is_no_directory_or_a_pattern_is_refused(path: str) -> None:
    for one in (Lake(path), SnapshotTable(path)):
        with pytest.raises(PipelineError, match=r"not a URI|has no name|has none of"):
            one.check()


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\udcff"])
def test_a_damaged_state_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "_kalda").mkdir()
    (tmp_path / "_kalda" / "load.json").write_text(text, errors="surrogateescape")
    with pytest.raises(PipelineError, match=r"is damaged|is not a text"):
        Lake(tmp_path).check()


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


def test_names_of_what_is_derived(tmp_path: Path) -> None:
    text = '[derived.a]\nsql = "SELECT 1"\npath = "a"\n[derived.v]\nsql = "SELECT 2"\n'
    found = read_derived(project(tmp_path, text))
    assert found.flows(("a",)) == ("a_out",)
    with pytest.raises(PipelineError, match="nothing of the project is named c: a, v"):
        found.flows(("c",))
    with pytest.raises(PipelineError, match=r"\[derived.v\] has neither topic nor path"):
        found.flows(("v",))
    with pytest.raises(PipelineError, match="nothing is written"):
        read_derived(project(tmp_path, '[derived.v]\nsql = "SELECT 1"\n'))


def test_a_file_of_queries_is_a_project_with_its_checkpoints(tmp_path: Path) -> None:
    path = project(tmp_path, GOOD)
    checkpoint(tmp_path / "checkpoints" / "windows", [{"0": 5}], committed=1)
    (said,) = convert(path, {}, nullcontext)
    assert said.endswith(f"kalda pipeline run {tmp_path / 'hosts-pipeline'}")
    directory = DerivedDirectory(read_derived(path))
    read = read_project(directory.begin())
    assert read is not None
    definitions, _ = read
    assert list(definitions.outputs) == ["events", "windows", "windows_out"]
    assert definitions.outputs["windows_out"].options["topic"] == "out"  # type: ignore[attr-defined]
    assert definitions.setting(definitions.flows["windows_out"], "kalda.output.mode", "") == "append"
    assert (directory.path / "_kalda" / "kalda" / "checkpoints" / "windows_out" / "offsets" / "0").exists()


def test_tasks_get_what_a_projects_module_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's Python cannot import a module that is beside the file."""
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    name = f"beside_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("class Frame:\n    pass\ndef made(spark):\n    return Frame()\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = project(tmp_path, f'[derived.d]\npython = "{name}:made"\npath = "d"\n')
    found = read_project(DerivedDirectory(read_derived(path)).begin())
    assert found is not None
    pickled = cloudpickle.dumps(found[0].flows["d"].func())  # type: ignore[union-attr]
    monkeypatch.delitem(sys.modules, name)
    sys.path.remove(str(tmp_path))
    assert type(cloudpickle.loads(pickled)).__name__ == "Frame"


def test_a_report_is_counted_once() -> None:
    progress = QueryProgress()
    assert progress.lag is None
    source = {"numInputRows": 7, "endOffset": '{"a": {"0": 7}}', "latestOffset": '{"a": {"0": 9}}'}
    report = {"batchId": 0, "batchDuration": 500, "sources": [source]}
    for _ in range(3):
        progress.add(report)
    assert (progress.rows, progress.batches, progress.lag) == (7, 1, 2)


def test_records_of_a_batch_that_is_planned() -> None:
    progress, planned = QueryProgress(), {"a": {"0": 9, "1": 3}, "topic ids": {"a": "x"}}
    assert progress.records_up_to([planned]) is None
    progress.add({"batchId": 0, "sources": [{"numInputRows": 7, "endOffset": '{"a": {"0": 7}}'}]})
    assert progress.records_up_to([planned]) == 5
    assert progress.records_up_to([planned, {"logOffset": 1}]) is None


def test_reports_that_are_known_are_not_asked_for_again() -> None:
    asked: list[int] = []

    class Report:
        def __init__(self, number: int) -> None:
            self.number = number

        def json(self) -> str:
            asked.append(self.number)
            return json.dumps({"batchId": self.number, "sources": [{"numInputRows": 2}]})

    reports = [Report(number) for number in range(3)]
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(recentProgress=lambda: reports))
    progress = QueryProgress()
    assert (progress.follow(query), progress.rows, progress.batches) == (True, 6, 3)
    asked.clear()
    assert not progress.follow(query)
    reports.append(Report(3))
    assert (progress.follow(query), progress.rows, progress.last["batchId"]) == (True, 8, 3)
    assert asked == [2, 3, 2]


@pytest.mark.parametrize("offsets", [{}, {"a": 5}, {"a": {"x": 5}}, {"a": {"0": -3}}, {"a": {"0": 2**63}}, [1]])
def test_offsets_that_are_none(offsets: Any) -> None:
    with pytest.raises(PipelineError, match=r"option from = .* is expected"):
        offsets_of("from", json.dumps(offsets), -2)


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


def test_a_file_of_queries(tmp_path: Path) -> None:
    found = read_derived(project(tmp_path, GOOD))
    assert (found.name, found.topics["events"]["topic"], found.derived["windows"]["exactly_once"]) == (
        "hosts",
        "host-events",
        True,
    )
    assert found.place("x.parquet") == str(tmp_path / "x.parquet")
    assert found.place("s3a://b/x") == "s3a://b/x"
    assert derived_project(found).printed.count('dp.create_sink("windows_out", "kalda"') == 1


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
        read_derived(project(tmp_path, GOOD.replace(before, after)))


def test_each_side_of_a_project_gets_the_options_that_it_has(tmp_path: Path) -> None:
    """The others would be refused there as misspelt; what neither has is refused by both."""
    both = '"kafka.client.id" = "c"\n"kafka.nothing" = 1\n'
    read = '"kafka.isolation.level" = "read_uncommitted"\nfailOnDataLoss = false\n'
    written = '"kafka.compression.type" = "lz4"\n"kalda.exactly.once.check" = false\n'
    found = read_derived(project(tmp_path, GOOD.replace("[topics", both + read + written + "[topics")))
    shared = {"kafka.bootstrap.servers": "localhost:1", "kafka.client.id": "c", "kafka.nothing": "1"}
    assert found.options_of(True) == shared | {
        "kafka.isolation.level": "read_uncommitted",
        "failOnDataLoss": "false",
    }
    assert found.options_of(False) == shared | {"kafka.compression.type": "lz4", "kalda.exactly.once.check": "false"}


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
