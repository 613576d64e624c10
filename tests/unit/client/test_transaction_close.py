"""`close` with an open transaction, of the blocking producer and of asyncio's."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from either_producer import KINDS, TIMEOUT_S, Blocking, Used, begun
from scripted_broker import TransactionalBroker

from kalda.base.errors import ErrorCode
from kalda.clientcore.producing.producer_errors import AbortableTransactionError
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.transactions import EndTxnResponse


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest) -> Iterator[TransactionalBroker]:
    with TransactionalBroker(request.param) as made:
        yield made


def refuse_to_end(broker: TransactionalBroker) -> threading.Event:
    """Answer EndTxn with an error that may pass, until the event that is returned is set."""
    may_end = threading.Event()
    broker.answers[ApiKey.END_TXN] = lambda *_: EndTxnResponse(
        error_code=ErrorCode.NONE if may_end.is_set() else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    return may_end


@pytest.mark.parametrize("kind", KINDS)
def test_close_aborts_an_open_transaction(broker: TransactionalBroker, kind: type[Used]) -> None:
    used = begun(kind(broker))
    used.close()
    assert broker.outcomes == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_close_sends_what_is_left_before_it_aborts(broker: TransactionalBroker, kind: type[Used]) -> None:
    used = begun(kind(broker, linger_ms=300))
    future = used.call("send", "t", b"v")
    used.close()
    assert future.exception() is None
    assert [key for key, _, _ in broker.received if key in (ApiKey.PRODUCE, ApiKey.END_TXN)] == [
        ApiKey.PRODUCE, ApiKey.PRODUCE, ApiKey.END_TXN,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_close_aborts_a_transaction_that_has_failed(broker: TransactionalBroker, kind: type[Used]) -> None:
    used = begun(kind(broker, max_request_size=2_000))
    assert used.fails("t", bytes(3_000)) is not None
    with pytest.raises(AbortableTransactionError):
        used.call("commit_transaction", TIMEOUT_S)
    used.close()
    assert broker.outcomes == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_is_under_way_is_not_aborted(broker: TransactionalBroker, kind: type[Used]) -> None:
    may_end = refuse_to_end(broker)
    used = begun(kind(broker))
    with pytest.raises(TimeoutError):
        used.call("commit_transaction", 0.05)
    may_end.set()
    used.close()
    assert set(broker.outcomes) == {True}
    assert used.producer._core.transactions.manager.error is None


@pytest.mark.parametrize("kind", KINDS)
def test_close_waits_for_the_abort_within_its_timeout(broker: TransactionalBroker, kind: type[Used]) -> None:
    refuse_to_end(broker)
    used = begun(kind(broker))
    used.close(0.3)
    assert set(broker.outcomes) == {False}


@pytest.mark.parametrize("kind", KINDS)
def test_close_without_a_timeout_waits_for_the_abort_for_max_block_ms(
    broker: TransactionalBroker, kind: type[Used], caplog: pytest.LogCaptureFixture
) -> None:
    refuse_to_end(broker)
    used = begun(kind(broker, max_block_ms=300))
    used.close(None)
    assert set(broker.outcomes) == {False}
    assert "the transaction of 'x' was not ended before the producer" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_close_without_time_leaves_it_open(broker: TransactionalBroker, kind: type[Used]) -> None:
    """As Kafka's: who ends it is another process, or the coordinator after the transaction's timeout."""
    used = begun(kind(broker))
    used.close(0)
    assert broker.outcomes == []


@pytest.mark.parametrize("kind", KINDS)
def test_close_without_a_transaction_ends_none(broker: TransactionalBroker, kind: type[Used]) -> None:
    used = begun(kind(broker))
    used.call("commit_transaction", TIMEOUT_S)
    used.close()
    assert broker.outcomes == [True]


def test_a_producer_that_is_dropped_aborts(broker: TransactionalBroker) -> None:
    used: Any = begun(Blocking(broker))
    thread = used.producer._thread
    del used
    gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert broker.outcomes == [False]


def test_the_interpreters_end_aborts(broker: TransactionalBroker) -> None:
    program = (
        "import kalda\n"
        f"p = kalda.Producer(bootstrap_servers='{broker.address}', transactional_id='x')\n"
        "p.init_transactions()\n"
        "p.begin_transaction()\n"
        "p.send('t', b'v').result(20)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)
    assert broker.outcomes == [False]
