"""`kalda pipeline`: run, serve, redrive, redrive-topic, check, load, mirror, derive, snapshot, replay, convert, status.

Options and output; `kalda.pipeline` does the work.
"""

from __future__ import annotations

import glob
import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kalda.cli.common.completing import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import NOTHING, ProgressLine, counted, is_json, print_json, print_table, report_option, say
from kalda.cli.common.session import json_option, parse_pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kalda.pipeline.engine.runs import FlowReport
    from kalda.pipeline.engine.status import PipelineStatus

F = TypeVar("F", bound=Callable[..., None])


@click.group(cls=Noun)
def pipeline() -> None:
    """Pipelines between topics and tables, on Apache Spark (pip install 'kalda[pipeline]').

    \b
    run       a project of pyspark.pipelines: tables, views, sinks, change data
    redrive   the rows that a table did not take again, after a fix
    serve     several projects in one session, with a page and an interface over HTTP
    check     what is wrong with such a project, mostly without Java
    load      topics into a table, exactly once
    mirror    topics to another cluster, exactly once, with the offsets of groups
    derive    SQL or Python from topics to topics or files, by a file of topics and queries
    snapshot  the latest value of each key of a topic, as a table
    replay    a table or files into a topic, in order
    convert   what an earlier version has made, as a project
    status    lag and last batches of these, and a chart

    \b
    Examples:
      kalda pipeline run shop --follow
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
        is_of_py4j = record.name.startswith("py4j") or Path(record.pathname).parent.name == "py4j"  # by the root logger
        return not is_interrupt and not is_of_py4j

    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.addFilter(is_shown)
        root.addHandler(handler)


@contextmanager
def _session(
    line: ProgressLine,
    name: str,
    needs: Iterable[str],
    settings: Mapping[str, str],
    *,
    in_background: bool = False,
    ticks_until_made: bool = False,
) -> Iterator[SparkSession]:
    """A session of Spark that is stopped at the end, while `line` shows that the work goes on, or only that the session
    is being made."""
    from kalda.cli.common.quiet_spark import quiet_spark
    from kalda.pipeline.session import make_session

    if in_background:
        click.echo(
            "Spark takes only what others leave of this machine, so the load may be slow where they are busy; "
            "--foreground lets it take all.",
            err=True,
        )
    with ExitStack() as ticking, quiet_spark() as restore:
        ticking.enter_context(line.ticking())
        spark = make_session(name, needs, settings, in_background=in_background)
        restore()
        if ticks_until_made:
            ticking.close()
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _failures() -> Iterator[None]:
    from kalda.pipeline.session import JAVA_HAS_ENDED, PipelineError, Unavailable, first_line, is_of_java

    try:
        yield
    except (PipelineError, Unavailable) as error:
        raise Failure(_noted(str(error), error)) from error
    except ImportError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        raise Failure(f"projects run on PySpark 4.1 and 4.2 ({error}): pip install 'kalda[pipeline]'") from error
    except Exception as error:
        if isinstance(error, ConnectionError) and is_of_java(error):
            raise Failure(JAVA_HAS_ENDED) from error
        first: BaseException | None = error  # without Java, what cleans up fails too
        while first is not None and not isinstance(first, PipelineError):
            first = first.__context__
        if first is not None:
            raise Failure(str(first)) from error
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise Failure(_noted(f"Spark: {first_line(error)}", error)) from error


def _noted(sentence: str, error: Exception) -> str:
    return ". ".join([sentence, *getattr(error, "__notes__", ())])


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


_print_option = click.option("--print", "prints", is_flag=True, help="Print the project, and run nothing.")


@pipeline.command("load")
@click.argument("topics", metavar="TOPIC...", nargs=-1)
@click.option("--to", "target", metavar="DIR", required=True, help="The lake: a directory that the load fills.")
@click.option(
    "--value", type=click.Choice(["bytes", "string", "json", "avro", "protobuf"]), default="bytes", show_default=True,
    help="How values are read. Records that cannot be are in the table's quarantine.",
)  # fmt: skip
@click.option("--format", "file_format", default="delta", hidden=True)
@click.option("--schema", metavar="COLUMNS|FILE", help="Of json (default: inferred once) or avro.")
@click.option("--message", metavar="NAME", help="protobuf: the message.")
@click.option("--descriptor", metavar="FILE", help="protobuf: what protoc --descriptor_set_out has written.")
@click.option("--registry", metavar="URL", help="avro: the schema registry that has the topic's schemas.")
@click.option(
    "--key",
    type=click.Choice(["bytes", "string"]),
    default="bytes",
    show_default=True,
    help="The type of the column of keys.",
)
@click.option("--from", "since", metavar="WHERE", default="earliest", show_default=True,
              help="earliest, latest, a time (UTC without a zone), or offsets as JSON; of the first load.")  # fmt: skip
@click.option(
    "--until", metavar="WHERE", help="A time (UTC without a zone) or offsets as JSON. Default: the topics' ends of now."
)
@click.option("--follow", is_flag=True, help="Wait for new records until stopped.")
@click.option("--every", metavar="INTERVAL", default="10 seconds", show_default=True, help="With --follow: of batches.")
@click.option(
    "--rows-a-batch",
    type=click.IntRange(1, 2**31 - 1),
    default=2_000_000,
    show_default=True,
    help="Records that a batch has at most.",
)
@click.option("--background/--foreground", "in_background", default=None,
              help="Whether Spark takes only what others leave of this machine. Default: unless --follow.")  # fmt: skip
@_print_option
@json_option
@_with_source
def load_command(
    topics: tuple[str, ...], target: str, file_format: str, follow: bool, schema: str | None,
    in_background: bool | None, prints: bool, options: Mapping[str, str], settings: Mapping[str, str],
    **more: Any,
) -> None:  # fmt: skip
    """Load topics into a table of Delta, exactly once; a load that was interrupted continues. DIR becomes a project of
    one table, which `kalda pipeline run DIR` runs too.

    \b
    Examples:
      kalda pipeline load orders --to lake --value json
      kalda pipeline load --to lake                       # continue
      kalda pipeline load orders --to march --from 2026-03-01 --until 2026-04-01
    """
    from kalda.pipeline.formats.values import schema_text
    from kalda.pipeline.generators.load import Lake, LoadSettings
    from kalda.spark.java import SMALL_FETCHES

    if file_format != "delta":
        raise Failure(
            f"--format {file_format}: a load fills a table of Delta, whose files are Parquet; leave it out, or write a "
            f"project with a sink of {file_format}"
        )
    lake = Lake(target)
    lake.check()
    if in_background is None:
        in_background = not follow
    if lake.state() is not None and _is_default("bootstrap_server"):
        options = {name: value for name, value in options.items() if name != "kafka.bootstrap.servers"}
    load = lake.agreed(LoadSettings(topics, options, schema=schema_text(schema), **more))
    if prints and not load.needs_schema:
        click.echo(load.project(lake.path.name).printed, nl=False)
        return
    reports: dict[str, FlowReport] = {}
    session = _session(_flow_line(reports), f"load {target}", ("delta",), settings, in_background=in_background)
    with lake.alone(), session as spark:
        if prints:
            click.echo(load.with_schema(spark).project(lake.path.name).printed, nl=False)
            return
        began = time.monotonic()
        tuning = SMALL_FETCHES if in_background else {}
        flow, done = lake.load(spark, load, tuning, lambda found: reports.update(load=found), follow=follow)
        seconds = time.monotonic() - began
        rows = lake.totals(spark)
    if is_json():
        print_json({"rows": flow.rows, "batches": flow.batches, "seconds": seconds, "totals": rows})
    else:
        _print_load(flow, seconds, rows)
    _end(done.signal, [flow], to_the_end=not follow)


def _is_default(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source in (None, click.core.ParameterSource.DEFAULT)


def _end(number: int | None, reports: Iterable[FlowReport], *, to_the_end: bool) -> None:
    """End the command as other interrupted ones do, where a signal has ended what was to reach its end. Raises
    `Failure` where a flow has failed."""
    if number is not None and to_the_end:
        click.echo("Interrupted: the same command continues.", err=True)
        sys.exit(128 + number)
    failed = [f"{each.flow}: {each.error}" for each in reports if each.state in ("failed", "skipped")]
    if failed:
        raise Failure("; ".join(failed))


_rows, _records = (partial(counted, noun=noun, form=",") for noun in ("row", "record"))
_batches = partial(counted, noun="batch", plural="batches")


def _print_load(flow: FlowReport, seconds: float, rows: list[dict[str, Any]]) -> None:
    columns = ("topic", "table", "partition", "first", "last", "rows")
    print_table(columns, [[row[name] for name in columns] for row in rows])
    sizes = {(row["topic"], row["table"]): (row["files"], row["bytes"]) for row in rows}
    print_table(("topic", "table", "files", "bytes"), [[*names, *size] for names, size in sizes.items()])
    rate = flow.rows / seconds if seconds else 0
    click.echo(f"{_rows(flow.rows)} in {_batches(flow.batches)}, {seconds:.1f} s, {rate:,.0f} rows/s")


@pipeline.command("derive")
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1)
@click.option("--once", is_flag=True, help="Up to the topics' ends of now; default: until stopped.")
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
@_print_option
@json_option
def derive_command(file: Path, names: tuple[str, ...], once: bool, spark_pairs: tuple[str, ...], prints: bool) -> None:
    """Run the derived topics and files of a file of topics and queries: all, or those named. The project that runs is
    written beside it.

    \b
    Example:
      kalda pipeline derive sales.toml --once
    """
    with _failures():
        from kalda.pipeline.engine.engine import RunOptions, run_project
        from kalda.pipeline.generators.derive import DerivedDirectory, derived_project, read_derived

        read = read_derived(file)
        flows = read.flows(names)
        if prints:
            click.echo(derived_project(read).printed, nl=False)
            return
        directory = DerivedDirectory(read)
        reports: dict[str, FlowReport] = {}
        line = _flow_line(reports)
        with directory.alone():
            specification = directory.begin()
            with _session(line, read.name, read.needs, parse_pairs("--spark", spark_pairs)) as spark:
                done = run_project(
                    spark, specification, RunOptions(not once, flows), lambda report: reports.update(report.flows)
                )
        columns = ("derived", "rows read", "batches", "seconds", "lag")
        rows = [
            [each.flow.removesuffix("_out"), each.rows, each.batches, each.seconds, each.lag]
            for each in reports.values()
        ]
        if is_json():
            print_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            print_table(columns, rows)
        _end(done.signal, reports.values(), to_the_end=once)


_project = click.argument("project", metavar="PROJECT", type=click.Path(path_type=Path), default=Path())


def _names(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for one in given for name in one.split(",") if name.strip())


@pipeline.command("run")
@_project
@click.option(
    "--once/--follow", default=True, show_default=True, help="Up to the sources' present ends, or until stopped."
)
@click.option("--refresh", metavar="NAME,...", multiple=True, help="Only these tables and sinks.")
@click.option("--full-refresh", metavar="NAME,...", multiple=True, help="These anew, and the tables that read them.")
@click.option("--full-refresh-all", is_flag=True, help="All anew.")
@click.option(
    "--engine",
    type=click.Choice(["kalda", "spark"]),
    default="kalda",
    show_default=True,
    help="What runs the flows: Kalda, or spark-pipelines of Spark.",
)
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
@json_option
def run_command(
    project: Path, once: bool, refresh: tuple[str, ...], full_refresh: tuple[str, ...], full_refresh_all: bool,
    engine: str, spark_pairs: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a project of pyspark.pipelines: a directory with spark-pipeline.yml, or this file.

    \b
    Examples:
      kalda pipeline run shop
      kalda pipeline run shop --follow
      kalda pipeline run shop --full-refresh totals
    """
    with _failures():
        from kalda.pipeline.engine.engine import RunOptions, run_in_spark, run_project, running_alone
        from kalda.pipeline.projects.check import problems_without_spark
        from kalda.pipeline.projects.specification import read_specification

        specification = read_specification(project, parse_pairs("--spark", spark_pairs))
        options = RunOptions(not once, _names(refresh), _names(full_refresh), full_refresh_all)
        settings = specification.session_settings
        if engine == "spark":
            sys.exit(run_in_spark(specification, options, settings))
        with running_alone(specification):
            _refuse(problems_without_spark(specification))
            reports: dict[str, FlowReport] = {}
            line = _flow_line(reports)
            with _session(line, specification.name, specification.modules, settings) as spark:
                done = run_project(spark, specification, options, lambda report: reports.update(report.flows))
        columns, rows = _flow_rows(reports.values())
        if is_json():
            print_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            print_table(columns, rows)
        _end(done.signal, reports.values(), to_the_end=once)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise Failure("\n".join(problems))


