"""What of a segment a query gets as rows, other than records: batch headers, control records, and the decoded records
of the cluster's internal topics, producer snapshots and indexes of aborted transactions.

A view is columns and a function from one file to rows, which are dicts by column; a missing column is null. Bytes that
cannot be decoded are a row too, with what is wrong in `corrupt`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kalda.base.errors import CorruptRecord, InvalidRequest
from kalda.base.ids import ZERO_UUID, uuid_to_text
from kalda.broker.process.disk import RealDisk
from kalda.coordinator.groups.records import OffsetRecord
from kalda.coordinator.groups.records import decode_record as decode_group_record
from kalda.coordinator.transactions.metadata import decode_record as decode_transaction_record
from kalda.protocol.codec import plain_fields
from kalda.protocol.messages.log_records import EndTxnMarker
from kalda.protocol.record_framing import decode_coordinator_key, decode_coordinator_value, decode_metadata_record
from kalda.records.batch import HEADER_SIZE, BatchHeader, check_crc, read_header
from kalda.records.builder import Record, read_records, with_range
from kalda.records.control import read_control_batch
from kalda.spark.segment_batches import Damage, describe, read_piece
from kalda.spark.segment_files import SegmentPiece
from kalda.storage.log.producer_snapshot import read_snapshot
from kalda.storage.log.txn_index import decode_entries

Row = dict[str, Any]

_TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "partitions": ArrayType(
        StructType([StructField("topic", StringType()), StructField("partitions", ArrayType(IntegerType()))])
    ),
}
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_PLACE = "segment string, position long, corrupt string"


def columns(text: str) -> StructType:
    """A schema from `name type, …`."""
    pairs = [each.split() for each in text.split(",")]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One kind of rows."""

    schema: StructType
    rows: Callable[[SegmentPiece, Callable[[BatchHeader], bool] | None], Iterator[Row]]
    topic: str | None = None
    """The internal topic whose segments are read; None: those of all topics."""
    suffix: str = ".log"
    """Of the files that are read."""


def _micros(milliseconds: int) -> int | None:
    """As Spark's timestamps; null for Kafka's -1 and for times that Spark does not have."""
    return milliseconds * 1000 if 0 <= milliseconds < 2**62 // 1000 else None


def _damaged(damage: Damage, piece: SegmentPiece) -> Row:
    return {
        "topic": piece.topic,
        "partition": piece.partition,
        "baseOffset": damage.offset,
        "offset": damage.offset,
        "recordOffset": damage.offset,
        "segment": piece.path,
        "position": damage.position,
        "corrupt": describe(damage, piece),
    }


def _batches(
    piece: SegmentPiece, keeps: Callable[[BatchHeader], bool] | None
) -> Iterator[tuple[BatchHeader, int, memoryview] | Damage]:
    """(header, position, bytes) of each good batch, and the damage between them."""
    for found in read_piece(piece):
        if isinstance(found, Damage):
            yield found
            continue
        at = 0
        for header in found.headers:
            if keeps is None or header.is_control or keeps(header):
                yield header, found.position + at, found.buffer[at : at + header.size_bytes]
            at += header.size_bytes


def batch_rows(piece: SegmentPiece, keeps: Callable[[BatchHeader], bool] | None) -> Iterator[Row]:
    """One row a batch. A batch whose CRC is wrong has its header's fields too, as far as they can be read."""
    for found in _batches(piece, keeps):
        if not isinstance(found, Damage):
            header, position, data = found
            with suppress(CorruptRecord):  # the header's own fields are right all the same
                header = with_range(header, data)
            yield _batch_row(header, piece, position)
            continue
        row = _damaged(found, piece)
        with open(piece.path, "rb") as file:
            try:
                file.seek(found.position)
                torn = read_header(file.read(HEADER_SIZE))
                row = _batch_row(torn, piece, found.position) | {"corrupt": row["corrupt"], "crcValid": False}
                file.seek(found.position)
                check_crc(file.read(min(torn.size_bytes, found.size_bytes)), 0, torn)
                row["crcValid"] = True
            except (CorruptRecord, OSError):
                pass
        yield row


def _batch_row(header: BatchHeader, piece: SegmentPiece, position: int) -> Row:
    codec = header.attributes & 7
    return {
        "topic": piece.topic,
        "partition": piece.partition,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "records": header.records_count if header.records_count >= 0 else None,
        "sizeBytes": header.size_bytes,
        "leaderEpoch": header.partition_leader_epoch,
        "crc": header.crc,
        "crcValid": True,
        "compression": _CODECS[codec] if codec < len(_CODECS) else f"unknown {codec}",
        "timestampType": int(header.timestamp_type),
        "transactional": header.is_transactional,
        "control": header.is_control,
        "deleteHorizon": None if header.delete_horizon_ms is None else _micros(header.delete_horizon_ms),
        "baseTimestamp": _micros(header.base_timestamp),
        "maxTimestamp": _micros(header.max_timestamp),
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "segment": piece.path,
        "position": position,
    }


