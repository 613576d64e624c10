"""`kalda pipeline`: load, derive, snapshot, replay, status. Options and output; `kalda.pipeline` does the work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kalda.cli.common.failures import Failure
from kalda.cli.common.output import ProgressLine, print_json, print_table
from kalda.cli.common.session import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, json_option, parse_pairs

if TYPE_CHECKING:
    from kalda.pipeline.load import LoadResult
    from kalda.pipeline.running import QueryProgress
    from kalda.pipeline.status import PipelineStatus

F = TypeVar("F", bound=Callable[..., None])


@click.group()
def pipeline() -> None:
    """Pipelines between topics and tables, on Apache Spark (pip install 'kalda[pipeline]').

    \b
    load      topics into a lake of Parquet, Delta or Iceberg, exactly once
    derive    SQL or Python from topics to topics or tables, by a project file
    snapshot  the latest value of each key of a topic, as a table
    replay    a table or files into a topic, in order
    status    lag and last batches of these, and a chart

    \b
    Examples:
      kalda pipeline load orders --to lake --value json --follow
      kalda pipeline derive hosts.toml --once
      kalda pipeline snapshot customers --to customers
      kalda pipeline replay lake --to orders-again --name april
      kalda pipeline status lake hosts.toml --chart pipelines.html
    """
    log_without_py4j()


def log_without_py4j() -> None:
    """Warnings on stderr, but not what py4j logs of the calls that Ctrl-C has interrupted: a stack for each."""

    def is_shown(record: logging.LogRecord) -> bool:
        is_interrupt = record.exc_info is not None and record.exc_info[0] is KeyboardInterrupt
        return not is_interrupt and not record.name.startswith("py4j")

    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.addFilter(is_shown)
        root.addHandler(handler)


@contextmanager
def _failures() -> Iterator[None]:
    from kalda.pipeline.session import PipelineError, first_line

    try:
        yield
    except PipelineError as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise Failure(f"Spark: {first_line(error)}") from error


_source_option = click.option(
    "-o", "--option", "pairs", metavar="NAME=VALUE", multiple=True,
    help="An option of the source, such as kafka.security.protocol=SSL. May be repeated.",
)  # fmt: skip


def _with_source(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the cluster and of Spark; the command gets `options` (of the source) and `settings`."""

    @click.option(
        "--bootstrap-server", metavar="HOST:PORT,...", envvar=BOOTSTRAP_VARIABLE, default=DEFAULT_BOOTSTRAP,
        show_default=True, show_envvar=True, help="Brokers to connect to first.",
    )  # fmt: skip
    @_source_option
    @click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
    @wraps(command)
    def run(
        *args: Any, bootstrap_server: str, pairs: tuple[str, ...], spark_pairs: tuple[str, ...], **more: Any
    ) -> None:
        options = {"kafka.bootstrap.servers": bootstrap_server, **parse_pairs("--option", pairs)}
        with _failures():
            command(*args, options=options, settings=parse_pairs("--spark", spark_pairs), **more)

    return run


def _end_of(done: Iterable[QueryProgress]) -> None:
    """End the command as other interrupted ones do, where a signal has ended a query that was to reach its end."""
    signals = [progress.stopped_by for progress in done if progress.stopped_by is not None]
    if signals:
        click.echo("Interrupted: the same command continues.", err=True)
        sys.exit(128 + signals[0])


def _progress_line(current: dict[str, QueryProgress]) -> ProgressLine:
    def describe(seconds: float) -> str:
        parts = []
        for name, each in current.items():
            known = each.rows + each.lag
            share = f"{100 * each.rows / known:3.0f} %" if known else "  – "
            parts.append(f"{name} {share}  {each.rows:,} rows  {each.rows_per_second:,.0f}/s  lag {each.lag:,}")
        return f"{seconds:5.0f} s  " + "   ".join(parts)

    return ProgressLine(describe)


@pipeline.command("load")
@click.argument("topics", metavar="TOPIC...", nargs=-1)
@click.option("--to", "target", metavar="DIR", required=True, help="The lake: a directory that the load fills.")
@click.option("--format", "file_format", type=click.Choice(["parquet", "delta", "iceberg"]), default="parquet")
@click.option(
    "--value", type=click.Choice(["bytes", "string", "json", "avro", "protobuf"]), default="bytes", show_default=True,
    help="How values are read. Records that cannot be are in the table quarantine.",
)  # fmt: skip
@click.option("--schema", metavar="COLUMNS|FILE", help="Of json (default: inferred once) or avro.")
@click.option("--message", metavar="NAME", help="protobuf: the message.")
@click.option("--descriptor", metavar="FILE", help="protobuf: what protoc --descriptor_set_out has written.")
@click.option("--registry", metavar="URL", help="avro: the schema registry that has the topic's schemas.")
@click.option("--key", type=click.Choice(["bytes", "string"]), default="bytes", show_default=True)
@click.option("--from", "since", metavar="WHERE", default="earliest", show_default=True,
              help="earliest, latest, a time (UTC without a zone), or offsets as JSON; of the first load.")  # fmt: skip
