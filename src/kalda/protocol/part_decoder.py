"""Decodes a message part by part: its items are never all in memory.

The items are those of nested lists, one in the other, at a path of field names: ("topics", "partitions"). First the
whole message is checked, and only what is beside the items is kept of it: its `Outline`. Then the items are decoded
again, a part at a time, from the same bytes. An item whose nested list is larger than a part is in several parts, each
with a piece of that list and with all other fields of the item. The fields behind a nested list are reached by a walk
over it, so an item is decoded once for each list on the path that it is in, and once for the check.

Everything is done in bounded steps. Invariant: after the check, no part fails to decode.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache
from typing import Any, NamedTuple

from kalda.protocol.decoder import MAX_ELEMENTS, DecoderSource, TooManyElements
from kalda.protocol.notation import Buffer, Message, shallow_copy
from kalda.protocol.schema import WireField, WireStruct, is_flexible, wire_struct

_MAX_PART_ELEMENTS = 4_000
"""What the items of a part may have in them; a long string counts as many. Some more where one item has more."""


class Outline(NamedTuple):
    """What a message has beside its items, and where they are."""

    message: Any
    """Its outermost list on the path is empty, or null."""
    at: int
    """Where the first item of that list is."""
    outer_items: int
    """Items of that list."""
    items: int
    """Items at all depths of the path together."""
    others: int
    """Structs, strings and numbers in other lists, also in those of items."""


class Part(NamedTuple):
    """A piece of the outermost list."""

    items: list[Any]
    size: int
    """Items in it, at all depths; those with long strings count as more."""
    joins: int
    """At how many depths the first item is the rest of the last item of the part before."""


class _Level:
    """The functions for structs that have a list of the path."""

    def __init__(self, cls: type[Message], version: int, layout: WireStruct, path: tuple[str, ...]) -> None:
        """`path`: that list, and the lists below it."""
        self.name = path[0]
        position = next(at for at, field in enumerate(layout.fields) if field.name == self.name)
        self.field: WireField = layout.fields[position]
        before, behind = layout.fields[:position], layout.fields[position + 1 :]
        self.head = _head(DecoderSource(cls, version), layout, before, self.field)
        """`(buf, pos) -> (struct, count, pos, left)`: the fields before the list, which is empty or null."""
        self.skip = _skip(DecoderSource(cls, version), layout, self.field, path[1:])
        """`(buf, pos, count) -> (pos, left, items)`, in steps: the position behind the list."""
        self.tail = _tail(DecoderSource(cls, version), layout, behind)
        """`(buf, pos, struct) -> (pos, left)`: the fields behind the list."""


def _head(writer: DecoderSource, layout: WireStruct, before: tuple[WireField, ...], listed: WireField) -> Any:
    def write() -> None:
        writer.start("m", layout)
        for field in before:
            writer.field(f"m.{field.name}", field, layout.flexible)
        writer.length(layout.flexible, "i")
        writer.line(f"m.{listed.name} = {'None if n == -1 else []' if listed.nullable else '[]'}")

    return writer.function("", write, "m, n, pos, left")


def _skip(writer: DecoderSource, layout: WireStruct, field: WireField, below: tuple[str, ...]) -> Any:
    def write() -> None:
        writer.line("items = 0")
        writer.skip_elements(field, layout.flexible, below)

    writer.in_steps = True
    return writer.function("n, ", write, "pos, left, items")


def _tail(writer: DecoderSource, layout: WireStruct, behind: tuple[WireField, ...]) -> Any:
    def write() -> None:
        for field in behind:
            writer.field(f"m.{field.name}", field, layout.flexible)
        if layout.flexible:
            writer.tagged_section("m", layout)

    return writer.function("m, ", write, "pos, left")


class PartDecoder:
    """Decodes messages of one version in parts."""

    def __init__(self, cls: type[Message], version: int, path: tuple[str, ...]) -> None:
        layout: WireStruct | None = wire_struct(cls, version, is_flexible(cls, version))
        self._levels: list[_Level] = []
        for depth in range(len(path)):
            assert layout is not None, f"{path[depth]} is in no struct"
            level = _Level(cls, version, layout, path[depth:])
            self._levels.append(level)
            flexible = layout.flexible
            layout = None if level.field.struct is None else wire_struct(level.field.struct, version, flexible)
        writer = DecoderSource(cls, version)
        last = self._levels[-1].field
        self._items = writer.function(
            "n, ", lambda: writer.elements("items", last, flexible, _MAX_PART_ELEMENTS), "items, pos"
        )
        """`(buf, pos, count) -> (items, pos)` of the innermost list; not all of them where they have long strings."""

    def outline(
        self, frame: Buffer, pos: int, max_items: int, max_others: int, numbers_per_other: int = 1
    ) -> Generator[None, None, Outline]:
        """Check the message that begins at `pos`. Raises `InvalidRequest`; `TooManyElements` where it has more than
        these items and others, where so many numbers of a list count as one."""
        level = self._levels[0]
        message, count, at, left = level.head(frame, pos, max_others, numbers_per_other)
        end, items = at, 0
        if getattr(message, level.name) is not None:
            end, left, items = yield from level.skip(frame, at, count, left, numbers_per_other)
        if items > max_items:
            raise TooManyElements(f"{level.name} has too many elements: {items}")
        _, left = level.tail(frame, end, message, left, numbers_per_other)
        return Outline(message, at, max(0, count), items, max_others - left)

    def parts(self, frame: Buffer, outline: Outline, size: int) -> Iterator[Part | None]:
        """Parts of about `size` items; None after a step that has not completed one."""
        return self._cut(1, frame, outline.at, outline.outer_items, size)

    def _cut(self, depth: int, frame: Buffer, pos: int, count: int, size: int) -> Iterator[Part | None]:
        """Cut `count` items of the list at that depth, the first of which is at `pos`."""
        if depth == len(self._levels):
            while count:
                items, pos = self._items(frame, pos, min(size, count))
                count -= len(items)
                yield Part(items, len(items), 0)
            return
        level = self._levels[depth]
        part: list[Any] = []
        size_so_far = joins = 0
        for _ in range(count):
            item, nested, at, left = level.head(frame, pos)
            pos = at
            if nested > 0:
                pos, _, _ = yield from level.skip(frame, at, nested)
            pos, left_of_tail = level.tail(frame, pos, item)
            weight = 1 + 2 * MAX_ELEMENTS - left - left_of_tail
            empty: list[Part | None] = [Part(getattr(item, level.name), 0, 0)]
            is_first = True
            for piece in self._cut(depth + 1, frame, at, nested, size) if nested > 0 else empty:
                if piece is None:
                    yield None
                    continue
                if part and (size_so_far + piece.size >= size or not is_first):
                    yield Part(part, size_so_far, joins)
                    part, size_so_far, joins = [], 0, 0
                if not part and not is_first:
                    joins = 1 + piece.joins
                copy = shallow_copy(item)
                setattr(copy, level.name, piece.items)
                part.append(copy)
                size_so_far += weight + piece.size
                is_first = False
        if part:
            yield Part(part, size_so_far, joins)


@cache
def part_decoder(cls: type[Message], version: int, path: tuple[str, ...]) -> PartDecoder:
    """What decodes messages of a class and version in parts of the items at `path`; made once."""
    return PartDecoder(cls, version, path)
