"""The classes that Spark calls to write: a batch writer and a streaming one, and what both share.

Spark makes a writer in the driver's Python process for each batch, and pickles it for the tasks. `write` runs in the
tasks; `commit` and `abort` run in the driver when all tasks have ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kalda.spark.options import OptionError
from kalda.spark.sink_options import NAME, WriteOptions
from kalda.spark.workers import exempt_modules, one_sentence

if TYPE_CHECKING:
    import pyarrow as pa

    from kalda.spark.exactly_once import TaskIdentity

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Properties that Spark sets for the jobs of a streaming query's batch, and hands on to tasks."""


@dataclass(frozen=True, slots=True)
class RowsWritten(WriterCommitMessage):
    """A task without a transaction has written its rows."""

    rows: int


class TopicWriter(DataSourceArrowWriter):
    """`df.write`: in transactions, all rows of a task are committed at the end of the job, or none is."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.name = options.name or str(uuid.uuid4())
        """Of the transactions. A name that the user gives is found again when the job is run again."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self.options.is_exactly_once:
            return _write_plainly(self.options, iterator)
        from kalda.spark.exactly_once import TaskIdentity

        batch = None if self.options.name is None else self.options.batch or 0
        return _write_in_transaction(self.options, TaskIdentity(self.name, _context().partitionId(), batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self.options, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self.options.is_exactly_once:
            return _write_plainly(self.options, iterator)
        from kalda.spark.exactly_once import TaskIdentity

        context = _context()
        name = self.options.name or context.getLocalProperty(_QUERY_ID)
        batch = context.getLocalProperty(_BATCH_ID)
        if name is None or batch is None:
            raise OptionError(
                NAME,
                self.options.name,
                "this version of Spark does not give a task the ids of its query and batch, which exactly-once "
                "writing needs. Set it, and write in foreachBatch with the batch's number",
            )
        return _write_in_transaction(self.options, TaskIdentity(name, context.partitionId(), int(batch)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self.options, messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write in a task"
    return context


def _write_plainly(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> RowsWritten:
    from kalda.spark.row_writer import write_rows

    exempt_modules()
    with one_sentence():
        return RowsWritten(write_rows(options, batches))


def _write_in_transaction(
    options: WriteOptions, identity: TaskIdentity, batches: Iterator[pa.RecordBatch]
) -> WriterCommitMessage:
    from kalda.spark.exactly_once import write_in_transaction

    exempt_modules()
    with one_sentence():
        return write_in_transaction(options, identity, batches)


def _commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    if options.is_exactly_once:
        from kalda.spark.exactly_once import commit_batch

        with one_sentence():
            commit_batch(options, messages)


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    if options.is_exactly_once:
        from kalda.spark.exactly_once import abort_batch

        with one_sentence():
            abort_batch(options, messages)
