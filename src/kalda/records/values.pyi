from collections.abc import Sequence
from typing import TypeVar

from kalda.records.batch import Buffer

R = TypeVar("R", bound=tuple[object, ...])

def decode_records(
    record_type: type[R],
    data: Buffer,
    pos: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None,
) -> list[R]: ...

INT8: int
INT16: int
INT32: int
INT64: int
BOOL: int
UUID: int
STRING: int
INT32S: int
UUIDS: int

Program = tuple[
    type, tuple[tuple[str, object], ...], tuple[tuple[str, int, bool], ...], tuple[tuple[str, int, bool], ...], int
]

def decode_flat(
    data: Buffer, pos: int, end: int, count: int, programs: dict[int, Program], record_type: type[R]
) -> tuple[list[R | bytes | None], int]: ...
def encode_records(
    rows: Sequence[tuple[object, ...]], reserve: int, base_offset: int, base_timestamp: int, with_offsets: bool
) -> tuple[bytearray, int]: ...
