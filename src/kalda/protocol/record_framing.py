"""The framing of messages inside the records of internal topics.

- Metadata records (`__cluster_metadata`, `__remote_log_metadata`): the record's value is three unsigned varints (frame
  version 1, record type, version), then the body.
- Coordinator records (`__consumer_offsets`, `__transaction_state`, `__share_group_state`): the key is an int16
  record type and the key's body, the value an int16 version and the value's body; no value is a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from struct import Struct as _Struct
from struct import error as _struct_error
from typing import NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.errors import InvalidRequest
from kalda.protocol.codec import decode, decoder, encode, encoder
from kalda.protocol.encoder import Encoder
from kalda.protocol.notation import Buffer, RecordBody
from kalda.protocol.schema import supported_versions
from kalda.protocol.varint import decode_unsigned, encode_unsigned

_FRAME_VERSION = 1
_INT16 = _Struct(">h")


class VersionedRecord(NamedTuple):
    """A metadata record, and the version in which it was read or is to be written."""

    record: RecordBody
    version: int


_record_decoders: dict[tuple[str, bytes], tuple[int, Callable[[Buffer, int], tuple[RecordBody, int]]]] = {}
"""Version and decoder by module and frame, where each of the frame's numbers is one byte. At its start a node reads
tens of thousands of records of some ten types."""


_record_encoders: dict[tuple[type[RecordBody], int], tuple[bytes, Encoder]] = {}
"""Frame and encoder by class and version. A snapshot of a large cluster has a million records."""


_coordinator_decoders: dict[tuple[str, int, int], Callable[[Buffer, int], tuple[RecordBody, int]]] = {}
"""Decoder by module, record type and version of the value, -1 for the key. A coordinator that takes a partition over
reads hundreds of thousands of records."""
_KEY = -1


class UnknownRecordType(InvalidRequest):
    """A record type or version that this release does not have. A reader of the metadata log stops; a coordinator skips
    the record."""


class UnknownRecordVersion(UnknownRecordType):
    """A version of a coordinator record's value. The coordinator cannot be loaded: without the record an older value
    would count, and be written over."""


@cache
def _metadata_classes(module: str) -> dict[int, type[RecordBody]]:
    return _by_type(vars(import_module(f"kalda.protocol.messages.{module}")), "Record")


@cache
def coordinator_classes(module: str) -> tuple[dict[int, type[RecordBody]], dict[int, type[RecordBody]]]:
    """Key and value classes by record type, of `group_records`, `transaction_records` or `share_records`."""
    names = vars(import_module(f"kalda.protocol.messages.{module}"))
    return _by_type(names, "Key"), _by_type(names, "Value")


def _by_type(names: dict[str, object], suffix: str) -> dict[int, type[RecordBody]]:
    return {
        value.RECORD_TYPE: value
        for name, value in names.items()
        if isinstance(value, type)
        and issubclass(value, RecordBody)
        and value is not RecordBody
        and name.endswith(suffix)
    }


def encode_metadata_record(record: RecordBody, version: int) -> bytes:
    """The value of a metadata record."""
    cached = _record_encoders.get((type(record), version))
    if cached is None:
        frame = encode_unsigned(_FRAME_VERSION) + encode_unsigned(record.RECORD_TYPE) + encode_unsigned(version)
        cached = _record_encoders[type(record), version] = (frame, encoder(type(record), version))
    frame, encode_body = cached
    return b"".join(encode_body(record, bytearray(frame)))


def decode_metadata_record(value: Buffer, module: str = "metadata_records") -> VersionedRecord:
    """The record and its version, of the value of a metadata record. `module` is `metadata_records` or
    `remote_log_records`.

    Raises `UnknownRecordType` for a type or version of a later release, `InvalidRequest` for malformed bytes.
    """
    cached = _record_decoders.get((module, bytes(value[:3])))
    if cached is not None:
        version, decode_body = cached
        return new_tuple(VersionedRecord, (decode_body(value, 3)[0], version))
    frame_version, pos = decode_unsigned(value, 0)
    if frame_version != _FRAME_VERSION:
        raise InvalidRequest(f"metadata record frame has version {frame_version}, not {_FRAME_VERSION}")
    record_type, pos = decode_unsigned(value, pos)
    version, pos = decode_unsigned(value, pos)
    cls = _metadata_classes(module).get(record_type)
    if cls is None:
        raise UnknownRecordType(f"metadata record type {record_type} is unknown")
    if version not in supported_versions(cls):
        raise UnknownRecordType(f"{cls.__name__} version {version} is unknown")
    if pos == 3:
        _record_decoders[module, bytes(value[:3])] = (version, decoder(cls, version))
    return VersionedRecord(decode(cls, value, version, pos), version)


def encode_coordinator_key(key: RecordBody) -> bytes:
    """A coordinator record's key. Its int16 is the record type: all keys have version 0, which is not written."""
    return _INT16.pack(key.RECORD_TYPE) + encode(key, 0)


def encode_coordinator_record(
    key: RecordBody, value: RecordBody | None, value_version: int = 0
) -> tuple[bytes, bytes | None]:
    """Key and value of a coordinator record; without a value, those of a tombstone."""
    body = None if value is None else _INT16.pack(value_version) + encode(value, value_version)
    return encode_coordinator_key(key), body


def decode_coordinator_key(module: str, key: Buffer) -> RecordBody:
    """The key's message. Raises `UnknownRecordType` for a type of a later release."""
    record_type = _read_int16(key)
    cached = _coordinator_decoders.get((module, record_type, _KEY))
    if cached is None:
        cls = coordinator_classes(module)[0].get(record_type)
        if cls is None:
            raise UnknownRecordType(f"coordinator record type {record_type} is unknown")
        cached = _coordinator_decoders[module, record_type, _KEY] = decoder(cls, 0)
    return cached(key, 2)[0]


def decode_coordinator_value(module: str, record_type: int, value: Buffer) -> VersionedRecord:
    """The value's message and its version. Raises `UnknownRecordType` for a type of a later release,
    `UnknownRecordVersion` for a version."""
    version = _read_int16(value)
    cached = _coordinator_decoders.get((module, record_type, version)) if version >= 0 else None
    if cached is None:
        cls = coordinator_classes(module)[1].get(record_type)
        if cls is None:
            raise UnknownRecordType(f"coordinator record type {record_type} is unknown")
        if version not in supported_versions(cls):
            raise UnknownRecordVersion(f"{cls.__name__} version {version} is unknown")
        cached = _coordinator_decoders[module, record_type, version] = decoder(cls, version)
    return new_tuple(VersionedRecord, (cached(value, 2)[0], version))


def _read_int16(buffer: Buffer) -> int:
    try:
        value: int = _INT16.unpack_from(buffer)[0]
    except _struct_error:
        raise InvalidRequest(f"coordinator record is cut short at {len(buffer)} bytes") from None
    return value