def control_rows(piece: SegmentPiece, keeps: Callable[[BatchHeader], bool] | None) -> Iterator[Row]:
    """One row a control record: transaction markers, and the quorum's own."""
    for found in _batches(piece, keeps):
        if isinstance(found, Damage):
            yield _damaged(found, piece)
            continue
        header, position, data = found
        if not header.is_control or header.records_count == 0:
            continue
        place: Row = {"topic": piece.topic, "partition": piece.partition, "segment": piece.path, "position": position}
        try:
            controls = read_control_batch(data, 0, header)
        except CorruptRecord as error:
            damage = Damage(position, header.size_bytes, header.base_offset, error.message)
            yield _damaged(damage, piece)
            continue
        for control in controls:
            message = control.message
            yield place | {
                "offset": control.offset,
                "timestamp": _micros(control.timestamp),
                "type": control.type.name,
                "producerId": header.producer_id,
                "producerEpoch": header.producer_epoch,
                "coordinatorEpoch": message.coordinator_epoch if isinstance(message, EndTxnMarker) else None,
                "message": None if message is None else json.dumps(plain_fields(message)),
            }


def _decoded(
    piece: SegmentPiece, keeps: Callable[[BatchHeader], bool] | None, decode: Callable[[Record], Row | None]
) -> Iterator[Row]:
    """A row a record that `decode` has one for."""
    for found in _batches(piece, keeps):
        if isinstance(found, Damage):
            yield _damaged(found, piece)
            continue
        header, position, data = found
        if header.is_control or header.records_count == 0:
            continue
        try:
            records = read_records(data, 0, header)
        except CorruptRecord as error:
            yield _damaged(Damage(position, header.size_bytes, header.base_offset, error.message), piece)
            continue
        for record in records:
            place: Row = {"recordOffset": record.offset, "recordTimestamp": _micros(record.timestamp)}
            place |= {"segment": piece.path, "position": position}
            try:
                row = decode(record)
            except (InvalidRequest, CorruptRecord) as error:
                damage = Damage(position, header.size_bytes, record.offset, error.message)
                row = {"corrupt": describe(damage, piece)}
            if row is not None:
                yield place | row


def _offset_row(record: Record) -> Row | None:
    if record.key is None:
        raise CorruptRecord("the record has no key")
    decoded = decode_group_record(record.key, record.value)
    if not isinstance(decoded, OffsetRecord):
        return None
    row: Row = {"groupId": decoded.group_id, "topic": decoded.topic, "partition": decoded.partition}
    if decoded.value is None:
        return row | {"tombstone": True}
    value = decoded.value
    return row | {
        "tombstone": False,
        "offset": value.offset,
        "leaderEpoch": value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": _micros(value.commit_timestamp_ms),
        "expireTimestamp": _micros(value.expire_timestamp_ms),
        "topicId": None if value.topic_id == ZERO_UUID else uuid_to_text(value.topic_id),
    }


def _group_row(record: Record) -> Row:
    if record.key is None:
        raise CorruptRecord("the record has no key")
    key = decode_coordinator_key("group_records", record.key)
    row: Row = {
        "type": type(key).__name__.removesuffix("Key"),
        "groupId": getattr(key, "group", getattr(key, "group_id", None)),
        "key": json.dumps(plain_fields(key)),
        "tombstone": record.value is None,
    }
    if record.value is not None:
        value = decode_coordinator_value("group_records", key.RECORD_TYPE, record.value)
        row |= {"version": value.version, "value": json.dumps(plain_fields(value.record))}
    return row


def _transaction_row(record: Record) -> Row:
    if record.key is None:
        raise CorruptRecord("the record has no key")
    decoded = decode_transaction_record(record.key, record.value)
    row: Row = {"transactionalId": decoded.transactional_id, "tombstone": decoded.value is None}
    if decoded.value is None:
        return row
    value = decoded.value
    return row | {
        "state": value.state.label,
        "producerId": value.producer_id,
        "producerEpoch": value.producer_epoch,
        "timeoutMs": value.timeout_ms,
        "partitions": [
            {"topic": topic, "partitions": sorted(numbers)} for topic, numbers in sorted(value.partitions.items())
        ],
        "start": _micros(value.start_ms),
        "lastUpdate": _micros(value.last_update_ms),
        "previousProducerId": value.previous_producer_id,
        "nextProducerId": value.next_producer_id,
        "clientVersion": value.client_version,
    }


