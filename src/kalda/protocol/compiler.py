"""Generates a message's encode and decode functions for one version: straight-line Python, compiled on first use.

Nested structs are written inline, adjacent fixed-size fields are packed by one `struct` call, varints take one branch
when they are a byte long. The generated source is what a person would write by hand for that one version.

Decoding trusts nothing. An array's count is checked against the bytes that remain (each element takes at least
`smallest_size`) and `MAX_ARRAY`; a length against the remainder; tagged fields against `MAX_TAGGED_FIELDS`. Every
slice is bounds-checked; fixed-size reads past the end raise `struct.error`, which `codec` turns into
`InvalidRequest`. Nesting is bounded by the schema itself: no message is recursive.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kalda.base.errors import InvalidRequest
from kalda.protocol.notation import Message, Struct, default_of
from kalda.protocol.schema import WireField, WireStruct, is_flexible, smallest_size, supported_versions, wire_struct
from kalda.protocol.varint import encode_unsigned

MAX_ARRAY = 1_000_000
MAX_TAGGED_FIELDS = 10_000
_FORMATS = {
    "Bool": "?", "Int8": "b", "Int16": "h", "UInt16": "H", "Int32": "i", "UInt32": "I", "Int64": "q",
    "Float64": "d", "Uuid": "16s",
}  # fmt: skip

Decoder = Callable[[Any, int], tuple[Any, int]]
Encoder = Callable[[Any], list[Any]]


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    """A function `(buffer, pos) -> (message, end)`."""
    _check_version(cls, version)
    writer = _DecoderSource(version)
    writer.line("def decode(buf, pos):")
    writer.indent += 1
    writer.line("end = len(buf)")
    writer.struct("m", wire_struct(cls, version, is_flexible(cls, version)))
    writer.line("return m, pos")
    decoder: Decoder = writer.build("decode")
    return decoder


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """A function `(message) -> buffers`."""
    _check_version(cls, version)
    writer = _EncoderSource(version)
    writer.line("def encode(m):")
    writer.indent += 1
    writer.line("out = []")
    writer.line("w = bytearray()")
    writer.struct("m", wire_struct(cls, version, is_flexible(cls, version)))
    writer.line("if w: out.append(w)")
    writer.line("return out")
    encoder: Encoder = writer.build("encode")
    return encoder


def _check_version(cls: type[Message], version: int) -> None:
    if version not in supported_versions(cls):
        raise InvalidRequest(f"{cls.__name__} has versions {cls.VERSIONS}, not {version}")


class _Source:
    """Lines of a function and the names that it uses."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.lines: list[str] = []
        self.indent = 0
        self.names: dict[str, Any] = {"InvalidRequest": InvalidRequest, "MAX_ARRAY": MAX_ARRAY}
        self.counter = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def name(self, prefix: str, value: object) -> str:
        """A global name for `value`; the same one for the same value."""
        for known, other in self.names.items():
            if other is value:
                return known
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def packer(self, operation: str, fields: str) -> str:
        """A bound `struct` method for a format, shared where the format was used before."""
        name = f"{operation}_{fields.replace('?', 'B0').replace('16s', 'U')}"
        self.names.setdefault(name, getattr(struct.Struct(">" + fields), operation))
        return name

    def build(self, function: str) -> Any:
        source = "\n".join(self.lines)
        exec(compile(source, f"<{function}>", "exec"), self.names)
        return self.names[function]


def _runs(fields: tuple[WireField, ...]) -> list[list[WireField]]:
    """Adjacent fixed-size fields together, every other field alone."""
    runs: list[list[WireField]] = []
    for field in fields:
        fixed = field.kind in _FORMATS and not field.is_list
        if fixed and runs and runs[-1][0].kind in _FORMATS and not runs[-1][0].is_list:
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