def _flow_line(reports: Mapping[str, FlowReport]) -> ProgressLine:
    from kalda.spark.java import CpuWait

    wait = CpuWait()

    def describe(seconds: float) -> str:
        parts = [
            f"{name} {each.state} {_rows(each.rows)}  lag {NOTHING if each.lag is None else f'{each.lag:,}'}"
            for name, each in reports.items()
        ]
        said = f"{seconds:5.0f} s  " + ("   ".join(parts) or "Spark starts, and reads the project")
        return f"{said}   waits for the CPU, which others use" if wait.is_long(seconds) else said

    return ProgressLine(describe)


def _flow_rows(reports: Iterable[FlowReport]) -> tuple[tuple[str, ...], list[list[object]]]:
    columns = ("flow", "target", "state", "rows", "batches", "lag", "seconds", "restarts", "failing", "error")
    rows: list[list[object]] = []
    for each in reports:
        failing = ", ".join(f"{name}: {count:,}" for name, count in each.failing.items() if count)
        rows.append(
            [each.flow, each.target, str(each.state), each.rows, each.batches, each.lag, each.seconds, each.restarts,
             failing, each.error or ""]
        )  # fmt: skip
    return columns, rows


@pipeline.command("serve")
@click.argument("places", metavar="PROJECT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9190", show_default=True, help="Port 0: a free one.")
@click.option("--token-file", metavar="FILE", type=click.Path(path_type=Path),
              help="The token of requests, in a file. Default: a new one, which is printed.")  # fmt: skip
