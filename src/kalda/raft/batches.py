"""Batches of the metadata log: records in, bytes out, and back.

A batch of the metadata log is an ordinary v2 batch: uncompressed, with the leader's epoch, its timestamps the time of
the append. Control batches hold KRaft's own records, which the state machines do not receive.

Not obvious:

- Partition records that differ only in their id are encoded once: `partition_id` is the first field of a
  `PartitionRecord`, behind a frame of three bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.protocol.messages.metadata_records import PartitionRecord
from kalda.protocol.notation import all_fields_but
from kalda.protocol.record_framing import VersionedRecord, encode_metadata_record
from kalda.raft.rpc import Control, FetchedBatch
from kalda.records.batch import LOG_OVERHEAD, BatchHeader, Buffer, check_crc, read_header
from kalda.records.builder import build_batch
from kalda.records.control import ControlRecord, read_control_batch
from kalda.records.messages import decode_metadata_messages

MAX_BATCH_BYTES = 8 * 1024 * 1024
_PARTITION_ID = Struct(">i")
_AT_PARTITION_ID = 3
"""Where the id is in an encoded `PartitionRecord`: it follows the frame's three numbers, of one byte each."""
_all_but_partition_id = all_fields_but(PartitionRecord, "partition_id")


class CommittedBatch(NamedTuple):
    """A batch of the log or of a snapshot, decoded. One of `records` and `control_records` is empty."""

    base_offset: int
    last_offset: int
    epoch: int
    append_timestamp_ms: int
    size_bytes: int
    records: Sequence[VersionedRecord]
    control_records: Sequence[ControlRecord] = ()


def encode_batch(records: Sequence[VersionedRecord], base_offset: int, epoch: int, now_ms: int) -> bytearray:
    """One batch. Raises `ApiError` where it would be larger than `MAX_BATCH_BYTES`."""
    batch = build_batch(
        [(now_ms, None, value, ()) for value in _encoded(records)],
        base_offset=base_offset,
        leader_epoch=epoch,
    )
    if len(batch) > MAX_BATCH_BYTES:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{len(records)} records make a batch of {len(batch)} bytes; {MAX_BATCH_BYTES} is the limit",
        )
    return batch


def _encoded(records: Sequence[VersionedRecord]) -> Iterator[bytes]:
    """The values of records. Most partitions of a new topic equal the one before in all fields but the id: then the
    encoded value differs in the four bytes of the id, at a third of the cost."""
    alike: tuple[Any, int] | None = None
    head = tail = b""
    for record, version in records:
        if type(record) is not PartitionRecord:
            yield encode_metadata_record(record, version)
            continue
        others = (_all_but_partition_id(record), version)
        if others == alike:
            yield head + _PARTITION_ID.pack(record.partition_id) + tail
            continue
        value = encode_metadata_record(record, version)
        alike, head, tail = others, value[:_AT_PARTITION_ID], value[_AT_PARTITION_ID + _PARTITION_ID.size :]
        yield value


def decode_batch(buf: Buffer, pos: int, header: BatchHeader) -> CommittedBatch:
    """The batch at `pos`, its checksum verified. Raises `CorruptRecord`, also for a record that cannot be decoded: the
    state would be wrong without it."""
    check_crc(buf, pos, header)
    records: list[VersionedRecord] = []
    controls: Sequence[ControlRecord] = ()
    if header.is_control:
        controls = read_control_batch(buf, pos, header)
    else:
        records = decode_metadata_messages(buf, pos, header)
    return CommittedBatch(
        header.base_offset,
        header.last_offset,
        header.partition_leader_epoch,
        header.max_timestamp,
        header.size_bytes,
        records,
        controls,
    )


def iter_whole(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches in `buf`; an incomplete batch at the end is left out."""
    pos, end = 0, len(buf)
    while end - pos >= LOG_OVERHEAD:
        length = int.from_bytes(buf[pos + 8 : pos + LOG_OVERHEAD], "big", signed=True)
        if length >= 0 and end - pos < length + LOG_OVERHEAD:
            return
        header = read_header(buf, pos)
        if header.is_legacy:
            raise CorruptRecord(f"the batch at position {pos} has magic {header.magic}, which no metadata log has")
        yield pos, header
        pos += header.size_bytes


def decode_all(buf: Buffer) -> Iterator[CommittedBatch]:
    for pos, header in iter_whole(buf):
        yield decode_batch(buf, pos, header)


def inspect_fetched(buf: Buffer) -> tuple[FetchedBatch, ...]:
    """The bounds of fetched batches, each verified; only control records are decoded. Ends before the first batch that
    is damaged: the rest is fetched again."""
    batches: list[FetchedBatch] = []
    try:
        for pos, header in iter_whole(buf):
            check_crc(buf, pos, header)
            controls: tuple[Control, ...] = ()
            if header.is_control:
                controls = tuple(Control(c.offset, c.message) for c in read_control_batch(buf, pos, header))
            batches.append(
                FetchedBatch(header.base_offset, header.last_offset, header.partition_leader_epoch, controls)
            )
    except CorruptRecord:
        pass
    return tuple(batches)
