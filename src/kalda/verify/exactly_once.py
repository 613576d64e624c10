"""Inputs to outputs: each input record of a consume-transform-produce loop has one output, and a group's committed
offset advances with the transactions that took effect.

A committed offset is a register, and a transaction of the loop reads it (`start`) and writes it (`end`). Its versions
are ordered by their values, as offsets only advance. Two transactions that took effect and read the same version have
lost an update; intervals of them that overlap have processed records twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from kalda.base.ids import TopicPartition
from kalda.verify.findings import Finding, Rule
from kalda.verify.history import Append, Consumed, Place, Transaction
from kalda.verify.view import HistoryIndex, describe

Input = tuple[str, TopicPartition]
"""A group and a partition that it reads."""


def exactly_once_findings(view: HistoryIndex) -> Iterator[Finding]:
    consumed: dict[Input, list[tuple[Consumed, Transaction]]] = {}
    for transaction in view.effective.values():
        for each in transaction.consumed:
            consumed.setdefault((each.group, each.partition), []).append((each, transaction))
    committed = {(each.group, each.partition): each.offset for each in view.history.offsets}
    for source in dict.fromkeys((*consumed, *committed)):
        intervals = sorted(consumed.get(source, ()), key=lambda entry: (entry[0].start, entry[0].end))
        yield from _overlaps(intervals)
        yield from _final_offset(source, intervals, committed.get(source))
    yield from _outputs(view, committed)


def _overlaps(intervals: list[tuple[Consumed, Transaction]]) -> Iterator[Finding]:
    """Intervals that overlap, and gaps between them. `furthest` is the interval with the highest end so far."""
    furthest: tuple[Consumed, Transaction] | None = None
    for interval in intervals:
        current, transaction = interval
        if current.end <= current.start:
            continue
        if furthest is not None:
            before, other = furthest
            place = Place(current.partition, current.start)
            if current.start == before.start or current.start < before.end:
                how = "from the same offset" if current.start == before.start else "over the same offsets"
                text = (
                    f"group {current.group!r} was advanced {how} by two transactions: {describe(other)} from "
                    f"{before.start} to {before.end}, and {describe(transaction)} from {current.start} to "
                    f"{current.end}, in {current.partition}"
                )
                yield Finding(Rule.LOST_UPDATE, text, transaction.name, None, place)
            elif current.start > before.end:
                text = (
                    f"{describe(transaction)} read group {current.group!r} at {place}, but the transactions before it "
                    f"had committed only up to {before.end}, the last of them {other.name}"
                )
                yield Finding(Rule.GROUP_OFFSET, text, transaction.name, None, place)
        if furthest is None or current.end > furthest[0].end:
            furthest = interval


def _final_offset(
    source: Input, intervals: list[tuple[Consumed, Transaction]], committed: int | None
) -> Iterator[Finding]:
    if committed is None or not intervals:
        return
    last, transaction = max(intervals, key=lambda entry: entry[0].end)
    if last.end != committed:
        group, partition = source
        text = (
            f"group {group!r} has committed offset {committed} of {partition} in the end, but {describe(transaction)} "
            f"committed {last.end}"
        )
        yield Finding(Rule.GROUP_OFFSET, text, transaction.name, None, Place(partition, committed))


def _outputs(view: HistoryIndex, committed: dict[Input, int]) -> Iterator[Finding]:
    """Visible outputs by the group and the input record that they were made from."""
    outputs: dict[tuple[str, str], list[tuple[Place, Append, Transaction]]] = {}
    for value, places in view.visible.items():
        writer = view.writers.get(value)
        if writer is not None and writer[1].source is not None:
            transaction, append = writer
            group = transaction.consumed[0].group if transaction.consumed else ""
            outputs.setdefault((group, append.source or ""), []).append((places[0], append, transaction))
    latest: dict[tuple[TopicPartition, TopicPartition], tuple[int, str]] = {}
    for (group, partition), end in sorted(committed.items()):
        log = view.history.logs.get(partition)
        if log is None:
            continue
        for offset, value in log.visible:
            if offset >= end:
                break
            place, found = Place(partition, offset), outputs.get((group, value), [])
            if not found:
                text = f"group {group!r} has committed an offset beyond input {value!r} at {place}, which has no output"
                yield Finding(Rule.INPUT_LOST, text, None, value, place)
                continue
            if len(found) > 1:
                listed = " and ".join(f"{a.value!r} at {p} by {describe(t)}" for p, a, t in found)
                text = f"input {value!r} at {place} has {len(found)} outputs: {listed}"
                yield Finding(Rule.INPUT_TWICE, text, found[1][2].name, value, found[1][0])
            output, append, transaction = found[0]
            before = latest.get((partition, output.partition), (-1, ""))
            if output.offset < before[0]:
                text = (
                    f"output {append.value!r} of {describe(transaction)} is at {output}, before that of the earlier "
                    f"input {before[1]!r} at offset {before[0]}"
                )
                yield Finding(Rule.OUTPUT_ORDER, text, transaction.name, append.value, output)
            latest[partition, output.partition] = max(before, (output.offset, value))
