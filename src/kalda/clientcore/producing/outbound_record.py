"""One record on its way from `send` to the accumulator: interceptors, serializers, partition choice, size check.

The same for the blocking and the asyncio producer; neither waits here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from kalda.base.allocation import new_tuple
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import ProducerConfig
from kalda.clientcore.connections.metadata import Partition
from kalda.clientcore.producing.producer_batch import RecordMetadata, encode_headers
from kalda.clientcore.producing.producer_errors import RecordTooLarge, SerializationError
from kalda.clientcore.serdes import close_all, codec_of, interceptors_of, serde_of
from kalda.records.appending import HEADER_SIZE, NO_HEADERS, RECORD_OVERHEAD, murmur2

# Keys and values to bytes: what `key.serializer` and `value.serializer` may be.
#
# The name of a type (`serdes`: `str`, `int`, `json`, Kafka's class names), an object with `serialize(topic, value)`,
# or a function of the value. Of a class the object has been made before (`interceptors.codec_of`). None stays None: a
# record without a key, or a tombstone.


@runtime_checkable
class Serializer(Protocol):
    """Makes bytes of a key or a value."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """The bytes. Raises any exception, which the caller of `send` gets as a `SerializationError`."""
        ...


_NO_CONFIGS: Mapping[str, object] = {}
_NO_HEADERS: Any = ()
Serialize = Callable[[str, Any, Any], bytes | None]
"""The bytes of a topic's key or value. The third argument are the record's headers: a list of pairs, where the
serializer `sees_headers`."""


def to_bytes(topic: str, value: Any, headers: Any = _NO_HEADERS) -> bytes | None:
    """Bytes as they are; other buffers as bytes."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SerializationError(
        f"{topic}: bytes are expected, not {type(value).__name__}; encode it, or set key_serializer or "
        'value_serializer, as value_serializer="json"'
    )


def serializer_of(key: str, given: object, configs: Mapping[str, object] = _NO_CONFIGS) -> Serialize:
    """The serializer that a configuration names; `configs` are its other keys. Raises `InvalidConfig`."""
    if given is None or given == "bytes":
        return to_bytes
    if isinstance(given, str):
        serde = serde_of(key, given, configs)
        return _none_or(_guarded(lambda _topic, value, _: serde.to_bytes(value), "the value is not of the type"))
    if isinstance(given, Serializer):
        return _guarded(_in_order(given.serialize))
    if callable(given):
        function = given
        if sees_headers(function):
            return _guarded(lambda _topic, value, headers: function(value, headers=headers))
        return _guarded(lambda _topic, value, _: function(value))
    raise InvalidConfig(f"Invalid value {given!r} for configuration {key}: it has no serialize(topic, value)")


def _none_or(serialize: Serialize) -> Serialize:
    def call(topic: str, value: Any, headers: Any = _NO_HEADERS) -> bytes | None:
        return None if value is None else serialize(topic, value, headers)

    return call


def sees_headers(given: object) -> bool:
    """Whether a serializer that was configured has a parameter `headers`."""
    serialize = getattr(given, "serialize", given)
    if not callable(serialize):
        return False
    try:
        return "headers" in inspect.signature(serialize).parameters
    except (TypeError, ValueError):  # a function without a signature, as some of C
        return False


def _in_order(serialize: Callable[..., Any]) -> Callable[[str, Any, Any], Any]:
    """`serialize(topic, value)`, or with `headers` behind the topic, as in Java, or anywhere else."""
    if not sees_headers(serialize):
        return lambda topic, value, _: serialize(topic, value)
    if list(inspect.signature(serialize).parameters)[1:2] == ["headers"]:
        return lambda topic, value, headers: serialize(topic, headers, value)
    return lambda topic, value, headers: serialize(topic, value, headers=headers)


def _guarded(serialize: Callable[[str, Any, Any], Any], what: str = "the serializer failed") -> Serialize:
    def call(topic: str, value: Any, headers: Any = _NO_HEADERS) -> bytes | None:
        try:
            return to_bytes(topic, serialize(topic, value, headers))
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(f"{topic}: {what}: {error}") from error

    return call


# What `partitioner.class` may be: an object, its class, the name of a Python class, or Kafka's own partitioner.

_KAFKAS: Final = "org.apache.kafka."
_ROUND_ROBIN: Final = (
    "org.apache.kafka.clients.producer.RoundRobinPartitioner", "RoundRobinPartitioner", "roundrobin", "round_robin",
)  # fmt: skip


class RoundRobinPartitioner:
    """Kafka's RoundRobinPartitioner: the records of a topic, whatever their keys, go to its partitions in turn. Those
    without a leader are left out while others have one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def among(self, topic: str, partitions: Sequence[Partition]) -> int:
        """The next partition of a topic."""
        count = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        available = [each.partition for each in partitions if each.leader >= 0]
        return available[count % len(available)] if available else count % len(partitions)

    def partition(self, topic: str, _key: Any, _key_bytes: bytes | None, _value: Any, partitions: int) -> int:
        """The next partition, where all have leaders."""
        count = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        return count % partitions


def partitioner_of(given: object, configs: Mapping[str, object]) -> Any:
    """The partitioner; None: the built-in one. A class is called without arguments, and `configure(configs)` of the
    object, where it has that. Raises `InvalidConfig`."""
    if given is None:
        return None
    if isinstance(given, str):
        given = RoundRobinPartitioner if given in _ROUND_ROBIN else _imported(given)
    if isinstance(given, type):
        try:
            given = given()
            configure = getattr(given, "configure", None)
            if callable(configure):
                configure(configs)
        except Exception as error:
            raise InvalidConfig(f"partitioner.class: the partitioner cannot be made: {error!r}") from error
    if not callable(getattr(given, "partition", None)):
        raise InvalidConfig(f"partitioner.class: an object with partition(...) is expected, not {given!r}")
    return given


def _imported(name: str) -> object:
    """The object of a name `package.module.Class`, or `package.module:Class`."""
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if name.startswith(_KAFKAS) or not module:
        raise InvalidConfig(
            f"partitioner.class: there is no partitioner {name}; {_ROUND_ROBIN[0]}, the name of a Python class, or an "
            "object with partition(...) is expected"
        )
    try:
        found: object = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(f"partitioner.class: {name} cannot be imported: {error}") from error
    return found


log = logging.getLogger(__name__)
_OVERHEAD = HEADER_SIZE + RECORD_OVERHEAD
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
        self.partitioner: Partitioner | RoundRobinPartitioner | None = partitioner_of(
            given.get("partitioner.class"), given
        )
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
        topic, value, key, _, timestamp_ms, headers = record
        if timestamp_ms is not None and not (hasattr(timestamp_ms, "__index__") and 0 <= timestamp_ms < 1 << 63):
            raise ValueError(f"timestamp_ms is {timestamp_ms!r}: milliseconds since 1970, not negative, are expected")
        pairs: Any = headers
        if self._see_headers:
            pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        key, value = self.key(topic, key, pairs), self.value(topic, value, pairs)
        tail = encode_headers(pairs) if pairs else NO_HEADERS
        size = _OVERHEAD + len(key or b"") + len(value or b"") + len(tail)
        if size > self._max_bytes:
            raise RecordTooLarge(
                f"the record is {size} bytes when serialized; max.request.size is {self._limits[0]} and buffer.memory "
                f"is {self._limits[1]}"
            )
        return new_tuple(Prepared, (key, value, tail, size))

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
