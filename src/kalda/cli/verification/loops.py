"""Consume-transform-produce: each input record becomes one output record, in one transaction with the group's offsets.

A loop has input partitions of its own, so the transactional id fences a former incarnation (KIP-98). Each input
partition has an output partition of its own, whose records are in the order of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple, Protocol

from kalda.base.ids import TopicPartition
from kalda.cli.verification.writers import Ledger
from kalda.verify.history import Append, Consumed, Operation, Outcome, Read, Seen, Transaction

_ABORTS = 0.1


class ReadBatch(NamedTuple):
    """What one poll has read: the position moved from `start` to `end`."""

    partition: TopicPartition
    start: int
    end: int
    records: tuple[Seen, ...]
    begun_us: int
    ended_us: int


class Source(Protocol):
    """A read_committed consumer of the loop's input partitions."""

    def rewind(self) -> dict[TopicPartition, int]:
        """Go to the group's committed offsets, and return them. Waits until no transaction of the group is open."""
        ...

    def poll(self) -> ReadBatch | None: ...


class Loop:
    """One transaction a step, where there is input."""

    def __init__(
        self,
        ledger: Ledger,
        source: Source,
        record: Callable[[Operation], None],
        rng: Random,
        group: str,
        outputs: Mapping[TopicPartition, TopicPartition],
    ) -> None:
        """`outputs`: the output partition of each input partition."""
        self._ledger = ledger
        self._source = source
        self._record = record
        self._rng = rng
        self._group = group
        self._outputs = outputs
        self._committed: dict[TopicPartition, int] | None = None
        """The group's offsets after the last transaction of this incarnation; None: to be read."""
        self._waiting: list[ReadBatch] = []
        """What was read since the last transaction: batches without a record, and then one that has some."""
        self.positions: dict[TopicPartition, int] = {}

    def step(self) -> Transaction | None:
        """None where nothing came. Raises `ApiError` where this incarnation has to end."""
        if self._committed is None:
            self._committed = self._source.rewind()
            self.positions = dict(self._committed)
            self._waiting.clear()
        batch = self._source.poll()
        if batch is None:
            return None
        self._waiting.append(batch)
        self.positions[batch.partition] = batch.end
        if not batch.records:
            return None
        transaction = self._transaction()
        ends = {each.partition: each.end for each in transaction.consumed}
        commits = self._rng.random() >= _ABORTS
        ended = self._ledger.run(
            transaction, lambda: self._ledger.producer.send_offsets(self._group, ends), commits=commits
        )
        if ended.outcome is Outcome.COMMITTED:
            self._committed |= ends
        else:
            self._committed = None
        self._waiting.clear()
        return ended

    def _transaction(self) -> Transaction:
        """The transaction of the batches that wait; their reads are recorded."""
        assert self._committed is not None
        transaction = self._ledger.next_transaction()
        appends: list[Append] = []
        for batch in self._waiting:
            self._record(
                Read(
                    transaction.transactional_id, batch.partition, batch.start, batch.end, batch.begun_us,
                    batch.ended_us, batch.records, transaction.name,
                )
            )  # fmt: skip
            output = self._outputs[batch.partition]
            appends += [
                Append(output, f"{transaction.name}<{record.value}", None, record.value) for record in batch.records
            ]
        consumed = tuple(
            Consumed(self._group, partition, self._committed[partition], self.positions[partition])
            for partition in dict.fromkeys(batch.partition for batch in self._waiting)
        )
        return replace(transaction, appends=tuple(appends), consumed=consumed)
