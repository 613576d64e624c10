from typing import Any, TypeVar

from kalda.records.arrow import Column

COMPILED: bool
HEADER_SIZE: int
RECORD_OVERHEAD: int
NO_HEADERS: bytes

class Ticket:
    batch: Any
    index: int
    timestamp: int
    callback: Any
    key_size: int
    value_size: int
    def __init__(self, batch: Any = ..., index: int = ..., timestamp: int = ..., callback: Any = ...) -> None: ...

T = TypeVar("T", bound=Ticket)

class Records:
    data: bytearray
    position: int
    limit: int
    switch_at: int
    count: int
    largest_record: int
    base_timestamp: int
    max_timestamp: int
    is_open: bool
    tickets: list[Any] | None
    def __init__(self, data: bytearray, limit: int) -> None: ...
    def put(self, timestamp: int, key: bytes | None, value: bytes | None, tail: bytes, ticket: Ticket) -> bool: ...

class TopicAppender:
    ticket_type: type[Ticket]
    open: list[Records | None]
    sticky: Records | None
    ignore_keys: bool
    def __init__(self, ticket_type: type[Ticket], partitions: int, ignore_keys: bool) -> None: ...
    def append(
        self, value: object, key: object, partition: object, timestamp: object, callback: object, now: float
    ) -> Any: ...

def group_rows(keys: Column, partitions: int, without_key: int, order: memoryview, starts: memoryview) -> None: ...
def murmur2(data: bytes) -> int: ...
