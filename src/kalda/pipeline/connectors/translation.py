"""Offsets of one cluster's topic as those of its copy in another cluster.

Offsets of a copy are others: markers of transactions, compacted and expired records take offsets in one log and not in
the other. So a mirror notes boundaries, an offset of the source and that of the copy behind the same record, at the end
of each batch. Between two boundaries records are counted, in both logs. What is too far from a boundary is translated
to it: a group may then get records again, and misses none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

MAX_BOUNDARIES: Final = 200
"""Of a partition. Where there are more, every second one of the older half is left out."""
MAX_COUNTED: Final = 100_000
"""Offsets between a boundary and the one to be translated."""


class Boundary(NamedTuple):
    """Records before `source` are those before `copy`."""

    source: int
    copy: int


def with_boundary(boundaries: list[Boundary], new: Boundary) -> list[Boundary]:
    """One more, behind the others; of no news, the same ones."""
    if boundaries and new.source <= boundaries[-1].source:
        return boundaries
    found = [*boundaries, new]
    if len(found) > MAX_BOUNDARIES:
        half = len(found) // 2
        found = found[:half:2] + found[half:]
    return found


def translated(
    boundaries: list[Boundary], offset: int, count: Callable[[int, int], int], behind: Callable[[int, int], int]
) -> int | None:
    """The copy's offset; None where the copy begins later. `count`: how many records the source has from one offset up
    to another. `behind`: the copy's offset behind so many records from an offset on."""
    at = bisect_right(boundaries, offset, key=lambda each: each.source) - 1
    if at < 0:
        return None
    nearest = boundaries[at]
    is_copied = at + 1 < len(boundaries)
    if offset == nearest.source or not is_copied or offset - nearest.source > MAX_COUNTED:
        return nearest.copy
    records = count(nearest.source, offset)
    return behind(nearest.copy, records) if records else nearest.copy
