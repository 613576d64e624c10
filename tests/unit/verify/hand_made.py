"""Short histories, written by hand."""

from __future__ import annotations

from kalda.base.ids import TopicPartition
from kalda.verify.history import Append, Consumed, FinalLog, History, Operation, Outcome, Read, Seen, Transaction
from kalda.verify.rules import Finding, judge

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN


def transaction(
    name: str,
    outcome: Outcome,
    *appends: tuple[TopicPartition, str] | tuple[TopicPartition, str, int | None] | Append,
    consumed: tuple[Consumed, ...] = (),
    commit_sent_us: int | None = 50,
    incarnation: int = 0,
    number: int = 0,
) -> Transaction:
    """A transaction from 0 to 60 µs."""
    sent = tuple(Append(*append) for append in appends)
    asked = None if outcome is ABORTED else commit_sent_us
    return Transaction(name, incarnation, number, outcome, 0, asked, 60, sent, consumed)


def log(partition: TopicPartition, *visible: str | None, hidden: tuple[int, ...] = ()) -> FinalLog:
    """A log with these values from offset 0 on; None for a marker. The records at `hidden` are aborted ones."""
    records = tuple(Seen(offset, value) for offset, value in enumerate(visible) if value is not None)
    shown = tuple(record for record in records if record.offset not in hidden)
    return FinalLog(partition, 0, len(visible), len(visible), records, shown)


def read(
    partition: TopicPartition, start: int, end: int, *records: tuple[int, str], at_us: int = 70, of: str = "",
) -> Read:  # fmt: skip
    return Read("reader", partition, start, end, at_us, at_us, tuple(Seen(*record) for record in records), of)


def findings_of(*operations: Operation) -> list[Finding]:
    history = History()
    for operation in operations:
        history.add(operation)
    return list(judge(history).findings)


def only(*operations: Operation) -> Finding:
    """The single finding of these operations."""
    found = findings_of(*operations)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]
