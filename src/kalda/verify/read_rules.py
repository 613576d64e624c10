"""What read_committed consumers read, against the final logs.

A consumer whose position moved from `start` to `end` has to have got exactly the records that are visible there in the
end: what is committed below the last stable offset never changes afterwards.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from kalda.verify.findings import Finding, Rule
from kalda.verify.history import FinalLog, Outcome, Place, Read, Seen
from kalda.verify.view import HistoryIndex, describe


def read_findings(view: HistoryIndex) -> Iterator[Finding]:
    visible = {partition: dict(log.visible) for partition, log in view.history.logs.items()}
    offsets = {partition: [record.offset for record in log.visible] for partition, log in view.history.logs.items()}
    seen_by: dict[str, set[str]] = {}
    for read in view.history.reads:
        seen_by.setdefault(read.reader, set()).update(record.value for record in read.records)
    for read in view.history.reads:
        log = view.history.logs.get(read.partition)
        if log is None:
            continue
        yield from _sequence(read)
        for record in read.records:
            yield from _record(view, read, record, log, visible[read.partition])
        yield from _skipped(view, read, log, visible[read.partition], offsets[read.partition], seen_by[read.reader])


def _sequence(read: Read) -> Iterator[Finding]:
    """Offsets ascend within the positions of the read."""
    previous = read.start - 1
    for offset, value in read.records:
        if not previous < offset < read.end:
            place = Place(read.partition, offset)
            text = (
                f"{read.reader} got record {value!r} at {place} after offset {previous}, while its position moved from "
                f"{read.start} to {read.end}"
            )
            yield Finding(Rule.UNSTABLE_READ, text, None, value, place)
        previous = max(previous, offset)


def _record(view: HistoryIndex, read: Read, record: Seen, log: FinalLog, visible: dict[int, str]) -> Iterator[Finding]:
    place = Place(read.partition, record.offset)
    transaction = view.writers[record.value][0] if record.value in view.writers else None
    name = transaction.name if transaction is not None else None
    whose = f" of {describe(transaction)}" if transaction is not None else ""
    if visible.get(record.offset) == record.value:
        if (
            transaction is not None
            and transaction.commit_sent_us is not None
            and read.ended_us < transaction.commit_sent_us
        ):
            early_us = transaction.commit_sent_us - read.ended_us
            text = (
                f"{read.reader} read record {record.value!r}{whose} at {place} {early_us} µs before its commit was "
                f"requested"
            )
            yield Finding(Rule.G1B, text, name, record.value, place)
        return
    if record.offset < log.start:
        return
    if transaction is None or transaction.outcome is not Outcome.COMMITTED:
        text = f"{read.reader} read record {record.value!r}{whose} at {place}, which is not committed in the end"
        yield Finding(Rule.G1A, text, name, record.value, place)
        return
    now = visible.get(record.offset)
    text = f"{read.reader} read record {record.value!r}{whose} at {place}, where the log has " + (
        f"{now!r} in the end" if now is not None else "no visible record in the end"
    )
    yield Finding(Rule.UNSTABLE_READ, text, name, record.value, place)


def _skipped(
    view: HistoryIndex, read: Read, log: FinalLog, visible: dict[int, str], offsets: list[int], seen: set[str]
) -> Iterator[Finding]:
    """`seen`: all values that this reader has got. Where it got other records of the transaction, it has read a part of
    it."""
    got = {record.offset for record in read.records}
    for at in range(bisect_left(offsets, max(read.start, log.start)), bisect_left(offsets, read.end)):
        offset = offsets[at]
        if offset in got:
            continue
        value, place = visible[offset], Place(read.partition, offset)
        writer = view.writers.get(value)
        name, whose, others = None, "", 0
        if writer is not None:
            name, whose = writer[0].name, f" of {describe(writer[0])}"
            others = sum(append.value in seen for append in writer[0].appends)
        part = f", but got {others} other records of this transaction" if others else ""
        text = (
            f"{read.reader} moved its position from {read.start} to {read.end} and did not get record {value!r}{whose} "
            f"at {place}{part}"
        )
        yield Finding(Rule.G1B if others else Rule.SKIPPED, text, name, value, place)
