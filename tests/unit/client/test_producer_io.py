"""Turns of a blocking producer: of its own thread, or of a thread that waits for a record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from scripted_broker import ScriptedBroker

from kalda import Producer
from kalda.base.errors import ApiError
from kalda.client.channels import monotonic_ms
from kalda.client.core.producer_batch import RecordMetadata
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

TIMEOUT_S = 20


class Broker(ScriptedBroker):
    """Acknowledges every batch, while `is_open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.topics["t"] = [1]
        self.is_open = threading.Event()
        self.is_open.set()
        self.answers[ApiKey.PRODUCE] = self._produce

    def _produce(self, request: Any, _version: int) -> Any:
        assert self.is_open.wait(TIMEOUT_S)
        results = [PartitionProduceResponse(index=data.index) for data in request.topic_data[0].partition_data]
        topic_id = request.topic_data[0].topic_id
        return ProduceResponse(responses=[TopicProduceResponse(topic_id=topic_id, partition_responses=results)])


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made
        made.is_open.set()


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False) as made:
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
            waits.append(timeout)
        return select(timeout)

    io._select = recorded  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        future.result(0)
    broker.is_open.set()
    assert waits == [0]


def test_a_round_trip_soon_after_another_takes_a_short_turn(broker: Broker, producer: Producer) -> None:
    io, runs = producer._thread, 0
    run = producer._core.run
    producer._sends_at_once = False

    def counted(now_ms: int) -> None:
        nonlocal runs
        runs += threading.current_thread() is not io
        run(now_ms)

    producer._core.run = counted  # type: ignore[method-assign]
    wait = io._wait
    io._wait = lambda _wait_ms: wait(1_000 * TIMEOUT_S)  # type: ignore[method-assign]
    io._full_turn_ms = monotonic_ms() + 1_000 * TIMEOUT_S
    assert producer.send("t", b"v").result().topic == "t"
    assert not runs
    io._full_turn_ms = 0
    assert producer.send("t", b"w").result().topic == "t"
    assert runs


def test_where_only_a_full_turn_can_send_a_short_one_does_not_wait(producer: Producer) -> None:
    io = producer._thread
    io._is_driven = True  # its own thread takes no turn
    io.wake()
    with io._baton:
        producer._core.metadata.version += 1
        wait, io._wait = io._wait, pytest.fail  # type: ignore[method-assign]
        io._short_turn(monotonic_ms())
        io._wait = wait  # type: ignore[method-assign]
    io._is_driven = False


def test_a_short_turn_does_not_wait_for_a_request_without_a_response(broker: Broker) -> None:
    with Producer(bootstrap_servers=broker.address, linger_ms=0, acks=0, enable_idempotence=False) as made:
        made.send("t", b"first").result(TIMEOUT_S)
        io, waits = made._thread, []
        wait = io._wait

        def recorded(wait_ms: int) -> bool:
            if threading.current_thread() is not io:
                waits.append(wait_ms)
            return wait(wait_ms)

        io._wait = recorded  # type: ignore[method-assign]
        io._full_turn_ms = monotonic_ms() + 1_000 * TIMEOUT_S
        made.send("t", b"v").result(TIMEOUT_S)
        assert not waits


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