@click.option("--paused", is_flag=True, help="The projects wait until they are resumed or refreshed.")
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
def serve_command(
    places: tuple[Path, ...], listen: str, token_file: Path | None, paused: bool, spark_pairs: tuple[str, ...]
) -> None:
    """Run projects in one resident session until stopped, with a page and an interface over HTTP: the state, pause,
    resume, refresh.

    \b
    Examples:
      kalda pipeline serve shop billing
      curl -X POST -H "Authorization: Bearer $TOKEN" localhost:9190/projects/shop/refresh
    """
    with _failures():
        from kalda.pipeline.engine.query import stop_signals
        from kalda.pipeline.engine.service import Service, check_projects, shared_settings
        from kalda.pipeline.projects.check import problems_without_spark
        from kalda.pipeline.projects.specification import read_specification

        pairs = parse_pairs("--spark", spark_pairs)
        specifications = [read_specification(place, pairs) for place in places]
        check_projects(specifications)
        _refuse([problem for each in specifications for problem in problems_without_spark(each, ask=False)])
        token = secrets.token_urlsafe(16) if token_file is None else token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise Failure(f"{token_file} has no token")
        settings = {**shared_settings(specifications), **pairs}
        modules = [module for each in specifications for module in each.modules]

        def show(port: int) -> None:
            address = f"http://{listen.removeprefix('http://').rpartition(':')[0] or 'localhost'}:{port}/"
            click.echo(f"Serving {address}#token={token}" if token_file is None else f"Serving {address}")

        line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  Spark starts")
        with stop_signals() as stopped, _session(line, "serve", modules, settings, ticks_until_made=True) as spark:
            Service(spark, specifications, are_paused=paused).run(listen, token, stopped, show)


