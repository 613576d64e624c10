"""Pipelines with their lag and last batches: from their checkpoints, and from the topics' ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kalda.base.ids import TopicPartition
from kalda.pipeline.chart import ChartLine, Panel
from kalda.pipeline.checkpoints import Checkpoint, CheckpointBatch, milliseconds
from kalda.pipeline.lake import Lake
from kalda.pipeline.load import from_json
from kalda.pipeline.project import read_project
from kalda.pipeline.session import PipelineError
from kalda.pipeline.snapshot import SnapshotTable
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
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def last_ms(self) -> int | None:
        return self.batches[-1].planned_ms if self.batches else None


def statuses(path: Path, options: Mapping[str, str], *, asks: bool = True) -> list[PipelineStatus]:
    """The pipelines at a path: a lake, a snapshot's table, a project file, or a checkpoint. `options` are those of the
    source where the pipeline does not name its cluster. Raises `PipelineError`."""
    if path.suffix == ".toml":
        project = read_project(path)
        wanted = [name for name in project.derived if project.is_written(name)]
        return [_of_checkpoint(name, "derive", project.checkpoint(name), project.options, asks) for name in wanted]
    lake, table = Lake(path), SnapshotTable(path)
    settings = lake.settings()
    if settings is not None:
        named = {"kafka.bootstrap.servers": settings["bootstrap"]} if settings.get("bootstrap") else {}
        found = _of_checkpoint(path.name, "load", lake.checkpoint, named | dict(options), asks)
        state = "complete" if settings.get("complete") else "running" if _is_locked(lake) else found.state
        return [_with(found, state, str(lake.path))]
    if (taken := table.state()) is not None:
        done = from_json(taken["offsets"])
        batch = BatchStatus(taken["version"], milliseconds(taken["read_ms"]), 0, None)
        return [
            PipelineStatus(
                path.name, "snapshot", "stopped", done, _lag(done, options, asks), (batch,), str(path), options
            )
        ]
    if (path / "offsets").is_dir():
        return [_of_checkpoint(path.name, "query", path, options, asks)]
    raise PipelineError(f"{path}: neither a lake, a snapshot, a checkpoint nor a project file (.toml)")


def _with(status: PipelineStatus, state: str, place: str) -> PipelineStatus:
    from dataclasses import replace

    return replace(status, state=state, place=place)


def _of_checkpoint(name: str, kind: str, path: Path, options: Mapping[str, str], asks: bool) -> PipelineStatus:
    checkpoint = Checkpoint(path)
    batches = checkpoint.batches(_SHOWN + 1)
    done = checkpoint.committed()
    rows = tuple(_batch(before, batch) for before, batch in zip([None, *batches], batches, strict=False))[-_SHOWN:]
    newest = max((batch.committed_ms or batch.planned_ms for batch in batches), default=0)
    state = "never started" if not batches else "stopped"
    if batches and time.time() - newest / 1000 < RECENT_S:
        state = "running" if batches[-1].committed_ms is None else "active in the last minute"
    return PipelineStatus(name, kind, state, done, _lag(done, options, asks), rows, str(path), options)


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


def _is_locked(lake: Lake) -> bool:
    try:
        with open(lake.path / "_kalda" / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


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
