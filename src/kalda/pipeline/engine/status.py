"""Pipelines with their lag and last batches: from their checkpoints, and from the topics' ends; as values, or as a
picture over time (a PNG, or one HTML file that needs no other).
"""

from __future__ import annotations

import html
import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kalda.base.ids import TopicPartition
from kalda.base.texts import printable
from kalda.pipeline.engine.query import Checkpoint, CheckpointBatch
from kalda.pipeline.engine.runs import FlowState, TableUpkeep, read_run, upkeep_of
from kalda.pipeline.files import OWN, Place, is_locked, place_of
from kalda.pipeline.projects.specification import (
    DELETED,
    LOCK,
    QUARANTINE,
    SPECIFICATIONS,
    Specification,
    read_specification,
)
from kalda.pipeline.session import PipelineError
from kalda.pipeline.stores import SCHEMES, StorePath, store_settings
from kalda.pipeline.topics import TopicQuestions

RECENT_S = 60.0
_SHOWN = 50
"""How many of the last batches."""
_TIMEOUT_MS = "15000"
"""After which a cluster that does not answer is an error."""


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One batch."""

    number: int
    planned_ms: int
    records: int
    """Offsets between the end of the batch before it and its own."""
    seconds: float | None
    """None where it has not ended."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline."""

    name: str
    kind: str
    state: str
    """running, stopped, complete, or never started."""
    done: Mapping[TopicPartition, int]
    """Up to which offset each partition is processed."""
    lag: int | None
    """Records that are not processed; None where the cluster was not asked."""
    batches: tuple[BatchStatus, ...] = ()
    place: str = ""
    notes: tuple[str, ...] = ()
    """What is wrong, and what has changed."""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def last_ms(self) -> int | None:
        return self.batches[-1].planned_ms if self.batches else None


def statuses(
    given: str | Path, options: Mapping[str, str], settings: Mapping[str, str] | None = None, *, asks: bool = True
) -> list[PipelineStatus]:
    """The pipelines at a place: a project, a file of which `derive` has made one, or a checkpoint. `options` are those
    of the source, with the cluster's address; `settings` those of Spark. Raises `PipelineError`, `Unavailable`."""
    path = place_of(str(given), store_settings(settings or {}) | dict(settings or {}))
    if path is None:
        raise PipelineError(f"{given}: a path, or a URI of {', '.join(SCHEMES)} is expected")
    if isinstance(path, StorePath):
        if not (path / "offsets").is_dir():
            raise PipelineError(f"{path} is no checkpoint; the status of a project is that of its spark-pipeline.yml")
        return [_of_checkpoint(path.name, "query", path, options, asks)]
    if path.suffix == ".toml":
        path = path.with_name(f"{path.stem}-pipeline")
    if path.suffix in (".yml", ".yaml") or any((path / name).is_file() for name in SPECIFICATIONS):
        return _of_project(read_specification(path, settings), options, asks)
    if (path / "offsets").is_dir():
        return [_of_checkpoint(path.name, "query", path, options, asks)]
    if (path / OWN).is_dir():
        raise PipelineError(f"{path} was made by an earlier version of Kalda: kalda pipeline convert {path}")
    raise PipelineError(f"{path}: neither a project (spark-pipeline.yml) nor a checkpoint")


def _of_checkpoint(name: str, kind: str, path: Place, options: Mapping[str, str], asks: bool) -> PipelineStatus:
    checkpoint = Checkpoint(path)
    batches = checkpoint.batches(_SHOWN + 1)
    done = checkpoint.committed()
    rows = tuple(_batch(before, batch) for before, batch in zip([None, *batches], batches, strict=False))[-_SHOWN:]
    newest = max((batch.committed_ms or batch.planned_ms for batch in batches), default=0)
    state = "never started" if not batches else "stopped"
    if batches and time.time() - newest / 1000 < RECENT_S:
        state = "running" if batches[-1].committed_ms is None else "active in the last minute"
    return PipelineStatus(name, kind, state, done, _lag(done, options, asks), rows, str(path), options=options)


def _batch(before: CheckpointBatch | None, batch: CheckpointBatch) -> BatchStatus:
    earlier = before.ends if before is not None else ()
    records = 0
    for number, ends in enumerate(batch.ends):
        start = earlier[number] if number < len(earlier) else {}
        records += sum(end - start.get(partition, 0) for partition, end in ends.items())
    seconds = None if batch.committed_ms is None else max(0, batch.committed_ms - batch.planned_ms) / 1000
    return BatchStatus(batch.number, batch.planned_ms, max(0, records), seconds)


def _lag(done: Mapping[TopicPartition, int], options: Mapping[str, str], asks: bool) -> int | None:
    if not asks or not done or not options.get("kafka.bootstrap.servers"):
        return None
    with TopicQuestions({"kafka.default.api.timeout.ms": _TIMEOUT_MS, **options}) as topics:
        ends = topics.ends({partition.topic for partition in done})
    return sum(max(0, each.end - max(done.get(partition, 0), each.start)) for partition, each in ends.items())


