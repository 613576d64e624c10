"""The messages in the values of a metadata batch's records, most of them decoded by compiled code.

A starting node decodes up to a million of them. `values.decode_flat` decodes the simple ones: with numbers, ids, short
strings, short lists of numbers or ids, and known tagged fields. These are nearly all records. `decode_metadata_record`
decodes or refuses all others. So the format has one source, the declarations of the messages.
"""

from __future__ import annotations

from kalda.base.errors import CorruptRecord, InvalidRequest
from kalda.protocol.notation import Message, Struct
from kalda.protocol.record_framing import VersionedRecord, decode_metadata_record
from kalda.protocol.schema import WireField, is_flexible, wire_struct
from kalda.records import values
from kalda.records.batch import BatchHeader, Buffer
from kalda.records.builder import records_section

_KINDS = {
    "Int8": values.INT8,
    "Int16": values.INT16,
    "Int32": values.INT32,
    "Int64": values.INT64,
    "Bool": values.BOOL,
    "Uuid": values.UUID,
    "String": values.STRING,
}
_LISTS = {"Int32": values.INT32S, "Uuid": values.UUIDS}

_programs: dict[int, values.Program] = {}
"""By the three bytes of the frame as one number: frame version, record type, record version."""
_examined: set[int] = set()
"""Frames that have a program, or whose message has fields that `values.decode_flat` cannot decode."""


def decode_metadata_messages(buf: Buffer, pos: int, header: BatchHeader) -> list[VersionedRecord]:
    """The metadata records of the batch at `pos`. Raises `CorruptRecord`, also for a value that is no valid message."""
    section, start, end = records_section(buf, pos, header)
    view = memoryview(section)
    count = header.records_count
    decoded, undecoded_count = values.decode_flat(view, start, end, count, _programs, VersionedRecord)
    if undecoded_count and sum(_add_program(each) for each in decoded if type(each) is bytes):
        decoded, undecoded_count = values.decode_flat(view, start, end, count, _programs, VersionedRecord)
    if undecoded_count:
        for index, each in enumerate(decoded):
            if type(each) is not VersionedRecord:
                decoded[index] = _decode(each, header.base_offset + index)  # type: ignore[arg-type]
    return decoded  # type: ignore[return-value]


def _decode(value: bytes | None, offset: int) -> VersionedRecord:
    if value is None:
        raise CorruptRecord(f"the metadata record at offset {offset} has no value")
    try:
        return decode_metadata_record(value)
    except InvalidRequest as error:
        raise CorruptRecord(f"the metadata record at offset {offset}: {error.message}") from error


def _add_program(value: bytes) -> bool:
    """Make a program for values with the frame of this one. True where there was none and one could be made."""
    frame = int.from_bytes(value[:3], "big")
    if frame in _examined or max(value[:3], default=0x80) >= 0x80:  # a number of more than one byte
        return False
    try:
        decoded = decode_metadata_record(value)
    except InvalidRequest:
        return False
    _examined.add(frame)
    program = _program_of(type(decoded.record), decoded.version)
    if program is None:
        return False
    _programs[frame] = program
    return True


def _program_of(cls: type[Message], version: int) -> values.Program | None:
    """The program by which `values.decode_flat` decodes the message; None where it cannot decode one of the fields."""
    if not is_flexible(cls, version):
        return None
    layout = wire_struct(cls, version, True)
    fields = [_field(field) for field in layout.fields]
    tagged = [_field(field) for field in layout.tagged]
    if None in fields or None in tagged or [field.tag for field in layout.tagged] != list(range(len(tagged))):
        return None
    defaults = [(name, default) for name, default, _ in layout.absent]
    defaults += [(field.name, field.default) for field in layout.tagged]
    if any(isinstance(default, Struct) or (isinstance(default, list) and default) for _, default in defaults):
        return None
    return cls, tuple(defaults), tuple(filter(None, fields)), tuple(filter(None, tagged)), version


def _field(field: WireField) -> tuple[str, int, bool] | None:
    kind = (_LISTS if field.is_list else _KINDS).get(field.kind)
    return None if kind is None or field.struct is not None else (field.name, kind, field.nullable)
