"""Batches that are written once, whatever crashes: a transaction of each task, ended by the driver.

A task of batch `b` of the write `name` does this, with the transactional id `kalda-spark-NAME-TASK`:

1. InitProducerId, which fences earlier attempts of the task and aborts what they left open.
2. It reads the offset of the group `kalda-spark-NAME-TASK`. `b + 1`: the rows were committed by an earlier run of the
   batch. The task then writes nothing.
3. Else it writes its rows in a transaction, and `b + 1` as that offset in the same transaction.
4. It leaves the transaction open, and returns the producer's id and epoch to the driver.

When all tasks have ended, the driver writes the number of tasks to the group `kalda-spark-NAME-tasks`, and then ends
the transactions over a connection of its own, by those ids and epochs, as KIP-939 lets a coordinator do. Spark writes
the batch to its commit log after that.

Invariants:

- A task's rows and its offset are committed together, or neither is. So a batch that is run again, after a crash at any
  moment, writes the rows of exactly those tasks that were not committed.
- The number of tasks is written before the first transaction is ended. Where a batch that is run again has another
  number of tasks, and some were committed, it is refused: the rows of a task would not be those of the first run. That
  a batch which is run again is the same batch rests on this.
- With its offset, a task commits a checksum of its rows that does not depend on their order. A task that finds its
  batch committed computes it again, and refuses to continue where it differs. A task without rows requests nothing;
  where a batch is run again, the driver refuses it if the task had committed rows.

What is not atomic: the tasks of one batch are committed one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from kalda.base.errors import ApiError, ErrorCode, KafkaError
from kalda.base.ids import TopicPartition
from kalda.client.producer.producer import Producer
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.protocol.messages.transactions import EndTxnRequest
from kalda.spark.cluster import SparkAdmin, admin_of
from kalda.spark.row_writer import RowWriter
from kalda.spark.sink_options import CHECK, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

_PREFIX = "kalda-spark-"
_UNSTABLE_ATTEMPTS = 50
_SUM_MODULUS = 2**64
_REMEDY = (
    f"the query does not give each task the same rows each time. Take out what is not deterministic (rand, the current "
    f"time, an order without a full sort), and keep the number of partitions. To accept what was committed as it is, "
    f"set option {CHECK} to false"
)


class NotRepeatable(KafkaError, RuntimeError):
    """A batch was run again, and its tasks are not those of its first run."""


class CommitRefused(KafkaError, RuntimeError):
    """A task's transaction could not be committed."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """One task of one batch of a write."""

    name: str
    task: int
    batch: int | None = None
    """None: the batch has no number, so that it cannot be found when it is run again."""

    @property
    def transactional_id(self) -> str:
        return f"{_PREFIX}{self.name}-{self.task}"

    @property
    def group(self) -> str:
        """The group with the number of the last batch that the task has committed."""
        return self.transactional_id


def batches_group_of(name: str) -> str:
    """The group with the number of tasks of the last batch. It is no task's group of another name: these end in a
    number."""
    return f"{_PREFIX}{name}-tasks"


@dataclass(frozen=True, slots=True)
class TaskDone(WriterCommitMessage):
    """What a task returns to the driver."""

    identity: TaskIdentity
    rows: int
    topic: str | None = None
    """Of the first row; None where there was none."""
    producer_id: int = -1
    """Of the open transaction; -1 where there is none to end."""
    producer_epoch: int = -1
    is_v2: bool = False
    was_committed: bool = False
    """An earlier run of the batch has committed the rows."""


class PreparedTask(NamedTuple):
    """An open transaction whose records are all acknowledged."""

    producer_id: int
    producer_epoch: int
    is_v2: bool


class TaskProducer(Producer):
    """A transactional producer whose transaction is ended by another process."""

    def prepare(self) -> PreparedTask:
        """Wait until all records are acknowledged. The transaction stays open when the producer is closed with
        `timeout=0`. Raises `ApiError`."""
        self.flush()
        transactions = self._transactions()
        self._wait_for_transaction(transactions, None, "prepared")
        manager = transactions.manager
        return PreparedTask(manager.producer_id, manager.producer_epoch, manager.is_v2)


