"""What has happened so far: values over time, and marks. Times are seconds since the first step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Count = tuple[float, int]
"""A time, and how many there were until then."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event of the story. `kind` says what it concerns."""

    at: float
    kind: Literal["orders", "member", "node", "spark"]
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """What the cluster answered: the committed offsets of the group first, then the ends of the partitions, so that
    `read` <= `made`."""

    at: float
    read: int
    made: int

    @property
    def lag(self) -> int:
        return self.made - self.read


@dataclass
class Recording:
    """What a run has shown so far."""

    made: list[Count] = field(default_factory=list)
    """Orders that were acknowledged, as the shop reports them."""
    read: dict[str, list[Count]] = field(default_factory=dict)
    """Orders that each member has billed, as the members report them; over all processes of this name."""
    samples: list[Sample] = field(default_factory=list)
    partitions: dict[str, list[int]] = field(default_factory=dict)
    """Those of each member that runs."""
    leaders: dict[int, int] = field(default_factory=dict)
    """The leader of each partition; -1 where there is none."""
    in_sync: dict[int, int] = field(default_factory=dict)
    """How many of the partitions' replicas on each node are in sync."""
    windows: dict[str, dict[str, int]] = field(default_factory=dict)
    """Orders and cents of each window and kind that Spark has written, by its key."""
    runs: dict[str, list[tuple[float, float | None]]] = field(default_factory=dict)
    """From when to when each member and node ran; None: it still runs."""
    marks: list[Mark] = field(default_factory=list)
    zero: float = 0.0
    """When the story began, in seconds since 1970."""

    def on_start(self, name: str, at: float) -> None:
        self.runs.setdefault(name, []).append((at, None))

    def on_kill(self, name: str, at: float) -> None:
        since, _ = self.runs[name].pop()
        self.runs[name].append((since, at))

    @property
    def windowed(self) -> int:
        """How many orders the windows have."""
        return sum(row["orders"] for row in self.windows.values())


def rate_of(counts: list[Count], at: float, span: float = 2.0) -> float:
    """The rate a second in the `span` seconds before `at`."""
    before = count_at(counts, at - span)
    return max(0.0, count_at(counts, at) - before) / span


def count_at(counts: list[Count], at: float) -> float:
    """The count at a time, between two known ones by proportion; 0 before the first, the last one after it."""
    from bisect import bisect_right

    place = bisect_right(counts, at, key=lambda count: count[0])
    if place == 0:
        return 0.0
    if place == len(counts):
        return float(counts[-1][1])
    (from_at, from_count), (to_at, to_count) = counts[place - 1], counts[place]
    return from_count + (to_count - from_count) * (at - from_at) / (to_at - from_at)
