"""Turns of a blocking client: of its own thread, or of a thread that waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from scripted_broker import ScriptedBroker, TransactionalBroker

from kalda import Consumer, Producer
from kalda.base.errors import ApiError
from kalda.client.consumer import blocking_shell
from kalda.client.producer import producer as producer_module
from kalda.clientcore.consuming.consumer_errors import Wakeup
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

TIMEOUT_S = 20


class Broker(ScriptedBroker):
    """Acknowledges every batch, while `is_open` is set; `distort` changes the next response, where it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.topics["t"] = [1]
        self.is_open = threading.Event()
        self.is_open.set()
        self.distort: Callable[[bytes], list[bytes]] | None = None
        """What is sent instead of a frame; nothing: the connection is closed."""
        self.answers[ApiKey.PRODUCE] = self._produce

    def _produce(self, request: Any, _version: int) -> Any:
        assert self.is_open.wait(TIMEOUT_S)
        results = [PartitionProduceResponse(index=data.index) for data in request.topic_data[0].partition_data]
        topic_id = request.topic_data[0].topic_id
        return ProduceResponse(responses=[TopicProduceResponse(topic_id=topic_id, partition_responses=results)])

    def reply(self, frame: bytes, peer: Any) -> bool:
        if self.distort is None or int.from_bytes(frame[:2], "big") != ApiKey.PRODUCE:
            return super().reply(frame, peer)
        distort, self.distort = self.distort, None
        frames: list[bytes] = []
        super().reply(frame, SimpleNamespace(sendall=frames.append))
        pieces = distort(frames[0])
        for piece in pieces:
            peer.sendall(piece)
        return bool(pieces)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made
        made.is_open.set()


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    keys = {"linger_ms": 0, "enable_idempotence": False, "reconnect_backoff_ms": 1, "retry_backoff_ms": 1}
    with Producer(bootstrap_servers=broker.address, **keys) as made:
        made.send("t", b"first").result(TIMEOUT_S)
        yield made


def test_a_thread_that_waits_runs_the_turns(broker: Broker, producer: Producer) -> None:
    threads: list[int] = []

    def delivered(_metadata: RecordMetadata | None, _error: Exception | None) -> None:
        threads.append(threading.get_ident())

    broker.is_open.clear()
    future = producer.send("t", b"v", on_delivery=delivered)
    io = producer._thread
    turn = io._turn

    def turn_then_open(*arguments: Any) -> None:
        if threading.current_thread() is not io:
            broker.is_open.set()
        turn(*arguments)

    io._turn = turn_then_open  # type: ignore[method-assign]
    future.result(TIMEOUT_S)
    assert threads == [threading.get_ident()]


def test_a_batch_that_no_thread_waits_for_is_sent(producer: Producer) -> None:
    sent = threading.Event()
    producer.send("t", b"waited for").result(TIMEOUT_S)
    producer.send("t", b"v", on_delivery=lambda _metadata, _error: sent.set())
    assert sent.wait(TIMEOUT_S)


LONG_GRACE = "_GRACE_S", 10.0 * TIMEOUT_S
"""Far longer than any of these waits may last."""


def test_a_wait_for_a_topic_does_not_wait_for_the_pause_behind_a_record(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics["other"] = [1]
    monkeypatch.setattr(producer_module, *LONG_GRACE)
    keys = {"linger_ms": 0, "enable_idempotence": False, "max_block_ms": 1_000 * TIMEOUT_S}
    with Producer(bootstrap_servers=broker.address, **keys) as made:
        made.send("t", b"v").result(TIMEOUT_S)
        assert len(made.partitions_for("other")) == 1
        made.send("t", b"v").result(TIMEOUT_S)


def test_a_wait_for_memory_does_not_wait_for_the_pause_behind_a_record(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, *LONG_GRACE)
    keys = {"batch_size": 1_000, "buffer_memory": 2_000, "max_request_size": 2_000, "enable_idempotence": False}
    with Producer(bootstrap_servers=broker.address, max_block_ms=1_000 * TIMEOUT_S, **keys) as made:
        made.send("t", b"v").result(TIMEOUT_S)
        sent = [made.send("t", b"v" * 800) for _ in range(4)]
        assert all(future.exception(TIMEOUT_S) is None for future in sent)


def test_a_commit_does_not_wait_for_the_pause_behind_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, *LONG_GRACE)
    keys = {"transactional_id": "x", "linger_ms": 0, "max_block_ms": 1_000 * TIMEOUT_S}
    with TransactionalBroker() as broker, Producer(bootstrap_servers=broker.address, **keys) as made:
        made.init_transactions()
        made.begin_transaction()
        made.send("t", b"v").result(TIMEOUT_S)
        made.commit_transaction()
        assert broker.outcomes == [True]


