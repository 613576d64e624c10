"""The records of segments as Arrow columns, without a Python object a record.

Columns that are common to a batch (its producer, its epoch, where it is) are found for each row by the batch's base
offset. Damage becomes a row of its own that has only topic, partition, the first offset that may be lost, the place in
the file, and what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kalda.base.errors import CorruptRecord
from kalda.client.consumer.columns import TYPES, SparkColumns
from kalda.records.batch import BatchHeader
from kalda.spark.segment_batches import Damage, Run
from kalda.spark.segment_files import SegmentPiece

EXTRA_TYPES: Final[dict[str, pa.DataType]] = {
    "corrupt": pa.string(),
    "logDir": pa.string(),
    "segment": pa.string(),
    "position": pa.int64(),
    "producerId": pa.int64(),
    "producerEpoch": pa.int32(),
    "baseSequence": pa.int32(),
    "leaderEpoch": pa.int32(),
    "transactional": pa.bool_(),
    "compression": pa.string(),
}
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_OF_HEADER: Final[dict[str, Callable[[BatchHeader], Any]]] = {
    "producerId": lambda header: header.producer_id,
    "producerEpoch": lambda header: header.producer_epoch,
    "baseSequence": lambda header: header.base_sequence,
    "leaderEpoch": lambda header: header.partition_leader_epoch,
    "transactional": lambda header: header.is_transactional,
    "compression": lambda header: _CODECS[header.compression],
}
Keep = Callable[[BatchHeader], bool]


@dataclass(frozen=True, slots=True)
class _Batches:
    """What `SparkColumns` reads of one run."""

    topic: str
    partition: int
    buffer: memoryview
    start: int
    end: int | None
    keep: Keep | None


class RecordColumns:
    """One task's rows, of a schema whose fields are among `TYPES` and `EXTRA_TYPES`."""

    def __init__(self, fields: list[tuple[str, bool]]) -> None:
        """`fields`: name and whether it may be null."""
        self._schema = pa.schema([pa.field(name, (TYPES | EXTRA_TYPES)[name], null) for name, null in fields])
        self._has_extras = any(name in EXTRA_TYPES for name, _ in fields)
        decoded = [(name, null) for name, null in fields if name in TYPES]
        if all(name != "offset" for name, _ in decoded):
            decoded.append(("offset", True))
        schema = pa.schema([pa.field(name, TYPES[name], null) for name, null in decoded])
        self._decoded = SparkColumns(schema, overflowing_times_are_null=True)

    def of(
        self, run: Run, piece: SegmentPiece, start: int, end: int | None, keep: Keep | None
    ) -> Iterator[pa.RecordBatch | Damage]:
        """The records with offsets in [start, end) of the batches that `keep` allows. A batch whose records are
        malformed, although its CRC is right, is `Damage`. A timestamp that Spark does not have is null."""
        reached = -1
        try:
            for batch in self._decoded.of(_Batches(piece.topic, piece.partition, run.buffer, start, end, keep)):
                reached = batch.column("offset")[-1].as_py()
                yield self._complete(batch, run, piece)
            return
        except CorruptRecord as error:
            if len(run.headers) == 1:
                header = run.headers[0]
                yield Damage(run.position, header.size_bytes, header.base_offset, error.message)
                return
        at = 0
        for header in run.headers:
            if header.base_offset > reached:
                one = Run(run.position + at, run.buffer[at : at + header.size_bytes], [header])
                yield from self.of(one, piece, start, end, keep)
            at += header.size_bytes

    def _complete(self, batch: pa.RecordBatch, run: Run, piece: SegmentPiece) -> pa.RecordBatch:
        if not self._has_extras:
            return batch.select(self._schema.names)
        columns = []
        for field in self._schema:
            if field.name not in EXTRA_TYPES:
                columns.append(batch.column(field.name))
            elif field.name == "corrupt":
                columns.append(pa.nulls(batch.num_rows, field.type))
            elif field.name in ("logDir", "segment"):
                text = piece.log_dir if field.name == "logDir" else piece.path
                columns.append(pa.repeat(pa.scalar(text, field.type), batch.num_rows))
            else:
                columns.append(_of_batches(field, batch, run))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def damage(self, damage: Damage, piece: SegmentPiece) -> pa.RecordBatch:
        """A row for damage. Raises `ValueError` where the schema has no column for it."""
        if "corrupt" not in self._schema.names:
            raise ValueError(
                f"{describe(damage, piece)}. Add the column corrupt to the schema to get damage as rows, or set option "
                f"mode to DROPMALFORMED to leave it out"
            )
        row = {
            "topic": piece.topic,
            "partition": piece.partition,
            "offset": damage.offset,
            "logDir": piece.log_dir,
            "segment": piece.path,
            "position": damage.position,
            "corrupt": describe(damage, piece),
        }
        fields = [field.with_nullable(True) for field in self._schema]
        return pa.RecordBatch.from_pylist([row], schema=pa.schema(fields)).cast(self._schema)


def _of_batches(field: pa.Field, batch: pa.RecordBatch, run: Run) -> pa.Array:
    """A column of the batch that each row is in."""
    import numpy as np

    # By last offsets: of a batch of magic 0 or 1 the header has no other.
    ends = np.fromiter((header.last_offset for header in run.headers), np.int64, len(run.headers))
    rows = np.searchsorted(ends, batch.column("offset").to_numpy())
    if field.name == "position":
        sizes = [header.size_bytes for header in run.headers]
        values: list[Any] = (run.position + np.cumsum([0, *sizes[:-1]])).tolist()
    else:
        values = [_OF_HEADER[field.name](header) for header in run.headers]
    return pa.array(values, field.type).take(pa.array(rows))


def describe(damage: Damage, piece: SegmentPiece) -> str:
    """What is wrong and where, in one sentence."""
    return (
        f"{piece.path}, position {damage.position}, {damage.size_bytes} bytes from offset {damage.offset} on: "
        f"{damage.reason}"
    )
