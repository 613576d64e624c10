"""Rows of Arrow record batches to a producer, by topic and partition, without a Python object for a row.

A producer is kept in Spark's worker process from task to task, except for transactions.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from pyspark import TaskContext

from kalda.client.producer.producer import Producer
from kalda.spark.sink_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from kalda.client.producer.delivery import TableFuture

_idle: dict[tuple[tuple[str, str], ...], Producer] = {}
"""Producers that no task uses, by configuration; of this process only."""
_owner_pid = os.getpid()
_TIMESTAMP: Final = "timestamp"
_SESSION_ZONE: Final = "spark.sql.session.timeZone"
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?(?:([+-])(\d{1,2})(?::?(\d{2}))?(?::?00)?)?|Z")
"""Of a zone without a name, as Spark takes it."""


class Part(NamedTuple):
    """Rows of one topic, and of one partition, or of None where their keys choose it."""

    topic: str
    partition: int | None
    rows: pa.RecordBatch


class RowWriter:
    """The rows of one task."""

    def __init__(self, producer: Producer, options: WriteOptions) -> None:
        self._producer = producer
        self._options = options
        self._sent: deque[TableFuture] = deque()
        """Not known to be acknowledged."""
        self.rows = 0
        self.topic: str | None = None
        """Of the first rows that were sent."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows. Waits while the producer's memory is full. Raises what earlier rows have failed with."""
        self.rows += rows.num_rows
        for part in parts_of(_with_moments(rows), self._options.topic):
            self.topic = self.topic or part.topic
            self._sent.append(self._producer.send_batch(part.topic, part.rows, partition=part.partition))
        while self._sent and self._sent[0].done():
            self._sent.popleft().result()

    def finish(self) -> None:
        """Wait until all rows are acknowledged. Raises the first error."""
        while self._sent:
            self._sent.popleft().result()


def _with_moments(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the times of a column without a zone as moments in the session's zone, as Spark casts them."""
    import pyarrow as pa

    if _TIMESTAMP not in rows.schema.names:
        return rows
    kind = rows.schema.field(_TIMESTAMP).type
    if not pa.types.is_timestamp(kind) or kind.tz is not None:
        return rows
    return rows.set_column(rows.schema.get_field_index(_TIMESTAMP), _TIMESTAMP, moments_in(rows[_TIMESTAMP], _zone()))


def _zone() -> str:
    """The session's zone, which Spark gives to tasks where it was set; else this machine's, as in Java."""
    context = TaskContext.get()
    given = None if context is None else context.getLocalProperty(_SESSION_ZONE)
    local = os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    return given or local or "UTC"


def moments_in(times: pa.Array, zone: str) -> pa.Array:
    """The moments at which clocks in a zone (a name, or an offset such as +05:30) show these times. Of two such moments
    it is the earlier one; a time that is skipped is as much later as the clocks are put forward."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (offset := _OFFSET.fullmatch(zone)) is not None:
        sign, hours, minutes = offset.groups()
        shift = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
        return pc.subtract(times, pa.scalar(shift, pa.duration("us"))).cast(pa.timestamp("us", "UTC"))
    try:
        return pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="raise")
    except pa.ArrowInvalid:
        skipping = ZoneInfo(zone)
    found = [None if time is None else time.replace(tzinfo=skipping).astimezone(UTC) for time in times.to_pylist()]
    return pa.array(found, pa.timestamp("us", "UTC"))


def parts_of(rows: pa.RecordBatch, topic: str | None) -> Iterator[Part]:
    """The rows by topic and partition, in their order. Raises `ValueError` for a row without a topic."""
    names = rows.schema.names
    for name, of_topic in [(topic, rows)] if topic is not None else _groups(rows, "topic"):
        if name is None:
            raise ValueError("null topic present in the data. Use the topic option for setting a default topic")
        if "partition" not in names:
            yield Part(name, None, of_topic)
            continue
        for partition, of_partition in _groups(of_topic, "partition"):
            yield Part(name, partition, of_partition)


def _groups(rows: pa.RecordBatch, name: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """The rows of each value of a column, in the order of the values; None, which is last, where it is null."""
    import pyarrow.compute as pc

    values = rows.column(name).unique()
    if len(values) < 2:
        yield from ((value, rows) for value in values.to_pylist())
        return
    # One stable sort: a batch may have a row for each of ten thousand partitions.
    ordered = rows.take(pc.sort_indices(rows.column(name)))
    start = 0
    runs = pc.run_end_encode(ordered.column(name))
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, ordered.slice(start, end - start)
        start = end


def write_rows(options: WriteOptions, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows with an idempotent producer of this worker process; returns their number when all are acknowledged.

    A task that fails and is run again writes its rows again."""
    global _owner_pid
    if _owner_pid != os.getpid():
        _idle.clear()
        _owner_pid = os.getpid()
    key = tuple(sorted(options.kafka.items()))
    producer = _idle.pop(key, None) or Producer(dict(options.kafka))
    try:
        writer = RowWriter(producer, options)
        for batch in batches:
            writer.write(batch)
        producer.flush()
        writer.finish()
    except BaseException:
        producer.close(timeout=0)
        raise
    _idle[key] = producer
    return writer.rows
