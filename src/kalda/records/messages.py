"""The messages in the values of a metadata batch's records, most of them read by compiled code.

A node that starts reads a million of them. `values.decode_flat` reads what is plain: numbers, ids, short strings and
short lists of them, tagged fields that it knows. That is nearly every record. What else there is, and what is wrong,
`decode_metadata_record` reads or refuses; so the format is said once, in the messages' declarations.
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
"""By the three bytes of the frame: version, record type, the record's version."""
_seen: set[int] = set()
"""Frames of which a program was made, or cannot be made."""


def decode_metadata_messages(buf: Buffer, pos: int, header: BatchHeader) -> list[VersionedRecord]:
    """The metadata records of the batch at `pos`. Raises `CorruptRecord`, also for one that cannot be read."""
    section, start, end = records_section(buf, pos, header)
    view = memoryview(section)
    found, values_left = values.decode_flat(view, start, end, header.records_count, _programs, VersionedRecord)
    if values_left and sum(_learn(each) for each in found if type(each) is bytes):
        found, values_left = values.decode_flat(view, start, end, header.records_count, _programs, VersionedRecord)
    if values_left:
        for index, each in enumerate(found):
            if type(each) is not VersionedRecord:
                found[index] = _decode(each, header.base_offset + index)  # type: ignore[arg-type]
    return found  # type: ignore[return-value]


def _decode(value: bytes | None, offset: int) -> VersionedRecord:
    if value is None:
        raise CorruptRecord(f"the metadata record at offset {offset} has no value")
    try:
        return decode_metadata_record(value)
    except InvalidRequest as error:
        raise CorruptRecord(f"the metadata record at offset {offset}: {error.message}") from error


def _learn(value: bytes) -> bool:
    """Whether values of this frame can be read by compiled code from now on, and could not before."""
    frame = int.from_bytes(value[:3], "big")
    if frame in _seen or max(value[:3], default=0x80) >= 0x80:  # three numbers of one byte
        return False
    try:
        decoded = decode_metadata_record(value)
    except InvalidRequest:
        return False
    _seen.add(frame)
    program = _program_of(type(decoded.record), decoded.version)
    if program is None:
        return False
    _programs[frame] = program
    return True


def _program_of(cls: type[Message], version: int) -> values.Program | None:
    """How to read that message; None where it has more than the compiled code knows."""
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
