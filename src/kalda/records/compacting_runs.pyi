from array import array

from kalda.records.batch import Buffer
from kalda.records.key_offsets import KeyOffsets

COMPILED: bool
ROOM_BYTES: int

def crc_by_table(data: Buffer) -> int: ...
def map_run(offsets: KeyOffsets, chunk: Buffer, at: int, stop: int, start: int) -> int: ...

class RunFilter:
    def __init__(
        self,
        offsets: KeyOffsets,
        last_offsets: array[int],
        round_end: int,
        now_ms: int,
        delete_retention_ms: int,
        interval_bytes: int,
        room_bytes: int = ...,
    ) -> None: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def written(self) -> int: ...
    def run(self, chunk: Buffer, at: int, stop: int) -> int: ...
    def take(self) -> tuple[memoryview, list[tuple[int, int, int]]]: ...
    def skip(self, size: int) -> None: ...
    def clear(self) -> None: ...
