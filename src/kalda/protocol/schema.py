"""The layout of a message in one version: the fields that are on the wire, in order, and how they are written."""

from __future__ import annotations

import re
import struct
import sys
from functools import cache
from typing import Any, NamedTuple

from kalda.base.errors import InvalidRequest
from kalda.protocol.notation import FieldSpec, Message, Struct

_ANNOTATION = re.compile(r"^(?P<lists>(?:list\[)*)(?P<name>\w+)\]*(?P<null> \| None)?$")
SCALARS = frozenset(("Bool", "Int8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "Float64", "Uuid"))
LENGTHS = frozenset(("String", "LegacyString", "Bytes", "Records"))
_ALWAYS = range(1 << 15)


class WireField(NamedTuple):
    """One field in one version."""

    name: str
    kind: str
    """A name out of `SCALARS` or `LENGTHS`, or `Struct`."""
    struct: type[Struct] | None
    is_list: bool
    nullable: bool
    default: object
    tag: int | None
    """Its number in the tagged section; None for an ordinary field."""


class WireStruct(NamedTuple):
    """One struct in one version: ordinary fields, tagged fields in the order of their tags, absent fields."""

    cls: type[Struct]
    flexible: bool
    fields: tuple[WireField, ...]
    tagged: tuple[WireField, ...]
    absent: tuple[tuple[str, object, bool], ...]
    """Name, default and whether it is ignorable, of the fields that this version lacks."""


def parse_versions(text: str) -> range:
    """`"3"`, `"3-12"` or `"3+"` as a range; the empty text is no version at all."""
    if not text:
        return range(0)
    first, _, last = text.rstrip("+").partition("-")
    if text.endswith("+"):
        return range(int(first), _ALWAYS.stop)
    return range(int(first), int(last or first) + 1)


def supported_versions(cls: type[Message]) -> range:
    """The versions that the message has."""
    return parse_versions(cls.VERSIONS)


def is_flexible(cls: type[Message], version: int) -> bool:
    """True where lengths are compact and structs end in a tagged section."""
    return version in parse_versions(cls.FLEXIBLE)


def wire_struct(cls: type[Struct], version: int, flexible: bool) -> WireStruct:
    """The layout of `cls` in `version` of the message that it is, or is a part of."""
    fields: list[WireField] = []
    tagged: list[WireField] = []
    absent: list[tuple[str, object, bool]] = []
    for name, value in cls.declared.items():
        spec = value if isinstance(value, FieldSpec) else FieldSpec("0+", value, None, None, None, False)
        if version not in parse_versions(spec.versions):
            absent.append((name, spec.default, spec.ignorable))
            continue
        field = _wire_field(cls, name, spec, version)
        (fields if field.tag is None else tagged).append(field)
    tagged.sort(key=lambda field: field.tag or 0)
    return WireStruct(cls, flexible, tuple(fields), tuple(tagged), tuple(absent))


def _wire_field(cls: type[Struct], name: str, spec: FieldSpec, version: int) -> WireField:
    annotation: str = cls.__annotations__[name]
    match = _ANNOTATION.match(annotation)
    assert match is not None, f"{cls.__name__}.{name}: {annotation!r} is not in the notation"
    assert match["lists"] in ("", "list["), f"{cls.__name__}.{name}: lists of lists are not in the protocol"
    nullable = match["null"] is not None and (spec.nullable is None or version in parse_versions(spec.nullable))
    tag = spec.tag
    if tag is not None and spec.tagged is not None and version not in parse_versions(spec.tagged):
        tag = None
    kind = match["name"]
    struct = None
    if kind not in SCALARS and kind not in LENGTHS:
        struct = getattr(sys.modules[cls.__module__], kind)
        kind = "Struct"
    return WireField(name, kind, struct, bool(match["lists"]), nullable, spec.default, tag)


_FIXED = {"Bool": 1, "Int8": 1, "Int16": 2, "UInt16": 2, "Int32": 4, "UInt32": 4, "Int64": 8, "Float64": 8, "Uuid": 16}


def smallest_size(struct: WireStruct, version: int) -> int:
    """The fewest bytes that one such struct takes on the wire, at least 1. It bounds the count of an array."""
    size = 1 if struct.flexible else 0
    for field in struct.fields:
        if field.is_list:
            size += 1 if struct.flexible else 4
        elif field.struct is not None:
            inner = smallest_size(wire_struct(field.struct, version, struct.flexible), version)
            size += 1 if field.nullable else inner
        elif field.kind in _FIXED:
            size += _FIXED[field.kind]
        elif field.kind == "LegacyString":
            size += 2
        else:
            size += 1 if struct.flexible else (2 if field.kind == "String" else 4)
    return max(size, 1)


FORMATS = {
    "Bool": "?", "Int8": "b", "Int16": "h", "UInt16": "H", "Int32": "i", "UInt32": "I", "Int64": "q",
    "Float64": "d", "Uuid": "16s",
}  # fmt: skip
MAX_STRING = 32767
"""Kafka's bound on the bytes of a string, with lengths of either kind: the largest int16."""
TABLE_SIZE = 64
"""Lists shorter than this are packed and unpacked by a `struct` method from a table."""


class Source:
    """The common part of the generators of encoders and decoders: lines of Python, the names that they use,
    formats.

    The generated source is what a person would write by hand for one version of one message: straight-line, nested
    structs inline, and adjacent fields of fixed size in one `struct` call. For this, reads and writes of fixed size are
    collected in `pending` until a field of variable size, or a branch, follows.

    Lines of a function and the names that it uses.
    """

    def __init__(self, cls: type[Message], version: int) -> None:
        if version not in supported_versions(cls):
            raise InvalidRequest(f"{cls.__name__} has versions {cls.VERSIONS}, not {version}")
        self.cls = cls
        self.version = version
        self.lines: list[str] = []
        self.indent = 0
        self.names: dict[str, Any] = {"InvalidRequest": InvalidRequest}
        self.pending: list[tuple[str, str]] = []
        """Reads or writes of fixed size that are not emitted yet: an expression and its format."""
        self._counter = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def fresh(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name(self, prefix: str, value: object) -> str:
        """A global name for `value`; the same one for the same value."""
        for name, other in self.names.items():
            if other is value:
                return name
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def packer(self, operation: str, fields: str) -> str:
        """The name of a bound `struct` method for a format, shared where the format was used before."""
        name = f"{operation}_{fields.replace('?', 'T').replace('16s', 'U')}"
        self.names.setdefault(name, getattr(struct.Struct(">" + fields), operation))
        return name

    def packers(self, operation: str, kind: str) -> str:
        """The name of a table of bound `struct` methods by count, for short lists of one kind."""
        name = f"{operation}_{FORMATS[kind].replace('?', 'T')}s"
        self.names[name] = _table(operation, FORMATS[kind])
        return name

    def build(self, function: str) -> Any:
        """Compile the lines, which define `function`."""
        assert not self.pending, f"{self.cls.__name__} v{self.version}: {self.pending} was never written"
        where = f"<{function} {self.cls.__name__} v{self.version}>"
        exec(compile("\n".join(self.lines), where, "exec"), self.names)
        return self.names[function]


@cache
def _table(operation: str, code: str) -> tuple[Any, ...]:
    return tuple(getattr(struct.Struct(f">{count}{code}"), operation) for count in range(TABLE_SIZE))
