"""Snapshot files: names, writing, reading.

A snapshot holds the state that all records before its end offset make, as records. Its file is named by its end offset
and epoch, and is a sequence of batches with offsets of their own, from 0: a control batch with the header (and, in a
dynamic quorum, the kraft.version and the voters), batches of records, and a control batch with the footer, without
which it is incomplete. It is written as `.part`, synced and renamed, so that a file with the final name is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from kalda.base.disk import Disk
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.protocol.messages.log_records import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from kalda.protocol.messages.metadata_records import PartitionRecord
from kalda.protocol.notation import all_fields_but
from kalda.protocol.record_framing import VersionedRecord, encode_metadata_record
from kalda.raft.rpc import Control, FetchedBatch
from kalda.raft.voters import OffsetAndEpoch, VoterSet
from kalda.records.batch import LOG_OVERHEAD, BatchHeader, Buffer, check_crc, read_header
from kalda.records.builder import build_batch
from kalda.records.control import ControlRecord, QuorumMessage, control_batch, read_control_batch
from kalda.records.messages import decode_metadata_messages

# Batches of the metadata log: records in, bytes out, and back.
#
# A batch of the metadata log is an ordinary v2 batch: uncompressed, with the leader's epoch, its timestamps the time
# of the append. Control batches hold KRaft's own records, which the state machines do not receive.
#
# Not obvious:
#
# - Partition records that differ only in their id are encoded once: `partition_id` is the first field of a
#   `PartitionRecord`, behind a frame of three bytes.

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


Read = TypeVar("Read")

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"

RECORDS_PER_BATCH = 1024
READ_BYTES = 1 << 20
_MAX_SNAPSHOT_BATCH_BYTES = 1 << 28


def snapshot_name(snapshot: OffsetAndEpoch, suffix: str = SUFFIX) -> str:
    return f"{snapshot.offset:020d}-{snapshot.epoch:010d}{suffix}"


def parse_snapshot_name(name: str) -> tuple[OffsetAndEpoch, str] | None:
    """The snapshot and the suffix; None where it is not a snapshot's name."""
    stem, suffix = name[:31], name[31:]
    offset, dash, epoch = stem[:20], stem[20:21], stem[21:]
    if dash != "-" or suffix not in (SUFFIX, PARTIAL_SUFFIX, DELETED_SUFFIX):
        return None
    if not (offset.isdecimal() and offset.isascii() and len(epoch) == 10 and epoch.isdecimal() and epoch.isascii()):
        return None
    return OffsetAndEpoch(int(offset), int(epoch)), suffix


def write_snapshot(
    disk: Disk,
    directory: str,
    snapshot: OffsetAndEpoch,
    records: Iterable[VersionedRecord],
    *,
    last_contained_timestamp_ms: int,
    kraft_version: int,
    voters: VoterSet,
    now_ms: int,
) -> int:
    """Write the whole file; returns its size. Runs on any thread: it uses nothing but its arguments."""
    partial = f"{directory}/{snapshot_name(snapshot, PARTIAL_SUFFIX)}"
    file = disk.open(partial, create=True)
    try:
        file.truncate(0)
        position, offset = 0, 0
        head: list[QuorumMessage] = [SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_timestamp_ms)]
        if kraft_version > 0:
            head += [KRaftVersionRecord(kraft_version=kraft_version), voters.to_record()]
        batch = control_batch(head, timestamp_ms=now_ms, base_offset=0, leader_epoch=snapshot.epoch)
        file.write(position, batch)
        position, offset = len(batch), len(head)
        rest = iter(records)
        while chunk := list(islice(rest, RECORDS_PER_BATCH)):
            for batch in _encode_chunk(chunk, offset, snapshot.epoch, now_ms):
                file.write(position, batch)
                position += len(batch)
            offset += len(chunk)
        batch = control_batch(
            [SnapshotFooterRecord()], timestamp_ms=now_ms, base_offset=offset, leader_epoch=snapshot.epoch
        )
        file.write(position, batch)
        position += len(batch)
        file.sync()
    except OSError:
        disk.remove(partial)
        raise
    finally:
        file.close()
    publish_snapshot(disk, directory, snapshot)
    return position


