"""The arguments of callbacks and interceptors for a record that failed, and which records of a batch fail (KIP-467)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from scripted_broker import AcknowledgingBroker

from kalda import Consumer, Producer, aio
from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.producing.outbound_record import ProducerRecord
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.clientcore.producing.producer_errors import BufferExhausted, SerializationError
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from kalda.records.appending import murmur2
from kalda.records.builder import read_records

TIMEOUT_S = 20
KEYS: dict[str, Any] = {"enable_idempotence": False, "linger_ms": 20, "max_block_ms": 300}
Outcome = tuple[RecordMetadata, Exception | None]


@pytest.fixture
def broker() -> Iterator[AcknowledgingBroker]:
    with AcknowledgingBroker() as made:
        yield made


def refuse(broker: AcknowledgingBroker, messages: Mapping[int, str | None], message: str | None = None) -> None:
    """Answer each batch with INVALID_TIMESTAMP, and the errors of these records."""

    def answer(request: Any, _version: int) -> ProduceResponse:
        result = PartitionProduceResponse(
            index=0,
            error_code=ErrorCode.INVALID_TIMESTAMP,
            error_message=message,
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                for index, text in messages.items()
            ],
        )
        topic = TopicProduceResponse(name="t", topic_id=request.topic_data[0].topic_id, partition_responses=[result])
        return ProduceResponse(responses=[topic])

    broker.answers[ApiKey.PRODUCE] = answer


def outcomes(broker: AcknowledgingBroker, is_async: bool, count: int) -> tuple[list[Exception | None], list[Outcome]]:
    """The errors of the futures of some records of one batch, and what their callbacks were given."""
    calls: list[Outcome] = []

    async def send() -> list[Exception | None]:
        async with aio.Producer(bootstrap_servers=broker.address, **KEYS) as producer:
            sent = [await producer.send("t", b"v", on_delivery=lambda *each: calls.append(each)) for _ in range(count)]
            await producer.flush(TIMEOUT_S)
            return [future.exception() for future in sent]  # type: ignore[misc]

    if is_async:
        return asyncio.run(send()), calls
    with Producer(bootstrap_servers=broker.address, **KEYS) as producer:
        futures = [producer.send("t", b"v", on_delivery=lambda *each: calls.append(each)) for _ in range(count)]
        return [future.exception(TIMEOUT_S) for future in futures], calls


@pytest.mark.parametrize("is_async", [False, True])
def test_only_the_record_that_is_named_gets_its_error(broker: AcknowledgingBroker, is_async: bool) -> None:
    refuse(broker, {1: "the timestamp is far"})
    errors, calls = outcomes(broker, is_async, 3)
    assert [error for _, error in calls] == errors
    codes = [error.code for error in errors if isinstance(error, ApiError)]
    assert codes == [
        ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_TIMESTAMP, ErrorCode.OPERATION_NOT_ATTEMPTED,
    ]  # fmt: skip
    assert "the timestamp is far" in str(errors[1])
    assert "part of a batch which had one or more invalid records" in str(errors[0])


def test_of_several_records_each_has_its_message(broker: AcknowledgingBroker) -> None:
    refuse(broker, {0: "first", 2: None}, "of the batch")
    errors, _ = outcomes(broker, False, 3)
    codes = [error.code for error in errors if isinstance(error, ApiError)]
    assert codes == [ErrorCode.INVALID_RECORD, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_RECORD]
    assert "first" in str(errors[0])
    assert "of the batch" in str(errors[2])


def test_an_error_without_records_is_that_of_all(broker: AcknowledgingBroker) -> None:
    refuse(broker, {}, "of the batch")
    errors, _ = outcomes(broker, False, 2)
    assert [isinstance(each, ApiError) and each.code for each in errors] == [ErrorCode.INVALID_TIMESTAMP] * 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_knows_topic_and_partition_of_a_record_that_failed(
    broker: AcknowledgingBroker, is_async: bool
) -> None:
    refuse(broker, {})
    _, calls = outcomes(broker, is_async, 1)
    assert [metadata for metadata, _ in calls] == [RecordMetadata("t", 0, -1, -1)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_knows_the_partition_that_was_chosen_where_there_was_no_memory(
    broker: AcknowledgingBroker, is_async: bool
) -> None:
    broker.topics["t"] = [1] * 8
    may_answer, produce = threading.Event(), broker.answers[ApiKey.PRODUCE]
    broker.answers[ApiKey.PRODUCE] = lambda *each: may_answer.wait(TIMEOUT_S) and produce(*each)
    keys: dict[str, Any] = {**KEYS, "linger_ms": 0, "batch_size": 1_000, "buffer_memory": 1_000}
    seen: list[Outcome] = []
    sending: dict[str, Any] = {"key": b"k", "on_delivery": lambda *each: seen.append(each)}

    async def work() -> None:
        async with aio.Producer(bootstrap_servers=broker.address, **keys) as producer:
            await producer.send("t", bytes(800), key=b"k")
            await producer.send("t", bytes(800), **sending)
            may_answer.set()

    if is_async:
        asyncio.run(work())
    else:
        with Producer(bootstrap_servers=broker.address, **keys) as producer:
            producer.send("t", bytes(800), key=b"k")
            producer.send("t", bytes(800), **sending)
            may_answer.set()
    ((metadata, error),) = seen
    assert isinstance(error, BufferExhausted)
    assert metadata == RecordMetadata("t", (murmur2(b"k") & 0x7FFFFFFF) % 8, -1, -1)


class Watching:
    """An interceptor that notes all of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def configure(self, configs: Mapping[str, object]) -> None:
        self.calls.append(("configure", configs["client.id"]))

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.calls.append((*metadata[:3], type(error)))

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.mark.parametrize("is_async", [False, True])
def test_interceptors_are_configured_see_every_error_and_are_closed(
    broker: AcknowledgingBroker, is_async: bool
) -> None:
    watching = Watching()
    keys: dict[str, Any] = {**KEYS, "interceptor_classes": [watching], "client_id": "c", "max_request_size": 2_000}
    seen: list[tuple[RecordMetadata, Exception | None]] = []

    async def work() -> None:
        async with aio.Producer(bootstrap_servers=broker.address, **keys) as producer:
            await (await producer.send("t", b"v"))
            with pytest.raises(SerializationError):
                await producer.send("t", 3)
            await producer.send("t", bytes(3_000), partition=0, on_delivery=lambda *each: seen.append(each))
            await asyncio.sleep(0)
        await producer.close()

    if is_async:
        asyncio.run(work())
    else:
        with Producer(bootstrap_servers=broker.address, **keys) as producer:
            producer.send("t", b"v").result(TIMEOUT_S)
            with pytest.raises(SerializationError):
                producer.send("t", 3)
            producer.send("t", bytes(3_000), partition=0, on_delivery=lambda *each: seen.append(each))
        producer.close()
    assert watching.calls[0] == ("configure", "c")
    assert [call[:2] for call in watching.calls[1:-1]] == [("t", 0), ("t", -1), ("t", 0)]
    assert watching.calls[2][3] is SerializationError
    assert watching.calls[-1] == ("close",)
    assert [metadata for metadata, _ in seen] == [RecordMetadata("t", 0, -1, -1)]


