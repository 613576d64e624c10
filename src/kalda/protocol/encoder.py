"""Generates a message's encode function for one version, on first use.

Record batches are not copied: the result is a list of buffers, the bytes before the batches, the batches' own buffers,
the bytes after them. A field that the version lacks is dropped where the schema calls it ignorable. Any other such
field is refused with `ValueError` unless it has its default: dropping it would change the message's meaning.

A message that takes long to encode is encoded in steps; one with a very long list, by a `ListEncoder`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, NamedTuple, NoReturn

from kalda.protocol.notation import Buffer, Message, Struct, default_of
from kalda.protocol.schema import (
    FORMATS,
    MAX_STRING,
    TABLE_SIZE,
    Source,
    WireField,
    WireStruct,
    is_flexible,
    wire_struct,
)
from kalda.protocol.varint import encode_unsigned

Encoder = Callable[[Any, bytearray], list[Buffer]]
ErrorCounts = defaultdict[int, int]
"""How often each error code but NONE was there."""
CountingEncoder = Callable[[Any, bytearray, ErrorCounts], list[Buffer]]
StepEncoder = Callable[[Any, bytearray, ErrorCounts], Generator[None, None, list[Buffer]]]
STEP_ELEMENTS = 500
"""Elements that are encoded in one step: about a millisecond."""
_ERROR_CODE = "error_code"
_SMALL = tuple(bytes([value]) for value in range(128))


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """A function `(message, head) -> buffers`, the first of which begins with `head`.

    The function raises `ValueError` for a message that the version cannot express. Raises `InvalidRequest` itself for a
    version that `cls` lacks.
    """
    encoder: Encoder = _compile(cls, version)
    return encoder


def compile_counting_encoder(cls: type[Message], version: int) -> CountingEncoder:
    """As `compile_encoder`: a function `(message, head, counts)`, which counts the codes of all fields `error_code`."""
    encoder: CountingEncoder = _compile(cls, version, counts_errors=True)
    return encoder


def compile_step_encoder(cls: type[Message], version: int) -> StepEncoder:
    """As `compile_counting_encoder`: a generator that yields after each `STEP_ELEMENTS` elements and returns the
    buffers."""
    encoder: StepEncoder = _compile(cls, version, in_steps=True, counts_errors=True)
    return encoder


def _compile(cls: type[Message], version: int, *, in_steps: bool = False, counts_errors: bool = False) -> Any:
    writer = EncoderSource(cls, version)
    writer.in_steps, writer.counts_errors = in_steps, counts_errors
    return writer.function("m", lambda: writer.struct("m", wire_struct(cls, version, is_flexible(cls, version))))


class EncoderSource(Source):
    """The source of a function that appends to the buffer `w`."""

    in_steps = False
    """The function is a generator, which yields between elements."""
    counts_errors = False
    """The function adds error codes to its argument `counts`."""

    def function(self, argument: str, write: Callable[[], None]) -> Any:
        """Compile a function `(argument, w) -> buffers` with the lines of `write()`. Only record batches begin a buffer
        after `w`."""
        self.line(f"def encode({argument}, w{', counts' if self.counts_errors else ''}):")
        self.indent += 1
        self.names["struct_error"] = struct.error
        self.line("try:")
        self.indent += 1
        self.line("out = []")
        if self.in_steps:
            self.line(f"step = {STEP_ELEMENTS}")
            self.line("if False: yield")
        write()
        self.flush()
        self.line("if w: out.append(w)")
        self.line("return out")
        self.indent -= 1
        what = f"{self.cls.__name__} v{self.version}"
        self.line(f"except struct_error as error: raise ValueError('{what}: %s' % error) from error")
        return self.build("encode")

    def struct(self, source: str, layout: WireStruct) -> None:
        """Encode the struct in the local `source` into `w`."""
        self.check_absent(source, layout)
        for field in layout.fields:
            self.field(f"{source}.{field.name}", field, layout.flexible)
        if layout.flexible:
            self.tagged_section(source, layout)

    def check_absent(self, source: str, layout: WireStruct) -> None:
        """Refuse a field that the version lacks, where it has a value."""
        for name, default, ignorable in layout.absent:
            if not ignorable:
                self.names["refuse"] = _refuse
                where = f"{layout.cls.__name__}.{name}"
                value = f"{source}.{name}"
                self.line(f"if {self._differs(value, default)}: refuse({where!r}, {self.version}, {value})")

    def flush(self) -> None:
        """Emit the pending writes."""
        packed = self._packed(self.pending)
        self.pending = []
        if packed:
            self.line(f"w += {packed}")

    def _packed(self, pending: list[tuple[str, str]]) -> str:
        if not pending:
            return ""
        if all(code == "x" for _, code in pending):
            return repr(bytes(len(pending)))
        formats = "".join(code for _, code in pending)
        values = ", ".join(value for value, code in pending if code != "x")
        return f"{self.packer('pack', formats)}({values})"

    def _differs(self, value: str, default: object) -> str:
        """An expression that is true where `value` is not the default."""
        if isinstance(default, Struct):
            inner = self.fresh("d")
            names = type(default).declared
            parts = [self._differs(f"{inner}.{name}", default_of(type(default), name)) for name in names]
            return f"({inner} := {value}) is None or {' or '.join(parts)}"
        if default is None:
            return f"{value} is not None"
        if isinstance(default, list):
            return f"({value} or {value} is None)"
        if isinstance(default, int | float | str):
            return f"{value} != {default!r}"
        return f"{value} != {self.name('D', default)}"

    def field(self, source: str, field: WireField, flexible: bool) -> None:
        """Encode one field."""
        if field.is_list:
            self._list(source, field, flexible)
        elif field.struct is not None:
            self._nested(source, field, flexible, null=b"\xff")
        elif field.kind in FORMATS:
            if self.counts_errors and field.name == _ERROR_CODE:
                self.line(f"if {source}: counts[{source}] += 1")
            self.pending.append((source, FORMATS[field.kind]))
        else:
            self._sized(source, field, flexible and field.kind != "LegacyString")

    def _nested(self, source: str, field: WireField, flexible: bool, null: bytes) -> None:
        assert field.struct is not None
        layout = wire_struct(field.struct, self.version, flexible)
        inner = self.fresh("s")
        self.line(f"{inner} = {source}")
        if not field.nullable:
            self._not_null(inner, field)
            self.struct(inner, layout)
            return
        self.flush()
        self.line(f"if {inner} is None: w += {null!r}")
        self.line("else:")
        self.indent += 1
        self.pending.append(("1", "b"))
        self.struct(inner, layout)
        self.flush()
        self.indent -= 1

    def _not_null(self, value: str, field: WireField) -> None:
        self.line(f"if {value} is None: raise ValueError('{field.name} may not be null in version {self.version}')")

    def _measure(self, value: str, field: WireField, compact: bool, size: str) -> None:
        """Set `n` to the length as it is written: compact lengths are one more, with 0 for null; others have -1 for
        null."""
        if compact:
            size = f"{size} + 1"
        if field.nullable:
            self.line(f"if {value} is None: n = {0 if compact else -1}")
            self.line(f"else: n = {size}")
        else:
            self._not_null(value, field)
            self.line(f"n = {size}")

    def _length(self, compact: bool, prefix: str) -> None:
        """Write `n`, in one expression with the pending writes."""
        if not compact:
            self.pending.append(("n", prefix))
            self.flush()
            return
        self.names["uvarint"] = encode_unsigned
        if not self.pending:
            self.names["small"] = _SMALL
            self.line("w += small[n] if n < 128 else uvarint(n)")
            return
        short = self._packed([*self.pending, ("n", "B")])
        self.line(f"w += {short} if n < 128 else {self._packed(self.pending)} + uvarint(n)")
        self.pending = []

    def _sized(self, source: str, field: WireField, compact: bool) -> None:
        """A string, bytes or records."""
        value = self.fresh("v")
        self.line(f"{value} = {source}")
        text = field.kind in ("String", "LegacyString")
        if text:
            self._measure(value, field, compact, f"len({value} := {value}.encode())")
            if compact:
                self.names["too_long"] = _too_long
                self.line(f"if n > {MAX_STRING + 1}: too_long({field.name!r}, n - 1)")
        elif field.kind == "Bytes":
            self._measure(value, field, compact, f"len({value})")
        else:
            self.names["size_of"] = _size_of
            self._measure(value, field, compact, f"(size_of({value}) if type({value}) is list else len({value}))")
        self._length(compact, "h" if text else "i")
        if field.kind != "Records":
            self.line(f"if {value}: w += {value}" if field.nullable else f"w += {value}")
            return
        self.line(f"if {value}:")
        self.line(" out.append(w)")
        self.line(f" if type({value}) is list: out += {value}")
        self.line(f" else: out.append({value})")
        self.line(" w = bytearray()")

    def _list(self, source: str, field: WireField, flexible: bool) -> None:
        items = self.fresh("l")
        self.line(f"{items} = {source}")
        self._measure(items, field, flexible, f"len({items})")
        self._length(flexible, "i")
        self.elements(items, field, flexible)

    def elements(self, items: str, field: WireField, flexible: bool) -> None:
        """Encode the elements of the list in the local `items`, without their count."""
        if field.struct is None and field.kind in FORMATS:
            self._scalars(items, field)
            return
        item = self.fresh("s")
        self.line(f"if {items}:")
        self.line(f" for {item} in {items}:")
        self.indent += 2
        before = len(self.lines)
        if field.struct is not None:
            self.struct(item, wire_struct(field.struct, self.version, flexible))
        else:
            self.field(item, field._replace(is_list=False, nullable=False), flexible)
        self.flush()
        if self.in_steps:
            self.line("step -= 1")
            self.line("if step < 0:")
            self.line(f" step = {STEP_ELEMENTS}")
            self.line(" yield")
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 2

    def _scalars(self, items: str, field: WireField) -> None:
        self.line(f"if {items}:")
        if field.kind == "Uuid":
            self.line(f" w += b''.join({items})")
            return
        self.names["pack"] = struct.pack
        table = self.packers("pack", field.kind)
        self.line(f" n = len({items})")
        self.line(f" w += {table}[n](*{items}) if n < {TABLE_SIZE} else")
        self.lines[-1] += f" pack('>%d{FORMATS[field.kind]}' % n, *{items})"

    def tagged_section(self, source: str, layout: WireStruct) -> None:
        """Encode the tagged fields that do not have their defaults. Usually there are none: then the section is one
        zero byte, which joins the pending writes."""
        if not layout.tagged:
            self.pending.append(("", "x"))
            return
        before = self.pending
        conditions = [self._differs(f"{source}.{field.name}", field.default) for field in layout.tagged]
        self.line(f"if {' or '.join(conditions)}:")
        self.indent += 1
        self.flush()
        self._tagged_fields(source, layout, conditions)
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        self.pending = [*before, ("", "x")]
        self.flush()
        self.indent -= 1

    def _tagged_fields(self, source: str, layout: WireStruct, conditions: list[str]) -> None:
        parts, saved = self.fresh("t"), self.fresh("w")
        self.names["uvarint"] = encode_unsigned
        self.line(f"{parts} = []")
        self.line(f"{saved} = w")
        for field, condition in zip(layout.tagged, conditions, strict=True):
            self.line(f"if {condition}:")
            self.indent += 1
            self.line("w = bytearray()")
            if field.struct is not None and not field.is_list:
                self._nested(f"{source}.{field.name}", field, True, null=b"\x00")
            else:
                self.field(f"{source}.{field.name}", field, True)
            self.flush()
            self.line(f"{parts}.append(uvarint({field.tag}) + uvarint(len(w)) + w)")
            self.indent -= 1
        self.line(f"w = {saved}")
        self.line(f"w += uvarint(len({parts})) + b''.join({parts})")


def _size_of(buffers: list[Buffer]) -> int:
    return sum(len(buffer) for buffer in buffers)


def _refuse(where: str, version: int, value: object) -> NoReturn:
    raise ValueError(f"{where} is {value!r}, but version {version} has no such field")


def _too_long(name: str, size: int) -> NoReturn:
    raise ValueError(f"{name} is {size} bytes long, more than the {MAX_STRING} that a string may have")


_BUFFER_BYTES = 256 * 1024
"""A buffer that has as many gets no further items: growing it would copy it."""


class _Functions(NamedTuple):
    """What encodes the pieces of one message in one version. Each is called with a buffer that it appends to."""

    head: Callable[..., list[Buffer]]
    """`(message, w, counts)`: the fields before the list."""
    items: Callable[..., Generator[None, None, list[Buffer]]]
    """`(items, w, counts)`, in steps."""
    tail: Callable[..., list[Buffer]]
    """`(message, w, counts)`: the fields behind the list."""
    is_flexible: bool


class ListEncoder:
    """Encodes a message whose one list may be very long: the items are bytes before the next ones are made.

    So the memory of such an answer is its bytes. The fields before the list and those behind it are encoded last, when
    the number of items is known. Items are encoded in steps, as one of them may be large: a topic with all its
    partitions.

    Not obvious:

    - An answer that may be much larger than its request is encoded item by item while it is made; its first buffer has
      the throttle time, which the charge stage may write.

    One message. It must have no `Records`, and its list must not be null.
    """

    def __init__(self, cls: type[Message], version: int, name: str) -> None:
        """`name`: of the list, a field of the message."""
        self._functions = _functions(cls, version, name)
        self._name = name
        self._full: list[Buffer] = []
        self._last = bytearray()
        self._count = 0
        self.size = 0
        """Bytes of the items so far."""
        self.errors = ErrorCounts(int)
        """How often each error code but NONE was there."""

    def add(self, items: list[Any]) -> Generator[None, None, None]:
        """Append items; they may be freed then."""
        before = len(self._last)
        yield from self._functions.items(items, self._last, self.errors)
        self._count += len(items)
        self.size += len(self._last) - before
        if len(self._last) >= _BUFFER_BYTES:
            self._full.append(self._last)
            self._last = bytearray()

    def message(self, message: Message, head: bytes) -> list[Buffer]:
        """The buffers of the message, whose own list must be empty, with these items. The first begins with `head`."""
        assert not getattr(message, self._name), "its items are encoded already"
        first = bytearray(head)
        self._functions.head(message, first, self.errors)
        is_flexible = self._functions.is_flexible
        first += encode_unsigned(self._count + 1) if is_flexible else self._count.to_bytes(4, "big")
        self._functions.tail(message, self._last, self.errors)
        return [first, *self._full, self._last]


@cache
def _functions(cls: type[Message], version: int, name: str) -> _Functions:
    layout = wire_struct(cls, version, is_flexible(cls, version))
    at = next(position for position, field in enumerate(layout.fields) if field.name == name)
    return _Functions(
        _head(_source(cls, version), layout, layout.fields[:at]),
        _items(_source(cls, version), layout, layout.fields[at]),
        _tail(_source(cls, version), layout, layout.fields[at + 1 :]),
        layout.flexible,
    )


def _source(cls: type[Message], version: int) -> EncoderSource:
    source = EncoderSource(cls, version)
    source.counts_errors = True
    return source


def _head(source: EncoderSource, layout: WireStruct, before: tuple[WireField, ...]) -> Any:
    def write() -> None:
        source.check_absent("m", layout)
        for field in before:
            source.field(f"m.{field.name}", field, layout.flexible)

    return source.function("m", write)


def _items(source: EncoderSource, layout: WireStruct, field: WireField) -> Any:
    source.in_steps = True
    return source.function("items", lambda: source.elements("items", field, layout.flexible))


def _tail(source: EncoderSource, layout: WireStruct, behind: tuple[WireField, ...]) -> Any:
    def write() -> None:
        for field in behind:
            source.field(f"m.{field.name}", field, layout.flexible)
        if layout.flexible:
            source.tagged_section("m", layout)

    return source.function("m", write)
