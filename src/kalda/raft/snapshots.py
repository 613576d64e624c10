"""Snapshot files: names, writing, reading.

A snapshot holds the state that all records before its end offset make, as records. Its file is named by its end offset
and epoch, and is a sequence of batches with offsets of their own, from 0: a control batch with the header (and, in a
dynamic quorum, the kraft.version and the voters), batches of records, and a control batch with the footer, without
which it is incomplete. It is written as `.part`, synced and renamed, so that a file with the final name is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from kalda.base.disk import Buffer, Disk
from kalda.base.errors import ApiError, CorruptRecord
from kalda.protocol.messages.control_records import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.batches import CommittedBatch, decode_batch, encode_batch, iter_whole
from kalda.raft.values import OffsetAndEpoch
from kalda.raft.voters import VoterSet
from kalda.records.batch import LOG_OVERHEAD, BatchHeader, check_crc
from kalda.records.control import ControlRecord, QuorumMessage, control_batch, read_control_batch

Read = TypeVar("Read")

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"

RECORDS_PER_BATCH = 1024
READ_BYTES = 1 << 20
MAX_BATCH_BYTES = 1 << 28


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
                    if READ_BYTES < length <= min(size - position, MAX_BATCH_BYTES):
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