class _DecoderSource(_Source):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.names["uvarint"] = _uvarint_tail
        self.names["new"] = object.__new__

    def struct(self, target: str, layout: WireStruct) -> None:
        """Decode one struct into the new local `target`."""
        self.line(f"{target} = new({self.name('C', layout.cls)})")
        for name, default, _ in layout.absent:
            self.line(f"{target}.{name} = {self._default(default)}")
        for run in _runs(layout.fields):
            if run[0].kind in _FORMATS and not run[0].is_list:
                self._fixed(target, run)
            else:
                self._field(f"{target}.{run[0].name}", run[0], layout.flexible)
        if layout.flexible:
            self._tagged_section(target, layout)

    def _default(self, default: object) -> str:
        if isinstance(default, list):
            return "[]"
        if isinstance(default, Struct):
            return f"{self.name('C', type(default))}()"
        if isinstance(default, int | float | str | type(None)):
            return repr(default)
        return self.name("D", default)

    def _fixed(self, target: str, run: list[WireField]) -> None:
        formats = "".join(_FORMATS[field.kind] for field in run)
        targets = ", ".join(f"{target}.{field.name}" for field in run)
        self.line(f"{targets}{',' if len(run) == 1 else ''} = {self.packer('unpack_from', formats)}(buf, pos)")
        self.line(f"pos += {struct.calcsize('>' + formats)}")

    def _field(self, target: str, field: WireField, flexible: bool) -> None:
        if field.is_list:
            self._list(target, field, flexible)
        elif field.struct is not None:
            self._nested(target, field, flexible, null_marker="< 0")
        elif field.kind in _FORMATS:
            self.line(f"{target}, = {self.packer('unpack_from', _FORMATS[field.kind])}(buf, pos)")
            self.line(f"pos += {struct.calcsize('>' + _FORMATS[field.kind])}")
        else:
            self._length(flexible and field.kind != "LegacyString", "h" if "String" in field.kind else "i")
            self._sized(target, field)

    def _nested(self, target: str, field: WireField, flexible: bool, null_marker: str) -> None:
        assert field.struct is not None
        layout = wire_struct(field.struct, self.version, flexible)
        inner = self.fresh("s")
        if not field.nullable:
            self.struct(inner, layout)
            self.line(f"{target} = {inner}")
            return
        self.line(f"n, = {self.packer('unpack_from', 'b')}(buf, pos)")
        self.line("pos += 1")
        self.line(f"if n {null_marker}: {target} = None")
        self.line("else:")
        self.indent += 1
        self.struct(inner, layout)
        self.line(f"{target} = {inner}")
        self.indent -= 1

    def _length(self, compact: bool, prefix: str) -> None:
        """Read a length or count into `n`; -1 is null."""
        if compact:
            self.line("n = buf[pos]; pos += 1")
            self.line("if n > 127: n, pos = uvarint(buf, pos, n)")
            self.line("n -= 1")
        else:
            self.line(f"n, = {self.packer('unpack_from', prefix)}(buf, pos)")
            self.line(f"pos += {struct.calcsize(prefix)}")

    def _sized(self, target: str, field: WireField) -> None:
        self._null(target, field)
        self.line(f" if n > end - pos: raise InvalidRequest('{field.name} of %d bytes in %d' % (n, end - pos))")
        if "String" in field.kind:
            self.line(f" {target} = str(buf[pos : pos + n], 'utf-8')")
        elif field.kind == "Bytes":
            self.line(f" {target} = bytes(buf[pos : pos + n])")
        else:
            self.line(f" {target} = buf[pos : pos + n]")
        self.line(" pos += n")

    def _null(self, target: str, field: WireField) -> None:
        """Handle a negative `n`; what follows runs one level deeper."""
        self.line("if n < 0:")
        if field.nullable:
            self.line(f" if n < -1: raise InvalidRequest('{field.name} of length %d' % n)")
            self.line(f" {target} = None")
        else:
            self.line(f" raise InvalidRequest('{field.name} may not be null')")
        self.line("else:")

    def _list(self, target: str, field: WireField, flexible: bool) -> None:
        self._length(flexible, "i")
        self._null(target, field)
        self.indent += 1
        layout = wire_struct(field.struct, self.version, flexible) if field.struct is not None else None
        if layout is not None:
            size = smallest_size(layout, self.version)
        elif field.kind in _FORMATS:
            size = struct.calcsize(">" + _FORMATS[field.kind])
        else:
            size = 1 if flexible else 2
        self.line(f"if n * {size} > end - pos or n > MAX_ARRAY:")
        self.line(f" raise InvalidRequest('{field.name} of %d elements in %d bytes' % (n, end - pos))")
        if layout is not None:
            items, item, count = self.fresh("l"), self.fresh("s"), self.fresh("i")
            self.line(f"{target} = {items} = []")
            self.line(f"for {count} in range(n):")
            self.indent += 1
            self.struct(item, layout)
            self.line(f"{items}.append({item})")
            self.indent -= 1
        elif field.kind in _FORMATS:
            self.names["unpack_from"] = struct.unpack_from
            if field.kind == "Uuid":
                self.line(f"{target} = [bytes(buf[i : i + 16]) for i in range(pos, pos + 16 * n, 16)]")
            else:
                self.line(f"{target} = list(unpack_from('>%d{_FORMATS[field.kind]}' % n, buf, pos))")
            self.line(f"pos += {size} * n")
        else:
            items, item, count = self.fresh("l"), self.fresh("v"), self.fresh("i")
            self.line(f"{target} = {items} = []")
            self.line(f"for {count} in range(n):")
            self.indent += 1
            self._field(item, field._replace(is_list=False, nullable=False), flexible)
            self.line(f"{items}.append({item})")
            self.indent -= 1
        self.indent -= 1

    def _tagged_section(self, target: str, layout: WireStruct) -> None:
        for field in layout.tagged:
            self.line(f"{target}.{field.name} = {self._default(field.default)}")
        count, last, tag, size, stop = (self.fresh(prefix) for prefix in ("k", "p", "t", "z", "e"))
        self.line(f"{count} = buf[pos]; pos += 1")
        self.line(f"if {count}:")
        self.indent += 1
        self.line(f"if {count} > 127: {count}, pos = uvarint(buf, pos, {count})")
        self.line(f"if {count} > {MAX_TAGGED_FIELDS}: raise InvalidRequest('%d tagged fields' % {count})")
        self.line(f"{last} = -1")
        self.line(f"for {tag} in range({count}):")
        self.indent += 1
        for name in (tag, size):
            self.line(f"{name} = buf[pos]; pos += 1")
            self.line(f"if {name} > 127: {name}, pos = uvarint(buf, pos, {name})")
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
                self._field(f"{target}.{field.name}", field, True)
            self.line(f"if pos != {stop}: raise InvalidRequest('tagged {field.name} is not %d bytes' % {size})")
            self.indent -= 1
            keyword = "elif"
        self.line(f"pos = {stop}")
        self.indent -= 2


