"""`with producer.transaction()`: which exception leaves the block, of the blocking producer and of asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

import kalda.aio
from kalda import Producer
from kalda.base.errors import ErrorCode
from kalda.clientcore.producing.producer_errors import AbortableTransactionError, ProducerFencedError
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import FindCoordinatorResponse
from kalda.protocol.messages.transactions import EndTxnResponse, InitProducerIdResponse

REFUSED = AbortableTransactionError(ErrorCode.INVALID_PRODUCER_EPOCH, "records are refused")
FENCED = ProducerFencedError(ErrorCode.PRODUCER_FENCED, "there is a newer producer")


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """Begins transactions, and ends none."""
    with ScriptedBroker() as made:
        made.answers[ApiKey.FIND_COORDINATOR] = lambda *_: FindCoordinatorResponse(
            node_id=made.node_id, host="127.0.0.1", port=made.port
        )
        made.answers[ApiKey.INIT_PRODUCER_ID] = lambda *_: InitProducerIdResponse(producer_id=1)
        made.answers[ApiKey.END_TXN] = lambda *_: EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        yield made


def config(broker: ScriptedBroker) -> dict[str, object]:
    return {"bootstrap.servers": broker.address, "transactional.id": "t"}


def failing(what: str, error: BaseException, wait: Callable[..., Any]) -> Callable[..., Any]:
    """In place of the wait for a request of the transaction: that for `what` raises."""

    def wait_for(transactions: object, timeout: float | None, awaited: str) -> Any:
        if awaited == what:
            raise error
        return wait(transactions, timeout, awaited)

    return wait_for


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("in time")], ids=repr)
def test_what_ends_the_wait_for_a_commit_is_raised(broker: ScriptedBroker, error: BaseException) -> None:
    """The commit is under way: to abort it is not possible, and would hide the interruption."""
    producer: Any = Producer(config(broker))
    producer._wait_for_transaction = failing("committed", error, producer._wait_for_transaction)
    with pytest.raises(type(error)) as caught, producer.transaction():
        pass
    assert caught.value is error
    producer.close(timeout=0)


def test_where_the_abort_fails_too_the_blocks_exception_is_raised(broker: ScriptedBroker) -> None:
    producer: Any = Producer(config(broker))
    producer._wait_for_transaction = failing("aborted", TimeoutError("too late"), producer._wait_for_transaction)
    with pytest.raises(KeyError) as caught, producer.transaction():
        raise KeyError("mine")
    assert caught.value.__notes__ == ["The transaction was not aborted: too late"]
    producer.close(timeout=0)


def test_a_fenced_producer_says_so(broker: ScriptedBroker) -> None:
    """The first sign is that records are refused; that there is a newer producer is known when the abort is."""
    producer: Any = Producer(config(broker))
    producer._wait_for_transaction = failing("aborted", FENCED, producer._wait_for_transaction)
    with pytest.raises(ProducerFencedError) as caught, producer.transaction():
        raise REFUSED
    assert caught.value.__cause__ is REFUSED
    producer.close(timeout=0)


@pytest.mark.parametrize(
    ("what", "of_block", "of_wait", "raised"),
    [
        ("aborted", REFUSED, FENCED, ProducerFencedError),
        ("committed", None, asyncio.CancelledError(), asyncio.CancelledError),
        ("committed", None, TimeoutError("in time"), TimeoutError),
        ("aborted", KeyError("mine"), TimeoutError("too late"), KeyError),
    ],
)
def test_the_same_with_asyncio(
    broker: ScriptedBroker,
    what: str,
    of_block: Exception | None,
    of_wait: BaseException,
    raised: type[BaseException],
) -> None:
    async def use() -> None:
        producer: Any = kalda.aio.Producer(config(broker))
        producer._wait_for_transaction = failing(what, of_wait, producer._wait_for_transaction)
        try:
            async with producer.transaction():
                if of_block is not None:
                    raise of_block
        finally:
            await producer.close(timeout=0)

    with pytest.raises(raised):
        asyncio.run(use())
