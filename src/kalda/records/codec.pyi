from collections.abc import Sequence

from kalda.records.arrow import Column, Ints, Section
from kalda.records.batch import Buffer

COMPILED: bool
MIN_RECORD_SIZE: int

def survey(data: Buffer, pos: int, end: int, count: int, base_timestamp: int) -> tuple[int, int, int, int]: ...
def decode_columns(
    sections: Sequence[Section], offsets: Ints, timestamps: Ints, keys: Column, values: Column, header_ends: Ints
) -> tuple[int, int, int, int]: ...
def to_micros(millis: Ints, micros: Ints) -> bool: ...
def decode_header_columns(sections: Sequence[Section], header_names: Column, header_contents: Column) -> int: ...
def check_columns(size: int, ends: Ints, rows: int) -> None: ...
def encode_columns(
    out: Buffer,
    pos: int,
    first: int,
    last: int,
    timestamps: Ints,
    key_column: Column,
    value_column: Column,
    tail_column: Column,
) -> tuple[int, int, int]: ...
def encode_headers(header_ends: Ints, header_names: Column, header_contents: Column, tail_column: Column) -> int: ...