@pipeline.command("redrive")
@click.argument("table", metavar="TABLE")
@click.option("--project", metavar="PROJECT", type=click.Path(path_type=Path), default=Path(), help="Default: here.")
@click.option("--where", metavar="SQL", default="true",
              help="Over flow, batch, moment, reasons, row, and value (the row as an object).")  # fmt: skip
@click.option("--set", "changes", metavar="COLUMN=SQL", multiple=True, help="Change a column of the rows. Repeatable.")
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
@report_option
def redrive_command(
    table: str, project: Path, where: str, changes: tuple[str, ...], spark_pairs: tuple[str, ...]
) -> None:
    """Give the rows that a table or a sink did not take to their flow again, after a fix, each once. Those that the
    rules of now do not let through stay in quarantine.

    \b
    Examples:
      kalda pipeline redrive orders --where "array_contains(reasons, 'a total') AND moment > '2026-03-01'"
      kalda pipeline redrive orders --where "value.total < 0" --set "total=abs(total)"
    """
    with _failures():
        from kalda.pipeline.engine.engine import redrive_rows, running_alone
        from kalda.pipeline.engine.redrive import Wanted
        from kalda.pipeline.projects.specification import read_specification

        specification = read_specification(project, parse_pairs("--spark", spark_pairs))
        wanted = Wanted(table, where, parse_pairs("--set", changes))
        line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  rows of {table} are given again")
        session = _session(line, f"redrive {table}", specification.modules, specification.session_settings)
        with running_alone(specification), session as spark:
            counts = redrive_rows(spark, specification, wanted)
    if not counts:
        say(f"{table} has no rows in quarantine")
    for flow, (given, kept) in counts.items():
        say(f"{flow}: {_rows(given)} given again, {kept:,} left in quarantine")