@click.option(
    "--until", metavar="WHERE", help="A time (UTC without a zone) or offsets as JSON. Default: the topics' ends of now."
)
@click.option("--follow", is_flag=True, help="Wait for new records until stopped.")
@click.option("--every", metavar="INTERVAL", default="10 seconds", show_default=True, help="With --follow: of batches.")
@click.option("--rows-a-batch", type=click.IntRange(1, 2**31 - 1), default=2_000_000, show_default=True)
@click.option("--compact/--no-compact", "compacts", default=True, help="Put small files together at the end.")
@click.option("--background/--foreground", "in_background", default=None,
              help="Whether Spark takes only what others leave of this machine. Default: unless --follow.")  # fmt: skip
@json_option
@_with_source
def load_command(
    topics: tuple[str, ...], target: str, file_format: str, schema: str | None, in_background: bool | None,
    as_json: bool, options: Mapping[str, str], settings: Mapping[str, str], **more: Any,
) -> None:  # fmt: skip
    """Load topics into a lake, exactly once; a load that was interrupted continues.

    \b
    Examples:
      kalda pipeline load orders --to lake --value json
      kalda pipeline load --to lake                       # continue
      kalda pipeline load orders --to march --from 2026-03-01 --until 2026-04-01
    """
    from kalda.pipeline.background import SMALL_FETCHES
    from kalda.pipeline.lake import Lake
    from kalda.pipeline.load import LoadSettings, load, totals
    from kalda.pipeline.session import make_session
    from kalda.pipeline.values import schema_text

    lake = Lake(target)
    lake.check()
    if in_background is None:
        in_background = not more["follow"]
    options = {**(SMALL_FETCHES if in_background else {}), **options}
    wanted = LoadSettings(topics, options, format=file_format, schema=schema_text(schema), **more)
    known = lake.settings() or {}
    needs = (known.get("format", file_format), known.get("value", wanted.value))
    spark = make_session(f"load {target}", needs, settings, in_background=in_background)
    current: dict[str, QueryProgress] = {}
    line = _progress_line(current)

    def show(progress: QueryProgress) -> None:
        current[lake.path.name] = progress
        line.step()

    try:
        done = load(spark, lake, wanted, show)
        line.clear()
        rows = totals(spark, lake) if known.get("format", file_format) == "parquet" else []
    finally:
        spark.stop()
    progress = done.progress
    if as_json:
        print_json({"rows": progress.rows, "batches": progress.batches, "seconds": progress.seconds, "totals": rows})
    else:
        _print_load(done, rows)
    if not more["follow"]:
        _end_of([progress])


def _print_load(done: LoadResult, rows: list[dict[str, Any]]) -> None:
    progress = done.progress
    columns = ("topic", "table", "partition", "first", "last", "rows")
    print_table(columns, [[row[name] for name in columns] for row in rows])
    sizes = {(row["topic"], row["table"]): (row["files"], row["bytes"]) for row in rows}
    print_table(("topic", "table", "files", "bytes"), [[*names, *size] for names, size in sizes.items()])
    rate = progress.rows / progress.seconds if progress.seconds else 0
    click.echo(f"{progress.rows:,} rows in {progress.batches} batches, {progress.seconds:.1f} s, {rate:,.0f} rows/s")
    if done.removed:
        click.echo(f"{done.removed} files of an earlier load that are no part of the table were deleted")


@pipeline.command("derive")
@click.argument("file", metavar="PROJECT.toml", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1)
@click.option("--once", is_flag=True, help="Up to the topics' ends of now; default: until stopped.")
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
def derive_command(file: Path, names: tuple[str, ...], once: bool, spark_pairs: tuple[str, ...]) -> None:
    """Run the derived topics and tables of a project file: all, or those named."""
    from kalda.pipeline.derive import alone, run_all, start
    from kalda.pipeline.project import read_project
    from kalda.pipeline.session import make_session

    with _failures(), alone(project := read_project(file), names):
        spark = make_session(project.name, project.needs, parse_pairs("--spark", spark_pairs))
        current: dict[str, QueryProgress] = {}
        line = _progress_line(current)

        def show(progress: Mapping[str, QueryProgress]) -> None:
            current.update(progress)
            line.step()

        try:
            done = run_all(start(spark, project, once=once, only=names), show)
        finally:
            line.clear()
            spark.stop()
        columns = ("derived", "rows read", "batches", "seconds", "lag")
        print_table(
            columns, [[name, each.rows, each.batches, round(each.seconds, 1), each.lag] for name, each in done.items()]
        )
        if once:
            _end_of(done.values())