def _metadata_row(record: Record) -> Row | None:
    if record.value is None:
        return None
    decoded = decode_metadata_record(record.value, "metadata_records")
    return {
        "type": type(decoded.record).__name__,
        "version": decoded.version,
        "data": json.dumps(plain_fields(decoded.record)),
    }


def producer_rows(piece: SegmentPiece, _: object) -> Iterator[Row]:
    """One row a producer of a `.snapshot` file."""
    place = {"topic": piece.topic, "partition": piece.partition, "segment": piece.path}
    try:
        states = read_snapshot(RealDisk(), piece.path)
    except (CorruptRecord, OSError) as error:
        yield place | {"corrupt": f"{piece.path}: {error}"}
        return
    for state in states:
        yield place | {
            "snapshotOffset": piece.base_offset,
            "producerId": state.producer_id,
            "producerEpoch": state.epoch,
            "lastSequence": state.last_sequence,
            "lastOffset": state.last_data_offset,
            "lastTimestamp": _micros(state.last_timestamp),
            "coordinatorEpoch": state.coordinator_epoch,
            "transactionOffset": state.txn_first_offset,
        }


def aborted_rows(piece: SegmentPiece, _: object) -> Iterator[Row]:
    """One row a transaction of a `.txnindex` file."""
    place = {"topic": piece.topic, "partition": piece.partition, "segment": piece.path}
    with open(piece.path, "rb") as file:
        data = file.read()
    for _version, txn in decode_entries(data):
        yield place | {
            "producerId": txn.producer_id,
            "firstOffset": txn.first_offset,
            "lastOffset": txn.last_offset,
            "lastStableOffset": txn.last_stable_offset,
        }
    if len(data) % 34:
        yield place | {"corrupt": f"{piece.path}: {len(data) % 34} bytes at the end are no entry"}


VIEWS: Final[dict[str, SegmentView]] = {
    "batches": SegmentView(
        columns(
            "topic string, partition int, baseOffset long, lastOffset long, records int, sizeBytes int, "
            "leaderEpoch int, crc long, crcValid boolean, compression string, timestampType int, "
            "transactional boolean, control boolean, deleteHorizon timestamp, baseTimestamp timestamp, "
            "maxTimestamp timestamp, producerId long, producerEpoch int, baseSequence int, lastSequence int, " + _PLACE
        ),
        batch_rows,
    ),
    "control": SegmentView(
        columns(
            "topic string, partition int, offset long, timestamp timestamp, type string, producerId long, "
            "producerEpoch int, coordinatorEpoch int, message string, " + _PLACE
        ),
        control_rows,
    ),
    "offsets": SegmentView(
        columns(
            "groupId string, topic string, partition int, offset long, leaderEpoch int, metadata string, "
            "commitTimestamp timestamp, expireTimestamp timestamp, topicId string, tombstone boolean, "
            "recordOffset long, recordTimestamp timestamp, " + _PLACE
        ),
        lambda piece, keeps: _decoded(piece, keeps, _offset_row),
        "__consumer_offsets",
    ),
    "groups": SegmentView(
        columns(
            "type string, groupId string, version int, key string, value string, tombstone boolean, "
            "recordOffset long, recordTimestamp timestamp, " + _PLACE
        ),
        lambda piece, keeps: _decoded(piece, keeps, _group_row),
        "__consumer_offsets",
    ),
    "transactions": SegmentView(
        columns(
            "transactionalId string, state string, producerId long, producerEpoch int, timeoutMs int, "
            "partitions partitions, start timestamp, lastUpdate timestamp, previousProducerId long, "
            "nextProducerId long, clientVersion int, tombstone boolean, recordOffset long, "
            "recordTimestamp timestamp, " + _PLACE
        ),
        lambda piece, keeps: _decoded(piece, keeps, _transaction_row),
        "__transaction_state",
    ),
    "metadata": SegmentView(
        columns("type string, version int, data string, recordOffset long, recordTimestamp timestamp, " + _PLACE),
        lambda piece, keeps: _decoded(piece, keeps, _metadata_row),
        "__cluster_metadata",
    ),
    "producers": SegmentView(
        columns(
            "topic string, partition int, snapshotOffset long, producerId long, producerEpoch int, "
            "lastSequence int, lastOffset long, lastTimestamp timestamp, coordinatorEpoch int, "
            "transactionOffset long, segment string, corrupt string"
        ),
        producer_rows,
        suffix=".snapshot",
    ),
    "aborted": SegmentView(
        columns(
            "topic string, partition int, producerId long, firstOffset long, lastOffset long, "
            "lastStableOffset long, segment string, corrupt string"
        ),
        aborted_rows,
        suffix=".txnindex",
    ),
}