class _EncoderSource(_Source):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.names["uvarint"] = encode_unsigned
        self.names["pack"] = struct.pack
        self.names["check"] = _check_absent
        self.names["size_of"] = _size_of

    def struct(self, source: str, layout: WireStruct) -> None:
        """Encode the struct in the local `source` into `w`."""
        for name, default, ignorable in layout.absent:
            if not ignorable:
                self._check_absent(source, layout, name, default)
        for run in _runs(layout.fields):
            if run[0].kind in _FORMATS and not run[0].is_list:
                formats = "".join(_FORMATS[field.kind] for field in run)
                values = ", ".join(f"{source}.{field.name}" for field in run)
                self.line(f"w += {self.packer('pack', formats)}({values})")
            else:
                self._field(f"{source}.{run[0].name}", run[0], layout.flexible)
        if layout.flexible:
            self._tagged_section(source, layout)

    def _check_absent(self, source: str, layout: WireStruct, name: str, default: object) -> None:
        where = f"{layout.cls.__name__}.{name}"
        wrong = f"{source}.{name}" if default in (None, False, 0, "", b"") and default is not None else None
        if isinstance(default, list):
            wrong = f"{source}.{name}"
        condition = wrong or f"{source}.{name} != {self.name('D', default)}"
        self.line(f"if {condition}: check({where!r}, {self.version}, {source}.{name})")

    def _field(self, source: str, field: WireField, flexible: bool) -> None:
        if field.is_list:
            self._list(source, field, flexible)
        elif field.struct is not None:
            self._nested(source, field, flexible, null=b"\xff")
        elif field.kind in _FORMATS:
            self.line(f"w += {self.packer('pack', _FORMATS[field.kind])}({source})")
        else:
            self._sized(source, field, flexible and field.kind != "LegacyString")

    def _nested(self, source: str, field: WireField, flexible: bool, null: bytes) -> None:
        assert field.struct is not None
        layout = wire_struct(field.struct, self.version, flexible)
        inner = self.fresh("s")
        self.line(f"{inner} = {source}")
        if not field.nullable:
            self.struct(inner, layout)
            return
        self.line(f"if {inner} is None: w += {null!r}")
        self.line("else:")
        self.indent += 1
        self.line("w += b'\\x01'")
        self.struct(inner, layout)
        self.indent -= 1

    def _null(self, value: str, field: WireField, compact: bool, prefix: str) -> None:
        self.line(f"if {value} is None:")
        if field.nullable:
            marker = b"\x00" if compact else b"\xff" * struct.calcsize(prefix)
            self.line(f" w += {marker!r}")
        else:
            self.line(f" raise ValueError('{field.name} may not be null in version {self.version}')")
        self.line("else:")

    def _length(self, size: str, compact: bool, prefix: str) -> None:
        if compact:
            self.line(f"w += uvarint({size} + 1)")
        else:
            self.line(f"w += {self.packer('pack', prefix)}({size})")

    def _sized(self, source: str, field: WireField, compact: bool) -> None:
        value = self.fresh("v")
        self.line(f"{value} = {source}")
        prefix = "h" if "String" in field.kind else "i"
        self._null(value, field, compact, prefix)
        self.indent += 1
        if "String" in field.kind:
            self.line(f"{value} = {value}.encode()")
            self._length(f"len({value})", compact, prefix)
            self.line(f"w += {value}")
        elif field.kind == "Bytes":
            self._length(f"len({value})", compact, prefix)
            self.line(f"w += {value}")
        else:
            # Records leave as they came: the bytes written so far, then the records' own buffers, then a new run.
            self._length(f"(size_of({value}) if type({value}) is list else len({value}))", compact, prefix)
            self.line("out.append(w)")
            self.line(f"if type({value}) is list: out.extend({value})")
            self.line(f"elif {value}: out.append({value})")
            self.line("w = bytearray()")
        self.indent -= 1

    def _list(self, source: str, field: WireField, flexible: bool) -> None:
        items = self.fresh("l")
        self.line(f"{items} = {source}")
        self._null(items, field, flexible, "i")
        self.indent += 1
        self._length(f"len({items})", flexible, "i")
        if field.struct is not None:
            item = self.fresh("s")
            self.line(f"for {item} in {items}:")
            self.indent += 1
            before = len(self.lines)
            self.struct(item, wire_struct(field.struct, self.version, flexible))
            if len(self.lines) == before:
                self.line("pass")
            self.indent -= 1
        elif field.kind == "Uuid":
            self.line(f"w += b''.join({items})")
        elif field.kind in _FORMATS:
            self.line(f"w += pack('>%d{_FORMATS[field.kind]}' % len({items}), *{items})")
        else:
            item = self.fresh("v")
            self.line(f"for {item} in {items}:")
            self.indent += 1
            self._field(item, field._replace(is_list=False, nullable=False), flexible)
            self.indent -= 1
        self.indent -= 1

    def _tagged_section(self, source: str, layout: WireStruct) -> None:
        if not layout.tagged:
            self.line("w += b'\\x00'")
            return
        parts = self.fresh("t")
        self.line(f"{parts} = []")
        saved = self.fresh("w")
        for field in layout.tagged:
            default = default_of(layout.cls, field.name)
            self.line(f"if {source}.{field.name} != {self.name('D', default)}:")
            self.indent += 1
            self.line(f"{saved} = w; w = bytearray()")
            if field.struct is not None and not field.is_list:
                self._nested(f"{source}.{field.name}", field, True, null=b"\x00")
            else:
                self._field(f"{source}.{field.name}", field, True)
            self.line(f"{parts}.append(uvarint({field.tag}) + uvarint(len(w)) + w)")
            self.line(f"w = {saved}")
            self.indent -= 1
        self.line(f"w += uvarint(len({parts}))")
        self.line(f"for {saved} in {parts}: w += {saved}")


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


def _size_of(buffers: list[Any]) -> int:
    return sum(len(buffer) for buffer in buffers)


def _check_absent(where: str, version: int, value: object) -> None:
    raise ValueError(f"{where} is {value!r}, but version {version} has no such field")
