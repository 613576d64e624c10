"""Acknowledgements: what the application says of records that it was handed, by offset.

A `Run` is a range of offsets of which the same is said. Requests name them as batches: a range with one type for
all its offsets, or with one for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kalda.base.share_states import AcknowledgeType

_LONG_RUN = 16
"""A run of so many offsets is a batch of its own; shorter ones that touch each other are one batch with many types."""


class Run(NamedTuple):
    """The offsets from `first` to `last`, both included."""

    first: int
    last: int
    type: AcknowledgeType


def runs_of(spans: Iterable[tuple[int, int]], kind: AcknowledgeType) -> list[Run]:
    """The same of all offsets of some ranges."""
    return [Run(first, last, kind) for first, last in spans]


def chosen_runs(types: Mapping[int, AcknowledgeType]) -> list[Run]:
    """What was said of single offsets."""
    return joined(Run(offset, offset, kind) for offset, kind in sorted(types.items()))


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same with as few runs as possible; `runs` ascend and do not overlap."""
    out: list[Run] = []
    for run in runs:
        if out and out[-1].type is run.type and out[-1].last + 1 == run.first:
            out[-1] = Run(out[-1].first, run.last, run.type)
        else:
            out.append(run)
    return out


def batches_of(runs: Sequence[Run]) -> Iterator[tuple[int, int, list[int]]]:
    """First offset, last offset and types of each batch of a request; `runs` ascend and do not overlap."""
    open_runs: list[Run] = []
    for run in runs:
        is_long = run.last - run.first >= _LONG_RUN
        if open_runs and (is_long or open_runs[-1].last + 1 != run.first):
            yield _batch(open_runs)
            open_runs = []
        if is_long:
            yield run.first, run.last, [int(run.type)]
        else:
            open_runs.append(run)
    if open_runs:
        yield _batch(open_runs)


def _batch(runs: Sequence[Run]) -> tuple[int, int, list[int]]:
    if len(runs) == 1:
        types = [int(runs[0].type)]
    else:
        types = [int(run.type) for run in runs for _ in range(run.first, run.last + 1)]
    return runs[0].first, runs[-1].last, types


def offsets_of(runs: Iterable[Run]) -> frozenset[int]:
    """The offsets of records: those without one (GAP) are left out."""
    return frozenset(
        offset for run in runs if run.type is not AcknowledgeType.GAP for offset in range(run.first, run.last + 1)
    )
