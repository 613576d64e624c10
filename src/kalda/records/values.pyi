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
def encode_records(
    rows: Sequence[tuple[object, ...]], reserve: int, base_offset: int, base_timestamp: int, with_offsets: bool
) -> tuple[bytearray, int]: ...
