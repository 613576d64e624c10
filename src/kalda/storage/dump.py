"""Files of the log as printable rows, for people: what kafka-dump-log shows, and the small files too.

A row is a dict of JSON values, bytes excepted. The file may be damaged anywhere: a damaged batch is shown as far as it
can be read, with what is wrong in `error`, and of what follows it the number of bytes is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kalda.base.disk import Disk, File
from kalda.base.errors import CorruptRecord, UnsupportedFormat
from kalda.base.ids import uuid_to_text
from kalda.protocol.messages.log_records import EndTxnMarker
from kalda.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MIN_BATCH_LENGTH,
    MIN_BATCH_SIZE,
    NO_SEQUENCE,
    BatchHeader,
    TimestampType,
    advance_sequence,
    check_crc,
    read_header,
)
from kalda.records.builder import Record, read_records, with_range
from kalda.records.control import read_control_record
from kalda.storage.checkpoints import (
    LEADER_EPOCH_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    read_epochs,
    read_meta_properties,
    read_offsets,
    read_partition_metadata,
)
from kalda.storage.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
)
from kalda.storage.log.index import OffsetIndex, TimeIndex
from kalda.storage.log.producer_snapshot import read_snapshot
from kalda.storage.log.txn_index import decode_entries

Row = dict[str, object]
Meaning = Callable[[Record], object]
"""What a record stands for: a metadata record, a committed offset; None where it stands for nothing."""

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TIMESTAMP_TYPES = {
    TimestampType.NONE: "NoTimestampType",
    TimestampType.CREATE: "CreateTime",
    TimestampType.LOG_APPEND: "LogAppendTime",
}
_OFFSET_CHECKPOINT = "-offset-checkpoint"
_ADDED_SUFFIXES = re.compile(r"(\.deleted|\.swap|\.cleaned|\.part|(\.[0-9]+)?\.corrupt)+$")
"""What follows the usual name of a file that is not part of its log any more, or not yet."""


def dump(
    disk: Disk, path: str, *, records: bool = False, meaning: Meaning | None = None, max_bytes: int | None = None
) -> Iterator[Row]:
    """Rows of the file at `path`, whose name decides its format. `records`: those of each batch too.

    `max_bytes` bounds how much of a log is read. Raises `ValueError` for a name that no file of a log has, or a small
    file that is malformed, `CorruptRecord` for a damaged snapshot, `OSError` where the disk fails.
    """
    name = path.rpartition("/")[2]
    plain = _ADDED_SUFFIXES.sub("", name)
    base = offset_of(plain) or 0
    if plain.endswith((LOG_SUFFIX, ".checkpoint")):
        return _dump_batches(disk, path, records, meaning, max_bytes)
    if plain.endswith(INDEX_SUFFIX):
        offsets = OffsetIndex(disk, path, base, 0).entries()
        return iter([{"offset": offset, "position": position} for offset, position in offsets])
    if plain.endswith(TIME_INDEX_SUFFIX):
        times = TimeIndex(disk, path, base, 0).entries()
        return iter([{"timestamp": timestamp, "offset": offset} for timestamp, offset in times])
    if plain.endswith(TXN_INDEX_SUFFIX):
        return iter([{"version": version, **txn._asdict()} for version, txn in decode_entries(disk.read_file(path))])
    if plain.endswith(SNAPSHOT_SUFFIX):
        return _dump_snapshot(disk, path)
    return _dump_small_file(disk, path, name)


def _dump_small_file(disk: Disk, path: str, name: str) -> Iterator[Row]:
    if name == LEADER_EPOCH_FILE:
        return iter([{"epoch": epoch, "start_offset": offset} for epoch, offset in read_epochs(disk, path)])
    if name.endswith(_OFFSET_CHECKPOINT):
        return iter([{**tp._asdict(), "offset": offset} for tp, offset in read_offsets(disk, path).items()])
    if name == PARTITION_METADATA_FILE:
        topic_id = read_partition_metadata(disk, path)
        return iter([{"version": 0, "topic_id": None if topic_id is None else uuid_to_text(topic_id)}])
    if name == META_PROPERTIES_FILE:
        return iter([dict(read_meta_properties(disk, path) or {})])
    raise ValueError(f"{name} is not the name of a log's file: .log, .index, .timeindex, .txnindex, .snapshot, …")


def _dump_snapshot(disk: Disk, path: str) -> Iterator[Row]:
    for state in read_snapshot(disk, path):
        first_sequence = state.batches[-1].first_sequence if state.batches else NO_SEQUENCE
        yield {
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "first_sequence": first_sequence,
            "last_sequence": state.last_sequence,
            "last_offset": state.last_data_offset,
            "offset_delta": state.last_offset_delta,
            "last_timestamp": state.last_timestamp,
            "coordinator_epoch": state.coordinator_epoch,
            "current_txn_first_offset": state.txn_first_offset,
        }


def _dump_batches(
    disk: Disk, path: str, records: bool, meaning: Meaning | None, max_bytes: int | None
) -> Iterator[Row]:
    file = disk.open(path, writable=False)
    try:
        end = file.size()
        limit = end if max_bytes is None else min(end, max_bytes)
        position = 0
        while position < limit and end - position >= MIN_BATCH_SIZE:
            row, size = _dump_batch(file, position, end, records, meaning)
            yield row
            if not size:
                return
            position += size
        if position < limit:
            yield {"position": position, "error": f"{end - position} bytes are too few for a batch"}
    finally:
        file.close()


def _dump_batch(file: File, position: int, end: int, records: bool, meaning: Meaning | None) -> tuple[Row, int]:
    """The batch at `position` and its size; 0 where the next one cannot be found."""
    row: Row = {"position": position}
    head = file.read(position, min(HEADER_SIZE, end - position))
    try:
        header = read_header(head)
    except CorruptRecord as error:
        size = 0
        if isinstance(error, UnsupportedFormat):
            offset, length = (int.from_bytes(part, "big", signed=True) for part in (head[:8], head[8:LOG_OVERHEAD]))
            row |= {"size": length + LOG_OVERHEAD, "base_offset": offset, "magic": head[MAGIC_POSITION]}
            if MIN_BATCH_LENGTH <= length <= end - position - LOG_OVERHEAD:
                size = length + LOG_OVERHEAD
        return row | {"error": error.message}, size
    if position + header.size_bytes > end:
        missing = position + header.size_bytes - end
        return row | _header_row(header) | {"error": f"the file ends {missing} bytes before the batch does"}, 0
    data = file.read(position, header.size_bytes)
    row |= _header_row(header)
    try:
        check_crc(data, 0, header)
        row |= _header_row(with_range(header, data)) | {"valid": True}
        if records:
            row["records"] = [_record_row(record, header, meaning) for record in read_records(data)]
    except CorruptRecord as error:
        row |= {"valid": False, "error": error.message}
    return row, header.size_bytes


def _header_row(header: BatchHeader) -> Row:
    codec = header.attributes & 7
    return {
        "size": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count if header.records_count >= 0 else None,
        "partition_leader_epoch": header.partition_leader_epoch,
        "magic": header.magic,
        "crc": header.crc,
        "attributes": header.attributes,
        "codec": _CODECS[codec] if codec < len(_CODECS) else f"unknown {codec}",
        "timestamp_type": _TIMESTAMP_TYPES[header.timestamp_type],
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
    }


def _record_row(record: Record, header: BatchHeader, meaning: Meaning | None) -> Row:
    sequence = NO_SEQUENCE
    if header.base_sequence >= 0:
        sequence = advance_sequence(header.base_sequence, record.offset - header.base_offset)
    row: Row = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "sequence": sequence,
        "key": record.key,
        "value": record.value,
        "headers": list(record.headers),
    }
    if header.is_control:
        control = read_control_record(record)
        row["control"] = control.type.name
        if isinstance(control.message, EndTxnMarker):
            row["end_txn_marker"] = control.type.name
            row["coordinator_epoch"] = control.message.coordinator_epoch
        elif control.message is not None:
            row["message"] = repr(control.message)
    elif meaning is not None and (said := meaning(record)) is not None:
        row["meaning"] = said
    return row
