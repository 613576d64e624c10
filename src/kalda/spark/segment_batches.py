"""A piece of a segment: runs of good batches, the damage between them, and their records as Arrow columns.

A batch is good where its header has a possible size, its base offset is not below the end of the one before it, and its
CRC is right. Behind a damaged batch reading continues at the next batch: the one behind it where its length leads to a
good header, else the first position at which a whole batch with a right CRC begins. So a damaged batch never hides the
good ones behind it, and every byte of a file is in a good batch or in a `Damage`.

Columns are made without a Python object a record: those that are common to a batch (its producer, its epoch, where it
is) are found for each row by the batch's base offset. Damage becomes a row of its own that has only topic, partition,
the first offset that may be lost, the place in the file, and what is wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kalda.base.errors import CorruptRecord
from kalda.client.consumer.columns import TYPES, SparkColumns
from kalda.records.batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    MIN_BATCH_SIZE,
    BatchHeader,
    check_crc,
    least_length,
    read_header,
)
from kalda.spark.segment_files import SegmentPiece

CHUNK_BYTES = 8 * 1024 * 1024
MAX_BATCH_BYTES = 1 << 30
"""A longer one is damage: brokers accept a megabyte by default, and no client makes more than this."""
_SECTOR_BYTES = 4096
_MAGICS = {False: re.compile(b"\x02"), True: re.compile(b"[\x00-\x02]")}
"""Of the batches that are searched for; whether with those of older formats, which few logs have."""


@dataclass(frozen=True, slots=True)
class Run:
    """Whole good batches, one behind the other."""

    position: int
    """In the file."""
    buffer: memoryview
    headers: list[BatchHeader]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no good batch."""

    position: int
    size_bytes: int
    offset: int
    """The first offset that the bytes may have held."""
    reason: str


def read_piece(piece: SegmentPiece, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Run | Damage]:
    """The batches that begin within the piece. Raises `OSError` only where the file cannot be opened: bytes that the
    disk cannot read are `Damage`."""
    with open(piece.path, "rb") as file:
        walk = _Walk(file.fileno(), piece)
        while walk.position < walk.end:
            yield from walk.chunk(chunk_bytes)


