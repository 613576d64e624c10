"""The clients of a run: producers of transactions, loops, and the read_committed consumers that loops read with.

read_committed consumers of a cluster, over which loops read their input: partitions of their own, or those that a group
assigns to its member. And samples of the last stable offset.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, Protocol

from kalda.base.configs.consumer import CONSUMER
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.verification.processes import now_us
from kalda.client.consumer.consumer import Consumer
from kalda.client.transport.config_files import keys_of
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.clientcore.producing.producer_errors import AbortableTransactionError
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.builder import NewRecord
from kalda.records.consuming import Record
from kalda.verify.history import Append, Consumed, OffsetSample, Operation, Outcome, Read, Seen, Transaction

# Producers of transactions: some records to some partitions, then a commit, or sometimes an abort.
#
# A transaction is recorded before its first record is sent, before its commit is requested, and at its end. So
# whatever kills the process, the history has what may be in the log.

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


# Consume-transform-produce: each input record becomes one output record, in one transaction with the group's offsets.
#
# Each input partition has an output partition of its own, whose records are in the order of the inputs. A loop may
# have input partitions of its own: then its transactional id fences a former incarnation (KIP-98). Or it is a member
# of a group, with a transactional id of its own: then that fences no member that the group has removed while its
# transaction is open, but the generation that its offsets name does (KIP-447).

_LOOP_ABORTS = 0.1


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
        commits = self._rng.random() >= _LOOP_ABORTS
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


_POLL_S = 0.2
_MAX_READ = 20
_SESSION_MS = 6_000
"""Shorter than most pauses of members; brokers accept no shorter one by default."""
_MAX_BATCH_BYTES = 16 * 1024
"""Small, so that a consumer stops between two transactions, and within one."""


def seen(records: Iterable[Record]) -> tuple[Seen, ...]:
    """Records of one partition, as the history has them."""
    return tuple(
        Seen(record.offset, (record.value if isinstance(record.value, bytes) else b"").decode("utf-8", "replace"))
        for record in records
    )


def consumer_of(config: Mapping[str, object], *, read_committed: bool) -> Consumer:
    """A consumer without a group, whose partitions are assigned and positioned by the caller."""
    return Consumer(
        {
            **keys_of(CONSUMER, config),
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "auto.offset.reset": "none",
            "max.partition.fetch.bytes": _MAX_BATCH_BYTES,
            "fetch.max.wait.ms": int(_POLL_S * 1_000),
        }
    )


class CommittedReader:
    """Reads partitions from given offsets on."""

    def __init__(self, config: Mapping[str, object], starts: Mapping[TopicPartition, int]) -> None:
        self._consumer = consumer_of(config, read_committed=True)
        self._consumer.assign(starts)
        for partition, start in starts.items():
            self._consumer.seek(partition, start)
        self._positions = dict(starts)
        self._ready: deque[ReadBatch] = deque()
        """What the last poll has returned, one batch a partition."""

    def poll(self) -> ReadBatch | None:
        """The next records of a partition, or None. A batch without records has passed markers or aborted records.
        Raises `ApiError`."""
        if not self._ready:
            begun_us = now_us()
            by_partition: dict[TopicPartition, list[Record]] = {}
            for record in self._consumer.poll(_POLL_S):
                by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
            for partition, (end, _, _) in self._consumer.positions().items():
                start = self._positions[partition]
                if end > start:
                    found = seen(by_partition.get(partition, ()))
                    self._ready.append(ReadBatch(partition, start, end, found, begun_us, now_us()))
                    self._positions[partition] = end
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        self._consumer.close()


def read_of(reader: str, batch: ReadBatch) -> Read:
    """A read without a transaction."""
    return Read(reader, batch.partition, batch.start, batch.end, batch.begun_us, batch.ended_us, batch.records)


def sample(admin: CommandAdmin, partitions: Collection[TopicPartition]) -> list[OffsetSample]:
    """The last stable offset and then the high watermark of each partition. Raises `ApiError`."""
    at_us = now_us()
    stable = admin.offsets_at(partitions, OffsetSpec.LATEST, read_committed=True)
    ends = admin.offsets_at(partitions, OffsetSpec.LATEST)
    return [OffsetSample(partition, stable[partition], ends[partition], at_us) for partition in partitions]


class GroupSource:
    """Partitions of the loop's own: a `Source` over the offsets of a group without members."""

    def __init__(self, admin: CommandAdmin, group: str, partitions: Collection[TopicPartition]) -> None:
        self._admin = admin
        self._group = group
        self._partitions = partitions
        self._reader: CommittedReader | None = None
        self._committed: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}

    def poll(self) -> tuple[list[ReadBatch], None]:
        """A batch, which may be without records; before the first one, it waits as `rewind`. Raises `ApiError`."""
        if self._reader is None:
            self.rewind()
        assert self._reader is not None, "`rewind` has made it"
        batch = self._reader.poll()
        if batch is None:
            return [], None
        self.positions[batch.partition] = batch.end
        return [batch], None

    def rewind(self) -> None:
        """Waits until no transaction of the group is open. Raises `ApiError`."""
        if self._reader is not None:
            self._reader.close()
        found = self._admin.list_group_offsets(self._group, self._partitions, require_stable=True).check().succeeded
        self._committed = {each: found[each].offset if each in found else 0 for each in self._partitions}
        self.positions = dict(self._committed)
        self._reader = CommittedReader(self._admin.config, self._committed)

    def committed(self, partition: TopicPartition) -> int:
        return self._committed[partition]

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        self._committed |= ends


class MemberSource:
    """A member of a group: a `Source` over the client's own consumer. It leaves the group by `close`."""

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
        records = self._consumer.poll(_POLL_S, _MAX_READ)
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