def _of_project(specification: Specification, options: Mapping[str, str], asks: bool) -> list[PipelineStatus]:
    """The flows of the last run, as it has reported them. A flow that was running, and has no process any more, was
    killed: the next run continues it."""
    run = read_run(specification)
    if run is None:
        return [PipelineStatus(specification.name, "project", "never started", {}, None)]
    is_running = is_locked(specification.state / LOCK)
    notes_of: dict[str, list[str]] = {}
    for each in run["changes"]:
        notes_of.setdefault(each["table"], []).append(each["change"])
    for table, record in upkeep_of(run).items():
        notes_of.setdefault(table, []).extend(_of_upkeep(record))
    found = []
    for flow in run["flows"]:
        known = _of_checkpoint(flow["flow"], flow["kind"], specification.checkpoint(flow["flow"]), options, asks)
        state = flow["state"] if is_running or FlowState(flow["state"]).is_final else "killed"
        notes = [*_of_flow(flow), *notes_of.pop(flow["target"], [])]
        for suffix in (QUARANTINE, DELETED):
            notes += [f"{suffix}: {note}" for note in notes_of.pop(flow["target"] + suffix, [])]
        lag = flow["lag"] if known.lag is None else known.lag
        batches = known.batches
        if not batches and flow["batches"]:  # a materialized view
            batches = (BatchStatus(flow["batches"] - 1, flow["last_batch_ms"], flow["rows"], flow["seconds"]),)
        found.append(
            replace(known, state=state, lag=lag, batches=batches, place=str(specification.file), notes=tuple(notes))
        )
    return found


def _of_flow(flow: Mapping[str, Any]) -> Iterator[str]:
    if flow["error"]:
        yield flow["error"]
    for name, count in flow["failing"].items():
        if count:
            yield f"{name} fails for {count:,} rows"
    if count := flow.get("restarts"):
        yield f"started again {count:,} times"
    if seconds := flow.get("lag_seconds"):
        yield f"a record that is not read has waited for {seconds:,.0f} s at least"
    if rows := flow.get("state_rows"):
        yield f"{rows:,} rows of state, {flow['state_bytes']:,} bytes"
    if ms := flow.get("watermark_ms"):
        yield f"the watermark is {_moment(ms)}"


def _of_upkeep(record: TableUpkeep) -> list[str]:
    found = []
    if record.merges:
        found.append(f"{record.files_merged:,} small files were merged, the last {_moment(record.merged_ms)}")
    if record.rows_deleted:
        found.append(f"{record.rows_deleted:,} rows were deleted by the table's retention")
    if record.vacuums:
        found.append(f"files that no version needs were removed, the last time {_moment(record.vacuumed_ms)}")
    return [*found, *([f"upkeep: {record.error}"] if record.error else [])]


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def panels(found: list[PipelineStatus]) -> list[Panel]:
    """What a chart of these pipelines shows: records of each batch, and how long each took."""
    records, times = [], []
    for status in found:
        ended = [batch for batch in status.batches if batch.planned_ms]
        if not ended:
            continue
        moments = [batch.planned_ms / 1000 for batch in ended]
        records.append(ChartLine(status.name, moments, [float(batch.records) for batch in ended]))
        times.append(ChartLine(status.name, moments, [batch.seconds or 0.0 for batch in ended]))
    return [Panel("records a batch", "records", records), Panel("time a batch", "seconds", times)]


# -- charts

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4b5563")


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Values at moments (seconds since 1970)."""

    name: str
    moments: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same time."""

    title: str
    unit: str
    lines: Sequence[ChartLine]
    stacked: bool = False


def save_chart(
    path: Path,
    title: str,
    panels: Sequence[Panel],
    table: tuple[Sequence[str], Sequence[Sequence[object]]] | None = None,
) -> None:
    """Write the picture; the name's end decides, .png or .html. `table` (columns, rows) is below the picture in HTML.
    Raises `PipelineError`."""
    if path.suffix not in (".png", ".html"):
        raise PipelineError(f"chart {path}: the name must end in .png or .html")
    figure = _draw(title, panels)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        figure.savefig(path, dpi=130)
        return
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    svg = re.sub(r"^.*?(?=<svg)", "", drawing.getvalue(), flags=re.DOTALL)
    path.write_text(_page(title, svg, table), encoding="utf-8")


def _draw(title: str, panels: Sequence[Panel]) -> Any:
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PipelineError(f"charts are drawn by matplotlib ({error}): pip install 'kalda[pipeline]'") from None
    figure = Figure(figsize=(11, 1 + 2.9 * len(panels)), layout="constrained")
    figure.suptitle(_plain(title), fontsize=13, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for (ax,), panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel)
        locator = AutoDateLocator(minticks=4, maxticks=9, tz=UTC)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    return figure


def _draw_panel(ax: Any, panel: Panel) -> None:
    ax.set_title(panel.title, loc="left", fontsize=10)
    ax.set_ylabel(panel.unit)
    ax.grid(axis="y", color="#e5e7eb")
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    times = [[datetime.fromtimestamp(moment, UTC) for moment in line.moments] for line in panel.lines]
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(panel.lines))]
    if panel.stacked and times:
        ax.stackplot(
            times[0],
            *(line.values for line in panel.lines),
            labels=[_plain(line.name) for line in panel.lines],
            colors=colours,
            alpha=0.85,
        )
    else:
        for line, moments, colour in zip(panel.lines, times, colours, strict=True):
            ax.plot(
                moments, line.values, color=colour, label=_plain(line.name), linewidth=1.6, marker="o", markersize=2.5
            )
    ax.set_ylim(bottom=0)
    if panel.lines:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _plain(name: str) -> str:
    """A name as matplotlib draws it letter by letter: between two `$` it would read a formula."""
    return printable(name).replace("$", r"\$")


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #111827; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem; border-bottom: 1px solid #e5e7eb; text-align: right; }
th:first-child, td:first-child { text-align: left; }
"""


def _page(title: str, svg: str, table: tuple[Sequence[str], Sequence[Sequence[object]]] | None) -> str:
    rows = ""
    if table is not None:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in table[0])
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>\n" for row in table[1]
        )
        rows = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{svg}\n{rows}\n</body></html>\n"
    )
