from collections.abc import Callable, Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from kalda.records.batch import Buffer, TimestampType

COMPILED: bool

K = TypeVar("K", covariant=True, default=Any)
V = TypeVar("V", covariant=True, default=Any)

Headers = Sequence[tuple[str, bytes | None]]
Read = Callable[[str, Headers, bytes], Any]

class Section:
    def __init__(
        self,
        topic: str,
        partition: int,
        timestamp_type: TimestampType,
        leader_epoch: int | None,
        data: Buffer,
        delivery_count: int | None = None,
    ) -> None: ...

class Record(Generic[K, V]):
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        timestamp_type: TimestampType,
        key: Any,
        value: Any,
        headers: Headers = (),
        leader_epoch: int | None = None,
        delivery_count: int | None = None,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def leader_epoch(self) -> int | None: ...
    @property
    def delivery_count(self) -> int | None: ...
    @property
    def key(self) -> K | None: ...
    @property
    def value(self) -> V | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def serialized_key_size(self) -> int: ...
    @property
    def serialized_value_size(self) -> int: ...

class SectionReader:
    def __init__(
        self,
        section: Section,
        count: int,
        base_offset: int,
        end_offset: int,
        base_timestamp: int,
        append_timestamp: int | None,
        read_key: Read | None = None,
        read_value: Read | None = None,
    ) -> None: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def bytes_read(self) -> int: ...
    def count_deliveries(self, count: int) -> None: ...
    def skip(self) -> None: ...
    def take(self, out: list[Record], room: int, start_offset: int) -> int: ...

class RecordIterator(Generic[K, V]):
    def __init__(self, refill: Callable[[], list[Record] | None]) -> None: ...
    def __iter__(self) -> RecordIterator[K, V]: ...
    def __next__(self) -> Record[K, V]: ...
    @property
    def last(self) -> Record[K, V] | None: ...
    @property
    def rest(self) -> list[Record[K, V]]: ...
    def replace_rest(self, records: list[Record[K, V]]) -> None: ...
