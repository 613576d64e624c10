"""Encodes a message whose one list may be very long: the items are bytes before the next ones are made.

So the memory of such an answer is its bytes. The fields before the list and those behind it are encoded last, when the
number of items is known. Items are encoded in steps, as one of them may be large: a topic with all its partitions.

Not obvious:

- An answer that may be much larger than its request is encoded item by item while it is made; its first buffer has
  the throttle time, which the charge stage may write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import Any, NamedTuple

from kalda.protocol.encoder import EncoderSource, ErrorCounts
from kalda.protocol.notation import Buffer, Message
from kalda.protocol.schema import WireField, WireStruct, is_flexible, wire_struct
from kalda.protocol.varint import encode_unsigned

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
    """One message. It must have no `Records`, and its list must not be null."""

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