def test_a_batch_that_lingers_leaves_in_time_while_a_thread_waits_for_another_one(broker: Broker) -> None:
    broker.topics["t"] = [1, 1]
    with Producer(bootstrap_servers=broker.address, linger_ms=30, enable_idempotence=False) as made:
        made.send("t", b"first", partition=0).result(TIMEOUT_S)
        sender, sent = made._core.sender, threading.Event()
        send = sender._send

        def send_and_set(node_id: int, batches: Any, now_ms: int) -> None:
            send(node_id, batches, now_ms)
            if any(batch.topic_partition.partition == 1 for batch in batches):
                sent.set()

        sender._send = send_and_set  # type: ignore[method-assign]
        broker.is_open.clear()
        future = made.send("t", b"v", partition=0)
        waiter = threading.Thread(target=future.result, args=(2 * TIMEOUT_S,), daemon=True)
        waiter.start()
        while not made._thread._is_driven:
            threading.Event().wait(0.001)
        made.send("t", b"w", partition=1)
        assert sent.wait(TIMEOUT_S)
        broker.is_open.set()
        waiter.join(TIMEOUT_S)


def test_a_result_without_patience_does_not_wait(broker: Broker, producer: Producer) -> None:
    broker.is_open.clear()
    future = producer.send("t", b"v")
    io, waits = producer._thread, []
    select = io._select

    def recorded(timeout: float | None = None) -> Any:
        if threading.current_thread() is not io:
            waits.append(timeout is None or timeout)
        return select(timeout)

    io._select = recorded  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        future.result(0)
    broker.is_open.set()
    assert not any(waits)  # none where the I/O thread had the turn just then


def test_in_its_callback_a_record_is_done(producer: Producer) -> None:
    found: list[object] = []
    future = producer.send("t", b"v")
    future.add_done_callback(lambda each: found.extend((each.done(), each.result().topic, each.exception())))
    future.result(TIMEOUT_S)
    assert found == [True, "t", None]


def test_a_callback_cannot_wait_for_another_record(producer: Producer) -> None:
    found: list[BaseException | None] = []

    def delivered(_metadata: RecordMetadata | None, _error: Exception | None) -> None:
        for wait in (producer.send("t", b"w").result, producer.send_batch("t", pa.table({"value": [b"x"]})).result):
            with pytest.raises(RuntimeError, match="a callback cannot wait") as raised:
                wait()
            found.append(raised.value)

    producer.send("t", b"v", on_delivery=delivered).result(TIMEOUT_S)
    assert len(found) == 2


def test_many_threads_wait(producer: Producer) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                producer.send("t", b"v").result(TIMEOUT_S)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_an_interrupt_of_a_thread_that_waits_for_sockets_breaks_nothing(broker: Broker, producer: Producer) -> None:
    broker.is_open.clear()
    future = producer.send("t", b"v")
    io = producer._thread
    select = io._select

    def interrupted(timeout: float | None = None) -> Any:
        if threading.current_thread() is io:
            return select(timeout)
        io._select = select  # type: ignore[method-assign]
        raise KeyboardInterrupt

    io._select = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        future.result(TIMEOUT_S)
    broker.is_open.set()
    assert future.result(TIMEOUT_S).topic == "t"


def test_callbacks_are_called_once_and_in_order(producer: Producer) -> None:
    called: list[int] = []
    for at in range(300):
        future = producer.send("t", b"v", on_delivery=lambda _metadata, _error, at=at: called.append(at))
        if at % 3:
            future.add_done_callback(lambda _future, at=at: called.append(at))
        if at % 2:
            future.result(TIMEOUT_S)
    producer.flush(TIMEOUT_S)
    assert called == sorted(called)
    assert len(called) == 300 + sum(1 for at in range(300) if at % 3)


def test_flush_and_close_wait_for_a_lone_record(producer: Producer) -> None:
    future = producer.send("t", b"v")
    producer.flush(TIMEOUT_S)
    assert future.done()
    future = producer.send("t", b"v")
    producer.close(TIMEOUT_S)
    assert future.result(0).topic == "t"


