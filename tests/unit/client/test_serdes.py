"""Kafka's own serializers, deserializers and partitioners, by their names: the bytes are those of the Java classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from kalda.base.configs.consumer import consumer_config
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import producer_config
from kalda.clientcore.connections.metadata import Partition
from kalda.clientcore.producing.outbound_record import Outgoing, ProducerRecord, serializer_of
from kalda.clientcore.producing.producer_errors import SerializationError
from kalda.clientcore.serdes import codec_of, deserializer_of

PACKAGE = "org.apache.kafka.common.serialization."
ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
# Kafka's name, short names, a value, its bytes as Apache Kafka 4.3.1 writes them.
TYPES: list[tuple[str, tuple[str, ...], Any, str]] = [
    ("Short", ("short", "int16"), -2, "fffe"),
    ("Integer", ("integer", "int32"), -70000, "fffeee90"),
    ("Long", ("long", "int64", "int"), 1 << 40, "0000010000000000"),
    ("Float", ("float32",), 1.5, "3fc00000"),
    ("Double", ("double", "float64", "float"), -0.1, "bfb999999999999a"),
    ("Boolean", ("boolean", "bool"), True, "01"),
    ("String", ("string", "str"), "é", "c3a9"),
    ("UUID", ("uuid",), ID, str(ID).encode().hex()),
    ("ByteBuffer", ("bytebuffer",), b"\1\2", "0102"),
    ("ByteArray", ("bytes",), b"\1\2", "0102"),
    ("Bytes", (), b"\1\2", "0102"),
]
LISTS: list[tuple[str, Any, str]] = [
    ("short", [1, None, 3], "0000000001000000010000000300010003"),
    ("string", ["a", None, "bc"], "01000000030000000161ffffffff000000026263"),
    ("uuid", [ID], "000000000000000001" + str(ID).encode().hex()),
    ("boolean", [True, False], "010000000200000001010000000100"),
    ("integer", [], "000000000000000000"),
]


@pytest.mark.parametrize(("kafkas", "short", "value", "data"), TYPES, ids=[each[0] for each in TYPES])
def test_types_by_kafkas_names_and_in_short(kafkas: str, short: tuple[str, ...], value: Any, data: str) -> None:
    for name in (f"{PACKAGE}{kafkas}Serializer", *short):
        assert serializer_of("key.serializer", name)("t", value) == bytes.fromhex(data)
        assert serializer_of("key.serializer", name)("t", None) is None
    for name in (f"{PACKAGE}{kafkas}Deserializer", *short):
        read = deserializer_of("key.deserializer", name)
        assert (bytes.fromhex(data) if read is None else read("t", (), bytes.fromhex(data))) == value


@pytest.mark.parametrize(("inner", "value", "data"), LISTS, ids=[each[0] for each in LISTS])
def test_lists(inner: str, value: Any, data: str) -> None:
    configs = {"default.list.value.serde.inner": f"{PACKAGE}Serdes${inner.title().replace('Uuid', 'UUID')}Serde"}
    for name in (f"list[{inner}]", PACKAGE + "ListSerializer"):
        assert serializer_of("value.serializer", name, configs)("t", value) == bytes.fromhex(data)
    for name in (f"list[{inner}]", PACKAGE + "ListDeserializer"):
        read = deserializer_of("value.deserializer", name, configs)
        assert read is not None
        assert read("t", (), bytes.fromhex(data)) == value


@pytest.mark.parametrize("data", ["", "02", "0000000001", "017fffffff", "0100000001fffffffe", "01000000010000000561"])
def test_damaged_lists_are_refused(data: str) -> None:
    read = deserializer_of("value.deserializer", "list[string]")
    assert read is not None
    with pytest.raises(ValueError, match=r"list|elements"):
        read("t", (), bytes.fromhex(data))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("short", 1 << 15),
        ("integer", 1 << 31),
        ("integer", "1"),
        ("float32", "x"),
        ("bool", 1),
        ("uuid", "x"),
        ("str", b"x"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SerializationError, match="expected"):
        serializer_of("value.serializer", name)("t", value)


@pytest.mark.parametrize(
    ("name", "size"), [("Short", 3), ("Integer", 8), ("Long", 4), ("Double", 4), ("Boolean", 2), ("Void", 1)]
)
def test_bytes_of_another_size_are_refused(name: str, size: int) -> None:
    read = deserializer_of("value.deserializer", f"{PACKAGE}{name}Deserializer")
    assert read is not None
    with pytest.raises(ValueError, match="expected"):
        read("t", (), bytes(size))


def test_classes_of_python_and_unknown_names() -> None:
    class Upper:
        def serialize(self, _topic: str, value: str) -> bytes:
            return value.upper().encode()

    class Lower:
        def deserialize(self, _topic: str, _headers: Any, data: bytes) -> str:
            return data.decode().lower()

    assert serializer_of("value.serializer", codec_of(Upper, "serialize", {}, is_key=False))("t", "a") == b"A"
    read = deserializer_of("value.deserializer", codec_of(Lower, "deserialize", {}, is_key=False))
    assert read is not None
    assert read("t", (), b"A") == "a"
    for name in ("org.acme.Serializer", PACKAGE + "NoSerializer", "list[no]", "list"):
        with pytest.raises(InvalidConfig):
            serializer_of("value.serializer", name)


def test_kafkas_names_in_the_configuration_of_clients() -> None:
    given = {
        "bootstrap.servers": "h:1",
        "key.serializer": PACKAGE + "ListSerializer",
        "default.list.key.serde.inner": PACKAGE + "Serdes$ShortSerde",
        "value.serializer": PACKAGE + "IntegerSerializer",
    }
    prepared = Outgoing(producer_config(given, {})).prepare(ProducerRecord("t", 1, [1]))
    assert prepared[:2] == (bytes.fromhex("0000000000000000010001"), bytes.fromhex("00000001"))
    config = consumer_config({"bootstrap.servers": "h:1", "key.deserializer": PACKAGE + "ShortDeserializer"}, {})
    assert config.given["key.deserializer"] == PACKAGE + "ShortDeserializer"


# -- partitioners


class Last:
    """Chooses the last partition."""

    configs: Any = None

    def configure(self, configs: Any) -> None:
        self.configs = configs

    def partition(self, _topic: str, _key: Any, _key_bytes: bytes | None, _value: Any, partitions: int) -> int:
        return partitions - 1


def choices(given: object, partitions: Sequence[Partition], count: int) -> list[int | None]:
    outgoing = Outgoing(producer_config({"bootstrap.servers": "h:1", "partitioner.class": given}, {}))
    record = ProducerRecord("t", b"v", b"k")
    return [outgoing.partition(record, outgoing.prepare(record), partitions) for _ in range(count)]


def partitions_of(*leaders: int) -> list[Partition]:
    return [Partition(index, leader, 0, (0,), (0,), (), 0) for index, leader in enumerate(leaders)]


def test_kafkas_round_robin_partitioner() -> None:
    name = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
    assert choices(name, partitions_of(0, 1, 0), 5) == [0, 1, 2, 0, 1]
    assert choices(name, partitions_of(0, -1, 0), 4) == [0, 2, 0, 2], "those with a leader"
    assert choices(name, partitions_of(-1, -1), 3) == [0, 1, 0], "no partition has one"


@pytest.mark.parametrize("given", [Last, Last(), f"{__name__}.Last", f"{__name__}:Last"])
def test_partitioners_of_python(given: object) -> None:
    assert choices(given, partitions_of(0, 0, 0), 2) == [2, 2]


def test_a_class_is_configured() -> None:
    outgoing = Outgoing(producer_config({"bootstrap.servers": "h:1", "partitioner.class": Last}, {}))
    assert outgoing.partitioner.configs["bootstrap.servers"] == "h:1"


@pytest.mark.parametrize(
    "given", ["org.apache.kafka.clients.producer.internals.DefaultPartitioner", "os.path", "no.Such", 7]
)
def test_what_is_no_partitioner_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfig, match="partitioner"):
        Outgoing(producer_config({"bootstrap.servers": "h:1", "partitioner.class": given}, {}))
