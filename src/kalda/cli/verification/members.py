"""Consume-transform-produce by members of a group (KIP-447): each member has a transactional id of its own.

So no transactional id fences a member that the group has removed while its transaction is open, but the generation that
its offsets name. The consumer is the client's own `Consumer`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random
from typing import Protocol

from kalda.base.configs.consumer import CONSUMER
from kalda.base.ids import TopicPartition
from kalda.cli.verification.loops import ReadBatch
from kalda.cli.verification.observers import seen
from kalda.cli.verification.recording import now_us
from kalda.cli.verification.writers import Ledger
from kalda.client.consumer.consumer import Consumer
from kalda.client.transport.config_files import keys_of
from kalda.clientcore.consuming.commits import GroupMetadata
from kalda.records.consuming import Record
from kalda.verify.history import Append, Consumed, Operation, Outcome, Read, Transaction

_POLL_S = 0.2
_MAX_RECORDS = 20
_SESSION_MS = 6_000
"""Shorter than most pauses of members; brokers accept no shorter one by default."""
_ABORTS = 0.1


class AssignedSource(Protocol):
    """A member of a group that reads committed records."""

    def poll(self) -> tuple[list[ReadBatch], GroupMetadata]:
        """What has come, where anything has; the batches of a partition follow each other, from the group's committed
        offset on. Raises `ApiError`."""
        ...

    def rewind(self) -> None:
        """Read again from the committed offsets on. Raises `ApiError`."""
        ...

    def committed(self, partition: TopicPartition) -> int:
        """The group's offset when this member's reading of the partition began. Raises `ApiError`."""
        ...

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        """A transaction has committed these offsets."""
        ...


class MemberSource:
    """`AssignedSource` over the client's own consumer. It leaves the group by `close`."""

    def __init__(self, config: Mapping[str, object], group: str, topics: Collection[str]) -> None:
        """`config` is that of a client of the cluster."""
        self._consumer = Consumer(
            {
                **keys_of(CONSUMER, config),
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _SESSION_MS // 6,
                "metadata.max.age.ms": 5_000,
            }
        )
        self._committed: dict[TopicPartition, int] = {}
        """The group's offsets of the partitions that were read since they were assigned."""
        self._positions: dict[TopicPartition, int] = {}
        self._consumer.subscribe(list(topics), on_assigned=self._forget, on_revoked=self._forget, on_lost=self._forget)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._committed.pop(partition, None)
            self._positions.pop(partition, None)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return self._consumer.assignment()

    def poll(self) -> tuple[list[ReadBatch], GroupMetadata]:
        begun_us = now_us()
        records = self._consumer.poll(_POLL_S, _MAX_RECORDS)
        member = self._consumer.group_metadata()
        found: dict[TopicPartition, list[Record]] = {}
        for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        batches = []
        for partition, read in found.items():
            start = self._positions.get(partition, -1)
            if start < 0:
                start = self.committed(partition)
            end = self._positions[partition] = read[-1].offset + 1
            batches.append(ReadBatch(partition, start, end, seen(read), begun_us, now_us()))
        return batches, member

    def committed(self, partition: TopicPartition) -> int:
        known = self._committed.get(partition)
        if known is None:
            found = self._consumer.committed(partition, timeout=_SESSION_MS / 1_000)[partition]
            known = self._committed[partition] = 0 if found is None else found.offset
        return known

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        self._committed |= ends

    def rewind(self) -> None:
        self._committed.clear()
        self._positions.clear()
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, self.committed(partition))

    def close(self) -> None:
        self._consumer.close(1.0)


class MemberLoop:
    """One transaction a step, where there is input."""

    def __init__(
        self,
        ledger: Ledger,
        source: AssignedSource,
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

    def step(self) -> Transaction | None:
        """None where nothing came. Raises `ApiError` where this incarnation has to end."""
        batches, member = self._source.poll()
        if not batches:
            return None
        transaction = self._ledger.next_transaction()
        appends: list[Append] = []
        consumed = []
        for batch in batches:
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
            consumed.append(Consumed(self._group, batch.partition, self._source.committed(batch.partition), batch.end))
        transaction = replace(transaction, appends=tuple(appends), consumed=tuple(consumed))
        ends = {each.partition: each.end for each in consumed}
        commits = self._rng.random() >= _ABORTS
        ended = self._ledger.run(
            transaction, lambda: self._ledger.producer.send_offsets(self._group, ends, member), commits=commits
        )
        if ended.outcome is Outcome.COMMITTED:
            self._source.on_committed(ends)
        else:
            self._source.rewind()
        return ended