DISTORTED: dict[str, Callable[[bytes], list[bytes]]] = {
    "none": lambda frame: [],
    "correlation id": lambda frame: [frame[:4] + b"\x11\x22\x33\x44" + frame[8:]],
    "size": lambda frame: [b"\x7f\xff\xff\xff" + frame[4:]],
    "garbage": lambda frame: [frame[:8] + b"\xff" * (len(frame) - 8)],
    "pieces": lambda frame: [frame[at : at + 1] for at in range(len(frame))],
    "two": lambda frame: [frame + frame],
    "more": lambda frame: [frame + b"\0\0\0\x05\0"],
    "large": lambda frame: [b"\0\0\x10\0" + frame[4:] + bytes(4_096 - len(frame) + 4)],
}


@pytest.mark.parametrize("kind", DISTORTED)
def test_a_wait_survives_any_response(broker: Broker, producer: Producer, kind: str) -> None:
    broker.distort = DISTORTED[kind]
    assert producer.send("t", b"v").result(TIMEOUT_S).topic == "t"
    assert broker.distort is None
    assert producer.send("t", b"w").result(TIMEOUT_S).topic == "t"


@pytest.mark.parametrize(
    ("value", "keywords"),
    [
        (b"v" * 5_000, {}),
        (b"v", {"headers": [("h", b"1")]}),
        (memoryview(b"v"), {"key": bytearray(b"k")}),
        (bytearray(b"v"), {"partition": 0}),
        (b"v", {"timestamp_ms": 12}),
        (None, {"key": b"k"}),
    ],
)
def test_records_of_all_kinds(producer: Producer, value: Any, keywords: dict[str, Any]) -> None:
    assert producer.send("t", value, **keywords).result(TIMEOUT_S).partition == 0


def test_what_cannot_be_sent_raises_and_breaks_nothing(producer: Producer) -> None:
    with pytest.raises(ValueError, match="not negative"):
        producer.send("t", b"v", partition=-1)
    assert producer.send("t", b"v").result(TIMEOUT_S).topic == "t"


def test_a_turn_that_fails_on_a_thread_that_waits_ends_the_producer(broker: Broker, producer: Producer) -> None:
    broker.is_open.clear()
    future, other = producer.send("t", b"v"), producer.send("t", b"w")
    io = producer._thread
    run = producer._core.run

    def broken(now_ms: int) -> None:
        if threading.current_thread() is not io:
            raise KeyboardInterrupt
        run(now_ms)

    producer._core.run = broken  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        future.result(TIMEOUT_S)
    with pytest.raises(ApiError, match="the I/O thread failed"):
        other.result(TIMEOUT_S)


# -- a consumer


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Consumer]:
    """Requests neither positions nor records, which the broker does not serve."""
    with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as made:
        with made._lock:  # no turn comes between
            made.assign([("t", 0)])
            made.seek(("t", 0), 0)
            made.pause(("t", 0))
        yield made


def test_a_fault_in_a_turn_of_a_waiting_thread_ends_the_consumer(consumer: Consumer) -> None:
    run = consumer._core.run

    def failing(now_ms: int, is_polling: bool) -> None:
        if threading.current_thread() is not consumer._io:
            raise ZeroDivisionError
        run(now_ms, is_polling)

    consumer._core.run = failing  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        consumer.poll(TIMEOUT_S)
    consumer._io.join(TIMEOUT_S)
    with pytest.raises(ApiError, match="the I/O thread failed: ZeroDivisionError"):
        consumer.poll(TIMEOUT_S)


def test_two_threads_wait_for_a_consumer(consumer: Consumer) -> None:
    woken: list[Wakeup] = []

    def poll() -> None:
        try:
            consumer.poll(None)
        except Wakeup as error:
            woken.append(error)

    polling = threading.Thread(target=poll, daemon=True)
    polling.start()
    while not consumer._io._is_driven:
        threading.Event().wait(0.001)
    for _ in range(3):
        assert len(consumer.partitions_for("t", TIMEOUT_S).partitions) == 1
    consumer.wakeup()
    polling.join(TIMEOUT_S)
    assert len(woken) == 1


def test_closing_a_consumer_does_not_wait_for_the_pause_behind_a_call(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_shell, *LONG_GRACE)
    made = Consumer(bootstrap_servers=broker.address)
    assert len(made.partitions_for("t", TIMEOUT_S).partitions) == 1
    made.close(TIMEOUT_S)
    assert not made._io.is_alive()


def test_what_the_call_behind_a_commit_raises_does_not_end_the_consumer(broker: Broker) -> None:
    errors: list[Exception | None] = []

    def on_done(_offsets: object, error: Exception | None) -> None:
        errors.append(error)
        raise ZeroDivisionError

    with Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False) as made:
        made.commit({("t", 0): 1}, wait=False, on_done=on_done, timeout=0)
        assert len(made.partitions_for("t", TIMEOUT_S).partitions) == 1
    assert [type(error) for error in errors] == [ApiError]
