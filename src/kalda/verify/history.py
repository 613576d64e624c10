"""A history: the operations of clients of transactions, as values and as JSON lines.

Every record has a value that no other record has, so a value names its record. Times are microseconds of one clock for
all clients. A transaction may be recorded several times while it runs; the last one recorded is the one that counts, so
that a client that is killed leaves what it had attempted.

`HistoryIndex` has the place and the visibility of each record in the final logs, and which transactions took effect. A
transaction has *taken effect* where any of its records, or without records its group offsets, are visible, or where the
cluster has answered that it is committed. Only such a transaction's reads and inputs count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from kalda.base.ids import TopicPartition


class Outcome(Enum):
    """What the cluster answered to the end of a transaction; UNKNOWN where its client got no answer."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """Where a record is: topic-partition@offset."""

    partition: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


class Append(NamedTuple):
    """A record that a transaction appended, in the order of sending. `offset` is the acknowledged one; None without an
    acknowledgement. `source` is the value of the input record from which a loop made this one."""

    partition: TopicPartition
    value: str
    offset: int | None = None
    source: str | None = None


class Consumed(NamedTuple):
    """Input of a transaction: it read from `start`, the group's committed offset, and committed `end` instead."""

    group: str
    partition: TopicPartition
    start: int
    end: int


class Seen(NamedTuple):
    """A record in a log."""

    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of one incarnation of a producer.

    `commit_sent_us` is None where the client never requested a commit: then no record may become visible. Incarnations
    of one transactional id are numbered in the order of their InitProducerId; the later one fences the earlier ones.
    """

    transactional_id: str
    incarnation: int
    number: int
    outcome: Outcome
    begun_us: int
    commit_sent_us: int | None
    ended_us: int | None
    appends: tuple[Append, ...]
    consumed: tuple[Consumed, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.transactional_id}/{self.incarnation}/{self.number}"


@dataclass(frozen=True, slots=True)
class Read:
    """A read_committed consumer's position moved from `start` to `end`, and it got `records`. `transaction` is the name
    of the transaction whose input this is; empty for a consumer without one."""

    reader: str
    partition: TopicPartition
    start: int
    end: int
    begun_us: int
    ended_us: int
    records: tuple[Seen, ...]
    transaction: str = ""


@dataclass(frozen=True, slots=True)
class OffsetSample:
    """The last stable offset and then the high watermark of a partition, requested at `at_us`."""

    partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was caused; it was healed at `ended_us`."""

    what: str
    begun_us: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A partition after everything has ended: all records, and those that a read_committed consumer gets."""

    partition: TopicPartition
    start: int
    end: int
    last_stable_offset: int
    records: tuple[Seen, ...]
    visible: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class FinalOffset:
    """The committed offset of a group after everything has ended."""

    group: str
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How long the last stable offset may stay below the high watermark after the last fault or request:
    `transaction_timeout_ms` and `slack_ms`, which covers the coordinator's interval between its searches for
    transactions that have timed out."""

    transaction_timeout_ms: int
    slack_ms: int


Operation = Settings | Transaction | Read | OffsetSample | Fault | FinalLog | FinalOffset


@dataclass(slots=True)
class History:
    """Operations by kind, in the order in which they were recorded."""

    settings: Settings = Settings(60_000, 30_000)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    """By name: the last record of each."""
    reads: list[Read] = field(default_factory=list)
    samples: list[OffsetSample] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    logs: dict[TopicPartition, FinalLog] = field(default_factory=dict)
    offsets: list[FinalOffset] = field(default_factory=list)

    def add(self, operation: Operation) -> None:
        match operation:
            case Transaction():
                self.transactions[operation.name] = operation
            case Read():
                self.reads.append(operation)
            case OffsetSample():
                self.samples.append(operation)
            case Fault():
                self.faults.append(operation)
            case FinalLog():
                self.logs[operation.partition] = operation
            case FinalOffset():
                self.offsets.append(operation)
            case Settings():
                self.settings = operation