def test_an_interceptor_may_be_a_class(broker: AcknowledgingBroker) -> None:
    with Producer(bootstrap_servers=broker.address, client_id="c", interceptor_classes=[Watching], **KEYS) as producer:
        producer.send("t", b"v").result(TIMEOUT_S)
        (made,) = producer._outgoing.interceptors
    assert isinstance(made, Watching)
    assert [call[0] for call in made.calls] == ["configure", "t", "close"]


class Codec:
    """A serializer and deserializer, which keeps its calls."""

    made: ClassVar[list[Codec]] = []

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.made.append(self)

    def configure(self, configs: dict[str, Any], is_key: bool) -> None:
        self.calls.append(("configure", configs["client.id"], is_key))

    def serialize(self, topic: str, value: Any) -> bytes:
        return bytes(value)

    def deserialize(self, topic: str, headers: Any, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.mark.parametrize("client", [Producer, aio.Producer, Consumer, aio.Consumer])
def test_serializers_and_deserializers_are_configured_where_they_are_classes_and_closed(
    broker: AcknowledgingBroker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Codec, "made", [])
    kind = "serializer" if client in (Producer, aio.Producer) else "deserializer"

    def use(key: object, value: object) -> None:
        keys = {f"key_{kind}": key, f"value_{kind}": value}

        async def work() -> None:
            opened = client(bootstrap_servers=broker.address, client_id="c", **keys)
            for _ in range(2):
                closing = opened.close()
                if closing is not None:
                    await closing

        asyncio.run(work())

    use(Codec, Codec)
    assert [each.calls for each in Codec.made] == [[("configure", "c", is_key), ("close",)] for is_key in (True, False)]
    own = Codec()
    use(own, own)
    assert own.calls == [("close",)], "whoever made it has configured it"


class Java:
    def serialize(self, topic: str, headers: list[tuple[str, bytes]], value: Any) -> bytes:
        headers.append(("by", topic.encode()))
        return b"%d %b" % (len(headers), value)


class Behind:
    def serialize(self, topic: str, value: Any, headers: list[tuple[str, bytes]]) -> bytes:
        headers.append(("by", topic.encode()))
        return b"%d %b" % (len(headers), value)


def function(value: bytes, headers: list[tuple[str, bytes]]) -> bytes:
    headers.append(("by", b"t"))
    return b"%d %b" % (len(headers), value)


@pytest.mark.parametrize("serializer", [Java(), Behind(), function], ids=["java", "behind", "function"])
@pytest.mark.parametrize("headers", [None, [("a", b"1")], {"a": b"1"}], ids=["none", "list", "mapping"])
def test_serializers_see_headers_and_may_add_some(
    broker: AcknowledgingBroker, serializer: object, headers: Any
) -> None:
    with Producer(bootstrap_servers=broker.address, value_serializer=serializer, **KEYS) as producer:
        producer.send("t", b"v", headers=headers).result(TIMEOUT_S)
    (request,) = broker.requests(ApiKey.PRODUCE)
    (record,) = read_records(bytes(request.topic_data[0].partition_data[0].records))
    own = () if headers is None else (("a", b"1"),)
    assert record.headers == (*own, ("by", b"t"))
    assert record.value == b"%d v" % (len(own) + 1)
