"""Producers of transactions: some records to some partitions, then a commit, or sometimes an abort.

A transaction is recorded before its first record is sent, before its commit is requested, and at its end. So whatever
kills the process, the history has what may be in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.commits import GroupMetadata
from kalda.clientcore.producing.producer_errors import AbortableTransactionError
from kalda.records.builder import NewRecord
from kalda.verify.history import Append, Operation, Outcome, Transaction

_ABORTS = 0.15
"""The share of transactions that their client aborts."""
_MAX_RECORDS = 4
_END_ATTEMPTS = 3
"""How often a commit or an abort without an answer is requested again, before its outcome is given up."""


class TransactionProducer(Protocol):
    """A `TransactionalProducer`."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, records: Sequence[NewRecord]) -> None: ...
    def flush(self) -> Mapping[TopicPartition, Sequence[int]]: ...
    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], member: GroupMetadata | None = None
    ) -> None: ...
    def commit(self) -> object: ...
    def abort(self) -> None: ...


class Ledger:
    """Records the transactions of one incarnation of a producer, and ends them."""

    def __init__(
        self,
        producer: TransactionProducer,
        record: Callable[[Operation], None],
        now_us: Callable[[], int],
        name: str,
        incarnation: int,
    ) -> None:
        """`name` stands for the transactional id in the history: the id without the name of the run."""
        self.producer = producer
        self._record = record
        self._now_us = now_us
        self._name = name
        self._incarnation = incarnation
        self._number = 0

    def next_transaction(self) -> Transaction:
        """The next transaction, without records, not recorded yet."""
        number, self._number = self._number, self._number + 1
        return Transaction(self._name, self._incarnation, number, Outcome.UNKNOWN, self._now_us(), None, None, ())

    def run(self, transaction: Transaction, send: Callable[[], None], *, commits: bool) -> Transaction:
        """Record the transaction, send its records, and commit or abort it. `send` sends everything else that belongs
        to it. Raises `FatalTransactionError`, and `ApiError` where its outcome is unknown: then this incarnation has
        to end."""
        self._record(transaction)
        self.producer.begin()
        try:
            for append in transaction.appends:
                record: NewRecord = (time.time_ns() // 1_000_000, None, append.value.encode(), ())
                self.producer.send(*append.partition, [record])
            transaction = replace(transaction, appends=with_offsets(transaction.appends, self.producer.flush()))
            send()
            if commits:
                transaction = replace(transaction, commit_sent_us=self._now_us())
                self._record(transaction)
                _until_answered(self.producer.commit)
                return self._ended(transaction, Outcome.COMMITTED)
        except AbortableTransactionError:
            pass
        _until_answered(self.producer.abort)
        return self._ended(transaction, Outcome.ABORTED)

    def _ended(self, transaction: Transaction, outcome: Outcome) -> Transaction:
        ended = replace(transaction, outcome=outcome, ended_us=self._now_us())
        self._record(ended)
        return ended


def _until_answered(end: Callable[[], object]) -> None:
    """Call `end`, again where it had no answer in time. Raises `ApiError`."""
    for attempt in range(_END_ATTEMPTS):
        try:
            end()
        except AbortableTransactionError:
            raise
        except ApiError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT or attempt + 1 == _END_ATTEMPTS:
                raise
        else:
            return


def with_offsets(appends: tuple[Append, ...], written: Mapping[TopicPartition, Sequence[int]]) -> tuple[Append, ...]:
    """The records with their offsets, of which each partition's are in the order of its records; None for -1."""
    following = {partition: iter(offsets) for partition, offsets in written.items()}
    found = []
    for append in appends:
        offset = next(following.get(append.partition, iter(())), -1)
        found.append(append._replace(offset=offset if offset >= 0 else None))
    return tuple(found)


class LedgerWriter:
    """One transaction a step, to some of `partitions`."""

    def __init__(self, ledger: Ledger, rng: Random, partitions: Sequence[TopicPartition]) -> None:
        self._ledger = ledger
        self._rng = rng
        self._partitions = partitions

    def step(self) -> Transaction:
        """Raises `ApiError` where this incarnation has to end."""
        rng, transaction = self._rng, self._ledger.next_transaction()
        targets = rng.sample(self._partitions, rng.randint(1, min(3, len(self._partitions))))
        chosen = [rng.choice(targets) for _ in range(rng.randint(1, _MAX_RECORDS))]
        appends = tuple(Append(partition, f"{transaction.name}#{index}") for index, partition in enumerate(chosen))
        commits = rng.random() >= _ABORTS
        return self._ledger.run(replace(transaction, appends=appends), _nothing, commits=commits)


def _nothing() -> None:
    """A writer's transaction has records only."""