def _encode_chunk(chunk: list[VersionedRecord], offset: int, epoch: int, now_ms: int) -> Iterator[bytearray]:
    """As few batches as the limit on a batch's size allows."""
    try:
        yield encode_batch(chunk, offset, epoch, now_ms)
    except ApiError:
        if len(chunk) == 1:
            raise
        half = len(chunk) // 2
        yield from _encode_chunk(chunk[:half], offset, epoch, now_ms)
        yield from _encode_chunk(chunk[half:], offset + half, epoch, now_ms)


def publish_snapshot(disk: Disk, directory: str, snapshot: OffsetAndEpoch) -> None:
    """Give a complete and synced partial file its final name."""
    disk.rename(f"{directory}/{snapshot_name(snapshot, PARTIAL_SUFFIX)}", f"{directory}/{snapshot_name(snapshot)}")
    disk.sync_dir(directory)


class SnapshotReader:
    """The batches of a snapshot, in order. Iteration reads the file piece by piece, and may be repeated."""

    def __init__(self, disk: Disk, directory: str, snapshot: OffsetAndEpoch, suffix: str = SUFFIX) -> None:
        self._disk = disk
        self._path = f"{directory}/{snapshot_name(snapshot, suffix)}"
        self.snapshot = snapshot

    @property
    def offset(self) -> int:
        """The end offset, exclusive."""
        return self.snapshot.offset

    @property
    def epoch(self) -> int:
        return self.snapshot.epoch

    @property
    def last_contained_offset(self) -> int:
        return self.snapshot.offset - 1

    def last_contained_timestamp_ms(self) -> int:
        for batch in self:
            for control in batch.control_records:
                if isinstance(control.message, SnapshotHeaderRecord):
                    return control.message.last_contained_log_timestamp
        raise CorruptRecord(f"{self._path} has no header")

    def __iter__(self) -> Iterator[CommittedBatch]:
        """Raises `CorruptRecord` where the file is not a whole snapshot."""
        return self._each(decode_batch, lambda batch: batch.control_records)

    def verify(self) -> None:
        """Read all of it without decoding metadata records. Raises `CorruptRecord` where it is not a whole snapshot."""
        for _ in self._each(_checked_controls, lambda controls: controls):
            pass

    def _each(
        self, read: Callable[[Buffer, int, BatchHeader], Read], controls: Callable[[Read], Sequence[ControlRecord]]
    ) -> Iterator[Read]:
        """`read` of every batch. `controls` extracts the control records of the result: header and footer are there."""
        first, complete = True, False
        for buf, at, header in self._batches():
            try:
                found = read(buf, at, header)
            except CorruptRecord as error:
                raise CorruptRecord(f"{self._path} is damaged: {error.message}") from error
            if first and not _has(controls(found), SnapshotHeaderRecord):
                raise CorruptRecord(f"{self._path} does not begin with a snapshot header")
            first, complete = False, _has(controls(found), SnapshotFooterRecord)
            yield found
        if not complete:
            raise CorruptRecord(f"{self._path} does not end with a snapshot footer")

    def _batches(self) -> Iterator[tuple[Buffer, int, BatchHeader]]:
        """Buffer, position and header of each batch; checksums are not verified here."""
        file = self._disk.open(self._path, writable=False)
        try:
            size, position = file.size(), 0
            while position < size:
                buf = memoryview(file.read(position, READ_BYTES))
                if len(buf) >= LOG_OVERHEAD:
                    length = int.from_bytes(buf[8:LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
                    if READ_BYTES < length <= min(size - position, _MAX_SNAPSHOT_BATCH_BYTES):
                        buf = memoryview(file.read(position, length))
                consumed = 0
                try:
                    for at, header in iter_whole(buf):
                        consumed = at + header.size_bytes
                        yield buf, at, header
                except CorruptRecord as error:
                    raise CorruptRecord(f"{self._path} is damaged behind byte {position}: {error.message}") from error
                if not consumed:
                    raise CorruptRecord(f"{self._path} is cut off at {position}")
                position += consumed
        finally:
            file.close()


def _checked_controls(buf: Buffer, at: int, header: BatchHeader) -> Sequence[ControlRecord]:
    check_crc(buf, at, header)
    return read_control_batch(buf, at, header) if header.is_control else ()


def _has(controls: Sequence[ControlRecord], message: type) -> bool:
    return any(isinstance(control.message, message) for control in controls)
