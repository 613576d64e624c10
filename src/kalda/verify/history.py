"""A history: the operations of clients of transactions, as values.

Every record has a value that no other record has, so a value names its record. Times are microseconds of one clock for
all clients. A transaction may be recorded several times while it runs; the last one recorded is the one that counts, so
that a client that is killed leaves what it had attempted.

`HistoryIndex` has the place and the visibility of each record in the final logs, and which transactions took effect. A
transaction has *taken effect* where any of its records, or without records its group offsets, are visible, or where the
cluster has answered that it is committed. Only such a transaction's reads and inputs count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

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
