"""Consume-transform-produce: each input record becomes one output record, in one transaction with the group's offsets.

Each input partition has an output partition of its own, whose records are in the order of the inputs. A loop may have
input partitions of its own: then its transactional id fences a former incarnation (KIP-98). Or it is a member of a
group, with a transactional id of its own: then that fences no member that the group has removed while its transaction
is open, but the generation that its offsets name does (KIP-447).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple, Protocol

from kalda.base.ids import TopicPartition
from kalda.cli.verification.writers import Ledger
from kalda.clientcore.consuming.commits import GroupMetadata
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
    """The input of a loop: committed records, from the offsets of its group on."""

    def poll(self) -> tuple[list[ReadBatch], GroupMetadata | None]:
        """What has come, where anything has, and as which member of the group it was read, where it is one; the batches
        of a partition follow each other, from the group's committed offset on. Raises `ApiError`."""
        ...

    def rewind(self) -> None:
        """Read again from the committed offsets on. Raises `ApiError`."""
        ...

    def committed(self, partition: TopicPartition) -> int:
        """The group's offset when the reading of the partition began. Raises `ApiError`."""
        ...

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        """A transaction has committed these offsets."""
        ...


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
        self._waiting: list[ReadBatch] = []
        """What was read since the last transaction: batches without a record, and then some that have one."""

    def step(self) -> Transaction | None:
        """None where nothing came. Raises `ApiError` where this incarnation has to end."""
        batches, member = self._source.poll()
        self._waiting += batches
        if not any(batch.records for batch in batches):
            return None
        ends = {batch.partition: batch.end for batch in self._waiting}
        transaction = self._transaction(ends)
        commits = self._rng.random() >= _ABORTS
        ended = self._ledger.run(
            transaction, lambda: self._ledger.producer.send_offsets(self._group, ends, member), commits=commits
        )
        self._waiting.clear()
        if ended.outcome is Outcome.COMMITTED:
            self._source.on_committed(ends)
        else:
            self._source.rewind()
        return ended

    def _transaction(self, ends: Mapping[TopicPartition, int]) -> Transaction:
        """The transaction of the batches that wait; their reads are recorded."""
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
        consumed = tuple(Consumed(self._group, each, self._source.committed(each), end) for each, end in ends.items())
        return replace(transaction, appends=tuple(appends), consumed=consumed)
