"""Columns as Arrow lays them out, without Arrow, and the sections of records that they are decoded from."""

from __future__ import annotations

from array import array
from typing import NamedTuple, TypeAlias

from kalda.records.batch import Buffer

Ints: TypeAlias = "memoryview | array[int]"


class Column(NamedTuple):
    """A column of bytes."""

    ends: Ints
    """Where in `data` each value ends, as int32: one more than there are rows, the first where the first row begins."""
    data: Buffer
    valid: Buffer = b""
    """A bit for each value that is not null; empty where none is null."""
    bit: int = 0
    """The position of the first row in `valid`."""


class Section(NamedTuple):
    """The records of one batch, decompressed."""

    data: Buffer
    records: int
    base_offset: int
    base_timestamp: int
    append_timestamp: int | None
    """That of all records, in milliseconds, where the broker has stamped them."""
