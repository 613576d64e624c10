"""State batches: ranges of offsets, each with the delivery state and the delivery count of its records.

A share partition's batches are sorted by offset, do not overlap, and two that touch differ in state or count. A write
brings further ones, which may overlap these and one another. Where two cover an offset, the higher delivery count
counts, and for equal counts the higher delivery state: deliveries only go on.

Invariant: what `combined` returns is sorted, without overlaps, and as few batches as can be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from kalda.base.share_states import NO_OFFSET, StateBatch

StateBatches = tuple[StateBatch, ...]


def _first_offset(batch: StateBatch) -> int:
    return batch.first_offset


def _last_offset(batch: StateBatch) -> int:
    return batch.last_offset


def combined(held: Sequence[StateBatch], new: Iterable[StateBatch], start_offset: int) -> StateBatches:
    """`held` with `new` over it, without what is below `start_offset`. `held` fulfils the invariant, `new` need not."""
    result = list(held)
    for batch in new:
        _insert(result, batch)
    if start_offset != NO_OFFSET:
        del result[: bisect_left(result, start_offset, key=_last_offset)]
        if result and result[0].first_offset < start_offset:
            result[0] = result[0]._replace(first_offset=start_offset)
    return tuple(result)


def _insert(batches: list[StateBatch], new: StateBatch) -> None:
    """Put one batch over the others; the cost is that of those which it overlaps or touches."""
    begin = bisect_left(batches, new.first_offset - 1, key=_last_offset)
    end = bisect_right(batches, new.last_offset + 1, key=_first_offset)
    pieces: list[StateBatch] = []
    at = new.first_offset
    """From here on the new batch is not in `pieces` yet."""
    for old in batches[begin:end]:
        if old.first_offset > at and at <= new.last_offset:
            at = _append(pieces, new, at, min(old.first_offset - 1, new.last_offset))
        if old.first_offset < new.first_offset:
            _append(pieces, old, old.first_offset, min(old.last_offset, new.first_offset - 1))
        first, last = max(old.first_offset, new.first_offset), min(old.last_offset, new.last_offset)
        if first <= last:
            at = _append(pieces, max(old, new, key=_priority), first, last)
        if old.last_offset > new.last_offset:
            _append(pieces, old, max(old.first_offset, new.last_offset + 1), old.last_offset)
    if at <= new.last_offset:
        _append(pieces, new, at, new.last_offset)
    batches[begin:end] = pieces


def _priority(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state


def _append(pieces: list[StateBatch], batch: StateBatch, first: int, last: int) -> int:
    """Append this part of a batch, to the piece before where they are the same; the offset after it."""
    if pieces and pieces[-1].last_offset + 1 == first and _priority(pieces[-1]) == _priority(batch):
        pieces[-1] = pieces[-1]._replace(last_offset=last)
    else:
        pieces.append(batch._replace(first_offset=first, last_offset=last))
    return last + 1
