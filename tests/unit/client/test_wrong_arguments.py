"""What clients say of arguments of a wrong type or value, and that they go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_broker import AcknowledgingBroker, ScriptedBroker

from kalda import Admin, Consumer, Producer, aio
from kalda.base.configs.definition import InvalidConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.connections.connections import ConnectionConfig, Connections
from kalda.clientcore.connections.errors import Backoff
from kalda.clientcore.connections.metadata import Broker
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import encode_response
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

TIMEOUT_S = 20


@pytest.fixture
def broker() -> Iterator[AcknowledgingBroker]:
    with AcknowledgingBroker() as made:
        yield made


WRONG_RECORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": 3}, TypeError, "3 is not the name of a topic"),
    ({"topic": None}, TypeError, "None is not the name of a topic"),
    ({"topic": "t", "partition": "1"}, TypeError, "partition '1': an int is expected"),
    ({"topic": "t", "timestamp_ms": -5}, ValueError, "timestamp_ms is -5"),
    ({"topic": "t", "timestamp_ms": 1.5}, ValueError, r"timestamp_ms is 1\.5"),
    ({"topic": "t", "timestamp_ms": "now"}, ValueError, "timestamp_ms is 'now'"),
    ({"topic": "t", "timestamp_ms": 1 << 63}, ValueError, "timestamp_ms is 9223372036854775808"),
    ({"topic": "t", "headers": [("a", "x")]}, TypeError, r"header \('a', 'x'\)"),
    ({"topic": "t", "headers": [("a",)]}, TypeError, r"header \('a',\)"),
    ({"topic": "t", "headers": [(b"a", b"b")]}, TypeError, "header"),
]


@pytest.mark.parametrize("open_batch", [False, True])
@pytest.mark.parametrize(("record", "kind", "message"), WRONG_RECORDS)
def test_a_producer_refuses_a_record_and_goes_on(
    broker: AcknowledgingBroker, record: dict[str, Any], kind: type[Exception], message: str, open_batch: bool
) -> None:
    keys = {"linger_ms": 60_000 if open_batch else 0, "enable_idempotence": False, "delivery_timeout_ms": 120_000}
    with Producer(bootstrap_servers=broker.address, **keys) as producer:
        producer.send("t", b"first")
        with pytest.raises(kind, match=message):
            producer.send(value=b"v", **record)
        future = producer.send("t", b"last")
        producer.flush(TIMEOUT_S)
        assert future.result(0).topic == "t"


@pytest.mark.parametrize("topic", ["", "a/b", "\ud800", "a" * 40_000], ids=["empty", "slash", "surrogate", "long"])
def test_a_name_that_no_topic_can_have_fails_the_future(broker: AcknowledgingBroker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False) as producer:
        error = producer.send(topic, b"v").exception(TIMEOUT_S)
        assert isinstance(error, ApiError)
        assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert producer.send("t", b"v").result(TIMEOUT_S).topic == "t"


def test_the_asyncio_producer_refuses_a_record_and_goes_on(broker: AcknowledgingBroker) -> None:
    async def run() -> None:
        async with aio.Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False) as producer:
            for record, kind, message in WRONG_RECORDS:
                with pytest.raises(kind, match=message):
                    await producer.send(value=b"v", **record)
            assert isinstance((await producer.send("\ud800", b"v")).exception(), ApiError)
            assert (await (await producer.send("t", b"v"))).topic == "t"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda consumer: consumer.seek(("t", 0), "3"), "'3' is not an offset"),
        (lambda consumer: consumer.seek(("t", 0), 1.5), "1.5 is not an offset"),
        (lambda consumer: consumer.seek(("t", 0), -1), "offset -1 is negative"),
        (lambda consumer: consumer.commit("t"), "'t' cannot be committed"),
        (lambda consumer: consumer.commit({("t", 0): "5"}), "'5' is not an offset"),
        (lambda consumer: consumer.commit({("t", 0): -5}), "offset -5 is negative"),
        (lambda consumer: consumer.commit({("t", 0): OffsetAndEpoch(-5)}), "offset -5 is negative"),
        (lambda consumer: consumer.offsets_for_times({("t", 0): "now"}), "'now' is not a timestamp"),
        (lambda consumer: consumer.offsets_for_times({("t", 0): -1}), "-1 is not a timestamp"),
        (lambda consumer: consumer.partitions_for(3), "3 is not the name of a topic"),
        (lambda consumer: consumer.partitions_for("\ud800"), "is not the name of a topic"),
        (lambda consumer: consumer.subscribe(["\ud800"]), "is not the name of a topic"),
        (lambda consumer: consumer.assign([("\ud800", 0)]), "is not a partition"),
        (lambda consumer: consumer.assign(["t"]), "'t' is not a partition"),
    ],
)
def test_a_consumer_refuses_an_argument_and_goes_on(
    broker: AcknowledgingBroker, call: Callable[[Consumer], object], message: str
) -> None:
    with Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(ValueError, match=message):
            call(consumer)
        assert [each.partition for each in consumer.partitions_for("t", TIMEOUT_S).partitions] == [0]


def test_a_request_that_cannot_be_encoded_fails_and_the_connection_goes_on() -> None:
    connections = Connections(ConnectionConfig("client", "1", Backoff(50, 1_000, lambda: 0.5)))
    connections.set_nodes({1: Broker(1, "host", 9092, None)}, 0)
    connections.is_ready(1, 0)
    connections.take_actions()
    connections.on_connected(1, 0)
    connections.take_actions()
    answer = ScriptedBroker.__new__(ScriptedBroker)
    answer.answers, answer.features = {ApiKey.METADATA: lambda _request, _version: None}, {}
    frame = b"".join(encode_response(1, answer._versions(), 4))
    connections.on_frame(1, memoryview(frame), 0)
    ended: list[ApiError | None] = []
    wrong = MetadataRequest(topics=[MetadataRequestTopic(name="\ud800")])
    connections.send(1, wrong, 0, lambda _response, error: ended.append(error))
    assert [error.code for error in ended if error is not None] == [ErrorCode.INVALID_REQUEST]
    assert connections.in_flight == 0
    assert connections.take_actions() == []
    connections.send(1, MetadataRequest(), 0, lambda _response, error: ended.append(error))
    assert connections.in_flight == 1
    assert len(connections.take_actions()) == 1


@pytest.mark.parametrize("client", [Producer, Consumer, Admin])
@pytest.mark.parametrize("servers", ["localhost:port", "localhost:0", "a:1:2", ":9092"])
def test_a_bootstrap_address_that_is_none_names_its_key(client: Callable[..., object], servers: str) -> None:
    with pytest.raises(InvalidConfig, match=r"Invalid value .* for configuration bootstrap\.servers"):
        client({"bootstrap.servers": servers})


def test_an_address_of_a_controller_names_its_key() -> None:
    with pytest.raises(InvalidConfig, match=r"configuration bootstrap\.controllers"):
        Admin({"bootstrap.controllers": "localhost:port"})


@pytest.mark.parametrize("name", ["delete_topics", "describe_topics", "describe_groups", "delete_groups"])
def test_an_admin_client_does_not_take_the_letters_of_one_name(broker: AcknowledgingBroker, name: str) -> None:
    with Admin(bootstrap_servers=broker.address) as admin, pytest.raises(TypeError, match="'abc' is one name"):
        getattr(admin, name)("abc")
