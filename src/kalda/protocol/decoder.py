"""Generates a message's decode function for one version, on first use.

Every count and length is checked before memory is allocated for it: an array's count against the bytes that remain
(each element takes at least `smallest_size`), a length against the bytes that remain, the number of tagged fields
against `MAX_TAGGED_FIELDS`. A decoded message takes at most about sixty times the memory of its bytes; a struct of
empty arrays reaches that. So that the total is bounded too, a whole message may have `MAX_ELEMENTS` structs and strings
in its arrays, at all depths together, where `NUMBERS_PER_ELEMENT` numbers count as one element, and so does an unknown
tagged field; a string longer than `LONG_STRING` counts as more. A caller may set lower bounds; a message beyond them
raises `TooManyElements`. Every slice is bounds-checked. Fixed-size reads past the end raise `struct.error`, reads of
single bytes past it `IndexError`; the function turns both into `InvalidRequest`. Nesting is bounded by the schema: no
message is recursive.

A message with record batches is decoded from the frame itself, and the batches are views of the frame. Any other
message is copied to `bytes` first: one copy of some hundred bytes, after which every slice costs half.

Not obvious:

- A string of more than a KB counts as an element for each 256 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from kalda.base.errors import InvalidRequest
from kalda.protocol.notation import Message, Struct, default_of
from kalda.protocol.schema import (
    FORMATS,
    MAX_STRING,
    TABLE_SIZE,
    Source,
    WireField,
    WireStruct,
    is_flexible,
    smallest_size,
    wire_struct,
)

MAX_ELEMENTS = 1_000_000
NUMBERS_PER_ELEMENT = 8
MAX_TAGGED_FIELDS = 10_000
LONG_STRING = 1_024
BYTES_PER_ELEMENT = 256
"""So many bytes of a long string count as one element."""

Decoder = Callable[..., tuple[Any, int]]


class TooManyElements(InvalidRequest):
    """The message has more elements than the bound with which the decoder was called."""


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    """A function `(buffer, pos, max_elements, numbers_per_element) -> (message, end)` that raises `InvalidRequest` for
    malformed bytes; the two bounds have defaults. Raises `InvalidRequest` itself for a version that `cls` lacks."""
    writer = DecoderSource(cls, version)
    layout = wire_struct(cls, version, is_flexible(cls, version))
    writer.in_place = _holds_records(layout, version)
    decoder: Decoder = writer.message(layout)
    return decoder


def _holds_records(layout: WireStruct, version: int) -> bool:
    return any(
        field.kind == "Records"
        or (field.struct is not None and _holds_records(wire_struct(field.struct, version, layout.flexible), version))
        for field in layout.fields + layout.tagged
    )


class DecoderSource(Source):
    """The source of a function that decodes from `buf` at `pos`."""

    in_place = False
    """The frame is not copied: its slices are views, and become `str` and `bytes` by a call."""

    def message(self, layout: WireStruct) -> Decoder:
        """Compile the function that decodes a whole message."""
        self.names["refusal"] = partial(_refusal, f"{self.cls.__name__} v{self.version}")
        self.names["TooManyElements"] = TooManyElements
        self.line(f"def decode(buf, pos, left={MAX_ELEMENTS}, numbers={NUMBERS_PER_ELEMENT}):")
        self.indent += 1
        self.line("try:")
        self.indent += 1
        if not self.in_place:
            self.line("if type(buf) is not bytes: buf = bytes(buf)")
        self.line("end = len(buf)")
        self.struct("m", layout)
        self.flush()
        self.line("if pos > end: raise IndexError")
        self.line("return m, pos")
        self.indent -= 1
        self.line("except Exception as error: raise refusal(len(buf), error) from None")
        decoder: Decoder = self.build("decode")
        return decoder

    def struct(self, target: str, layout: WireStruct) -> None:
        """Decode one struct into the new local `target`. The fields that the version lacks have their defaults."""
        self.names["new"] = object.__new__
        self.line(f"{target} = new({self.name('C', layout.cls)})")
        for name, default, _ in layout.absent:
            self._default(f"{target}.{name}", default)
        for field in layout.fields:
            self.field(f"{target}.{field.name}", field, layout.flexible)
        if layout.flexible:
            self.tagged_section(target, layout)

    def flush(self) -> None:
        """Emit the pending reads."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        formats = "".join(code for _, code in pending)
        targets = ", ".join(target for target, _ in pending)
        if formats == "B":
            self.line(f"{targets} = buf[pos]; pos += 1")
            return
        comma = "," if len(pending) == 1 else ""
        self.line(f"{targets}{comma} = {self.packer('unpack_from', formats)}(buf, pos)")
        self.line(f"pos += {struct.calcsize('>' + formats)}")

    def _default(self, target: str, default: object) -> None:
        if isinstance(default, Struct):
            inner = self.fresh("s")
            self.line(f"{inner} = new({self.name('C', type(default))})")
            for name in type(default).declared:
                self._default(f"{inner}.{name}", default_of(type(default), name))
            self.line(f"{target} = {inner}")
        elif isinstance(default, list):
            self.line(f"{target} = []")
        elif isinstance(default, int | float | str | type(None)):
            self.line(f"{target} = {default!r}")
        else:
            self.line(f"{target} = {self.name('D', default)}")

    def field(self, target: str, field: WireField, flexible: bool) -> None:
        """Decode one field into `target`."""
        if field.is_list:
            self._list(target, field, flexible)
        elif field.struct is not None:
            self._nested(target, field, flexible, null_marker="< 0")
        elif field.kind in FORMATS:
            self.pending.append((target, FORMATS[field.kind]))
        else:
            self._sized(target, field, flexible and field.kind != "LegacyString")

    def _nested(self, target: str, field: WireField, flexible: bool, null_marker: str) -> None:
        assert field.struct is not None
        layout = wire_struct(field.struct, self.version, flexible)
        inner = self.fresh("s")
        if not field.nullable:
            self.struct(inner, layout)
            self.line(f"{target} = {inner}")
            return
        self.pending.append(("n", "b"))
        self.flush()
        self.line(f"if n {null_marker}: {target} = None")
        self.line("else:")
        self.indent += 1
        self.struct(inner, layout)
        self.flush()
        self.line(f"{target} = {inner}")
        self.indent -= 1

    def _varint(self, name: str) -> None:
        """Read an unsigned varint into the local `name`, in one `struct` call with the pending reads."""
        self.names["uvarint"] = _uvarint_tail
        self.pending.append((name, "B"))
        self.flush()
        self.line(f"if {name} > 127: {name}, pos = uvarint(buf, pos, {name})")

    def _length(self, compact: bool, prefix: str) -> None:
        """Read a length or count into `n`; -1 is null."""
        if compact:
            self._varint("n")
            self.line("n -= 1")
        else:
            self.pending.append(("n", prefix))
            self.flush()

    def _null(self, target: str, field: WireField) -> None:
        """Where null is allowed, emit its branch and open the other one. The caller closes it."""
        if field.nullable:
            self.line(f"if n == -1: {target} = None")
            self.line("else:")
            self.indent += 1

    def _refuse(self, field: WireField) -> str:
        self.names["refuse"] = _refuse
        return f"refuse({field.name!r}, n, end - pos)"

    def _sized(self, target: str, field: WireField, compact: bool) -> None:
        """A string, bytes or records."""
        text = field.kind in ("String", "LegacyString")
        self._length(compact, "h" if text else "i")
        self._null(target, field)
        if text:
            self.names["long"] = _long_string
            self.line(f"if not 0 <= n <= end - pos or n > {LONG_STRING}:")
            self.line(f" left = long({field.name!r}, n, end - pos, left)")
        else:
            self.line(f"if not 0 <= n <= end - pos: {self._refuse(field)}")
        if field.kind == "Records":
            self.line(f"{target} = buf[pos : pos + n]")
        elif field.kind == "Bytes":
            self.line(f"{target} = bytes(buf[pos : pos + n])" if self.in_place else f"{target} = buf[pos : pos + n]")
        elif self.in_place:
            self.line(f"{target} = str(buf[pos : pos + n], 'utf-8')")
        else:
            self.line(f"{target} = buf[pos : pos + n].decode()")
        self.line("pos += n")
        self.indent -= field.nullable

    def _list(self, target: str, field: WireField, flexible: bool) -> None:
        self._length(flexible, "i")
        self._null(target, field)
        self._elements(target, field, flexible)
        self.indent -= field.nullable

    def _elements(self, target: str, field: WireField, flexible: bool) -> None:
        """Decode `n` elements into the list `target`."""
        if field.struct is None and field.kind in FORMATS:
            self._scalars(target, field)
            return
        items, item = self.fresh("l"), self.fresh("s")
        self._check_count(field, flexible)
        self._count(field, "n")
        self.line(f"{target} = {items} = []")
        self.line(f"for {self.fresh('i')} in range(n):")
        self.indent += 1
        if field.struct is not None:
            self.struct(item, wire_struct(field.struct, self.version, flexible))
        else:
            self.field(item, field._replace(is_list=False, nullable=False), flexible)
        self.flush()
        self.line(f"{items}.append({item})")
        self.indent -= 1

    def _check_count(self, field: WireField, flexible: bool) -> int:
        """Check the count `n` against the bytes that remain, and return how many an element has at least."""
        if field.struct is not None:
            size = smallest_size(wire_struct(field.struct, self.version, flexible), self.version)
        elif field.kind in FORMATS:
            size = struct.calcsize(">" + FORMATS[field.kind])
        else:
            size = 1 if flexible else 2
        self.line(f"if not 0 <= n * {size} <= end - pos: {self._refuse(field)}")
        return size

    def _count(self, field: WireField, elements: str) -> None:
        self.line(f"left -= {elements}")
        self.line(f"if left < 0: raise TooManyElements('{field.name} has too many elements: %d' % n)")

    def _scalars(self, target: str, field: WireField) -> None:
        size = self._check_count(field, False)
        self._count(field, "n // numbers")
        code = FORMATS[field.kind]
        if field.kind == "Uuid":
            self.line(f"{target} = [bytes(buf[i : i + 16]) for i in range(pos, pos + 16 * n, 16)]")
        else:
            self.names["unpack_from"] = struct.unpack_from
            table = self.packers("unpack_from", field.kind)
            self.line(f"if n < {TABLE_SIZE}: {target} = list({table}[n](buf, pos))")
            self.line(f"else: {target} = list(unpack_from('>%d{code}' % n, buf, pos))")
        self.line(f"pos += n * {size}")

    def tagged_section(self, target: str, layout: WireStruct) -> None:
        """Decode the tagged fields; those that are not there have their defaults."""
        for field in layout.tagged:
            self._default(f"{target}.{field.name}", field.default)
        count = self.fresh("k")
        self.pending.append((count, "B"))
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        self._tagged_fields(target, layout, count)
        self.indent -= 1

    def _tagged_fields(self, target: str, layout: WireStruct, count: str) -> None:
        last, tag, size, stop = (self.fresh(prefix) for prefix in ("p", "t", "z", "e"))
        self.names["uvarint"] = _uvarint_tail
        self.line(f"if {count} > 127: {count}, pos = uvarint(buf, pos, {count})")
        self.line(f"if {count} > {MAX_TAGGED_FIELDS}: raise InvalidRequest('%d tagged fields' % {count})")
        self.line(f"{last} = -1")
        self.line(f"for {tag} in range({count}):")
        self.indent += 1
        self._varint(tag)
        self._varint(size)
        self.line(f"if {tag} <= {last}: raise InvalidRequest('tag %d after %d' % ({tag}, {last}))")
        self.line(f"{last} = {tag}")
        self.line(f"{stop} = pos + {size}")
        self.line(f"if {stop} > end: raise InvalidRequest('tagged field of %d bytes in %d' % ({size}, end - pos))")
        keyword = "if"
        for field in layout.tagged:
            self.line(f"{keyword} {tag} == {field.tag}:")
            self.indent += 1
            if field.struct is not None and not field.is_list:
                self._nested(f"{target}.{field.name}", field, True, null_marker="== 0")
            else:
                self.field(f"{target}.{field.name}", field, True)
            self.flush()
            self.line(f"if pos != {stop}: raise InvalidRequest('tagged {field.name} is not %d bytes' % {size})")
            self.indent -= 1
            keyword = "elif"
        if layout.tagged:
            self.line("else:")
            self.indent += 1
        self._count_unknown_tag()
        self.indent -= bool(layout.tagged)
        self.line(f"pos = {stop}")
        self.indent -= 1

    def _count_unknown_tag(self) -> None:
        """A tagged field that is skipped counts as an element: it takes as long."""
        self.line("left -= 1")
        self.line("if left < 0: raise TooManyElements('too many unknown tagged fields')")