class HistoryIndex:
    """Indexes over a history; made once, not changed afterwards."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.visible: dict[str, list[Place]] = {}
        """Each visible value, and where a read_committed consumer gets it: one place unless it is a duplicate."""
        self.stored: dict[str, list[Place]] = {}
        """Each value in the logs, visible or not."""
        for partition, log in history.logs.items():
            for record in log.visible:
                self.visible.setdefault(record.value, []).append(Place(partition, record.offset))
            for record in log.records:
                self.stored.setdefault(record.value, []).append(Place(partition, record.offset))
        self.writers: dict[str, tuple[Transaction, Append]] = {
            append.value: (transaction, append)
            for transaction in history.transactions.values()
            for append in transaction.appends
        }
        self.effective: dict[str, Transaction] = {
            name: transaction for name, transaction in history.transactions.items() if self._took_effect(transaction)
        }
        """By name: the transactions that took effect."""

    def place_of(self, append: Append) -> Place | None:
        """Where the record is: visible, or at least in the log, or where it was acknowledged."""
        for places in (self.visible.get(append.value), self.stored.get(append.value)):
            if places:
                return places[0]
        return None if append.offset is None else Place(append.partition, append.offset)

    def _took_effect(self, transaction: Transaction) -> bool:
        if transaction.outcome is Outcome.COMMITTED:
            return True
        if any(append.value in self.visible for append in transaction.appends):
            return True
        if transaction.outcome is Outcome.ABORTED or transaction.appends or transaction.commit_sent_us is None:
            return False
        ends = {(each.group, each.partition): each.offset for each in self.history.offsets}
        return any(ends.get((c.group, c.partition), -1) >= c.end > c.start for c in transaction.consumed)


def describe(transaction: Transaction) -> str:
    """A transaction with its outcome, for a person."""
    if transaction.outcome is Outcome.UNKNOWN:
        how = "its commit was not answered" if transaction.commit_sent_us is not None else "no commit was requested"
    else:
        how = transaction.outcome.value
    return f"transaction {transaction.name} ({how})"


# A history as JSON lines: one operation a line, in any order.
#
# The first line names the format. A partition is `topic-partition`; a record is `[offset, value]`. The last line may
# be cut off, since the process that wrote it may have been killed; any other malformed line is an error.

FORMAT = {"op": "format", "name": "kalda-history", "version": 1}
FIRST_LINE = json.dumps(FORMAT)


class MalformedHistory(ValueError):
    """A line that is no operation."""


def write_operation(operation: Operation) -> str:
    """One line, without a newline."""
    match operation:
        case Transaction():
            document = _write_transaction(operation)
        case Read():
            document = {
                "op": "read",
                "reader": operation.reader,
                "partition": str(operation.partition),
                "start": operation.start,
                "end": operation.end,
                "begun_us": operation.begun_us,
                "ended_us": operation.ended_us,
                "records": operation.records,
                **({"transaction": operation.transaction} if operation.transaction else {}),
            }
        case OffsetSample():
            document = {
                "op": "sample",
                "partition": str(operation.partition),
                "last_stable_offset": operation.last_stable_offset,
                "high_watermark": operation.high_watermark,
                "at_us": operation.at_us,
            }
        case Fault():
            document = {
                "op": "fault",
                "what": operation.what,
                "begun_us": operation.begun_us,
                "ended_us": operation.ended_us,
            }
        case FinalLog():
            document = {
                "op": "log",
                "partition": str(operation.partition),
                "start": operation.start,
                "end": operation.end,
                "last_stable_offset": operation.last_stable_offset,
                "records": operation.records,
                "visible": [record.offset for record in operation.visible],
            }
            known = dict(operation.records)
            different = [record for record in operation.visible if known.get(record.offset) != record.value]
            if different:
                document["different"] = different
        case FinalOffset():
            document = {
                "op": "offset",
                "group": operation.group,
                "partition": str(operation.partition),
                "offset": operation.offset,
            }
        case Settings():
            document = {
                "op": "settings",
                "transaction_timeout_ms": operation.transaction_timeout_ms,
                "slack_ms": operation.slack_ms,
            }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _write_transaction(transaction: Transaction) -> dict[str, Any]:
    document: dict[str, Any] = {
        "op": "transaction",
        "transactional_id": transaction.transactional_id,
        "incarnation": transaction.incarnation,
        "number": transaction.number,
        "outcome": transaction.outcome.value,
        "begun_us": transaction.begun_us,
        "commit_sent_us": transaction.commit_sent_us,
        "ended_us": transaction.ended_us,
        "appends": [
            [str(each.partition), each.value, each.offset, *([] if each.source is None else [each.source])]
            for each in transaction.appends
        ],
    }
    if transaction.consumed:
        document["consumed"] = [[c.group, str(c.partition), c.start, c.end] for c in transaction.consumed]
    return document


def read_operation(document: dict[str, Any]) -> Operation:
    """The operation of one decoded line. Raises `KeyError`, `TypeError` or `ValueError` where it is malformed."""
    match document["op"]:
        case "transaction":
            return _read_transaction(document)
        case "read":
            return Read(
                _text(document["reader"]),
                _partition(document["partition"]),
                _number(document["start"]),
                _number(document["end"]),
                _number(document["begun_us"]),
                _number(document["ended_us"]),
                _records(document["records"]),
                _text(document.get("transaction", "")),
            )
        case "sample":
            return OffsetSample(
                _partition(document["partition"]),
                _number(document["last_stable_offset"]),
                _number(document["high_watermark"]),
                _number(document["at_us"]),
            )
        case "fault":
            return Fault(_text(document["what"]), _number(document["begun_us"]), _number(document["ended_us"]))
        case "log":
            return _read_log(document)
        case "offset":
            return FinalOffset(_text(document["group"]), _partition(document["partition"]), _number(document["offset"]))
        case "settings":
            return Settings(_number(document["transaction_timeout_ms"]), _number(document["slack_ms"]))
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _read_transaction(document: dict[str, Any]) -> Transaction:
    sent, ended = document["commit_sent_us"], document["ended_us"]
    return Transaction(
        _text(document["transactional_id"]),
        _number(document["incarnation"]),
        _number(document["number"]),
        Outcome(document["outcome"]),
        _number(document["begun_us"]),
        None if sent is None else _number(sent),
        None if ended is None else _number(ended),
        tuple(_append(*each) for each in document["appends"]),
        tuple(
            Consumed(_text(group), _partition(at), _number(start), _number(end))
            for group, at, start, end in document.get("consumed", ())
        ),
    )


def _append(partition: object, value: object, offset: object, source: object = None) -> Append:
    return Append(
        _partition(partition),
        _text(value),
        None if offset is None else _number(offset),
        None if source is None else _text(source),
    )


def _read_log(document: dict[str, Any]) -> FinalLog:
    records = _records(document["records"])
    values = dict(records) | dict(_records(document.get("different", ())))
    return FinalLog(
        _partition(document["partition"]),
        _number(document["start"]),
        _number(document["end"]),
        _number(document["last_stable_offset"]),
        records,
        tuple(Seen(offset, values[offset]) for offset in map(_number, document["visible"])),
    )


def _partition(value: object) -> TopicPartition:
    topic, _, partition = _text(value).rpartition("-")
    return TopicPartition(topic, int(partition))


def _records(pairs: Iterable[list[Any]]) -> tuple[Seen, ...]:
    return tuple(Seen(_number(offset), _text(value)) for offset, value in pairs)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value


def read_history(lines: Iterable[str]) -> History:
    """The history of these lines. Raises `MalformedHistory`, with the number of the line."""
    history = History()
    malformed: MalformedHistory | None = None
    is_first = True
    for number, line in enumerate(lines, 1):
        if malformed is not None:
            raise malformed
        try:
            document = json.loads(line)
            if not is_first:
                history.add(read_operation(document))
            elif document != FORMAT:
                raise MalformedHistory(f"line 1: {FIRST_LINE} is expected; this is not a history of kalda verify")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, MalformedHistory):
                raise
            malformed = MalformedHistory(f"line {number}: {error}: {line[:80].strip()}")
            if is_first:
                raise malformed from error
        is_first = False
    if is_first:
        raise MalformedHistory("it is empty")
    return history
