"""Records that fail before they are in a batch, of the blocking producer and of asyncio's: what becomes of the
transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from either_producer import KINDS, TIMEOUT_S, Used, begun
from scripted_broker import TransactionalBroker

from kalda import aio
from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.producing.producer_errors import (
    AbortableTransactionError,
    ProducerFencedError,
    SerializationError,
)
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.transactions import EndTxnResponse


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest) -> Iterator[TransactionalBroker]:
    with TransactionalBroker(request.param) as made:
        yield made


Make = Callable[..., Used]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, broker: TransactionalBroker) -> Iterator[Make]:
    """Makes a producer that has begun a transaction and has sent a record in it."""
    made: list[Used] = []

    def begin(**keys: object) -> Used:
        made.append(request.param(broker, **keys))
        return begun(made[-1])

    yield begin
    for each in made:
        each.close()


def refusing(_value: object) -> bytes:
    raise RuntimeError("mine")


FAILING: dict[str, tuple[dict[str, object], dict[str, Any], type[Exception]]] = {
    "too large": ({"max_request_size": 2_000}, {"value": bytes(3_000)}, ApiError),
    "no such partition": ({"max_block_ms": 300}, {"partition": 7}, ApiError),
    "negative partition": ({}, {"partition": -7}, ValueError),
    "no such topic": ({"max_block_ms": 300}, {"topic": "nowhere"}, ApiError),
    "no topic's name": ({}, {"topic": "a/b"}, ApiError),
    "not serializable": ({}, {"value": 3}, SerializationError),
    "serializer raises": ({"key_serializer": refusing}, {"key": 1}, SerializationError),
    "wrong header": ({}, {"headers": [("h", 1)]}, TypeError),
    "wrong timestamp": ({}, {"timestamp_ms": -1}, ValueError),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_transaction_with_a_record_that_failed_can_only_be_aborted(
    broker: TransactionalBroker, make: Make, case: str
) -> None:
    keys, record, kind = FAILING[case]
    if "key_serializer" in keys:
        keys = {"key_serializer": lambda key: b"k" if key is None else refusing(key)}
    used = make(**keys)
    error = used.fails(**{"topic": "t", "value": b"v", **record})
    assert isinstance(error, kind)
    with pytest.raises(AbortableTransactionError) as raised:
        used.call("commit_transaction", TIMEOUT_S)
    assert str(error).rpartition(": ")[2] in str(raised.value)
    used.call("abort_transaction", TIMEOUT_S)
    assert broker.outcomes == [False]
    used.call("begin_transaction")
    assert used.fails("t", b"v") is None
    used.call("commit_transaction", TIMEOUT_S)
    assert broker.outcomes == [False, True]


def test_a_topic_without_a_right_makes_the_transaction_abortable(broker: TransactionalBroker, make: Make) -> None:
    used = make()
    plain = broker._topic

    def denied(name: str) -> Any:
        topic = plain(name)
        topic.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return topic

    broker._topic = denied  # type: ignore[method-assign]
    error = used.fails("secret", b"v")
    assert isinstance(error, ApiError)
    assert error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(AbortableTransactionError) as raised:
        used.call("commit_transaction", TIMEOUT_S)
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert broker.outcomes == []


def test_an_error_that_may_pass_is_no_such_error_of_the_transaction(make: Make) -> None:
    """Who repeats what may pass would write the transaction's records twice."""
    used = make(max_block_ms=300)
    error = used.fails("t", b"v", partition=7)
    assert isinstance(error, ApiError)
    assert error.code.retriable
    with pytest.raises(AbortableTransactionError) as raised:
        used.call("commit_transaction", TIMEOUT_S)
    assert raised.value.code is ErrorCode.TRANSACTION_ABORTABLE


def test_no_more_records_are_taken_before_the_abort(make: Make) -> None:
    used = make(max_request_size=2_000)
    assert used.fails("t", bytes(3_000)) is not None
    with pytest.raises(AbortableTransactionError):
        used.call("send", "t", b"v")


@pytest.mark.parametrize("case", ["column", "topic", "too large"])
def test_a_table_that_failed_makes_the_transaction_abortable(
    broker: TransactionalBroker, make: Make, case: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    used = make(max_request_size=2_000, max_block_ms=300)
    value, kind = bytes(3_000) if case == "too large" else b"v", KeyError if case == "column" else ApiError
    with pytest.raises(kind):
        used.call(
            "send_batch",
            "nowhere" if case == "topic" else "t",
            pa.table({"v" if case == "column" else "value": [value]}),
        )
    with pytest.raises(AbortableTransactionError):
        used.call("commit_transaction", TIMEOUT_S)
    assert broker.outcomes == []
    pool = used.producer._core.pool
    used.call("abort_transaction", TIMEOUT_S)
    assert pool.available_bytes == pool.total_bytes


def test_records_outside_of_a_transaction_are_refused_at_once(broker: TransactionalBroker, make: Make) -> None:
    pa = pytest.importorskip("pyarrow")
    used = make()
    used.call("commit_transaction", TIMEOUT_S)
    sent = len(broker.requests(ApiKey.PRODUCE))
    asked = len(broker.requests(ApiKey.METADATA))
    for topic in ("t", "nowhere"):
        with pytest.raises(ApiError, match="begin a transaction") as raised:
            used.call("send", topic, b"v")
        assert raised.value.code is ErrorCode.INVALID_TXN_STATE
    with pytest.raises(ApiError, match="begin a transaction"):
        used.call("send_batch", "t", pa.table({"value": [b"v"]}))
    used.call("begin_transaction")
    used.call("commit_transaction", TIMEOUT_S)
    assert len(broker.requests(ApiKey.PRODUCE)) == sent
    assert len(broker.requests(ApiKey.METADATA)) == asked
    pool = used.producer._core.pool
    assert pool.available_bytes == pool.total_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_records_before_the_initialization_are_refused_at_once(broker: TransactionalBroker, kind: type[Used]) -> None:
    used = kind(broker)
    with pytest.raises(ApiError, match="uninitialized"):
        used.call("send", "t", b"v")
    used.close()
    assert [topic for request in broker.requests(ApiKey.METADATA) for topic in request.topics or ()] == []


def test_a_fenced_producer_takes_no_record(broker: TransactionalBroker, make: Make) -> None:
    used = make()
    broker.answers[ApiKey.END_TXN] = lambda *_: EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
    with pytest.raises(ProducerFencedError):
        used.call("commit_transaction", TIMEOUT_S)
    with pytest.raises(ProducerFencedError):
        used.call("send", "t", b"v")


def test_a_send_that_is_cancelled_makes_the_transaction_abortable(broker: TransactionalBroker) -> None:
    async def run() -> None:
        producer = aio.Producer({"bootstrap.servers": broker.address, "transactional.id": "x"})
        await producer.init_transactions(TIMEOUT_S)
        await producer.begin_transaction()
        await (await producer.send("t", b"v"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send("nowhere", b"v"), 0.05)
        with pytest.raises(AbortableTransactionError):
            await producer.commit_transaction(TIMEOUT_S)
        await producer.close(TIMEOUT_S)

    asyncio.run(run())