@pipeline.command("redrive-topic")
@click.argument("topic")
@click.option("--state", "directory", metavar="DIR", required=True, help="Of this choice of letters; a project.")
@click.option("--where", metavar="SQL", default="true",
              help="Over key, value, timestamp, headers, origin (the topic it comes from), place (its partition), "
              "message.")  # fmt: skip
@click.option("--set", "changes", metavar="key|value=SQL", multiple=True, help="Change a letter. Repeatable.")
@click.option("--into", metavar="TOPIC", help="The topic that gets the letters. Default: the one that they come from.")
@_print_option
@report_option
@_with_source
def redrive_topic_command(
    topic: str, directory: str, where: str, changes: tuple[str, ...], into: str | None, prints: bool,
    options: Mapping[str, str], settings: Mapping[str, str],
) -> None:  # fmt: skip
    """Give the dead letters in a topic, of Kafka Connect or of share groups, to the topics that they come from, each
    once. The same command continues, and gives what has come since.

    \b
    Example:
      kalda pipeline redrive-topic orders-dead --state redrives/orders --where "message LIKE '%timeout%'"
    """
    from kalda.pipeline.generators.redriven_letters import Letters, LettersDirectory

    letters = Letters(topic, options, where, parse_pairs("--set", changes), into)
    state = LettersDirectory(directory)
    state.check()
    chosen = state.agreed(letters)
    if prints:
        click.echo(letters.project(state.path.name).printed, nl=False)
        return
    line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  letters of {topic} are given again")
    with state.alone(), _session(line, f"redrive {topic}", ("delta",), settings) as spark:
        flow, done = state.give(spark, letters, chosen)
    kept = sum(flow.failing.values())
    say(f"{flow.rows:,} letters were read" + (f", {kept:,} are in {state.path}/topics__quarantine" if kept else ""))
    _end(done.signal, [flow], to_the_end=True)


@pipeline.command("check")
@_project
@click.option("--no-spark", is_flag=True, help="Only what can be checked without Java.")
@click.option("--no-cluster", is_flag=True, help="Do not request the topics from their clusters.")
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
@report_option
def check_command(project: Path, no_spark: bool, no_cluster: bool, spark_pairs: tuple[str, ...]) -> None:
    """What is wrong with a project, without running it: files, names, circles and topics first, then columns and types
    by Spark.

    \b
    Example:
      kalda pipeline check shop --no-spark
    """
    with _failures():
        from kalda.pipeline.engine.engine import check_with_spark
        from kalda.pipeline.projects.check import problems_without_spark
        from kalda.pipeline.projects.specification import read_specification

        specification = read_specification(project, parse_pairs("--spark", spark_pairs))
        _refuse(problems_without_spark(specification, ask=not no_cluster))
        if not no_spark:
            line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  Spark reads the project")
            settings = specification.session_settings
            with _session(line, specification.name, specification.modules, settings) as spark:
                check_with_spark(spark, specification)
        say(f"{specification.name}: nothing is wrong" + (" that can be found without Spark" if no_spark else ""))


@pipeline.command("mirror")
@click.argument("topics", nargs=-1, required=True)
@click.option("--from", "source", metavar="PROFILE", required=True, help="The cluster with the topics.")
@click.option("--to", "target", metavar="PROFILE", required=True, help="The cluster that gets them.")
@click.option("--state", "directory", metavar="DIR", required=True, type=click.Path(path_type=Path),
              help="Where the mirror keeps what it has done.")  # fmt: skip
