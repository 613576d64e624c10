from array import array
from collections.abc import Sequence

from kalda.records.batch import Buffer

COMPILED: bool
MIN_RECORD_SIZE: int

Ints = memoryview | array[int]
Section = tuple[Buffer, int, int, int, int | None]

def survey(data: Buffer, pos: int, end: int, count: int, base_timestamp: int) -> tuple[int, int, int, int]: ...
def decode_columns(
    sections: Sequence[Section],
    offsets: Ints,
    timestamps: Ints,
    key_ends: Ints,
    key_data: Buffer,
    key_valid: Buffer,
    value_ends: Ints,
    value_data: Buffer,
    value_valid: Buffer,
    header_ends: Ints,
) -> tuple[int, int, int, int]: ...
def to_micros(millis: Ints, micros: Ints) -> bool: ...
def decode_header_columns(
    sections: Sequence[Section],
    name_ends: Ints,
    name_data: Buffer,
    content_ends: Ints,
    content_data: Buffer,
    content_valid: Buffer,
) -> int: ...
def check_columns(size: int, ends: Ints, rows: int) -> None: ...
def encode_columns(
    out: Buffer,
    pos: int,
    first: int,
    last: int,
    timestamps: Ints,
    key_ends: Ints,
    key_data: Buffer,
    key_valid: Buffer,
    key_bit: int,
    value_ends: Ints,
    value_data: Buffer,
    value_valid: Buffer,
    value_bit: int,
    tail_ends: Ints,
    tail_data: Buffer,
) -> tuple[int, int, int]: ...
def encode_headers(
    header_ends: Ints,
    name_ends: Ints,
    name_data: Buffer,
    content_ends: Ints,
    content_data: Buffer,
    content_valid: Buffer,
    content_bit: int,
    tail_ends: Ints,
    tail_data: Buffer,
) -> int: ...