class RowSum:
    """A checksum of rows that does not depend on their order: after a shuffle, a task has its rows in any order."""

    def __init__(self) -> None:
        self.rows = 0
        self._bytes = {"key": 0, "value": 0}
        self._sum = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        import numpy as np
        import pyarrow as pa

        self.rows += rows.num_rows
        for name in self._bytes:
            index = rows.schema.get_field_index(name)
            if index < 0:
                continue
            column = rows.column(index)
            _, ends, data = column.cast(pa.binary()).buffers()
            if ends is None or data is None or not len(column):
                continue
            positions = memoryview(ends).cast("B").cast("i")
            first, last = positions[column.offset], positions[column.offset + len(column)]
            self._bytes[name] += last - first
            self._sum += int(np.frombuffer(data, np.uint8)[first:last].sum(dtype=np.uint64))

    def text(self) -> str:
        """For the offset's metadata."""
        found = {"rows": self.rows, **self._bytes, "sum": self._sum % _SUM_MODULUS}
        return json.dumps(found, separators=(",", ":"))


class Recorded(NamedTuple):
    """What a group has of a task, or of a whole batch."""

    batch: int
    text: str


def write_in_transaction(options: WriteOptions, identity: TaskIdentity, batches: Iterable[pa.RecordBatch]) -> TaskDone:
    """Write a task's rows, and leave the transaction open; see this module. Raises `ApiError`, `NotRepeatable`."""
    left = (batch for batch in batches if batch.num_rows)
    first = next(left, None)
    if first is None:
        return TaskDone(identity, 0)
    rows = _chained(first, left)
    config = {**options.kafka, "transactional.id": identity.transactional_id}
    producer = TaskProducer(config)
    try:
        producer.init_transactions()
        if identity.batch is not None:
            recorded = _recorded(admin_of(options.kafka), identity)
            if recorded is not None and recorded.batch >= identity.batch:
                return _compare(options, identity, recorded, rows)
        return _write(producer, options, identity, rows)
    finally:
        producer.close(timeout=0)


