"""Encodes a message part by part: the items of a part are bytes before those of the next part are made.

The items are those of nested lists, one in the other, at a path of field names: ("topics", "partitions"). An item that
is in several parts has a piece of its nested list in each. The pieces become one list, so of each part the first and
the last item stay `OpenItem`: the item without its nested list, and that list encoded. All items between them are bytes
for good. Counts are written when everything is joined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any, NamedTuple

from kalda.protocol.encoder import EncoderSource
from kalda.protocol.notation import Buffer, Message, Struct, shallow_copy
from kalda.protocol.schema import WireField, WireStruct, is_flexible, wire_struct
from kalda.protocol.varint import encode_unsigned

_SMALL_BYTES = 16 * 1024
"""Buffers below this size are copied into one with their neighbours."""
_JOINED_BYTES = 256 * 1024
"""What such a buffer may have."""
_STEP_BYTES = 1024 * 1024
"""What is joined in one step."""
_PIECE_BYTES = 1024
"""As many bytes are copied in the time that a piece takes besides."""


class EncodedItems:
    """A list: its count, and its items as bytes, but those that may be continued."""

    __slots__ = ("count", "pieces")

    def __init__(self) -> None:
        self.count = 0
        self.pieces: deque[Buffer | OpenItem] = deque()

    def join(self, part: EncodedItems, joins: int) -> None:
        """Append the items of a part. At so many depths its first item continues the last one, where that is alike."""
        pieces = part.pieces
        self.count += part.count
        if joins and self.pieces and pieces:
            last, first = self.pieces[-1], pieces[0]
            if isinstance(last, OpenItem) and isinstance(first, OpenItem) and are_alike(last.item, first.item):
                last.nested.join(first.nested, joins - 1)
                pieces.popleft()
                self.count -= 1
        self.pieces += pieces

    def buffers(self) -> Iterator[Buffer]:
        """The bytes of all items, but the fields of open ones."""
        for each in self.pieces:
            if isinstance(each, OpenItem):
                yield from each.nested.buffers()
            else:
                yield each


class OpenItem:
    """An item whose nested list may be continued."""

    __slots__ = ("item", "nested")

    def __init__(self, item: Struct, nested: EncodedItems) -> None:
        self.item = item
        """Without the list."""
        self.nested = nested


def are_alike(one: Struct, other: Struct) -> bool:
    """Whether two items differ in their lists alone."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in type(one).declared
        if not isinstance(getattr(one, name), list)
    )


def join_others(whole: Message, part: Message) -> None:
    """Add to a message what that of a part has in its other fields: what is missing, and further elements of lists."""
    for name in type(whole).declared:
        mine, other = getattr(whole, name), getattr(part, name)
        if isinstance(mine, list):
            mine.extend([each for each in other if each not in mine])
        elif not mine:
            setattr(whole, name, other)


class _Level:
    """The functions for structs that have a list of the path, and for the items of that list."""

    def __init__(self, cls: type[Message], version: int, layout: WireStruct, name: str) -> None:
        self.name = name
        position = next(at for at, field in enumerate(layout.fields) if field.name == name)
        self.field: WireField = layout.fields[position]
        self.head = _head(EncoderSource(cls, version), layout, layout.fields[:position])
        """`(struct, w)`: appends the fields before the list."""
        self.tail = _tail(EncoderSource(cls, version), layout, layout.fields[position + 1 :])
        """`(struct, w)`: appends the fields behind the list."""
        self.items = _items(EncoderSource(cls, version), layout, self.field)
        """`(items, w) -> buffers`, in steps: items with all of their fields."""


def _head(writer: EncoderSource, layout: WireStruct, before: tuple[WireField, ...]) -> Any:
    def write() -> None:
        writer.check_absent("m", layout)
        for field in before:
            writer.field(f"m.{field.name}", field, layout.flexible)

    return writer.function("m", write)


def _tail(writer: EncoderSource, layout: WireStruct, behind: tuple[WireField, ...]) -> Any:
    def write() -> None:
        for field in behind:
            writer.field(f"m.{field.name}", field, layout.flexible)
        if layout.flexible:
            writer.tagged_section("m", layout)

    return writer.function("m", write)


def _items(writer: EncoderSource, layout: WireStruct, field: WireField) -> Any:
    writer.in_steps = True
    return writer.function("items", lambda: writer.elements("items", field, layout.flexible))


