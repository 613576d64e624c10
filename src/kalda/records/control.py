"""Control batches: records that brokers and controllers write into logs for themselves.

A control record's key is a version and a type, int16 each; its value is the type's message. A transaction marker
(COMMIT, ABORT) ends one producer's transaction and is a transactional batch of one record. KRaft's own records hold a
new leader, the quorum's version and voters, or mark the start and the end of a snapshot; their messages begin with
their own version. Consumers skip control batches. A type that this release does not have is read as
`ControlType.UNKNOWN`, and is to be skipped too.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct as Layout
from typing import Final, NamedTuple

from kalda.base.errors import CorruptRecord, InvalidRequest
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.log_records import (
    EndTxnMarker,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kalda.protocol.notation import Message
from kalda.protocol.schema import supported_versions
from kalda.records.batch import NO_LEADER_EPOCH, BatchHeader, Buffer, read_header
from kalda.records.builder import NewRecord, Record, build_batch, read_records

QuorumMessage = LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
"""The messages of KRaft's control records."""


class ControlType(IntEnum):
    """The type of a control record, as in its key."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_KEY = Layout(">hh")
_INT16 = Layout(">h")
_KEY_VERSION: Final = 0

_MESSAGES: Final[dict[ControlType, type[Message]]] = {
    ControlType.ABORT: EndTxnMarker,
    ControlType.COMMIT: EndTxnMarker,
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
_TYPES: Final[dict[type[Message], ControlType]] = {
    message: kind for kind, message in _MESSAGES.items() if message is not EndTxnMarker
}


class ControlRecord(NamedTuple):
    """One control record; `message` is None for an unknown type."""

    offset: int
    timestamp: int
    type: ControlType
    message: Message | None


def control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(_KEY_VERSION, control_type)


def read_control_type(key: Buffer | None) -> ControlType:
    """The type in a control record's key. Later versions of the key have the type at the same position."""
    if key is None or len(key) < _KEY.size:
        raise CorruptRecord("a control record's key is shorter than its version and type")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecord(f"a control record's key has version {version}")
    return ControlType(kind) if ControlType.ABORT <= kind <= ControlType.KRAFT_VOTERS else ControlType.UNKNOWN


def transaction_marker_batch(
    *,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The marker that ends `producer_id`'s transaction in a partition."""
    value = _INT16.pack(0) + encode(EndTxnMarker(coordinator_epoch=coordinator_epoch), 0)
    key = control_key(ControlType.COMMIT if commit else ControlType.ABORT)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def control_batch(
    messages: Iterable[QuorumMessage],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """One batch of KRaft's control records, in the order given. Each is encoded in its own `version`."""
    rows: list[NewRecord] = []
    for message in messages:
        key = control_key(_TYPES[type(message)])
        rows.append((timestamp_ms, key, encode(message, message.version), ()))
    return build_batch(rows, base_offset=base_offset, leader_epoch=leader_epoch, is_control=True)


def read_control_record(record: Record) -> ControlRecord:
    """Type and message of a record from a control batch. Raises `CorruptRecord`."""
    kind = read_control_type(record.key)
    if kind is ControlType.UNKNOWN:
        return ControlRecord(record.offset, record.timestamp, kind, None)
    value = record.value
    if value is None or len(value) < _INT16.size:
        raise CorruptRecord(f"the {kind.name} record at offset {record.offset} has no version")
    cls = _MESSAGES[kind]
    (version,) = _INT16.unpack_from(value)
    if version < 0:
        raise CorruptRecord(f"the {kind.name} record at offset {record.offset} has version {version}")
    try:
        message = decode(cls, value, *_version_and_start(cls, version))
    except InvalidRequest as e:
        raise CorruptRecord(f"the {kind.name} record at offset {record.offset}: {e.message}") from e
    return ControlRecord(record.offset, record.timestamp, kind, message)


def _version_and_start(cls: type[Message], version: int) -> tuple[int, int]:
    """The version in which to decode a body of `version`, and the position where it starts.

    A later version only adds fields at the end, so it is decoded as the latest version of this release. The version of
    a marker precedes its body; the version of other messages is their first field.
    """
    return min(version, supported_versions(cls)[-1]), _INT16.size if cls is EndTxnMarker else 0


def read_control_batch(buf: Buffer, pos: int = 0, header: BatchHeader | None = None) -> list[ControlRecord]:
    """Every record of the control batch at `pos`. Raises `CorruptRecord`, also where the batch is not one."""
    if header is None:
        header = read_header(buf, pos)
    if not header.is_control:
        raise CorruptRecord(f"the batch at offset {header.base_offset} is not a control batch")
    return [read_control_record(record) for record in read_records(buf, pos, header)]