def _chained(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _write(
    producer: TaskProducer, options: WriteOptions, identity: TaskIdentity, rows: Iterable[pa.RecordBatch]
) -> TaskDone:
    writer, total = RowWriter(producer, options), RowSum()
    producer.begin_transaction()
    try:
        for batch in rows:
            writer.write(batch)
            total.add(batch)
        if identity.batch is not None:
            at = OffsetAndEpoch(identity.batch + 1, -1, total.text())
            # Of a partition that every topic has: brokers refuse offsets of others.
            producer.send_offsets_to_transaction({(writer.topic, 0): at}, identity.group)
        prepared = producer.prepare()
        writer.finish()
    except BaseException:
        with suppress(ApiError, TimeoutError):
            producer.abort_transaction(timeout=10)
        raise
    return TaskDone(identity, writer.rows, writer.topic, *prepared)


def _recorded(admin: SparkAdmin, identity: TaskIdentity) -> Recorded | None:
    """The last batch that this task has committed."""
    for _ in range(_UNSTABLE_ATTEMPTS):
        found = admin.list_group_offsets(identity.group, require_stable=True)
        if not found.errors:
            return _newest(found)
        error = next(iter(found.errors.values()))
        if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
            break
    raise error


def _newest(offsets: Mapping[TopicPartition, Any]) -> Recorded | None:
    found = [at for at in offsets.values() if isinstance(at, OffsetAndEpoch)]
    newest = max(found, key=lambda at: at.offset, default=None)
    return None if newest is None else Recorded(newest.offset - 1, newest.metadata)


def _compare(
    options: WriteOptions, identity: TaskIdentity, recorded: Recorded, rows: Iterable[pa.RecordBatch]
) -> TaskDone:
    """The batch was committed by an earlier run: check that its rows are the same."""
    if recorded.batch != identity.batch:
        raise NotRepeatable(
            f"task {identity.task} of {identity.name} was to write batch {identity.batch}, and batch {recorded.batch} "
            f"was committed already: the checkpoint is older than what was written. Restore the newest checkpoint, or "
            f"begin anew with another checkpoint and another topic"
        )
    total = RowSum()
    for batch in rows:
        total.add(batch)
    if options.checks_rows and recorded.text and recorded.text != total.text():
        raise NotRepeatable(
            f"task {identity.task} of batch {identity.batch} of {identity.name} has committed {recorded.text}, and has "
            f"{total.text()} when it is run again: {_REMEDY}"
        )
    return TaskDone(identity, total.rows, was_committed=True)


# -- in the driver


def commit_batch(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """End the transactions of a batch whose tasks have all ended. Raises `NotRepeatable`, `CommitRefused`."""
    done = [each for each in messages if isinstance(each, TaskDone)]
    still_open = [each for each in done if each.producer_id >= 0]
    if not still_open:
        return
    admin = admin_of(options.kafka)
    identity = still_open[0].identity
    if identity.batch is not None:
        try:
            _record_tasks(admin, still_open[0], identity.batch, done, len(messages), options)
        except NotRepeatable:
            abort_batch(options, messages)
            raise
    errors = _end(admin, still_open, commit=True)
    if errors:
        name, error = next(iter(errors.items()))
        raise CommitRefused(
            f"{len(errors)} of {len(still_open)} transactions were not committed, {name} among them: {error}. When the "
            f"batch is run again, tasks that were committed write nothing. Where the error is a fenced producer, the "
            f"transaction was open for longer than kafka.transaction.timeout.ms, or another run of the query writes too"
        )


def abort_batch(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort the transactions of the tasks that have ended. One that is refused was ended before, or times out."""
    still_open = [each for each in messages if isinstance(each, TaskDone) and each.producer_id >= 0]
    if still_open:
        _end(admin_of(options.kafka), still_open, commit=False)


def _record_tasks(
    admin: SparkAdmin, task: TaskDone, batch: int, done: Sequence[TaskDone], tasks: int, options: WriteOptions
) -> None:
    """Write the number of tasks, before the first transaction is ended. Raises `NotRepeatable`."""
    name = task.identity.name
    group = batches_group_of(name)
    planned = _newest(admin.list_group_offsets(group))
    text = json.dumps({"tasks": tasks}, separators=(",", ":"))
    if planned is not None and planned.batch == batch:  # it is run again
        if options.checks_rows:
            _refuse_another_plan(admin, task.identity, batch, planned.text, text)
            _refuse_emptied(admin, done, batch)
        if planned.text == text:
            return
    at = OffsetAndEpoch(batch + 1, -1, text)
    admin.alter_group_offsets(group, {(str(task.topic), 0): at}).check()


def _refuse_another_plan(admin: SparkAdmin, identity: TaskIdentity, batch: int, planned: str, text: str) -> None:
    """Raises `NotRepeatable` where the number of tasks is another one, and some have committed their rows."""
    if planned == text:
        return
    ended = [
        index for index in range(_tasks_of(planned)) if _has_committed(admin, TaskIdentity(identity.name, index), batch)
    ]
    if ended:
        raise NotRepeatable(
            f"batch {batch} of {identity.name} had {planned} when it was first written, of which {len(ended)} were "
            f"committed, and has {text} now: rows would be written twice or lost. Restart the query with the "
            f"parallelism that it had (shuffle partitions, minPartitions). To accept what was committed as it is, set "
            f"option {CHECK} to false"
        )


def _refuse_emptied(admin: SparkAdmin, done: Sequence[TaskDone], batch: int) -> None:
    """Raises `NotRepeatable` where a task without rows has committed some: they would be another task's now."""
    for each in done:
        if each.topic is None and not each.was_committed and _has_committed(admin, each.identity, batch):
            raise NotRepeatable(
                f"task {each.identity.task} of batch {batch} of {each.identity.name} has committed rows, and has none "
                f"when it is run again: {_REMEDY}"
            )


def _tasks_of(text: str) -> int:
    try:
        return int(json.loads(text)["tasks"])
    except (ValueError, KeyError, TypeError):
        return 0


def _has_committed(admin: SparkAdmin, task: TaskIdentity, batch: int) -> bool:
    recorded = _newest(admin.list_group_offsets(task.group))
    return recorded is not None and recorded.batch == batch


def _end(admin: SparkAdmin, tasks: Sequence[TaskDone], *, commit: bool) -> dict[str, ApiError]:
    """The transactional ids whose transaction could not be ended, with the reason."""
    ends = {
        each.identity.transactional_id: EndTxnRequest(
            transactional_id=each.identity.transactional_id,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            committed=commit,
        )
        for each in tasks
    }
    is_v2 = {each.identity.transactional_id: each.is_v2 for each in tasks}
    return admin.end_transactions(ends, is_v2=is_v2).errors