@pipeline.command("snapshot")
@click.argument("topic")
@click.option("--to", "target", metavar="DIR", required=True, help="The table; current/ in it is the latest version.")
@click.option("--background/--foreground", "in_background", default=True, show_default=True,
              help="Whether Spark takes only what others leave of this machine.")  # fmt: skip
@_with_source
def snapshot_command(
    topic: str, target: str, in_background: bool, options: Mapping[str, str], settings: Mapping[str, str]
) -> None:
    """Bring a table of the latest value of each key up to the topic's end."""
    from kalda.pipeline.background import SMALL_FETCHES
    from kalda.pipeline.session import make_session
    from kalda.pipeline.snapshot import SnapshotTable, take_snapshot

    table = SnapshotTable(target)
    table.check()
    options = {**(SMALL_FETCHES if in_background else {}), **options}
    spark = make_session(f"snapshot {topic}", (), settings, in_background=in_background)
    try:
        taken = take_snapshot(spark, table, topic, options)
    finally:
        spark.stop()
    click.echo(f"version {taken.version}: {taken.keys:,} keys; {taken.records:,} records were read")
    if taken.rebuilt is not None:
        click.echo(f"the topic was read from its start: {taken.rebuilt}")
    if taken.without_key:
        click.echo(f"{taken.without_key:,} records have no key and are no part of the table")


@pipeline.command("replay")
@click.argument("source", metavar="PATH")
@click.option("--to", "topic", metavar="TOPIC", required=True, help="The topic, which exists.")
@click.option("--name", metavar="NAME", required=True, help="Of this replay: the same name continues it.")
@click.option("--format", "file_format", default="parquet", show_default=True, help="Of the files, as Spark names it.")
@click.option("--order-by", metavar="COLUMN,...", default="partition,offset", show_default=True)
@click.option("--partition-by", type=click.Choice(["partition", "key"]), default="partition", show_default=True)
@_with_source
def replay_command(
    source: str, topic: str, name: str, file_format: str, order_by: str, partition_by: str,
    options: Mapping[str, str], settings: Mapping[str, str],
) -> None:  # fmt: skip
    """Write the rows of a table or of files into a topic, in order, each once."""
    from kalda.pipeline.lake import Lake
    from kalda.pipeline.replay import ReplaySettings, replay
    from kalda.pipeline.session import make_session

    columns = tuple(column.strip() for column in order_by.split(",") if column.strip())
    wanted = ReplaySettings(topic, name, options, columns, partition_by == "partition")
    spark = make_session(f"replay {name}", (file_format,), settings)
    try:
        lake = Lake(source)
        rows = lake.frame(spark) if lake.settings() is not None else spark.read.format(file_format).load(source)
        done = replay(rows, wanted)
    finally:
        spark.stop()
    click.echo(f"{done.written:,} records were written; {done.skipped:,} were there from an earlier run")


@pipeline.command("status")
@click.argument("places", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bootstrap-server", metavar="HOST:PORT,...", envvar=BOOTSTRAP_VARIABLE, show_envvar=True,
              help="Brokers, where the pipeline does not name them.")  # fmt: skip
@_source_option
@click.option("--no-lag", is_flag=True, help="Do not request the topics' ends from the cluster.")
@click.option("--chart", metavar="FILE", type=click.Path(path_type=Path), help="Also draw a chart: .png or .html.")
@json_option
def status_command(
    places: tuple[Path, ...], bootstrap_server: str | None, pairs: tuple[str, ...], no_lag: bool, chart: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Lakes, snapshots, project files and checkpoints: state, lag, last batches."""
    with _failures():
        from kalda.pipeline.chart import save_chart
        from kalda.pipeline.status import panels, statuses

        options = {"kafka.bootstrap.servers": bootstrap_server} if bootstrap_server else {}
        options |= parse_pairs("--option", pairs)
        found = [each for place in places for each in statuses(place, options, asks=not no_lag)]
        rows = [_row(each) for each in found]
        columns = ("pipeline", "kind", "state", "records", "lag", "batches", "last batch", "records in it", "seconds")
        if as_json:
            print_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            print_table(columns, rows)
        if chart is not None:
            save_chart(chart, "Pipelines", panels(found), (columns, rows))
            click.echo(f"{chart} is written")


def _row(status: PipelineStatus) -> list[object]:
    last = status.batches[-1] if status.batches else None
    moment = "–" if last is None else f"{datetime.fromtimestamp(last.planned_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    return [
        status.name, status.kind, status.state, sum(status.done.values()), status.lag,
        None if last is None else last.number + 1, moment, None if last is None else last.records,
        None if last is None else last.seconds,
    ]  # fmt: skip