@click.option("--prefix", default="", help="Before the names of the copies.")
@click.option("--groups", metavar="PATTERN", default=".*", show_default=True,
              help="Consumer groups whose offsets are translated.")  # fmt: skip
@click.option("--no-groups", is_flag=True, help="Translate no offsets.")
@click.option(
    "--once/--follow", default=True, show_default=True, help="Up to the topics' present ends, or until stopped."
)
@click.option(
    "--rows-a-batch",
    type=click.IntRange(1, 2**31 - 1),
    default=500_000,
    show_default=True,
    help="Records that a batch has at most.",
)
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True, help="A config of Spark, repeatable.")
@json_option
def mirror_command(
    topics: tuple[str, ...], source: str, target: str, directory: Path, prefix: str, groups: str, no_groups: bool,
    once: bool, rows_a_batch: int, spark_pairs: tuple[str, ...],
) -> None:  # fmt: skip
    """Copy topics to another cluster, each record once: partitions, headers, timestamps, and the offsets of groups.

    \b
    Example:
      kalda pipeline mirror orders payments --from production --to standby --state mirrors/standby --follow
    """
    with _failures():
        from kalda.client.transport.config_files import read_profile
        from kalda.pipeline.mirror import MirrorSettings, mirror

        for profile in (source, target):
            read_profile(profile)  # before Spark starts
        settings = MirrorSettings(topics, source, target, prefix, None if no_groups else groups, not once, rows_a_batch)
        reports: dict[str, FlowReport] = {}
        session = _session(_flow_line(reports), f"mirror {directory}", (), parse_pairs("--spark", spark_pairs))
        with session as spark:
            done = mirror(spark, directory, settings, lambda report: reports.update({report.flow: report}))
    for group, problem in done.problems.items():
        click.echo(f"kalda: warning: the offsets of {group or 'the groups'} are not translated: {problem}", err=True)
    report = done.report
    if is_json():
        print_json({"records": report.rows, "batches": report.batches, "groups": done.groups})
    else:
        groups_done = f", offsets of {counted(len(done.groups), 'group')}" if done.groups else ""
        say(f"{_records(report.rows)} in {_batches(report.batches)}{groups_done}")
    _end(done.signal, [report], to_the_end=once)


@pipeline.command("snapshot")
@click.argument("topic")
@click.option("--to", "target", metavar="DIR", required=True, help="A directory; current/ in it is the table.")
@click.option("--background/--foreground", "in_background", default=True, show_default=True,
              help="Whether Spark takes only what others leave of this machine.")  # fmt: skip
@_print_option
@report_option
@_with_source
def snapshot_command(
    topic: str, target: str, in_background: bool, prints: bool, options: Mapping[str, str], settings: Mapping[str, str]
) -> None:
    """Bring a table of Delta with the latest value of each key up to the topic's end. DIR becomes a project of one
    table.

    \b
    Example:
      kalda pipeline snapshot users --to snapshots/users
    """
    from kalda.pipeline.generators.snapshot import SnapshotTable, snapshot_project
    from kalda.spark.java import SMALL_FETCHES

    table = SnapshotTable(target)
    table.check()
    if prints:
        click.echo(snapshot_project(topic, options, table.path.name).printed, nl=False)
        return
    options = {**(SMALL_FETCHES if in_background else {}), **options}
    line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  the snapshot of {topic} is taken")
    session = _session(line, f"snapshot {topic}", ("delta",), settings, in_background=in_background)
    with table.alone(), session as spark:
        taken = table.take(spark, topic, options)
    if taken.signal is not None:
        click.echo("Interrupted: the same command continues.", err=True)
        sys.exit(128 + taken.signal)
    say(f"version {taken.version}: {counted(taken.keys, 'key', form=',')}, read from {_records(taken.records)}")
    if taken.rebuilt is not None:
        say(f"the topic was read from its start: {taken.rebuilt}")
    if taken.without_key:
        say(f"without a key, and so no part of the table: {_records(taken.without_key)}")


