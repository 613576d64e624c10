"""Producers whose InitProducerId is denied: they go on once the right is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from either_producer import KINDS, TIMEOUT_S, Used
from scripted_broker import TransactionalBroker

from kalda import Producer, aio
from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.producing.producer_errors import FatalTransactionError
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.transactions import InitProducerIdResponse


class DenyingBroker(TransactionalBroker):
    """Gives a producer id when `code` is NONE."""

    def __init__(self) -> None:
        super().__init__()
        self.code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        self.answers[ApiKey.INIT_PRODUCER_ID] = lambda *_: InitProducerIdResponse(
            error_code=self.code, producer_id=-1 if self.code else 1, producer_epoch=-1 if self.code else 0
        )


@pytest.fixture
def broker() -> Iterator[DenyingBroker]:
    with DenyingBroker() as made:
        yield made


def test_an_idempotent_producer_goes_on_once_it_has_the_right(broker: DenyingBroker) -> None:
    with Producer(bootstrap_servers=broker.address, linger_ms=0) as producer:
        for _ in range(3):
            error = producer.send("t", b"v").exception(TIMEOUT_S)
            assert isinstance(error, ApiError)
            assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert broker.requests(ApiKey.PRODUCE) == []
        assert len(broker.requests(ApiKey.INIT_PRODUCER_ID)) == 3, (
            "one for each record, none for those that have failed"
        )
        broker.code = ErrorCode.NONE
        assert producer.send("t", b"v").result(TIMEOUT_S).topic == "t"


def test_an_idempotent_producer_of_asyncio_goes_on_once_it_has_the_right(broker: DenyingBroker) -> None:
    async def run() -> None:
        async with aio.Producer(bootstrap_servers=broker.address, linger_ms=0) as producer:
            with pytest.raises(ApiError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await (await producer.send("t", b"v"))
            broker.code = ErrorCode.NONE
            assert (await (await producer.send("t", b"v"))).topic == "t"

    asyncio.run(run())


def test_another_error_of_the_producer_id_is_final(broker: DenyingBroker) -> None:
    broker.code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    with Producer(bootstrap_servers=broker.address, linger_ms=0) as producer:
        assert producer.send("t", b"v").exception(TIMEOUT_S) is not None
        broker.code = ErrorCode.NONE
        error = producer.send("t", b"v").exception(TIMEOUT_S)
        assert isinstance(error, ApiError)
        assert error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize("kind", KINDS)
def test_a_transactional_producer_goes_on_once_it_has_the_right(broker: DenyingBroker, kind: type[Used]) -> None:
    broker.code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    used = kind(broker)
    for _ in range(2):
        with pytest.raises(ApiError) as raised:
            used.call("init_transactions", TIMEOUT_S)
        assert raised.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert not isinstance(raised.value, FatalTransactionError)
        with pytest.raises(ApiError, match="uninitialized"):
            used.call("send", "t", b"v")
    broker.code = ErrorCode.NONE
    used.call("init_transactions", TIMEOUT_S)
    used.call("begin_transaction")
    assert used.fails("t", b"v") is None
    used.call("commit_transaction", TIMEOUT_S)
    used.close()
    assert broker.outcomes == [True]
