"""One record on its way from `send` to the accumulator: interceptors, serializers, partition choice, size check.

The same for the blocking and the asyncio producer; neither waits here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kalda.base.configs.producer import ProducerConfig
from kalda.client.core.cluster_values import Partition
from kalda.client.core.interceptors import close_all, codec_of, interceptors_of
from kalda.client.core.partitioner_classes import RoundRobinPartitioner, partitioner_of
from kalda.client.core.producer_batch import RecordMetadata, encode_headers
from kalda.client.core.producer_errors import RecordTooLarge
from kalda.client.core.serializers import Serialize, sees_headers, serializer_of, to_bytes
from kalda.records.appending import HEADER_SIZE, RECORD_OVERHEAD, murmur2

log = logging.getLogger(__name__)
_OVERHEAD = HEADER_SIZE + RECORD_OVERHEAD
_new_tuple = tuple.__new__
Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
OnDelivery = Callable[[RecordMetadata, Exception | None], object]
"""Called once with where the record is and None, or with its topic and partition and the error."""


class ProducerRecord(NamedTuple):
    """A record as it was given to `send`; interceptors may replace it."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers | None = None


class ProducerInterceptor(Protocol):
    """Sees, and may replace, each record before it is serialized; sees what became of it. What it raises is logged."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send instead."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """The record is done. Runs on the I/O thread, before `on_delivery`; where `send` itself fails or raises, on its
        thread. With an error, `metadata` has the topic, and the partition or -1 where none was chosen."""
        ...

    # It may have `configure(configs)`, called with the producer's keys as they were given, and `close()`.


class Partitioner(Protocol):
    """Chooses the partition of each record that has none (`partitioner.class`)."""

    def partition(self, topic: str, key: Any, key_bytes: bytes | None, value: Any, partitions: int) -> int:
        """From 0 up to `partitions`."""
        ...


class Prepared(NamedTuple):
    """A record as the accumulator takes it."""

    key: bytes | None
    value: bytes | None
    tail: bytes
    size_bytes: int
    """An upper bound of its encoded size."""


class Outgoing:
    """What a configuration does to every record."""

    def __init__(self, config: ProducerConfig) -> None:
        given = config.given
        of_key = codec_of(given.get("key.serializer"), "serialize", given, is_key=True)
        of_value = codec_of(given.get("value.serializer"), "serialize", given, is_key=False)
        self.key: Serialize = serializer_of("key.serializer", of_key, given)
        self.value: Serialize = serializer_of("value.serializer", of_value, given)
        self._see_headers = sees_headers(of_key) or sees_headers(of_value)
        made = interceptors_of(given, "on_send and on_acknowledgement")
        self.interceptors: Sequence[ProducerInterceptor] = made
        self.partitioner: Any = partitioner_of(given.get("partitioner.class"), given)
        self._to_close: tuple[object, ...] = (*made, self.partitioner, of_key, of_value)
        self._ignore_keys = config.ignore_keys
        self._max_bytes = min(config.max_request_size, config.buffer_memory)
        self._limits = config.max_request_size, config.buffer_memory

    @property
    def is_plain(self) -> bool:
        """Whether a record of bytes is sent as it is: nothing but the partition is to be decided."""
        return self.key is to_bytes and self.value is to_bytes and not self.interceptors and self.partitioner is None

    def intercept(self, record: ProducerRecord) -> ProducerRecord:
        """The record after all interceptors."""
        for interceptor in self.interceptors:
            try:
                record = interceptor.on_send(record)
            except Exception:
                log.exception("an interceptor's on_send failed; the record is sent without it")
        return record

    def close(self) -> None:
        """The producer has ended: interceptors, partitioner and serializers that have a `close` are closed, once."""
        closed, self._to_close = self._to_close, ()
        close_all(closed)

    def acknowledge(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Report to all interceptors what became of a record."""
        for interceptor in self.interceptors:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:
                log.exception("an interceptor's on_acknowledgement failed")

    def prepare(self, record: ProducerRecord) -> Prepared:
        """Serialize. Raises `SerializationError`, `RecordTooLarge`, and `ValueError` or `TypeError` for what else is no
        part of a record."""
        topic, timestamp_ms = record.topic, record.timestamp_ms
        if timestamp_ms is not None and not (hasattr(timestamp_ms, "__index__") and 0 <= timestamp_ms < 1 << 63):
            raise ValueError(f"timestamp_ms is {timestamp_ms!r}: milliseconds since 1970, not negative, are expected")
        headers: Any = record.headers
        if self._see_headers:
            headers = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        key, value = self.key(topic, record.key, headers), self.value(topic, record.value, headers)
        tail = encode_headers(headers)
        size = _OVERHEAD + len(key or b"") + len(value or b"") + len(tail)
        if size > self._max_bytes:
            raise RecordTooLarge(
                f"the record is {size} bytes when serialized; max.request.size is {self._limits[0]} and buffer.memory "
                f"is {self._limits[1]}"
            )
        return _new_tuple(Prepared, (key, value, tail, size))

    def partition(self, record: ProducerRecord, prepared: Prepared, known: Sequence[Partition]) -> int | None:
        """The partition, of those that are known; None where the built-in sticky partitioner chooses it. Raises
        `ValueError` where a custom partitioner chooses one that does not exist."""
        if record.partition is not None:
            return record.partition
        partitions = len(known)
        if isinstance(self.partitioner, RoundRobinPartitioner):
            return self.partitioner.among(record.topic, known)
        if self.partitioner is not None:
            chosen: int = self.partitioner.partition(record.topic, record.key, prepared.key, record.value, partitions)
            if not 0 <= chosen < partitions:
                raise ValueError(f"the partitioner chose partition {chosen} of {record.topic}, which has {partitions}")
            return chosen
        if prepared.key is not None and not self._ignore_keys:
            return (murmur2(prepared.key) & 0x7FFFFFFF) % partitions
        return None