def _uvarint_tail(buffer: Any, pos: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint of up to five bytes, after a first byte with its high bit set."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, pos
    raise InvalidRequest("unsigned varint does not fit in 32 bits")


def _refusal(what: str, size: int, error: Exception) -> Exception:
    """The exception that a decoder raises in place of `error`: `InvalidRequest` where the bytes are malformed."""
    if isinstance(error, InvalidRequest):
        return type(error)(f"{what}: {error.message}")
    if isinstance(error, struct.error | IndexError):
        return InvalidRequest(f"{what} is cut short at {size} bytes")
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequest(f"{what} holds a string that is not UTF-8: {error.reason}")
    return error


def _long_string(name: str, size: int, remaining: int, left: int) -> int:
    """The elements that may follow a string of so many bytes."""
    if not 0 <= size <= min(remaining, MAX_STRING):
        _refuse(name, size, remaining)
    left -= size // BYTES_PER_ELEMENT
    if left < 0:
        raise TooManyElements(f"{name} has too many long strings")
    return left


def _refuse(name: str, count: int, remaining: int) -> NoReturn:
    if count < 0:
        raise InvalidRequest(f"{name} may not be null" if count == -1 else f"{name} of length {count}")
    raise InvalidRequest(f"{name} of {count} in {remaining} bytes")
