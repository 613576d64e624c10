"""The topics that groups subscribe to, and the hash of them that a group keeps: where it differs, a topic was made,
deleted, extended or moved to other racks, and the group needs another target assignment.

The bytes that are hashed are Apache Kafka's, so that a group that moves between products is not reassigned for that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

import xxhash

from kalda.assignors.server_assignor import TopicShape
from kalda.base.ids import Uuid

_MAX_KEPT = 10_000
"""Shapes of topics. Members may name topics that do not exist, in any number."""
_MAGIC = b"\0"
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<Q")
_INT64_BIG = struct.Struct(">QQ")


class TopicSource(Protocol):
    """What is read of the cluster's metadata."""

    def shape_of(self, name: str) -> tuple[Uuid, TopicShape] | None:
        """Id and shape of the topic that has the name; None where there is none."""
        ...

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of the topic that has the id; None where there is none."""
        ...

    def names(self) -> Sequence[str]:
        """The names of all topics."""
        ...


class TopicCatalog:
    """The topics that groups subscribe to. Their hashes are kept until they change."""

    def __init__(self, source: TopicSource) -> None:
        self._source = source
        self.offset = -1
        """Of the metadata that was reported last."""
        self.created_offset = -1
        """Of the metadata with which a topic was last made: regular expressions may match more since."""
        self._shapes: dict[str, tuple[Uuid, TopicShape] | None] = {}
        """By name; None of a topic that does not exist."""
        self._hashes: dict[str, int] = {}
        """Of topics that exist, by name."""

    def on_changed(self, names: Iterable[str], offset: int, *, created: bool) -> None:
        """These topics have changed, or were deleted; `created`: some are new."""
        self.offset = offset
        if created or self.created_offset < 0:
            self.created_offset = offset
        for name in names:
            self._shapes.pop(name, None)
            self._hashes.pop(name, None)

    def names(self) -> Sequence[str]:
        """The names of all topics."""
        return self._source.names()

    def shape_of(self, name: str) -> tuple[Uuid, TopicShape] | None:
        """Id and shape of the topic that has the name; None where there is none."""
        if name not in self._shapes:
            if len(self._shapes) >= _MAX_KEPT:
                self._shapes.clear()
            self._shapes[name] = self._source.shape_of(name)
        return self._shapes[name]

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of the topic that has the id; None where there is none."""
        return self._source.name_of(topic_id)

    def hash_of(self, names: Iterable[str]) -> int:
        """The hash of the topics among `names` that exist, as a signed number; 0 where none does."""
        hashes = []
        for name in sorted(names, key=_java_order):
            found = self.shape_of(name)
            if found is not None:
                value = self._hashes.get(name)
                if value is None:
                    value = self._hashes[name] = _hash(*found)
                hashes.append(_INT64.pack(value))
        if not hashes:
            return 0
        digest = xxhash.xxh3_64_intdigest(b"".join(hashes))
        return digest - (1 << 64) if digest >> 63 else digest


def _hash(topic_id: Uuid, shape: TopicShape) -> int:
    parts = [
        _MAGIC,
        *(_INT64.pack(half) for half in _INT64_BIG.unpack(topic_id)),
        _string(shape.name),
        _INT32.pack(shape.partitions),
    ]
    for partition in range(shape.partitions):
        parts.append(_INT32.pack(partition))
        for rack in sorted(shape.racks[partition], key=_java_order) if shape.racks else ():
            parts += _INT32.pack(_units(rack)), _string(rack)
    return xxhash.xxh3_64_intdigest(b"".join(parts))


def _java_order(text: str) -> bytes:
    """Java compares UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _string(text: str) -> bytes:
    """UTF-16 code units and their number, as hash4j puts a string into a hash."""
    return text.encode("utf-16-le", "surrogatepass") + _INT32.pack(_units(text))