@pipeline.command("convert")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@report_option
@_with_source
def convert_command(path: Path, options: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """Make a project of what an earlier version has made: a lake, a snapshot's directory, a TOML file.

    \b
    Examples:
      kalda pipeline convert lake
      kalda pipeline convert sales.toml
    """
    from kalda.pipeline.generators.conversion import convert

    line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  {path} is converted")
    for sentence in convert(path, options, lambda: _session(line, f"convert {path}", ("delta",), settings)):
        say(sentence)


@pipeline.command("replay")
@click.argument("source", metavar="PATH")
@click.option("--to", "topic", metavar="TOPIC", required=True, help="The topic, which exists.")
@click.option("--name", metavar="NAME", required=True, help="Of this replay: the same name continues it.")
@click.option("--format", "file_format", default="parquet", show_default=True, help="Of the files, as Spark names it.")
@click.option(
    "--order-by",
    metavar="COLUMN,...",
    default="partition,offset",
    show_default=True,
    help="The columns by which rows are written.",
)
@click.option(
    "--partition-by",
    type=click.Choice(["partition", "key"]),
    default="partition",
    show_default=True,
    help="Write each row to the partition it came from, or to that of its key.",
)
@report_option
@_with_source
def replay_command(
    source: str, topic: str, name: str, file_format: str, order_by: str, partition_by: str,
    options: Mapping[str, str], settings: Mapping[str, str],
) -> None:  # fmt: skip
    """Write the rows of a table or of files into a topic, in order, each once.

    \b
    Example:
      kalda pipeline replay lake/orders --to orders-again --name replay-1
    """
    from kalda.pipeline.generators.load import Lake
    from kalda.pipeline.generators.replay import ReplaySettings, replay

    columns = tuple(column.strip() for column in order_by.split(",") if column.strip())
    wanted = ReplaySettings(topic, name, options, columns, partition_by == "partition")
    line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  {source} is written to {topic}")
    lake = Lake(source)
    is_lake = lake.state() is not None
    if ":" not in source and not glob.has_magic(source) and not Path(source).exists():
        raise Failure(f"{source}: there is no such file")
    with _session(line, f"replay {name}", ("delta" if is_lake else file_format,), settings) as spark:
        rows = lake.frame(spark) if is_lake else spark.read.format(file_format).load(source)
        done = replay(rows, wanted)
    say(f"written: {_records(done.written)}; there from an earlier run: {done.skipped:,}")


@pipeline.command("status")
@click.argument("places", metavar="PATH...", nargs=-1, required=True)
@click.option("--bootstrap-server", metavar="HOST:PORT,...", envvar=BOOTSTRAP_VARIABLE, show_envvar=True,
              help="Brokers, where the pipeline does not name them.")  # fmt: skip
@_source_option
@click.option("--no-lag", is_flag=True, help="Do not request the topics' ends from the cluster.")
@click.option("--chart", metavar="FILE", type=click.Path(path_type=Path), help="Also draw a chart: .png or .html.")
@click.option("--spark", "spark_pairs", metavar="NAME=VALUE", multiple=True,
              help="A key of a file system, such as spark.hadoop.fs.s3a.endpoint=URL. Repeatable.")  # fmt: skip
@json_option
def status_command(
    places: tuple[str, ...], bootstrap_server: str | None, pairs: tuple[str, ...], no_lag: bool, chart: Path | None,
    spark_pairs: tuple[str, ...],
) -> None:  # fmt: skip
    """Projects, also those of `load`, `snapshot` and `derive`, and checkpoints: state, lag, last batches.

    \b
    Examples:
      kalda pipeline status lake
      kalda pipeline status lake --chart lag.png
    """
    with _failures():
        from kalda.pipeline.engine.status import panels, save_chart, statuses

        options = {"kafka.bootstrap.servers": bootstrap_server} if bootstrap_server else {}
        options |= parse_pairs("--option", pairs)
        settings = parse_pairs("--spark", spark_pairs)
        found = [each for place in places for each in statuses(place, options, settings, asks=not no_lag)]
        rows = [_row(each) for each in found]
        columns = ("pipeline", "kind", "state", "records", "lag", "batches", "last batch", "records in it", "seconds")
        if is_json():
            print_json(
                [dict(zip((*columns, "notes"), (*row, each.notes), strict=True))
                 for row, each in zip(rows, found, strict=True)]
            )  # fmt: skip
        else:
            print_table(columns, rows)
            for each in found:
                for note in each.notes:
                    click.echo(f"{each.name}: {note}")
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