class _Walk:
    def __init__(self, fd: int, piece: SegmentPiece) -> None:
        self.fd = fd
        self.position = piece.start
        self.size = os.fstat(fd).st_size
        self.end = min(piece.end, self.size)
        """Batches that begin here or later belong to the next piece."""
        self.next_offset = piece.base_offset
        self.has_legacy = False
        """A batch of magic 0 or 1 was found."""

    def chunk(self, chunk_bytes: int) -> Iterator[Run | Damage]:
        """The batches of the next chunk of the file, at least one, or one damage."""
        data = self._read(self.position, min(chunk_bytes, self.size - self.position))
        if data is None:
            yield self._unreadable(chunk_bytes)
            return
        at = 0
        headers: list[BatchHeader] = []
        problem = ""
        while self.position + at < self.end:
            if len(data) - at < MIN_BATCH_SIZE:
                problem = "the file ends within a batch's header"
                break
            try:
                header = read_header(data, at)
                if at + header.size_bytes > len(data):
                    problem = "the file ends within the batch"
                    break
                check_crc(data, at, header)
            except CorruptRecord as error:
                problem = _in_file(error.message, at, self.position)
                break
            if header.base_offset < self.next_offset or header.last_offset_delta < 0:
                problem = f"the batch has offset {header.base_offset}, offset {self.next_offset} or later is expected"
                break
            headers.append(header)
            self.has_legacy = self.has_legacy or header.is_legacy
            self.next_offset = header.next_offset
            at += header.size_bytes
        if headers:
            yield Run(self.position, memoryview(data)[:at], headers)
            self.position += at
        elif problem:
            yield from self._pass_over(problem, data)

    def _read(self, position: int, size: int) -> bytes | None:
        """The bytes, fewer at the end of the file and before bytes that the disk cannot read; None where it cannot read
        the first one."""
        try:
            return os.pread(self.fd, size, position)
        except OSError:
            parts: list[bytes] = []
            while size > 0:
                step = min(size, _SECTOR_BYTES - position % _SECTOR_BYTES)
                try:
                    parts.append(os.pread(self.fd, step, position))
                except OSError:
                    break
                position, size = position + step, size - step
            return b"".join(parts) or None

    def _unreadable(self, size: int) -> Damage:
        """Bytes that the disk cannot read, from the position on, up to those that it can read again."""
        start = at = self.position
        end = start + min(size, self.size - start)
        while at < end and self._read(at, 1) is None:
            at += _SECTOR_BYTES - at % _SECTOR_BYTES
        self.position = min(at, self.size)
        return self._damage(start, "the disk cannot read these bytes")

    def _damage(self, start: int, reason: str) -> Damage:
        return Damage(start, self.position - start, self.next_offset, reason)

    def _pass_over(self, problem: str, data: bytes) -> Iterator[Run | Damage]:
        """At a position where no good batch begins within `data`: a batch that is longer than `data`, or damage."""
        start = self.position
        try:
            header: BatchHeader | None = read_header(data)
        except CorruptRecord:
            header = None
        if header is not None and header.size_bytes > len(data) and start + header.size_bytes <= self.size:
            whole = self._read(start, header.size_bytes) if header.size_bytes <= MAX_BATCH_BYTES else None
            problem = "the batch cannot be read whole"
            if whole is not None and len(whole) == header.size_bytes:
                try:
                    check_crc(whole, 0, header)
                    if header.base_offset >= self.next_offset and header.last_offset_delta >= 0:
                        self.next_offset, self.position = header.next_offset, start + header.size_bytes
                        yield Run(start, memoryview(whole), [header])
                        return
                    problem = f"the batch has offset {header.base_offset}, {self.next_offset} or later is expected"
                except CorruptRecord as error:
                    problem = _in_file(error.message, 0, start)
        self.position = self._next_batch(start + 1, start + header.size_bytes if header is not None else None)
        yield self._damage(start, problem if data.strip(b"\0") or self.position < self.end else "zeros: never written")

    def _next_batch(self, start: int, likely: int | None) -> int:
        """The first position from `start` on at which a good batch begins; the end where there is none."""
        if likely is not None and likely < self.end and self._is_good(likely):
            return likely
        position = start
        while position < self.end:
            data = self._read(position, min(CHUNK_BYTES, self.size - position))
            if data is None:
                position += _SECTOR_BYTES - position % _SECTOR_BYTES
                continue
            for found in _MAGICS[self.has_legacy].finditer(data, MAGIC_POSITION):
                at = found.start() - MAGIC_POSITION
                if position + at >= self.end:
                    break
                if self._is_possible(data, at) and self._is_good(position + at):
                    return position + at
            if position + len(data) >= self.size:
                break
            position += len(data) - MAGIC_POSITION
        return self.end

    def _is_possible(self, data: bytes, at: int) -> bool:
        """Whether offset and length at this place may be those of the next batch."""
        offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        least = least_length(data[at + MAGIC_POSITION])
        return self.next_offset <= offset < self.next_offset + 2**31 and least <= length < MAX_BATCH_BYTES

    def _is_good(self, position: int) -> bool:
        head = self._read(position, HEADER_SIZE)
        try:
            header = read_header(head or b"")
            if header.base_offset < self.next_offset or position + header.size_bytes > self.size:
                return False
            check_crc(self._read(position, header.size_bytes) or b"", 0, header)
        except CorruptRecord:
            return False
        return True


def _in_file(message: str, at: int, start: int) -> str:
    """The message with the position in the file, where it has that in a buffer."""
    return message.replace(f"at position {at}", f"at position {start + at}")


# -- columns

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