class EncodedPart(NamedTuple):
    """A message, or a part of one: what it has beside its items, and these."""

    message: Any
    items: EncodedItems


class PartEncoder:
    """Encodes messages of one version in parts."""

    def __init__(self, cls: type[Message], version: int, path: tuple[str, ...]) -> None:
        self._is_flexible = is_flexible(cls, version)
        layout = wire_struct(cls, version, self._is_flexible)
        self._levels: list[_Level] = []
        for name in path:
            level = _Level(cls, version, layout, name)
            self._levels.append(level)
            if level.field.struct is not None:
                layout = wire_struct(level.field.struct, version, self._is_flexible)
        self.nested = path[1:]
        """The names of the lists below the outermost."""

    def take_items(self, part: Message) -> list[Any]:
        """The items of a part, which has none afterwards."""
        name = self._levels[0].name
        items: list[Any] = getattr(part, name)
        setattr(part, name, [])
        return items

    def items(self, part: Message, joins: int) -> Generator[None, None, EncodedItems]:
        """The items of a part, encoded; they may be freed then. At so many depths the first one is the rest of the last
        item of the part before; a rest without a nested list is left out, as that item is encoded already."""
        return self._encoded(0, getattr(part, self._levels[0].name), joins)

    def _encoded(self, depth: int, items: list[Any], joins: int) -> Generator[None, None, EncodedItems]:
        level = self._levels[depth]
        encoded = EncodedItems()
        if depth + 1 == len(self._levels):
            if joins:
                items = items[1:]
            encoded.pieces += yield from level.items(items, bytearray())
        elif items:
            encoded.pieces.append((yield from self._opened(depth + 1, items[0], max(0, joins - 1))))
            if len(items) > 1:
                encoded.pieces += yield from level.items(items[1:-1], bytearray())
                encoded.pieces.append((yield from self._opened(depth + 1, items[-1], 0)))
        encoded.count = len(items)
        return encoded

    def _opened(self, depth: int, item: Struct, joins: int) -> Generator[None, None, OpenItem]:
        name = self._levels[depth].name
        bare = shallow_copy(item)
        setattr(bare, name, [])
        return OpenItem(bare, (yield from self._encoded(depth, getattr(item, name), joins)))

    def whole(self, head: bytes, message: Message, items: EncodedItems) -> Generator[None, None, list[Buffer]]:
        """The buffers of a message that begins with `head`: all fields of `message`, but these items in its list. They
        are used up."""
        joined = _Joined(head)
        yield from self._write(joined, 0, message, items)
        return joined.buffers

    def _write(self, joined: _Joined, depth: int, struct: Struct, items: EncodedItems) -> Generator[None, None, None]:
        level = self._levels[depth]
        w = joined.room()
        level.head(struct, w)
        w += encode_unsigned(items.count + 1) if self._is_flexible else items.count.to_bytes(4, "big")
        while items.pieces:
            piece = items.pieces.popleft()
            if isinstance(piece, OpenItem):
                yield from self._write(joined, depth + 1, piece.item, piece.nested)
            else:
                joined.add(piece)
                if joined.step_bytes > _STEP_BYTES:
                    joined.step_bytes = 0
                    yield
        level.tail(struct, joined.room())


class _Joined:
    """Buffers, of which the small ones are joined."""

    def __init__(self, head: bytes) -> None:
        self._last: bytearray | None = bytearray(head)
        """The last buffer, where it is one of those that others are joined in."""
        self.buffers: list[Buffer] = [self._last]
        self.step_bytes = 0
        """Added in this step."""

    def room(self) -> bytearray:
        """A buffer to append to."""
        if self._last is None or len(self._last) >= _JOINED_BYTES:
            self._last = bytearray()
            self.buffers.append(self._last)
        return self._last

    def add(self, piece: Buffer) -> None:
        """Append a buffer."""
        self.step_bytes += _PIECE_BYTES + len(piece)
        if len(piece) < _SMALL_BYTES:
            w = self.room()
            w += piece
        else:
            self.buffers.append(piece)
            self._last = None


@cache
def part_encoder(cls: type[Message], version: int, path: tuple[str, ...]) -> PartEncoder:
    """What encodes messages of a class and version in parts of the items at `path`; made once."""
    return PartEncoder(cls, version, path)
