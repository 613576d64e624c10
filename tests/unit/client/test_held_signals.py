"""Signals that come while the main thread changes the state of a client."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from operator import attrgetter
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from scripted_broker import AcknowledgingBroker

from kalda import Consumer, Producer
from kalda.base.ids import TopicPartition
from kalda.client.consumer import columns
from kalda.client.consumer.consumer_calls import ListenerCalls
from kalda.client.producer import producer as producer_module
from kalda.client.producer.delivery import DeliveryFuture
from kalda.client.transport.held_signals import HeldSignals
from kalda.clientcore.consumer import ConsumerCore
from kalda.clientcore.consuming.fetcher import Taken
from kalda.clientcore.groups.membership import Call, Callback
from kalda.records.consuming import Record

TIMEOUT_S = 20


class Stop(BaseException):
    """What the handler of a program raises."""


@pytest.fixture(autouse=True)
def program() -> Iterator[list[int]]:
    """The signals for which the program's handlers were called; that of SIGTERM raises `Stop`."""
    called: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        called.append(number)

    def stop(number: int, _frame: FrameType | None) -> None:
        called.append(number)
        raise Stop

    before = {signal.SIGINT: signal.signal(signal.SIGINT, note), signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    after = {number: signal.getsignal(number) for number in before}
    yield called
    assert {number: signal.getsignal(number) for number in before} == after
    for number, handler in before.items():
        signal.signal(number, handler)


def held(may_raise: bool = False) -> tuple[HeldSignals, list[str]]:
    notes: list[str] = []
    return HeldSignals(lambda: may_raise, lambda: notes.append("held")), notes


# -- the signals


def test_a_handler_runs_at_the_release(program: list[int]) -> None:
    signals, notes = held()
    assert signals.hold()
    signal.raise_signal(signal.SIGTERM)
    assert signals.is_any
    assert notes == ["held"]
    assert program == []
    with pytest.raises(Stop):
        signals.release()
    assert program == [signal.SIGTERM]
    assert signals.hold()
    signals.release()


def test_a_second_signal_is_not_held_back(program: list[int]) -> None:
    signals, _ = held()
    signals.hold()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(Stop):
        signal.raise_signal(signal.SIGTERM)
    assert program == [signal.SIGTERM]
    signals.release()
    assert program == [signal.SIGTERM, signal.SIGINT]


def test_where_nothing_changes_a_handler_runs_at_once(program: list[int]) -> None:
    signals, notes = held(may_raise=True)
    signals.hold()
    with pytest.raises(Stop):
        signal.raise_signal(signal.SIGTERM)
    assert notes == []
    signals.release()


def test_only_the_main_thread_holds_signals_and_once(program: list[int]) -> None:
    signals, _ = held()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(signals.hold()))
    thread.start()
    thread.join()
    assert results == [False]
    assert signals.hold()
    assert not signals.hold()
    signals.release()


def test_two_clients_hold_one_signal(program: list[int]) -> None:
    (outer, _), (inner, _) = held(), held()
    outer.hold()
    inner.hold()
    signal.raise_signal(signal.SIGINT)
    inner.release()
    assert program == []
    outer.release()
    assert program == [signal.SIGINT]


def test_a_signal_that_the_program_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signals, _ = held()
    signals.hold()
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    signals.release()
    signal.signal(signal.SIGALRM, before)


def test_a_forked_child_holds_nothing_back(program: list[int]) -> None:
    """Not even where another thread than the one that holds the signals has forked."""
    signals, notes = held()
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGTERM)
            except Stop:
                os._exit(3)
            os._exit(4)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    signals.hold()
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    signals.release()
    assert codes == [3]
    assert notes == []


def test_a_child_that_a_thread_has_forked_can_hold_signals() -> None:
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(3 if held()[0].hold() else 4)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert codes == [3]


def test_a_handler_that_is_set_meanwhile_stays(program: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals, _ = held()
    signals.hold()
    signal.signal(signal.SIGTERM, later := lambda _number, _frame: None)
    signals.release()
    assert signal.signal(signal.SIGTERM, before) is later


# -- clients


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """Its own thread takes a turn 0.2 s after the last wait of a thread."""
    monkeypatch.setattr(producer_module, "_GRACE_S", 0.2)
    with (
        AcknowledgingBroker() as broker,
        Producer(bootstrap_servers=broker.address, linger_ms=0, enable_idempotence=False) as made,
    ):
        made.send("t", b"first").result(TIMEOUT_S)
        yield made


def once(owner: Any, name: str, number: int) -> Callable[[], bool]:
    """The next call of a method on the main thread raises a signal, and then does what it does. The result is whether
    it was done."""
    method, is_raised, is_done = getattr(owner, name), False, False

    def interrupted(*arguments: Any) -> Any:
        nonlocal is_raised, is_done
        if is_raised or threading.current_thread() is not threading.main_thread():
            return method(*arguments)
        is_raised = True
        signal.raise_signal(number)
        result = method(*arguments)
        is_done = True
        return result

    setattr(owner, name, interrupted)
    return lambda: is_done


@pytest.mark.parametrize("name", ["run", "deadline_ms", "take_finished", "connections.take_actions"])
def test_a_signal_in_a_turn_does_not_end_the_producer(producer: Producer, program: list[int], name: str) -> None:
    *owner, method = name.split(".")
    is_done = once(attrgetter(*owner)(producer._core) if owner else producer._core, method, signal.SIGTERM)
    futures: list[DeliveryFuture] = []

    def send() -> None:
        while True:  # until a turn of this thread calls it
            futures.append(producer.send("t", b"v"))
            futures[-1].result(TIMEOUT_S)

    with pytest.raises(Stop):
        send()
    assert is_done()
    assert producer.send("t", b"w").result(TIMEOUT_S).topic == "t"
    assert all(future.exception(TIMEOUT_S) is None for future in futures)


def test_a_handler_that_returns_does_not_end_a_wait(producer: Producer, program: list[int]) -> None:
    is_done = once(producer._core.connections, "take_actions", signal.SIGINT)
    while not is_done():
        assert producer.send("t", b"v").result().topic == "t"
    assert program == [signal.SIGINT]


@pytest.mark.parametrize("name", ["_admit", "buffer_size", "_enqueue"])
def test_a_signal_while_a_record_is_appended(producer: Producer, name: str) -> None:
    once(producer._core.accumulator, name, signal.SIGTERM)
    with pytest.raises(Stop):
        producer.send("t", b"v")
    producer.flush(TIMEOUT_S)
    assert producer.send("t", b"w").result(TIMEOUT_S).topic == "t"
    assert producer.metrics()["record-send-total"] == 2
    assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]


@pytest.mark.parametrize("name", ["append_sealed", "_enqueue"])
def test_a_signal_while_rows_are_appended(producer: Producer, name: str) -> None:
    table = pa.table({"value": [b"v"] * 3})
    once(producer._core.accumulator, name, signal.SIGTERM)
    with pytest.raises(Stop):
        producer.send_batch("t", table)
    producer.flush(TIMEOUT_S)
    assert len(producer.send_batch("t", table).result(TIMEOUT_S)) == 1
    assert producer.metrics()["record-send-total"] == 1 + 3
    assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_turn_of_a_consumer(program: list[int], number: int) -> None:
    with (
        AcknowledgingBroker() as broker,
        Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer,
    ):
        is_done = once(consumer._core.connections, "take_actions", number)
        if number == signal.SIGTERM:
            with pytest.raises(Stop):
                consumer.partitions_for("t")
        assert [each.partition for each in consumer.partitions_for("t").partitions] == [0]
        assert is_done()
    assert program == [number]


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    """Requests neither positions nor records, which the broker does not serve."""
    with (
        AcknowledgingBroker() as broker,
        Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as made,
    ):
        with made._lock:  # no turn comes between
            made.assign([("t", 0)])
            made.seek(("t", 0), 0)
            made.pause(("t", 0))
        yield made


def test_a_signal_in_a_turn_behind_an_interrupted_wait(consumer: Consumer) -> None:
    once(consumer._io, "_select", signal.SIGTERM)
    with pytest.raises(Stop):
        consumer.poll(TIMEOUT_S)
    is_done = once(consumer._core.connections, "take_actions", signal.SIGTERM)
    with pytest.raises(Stop):
        consumer.poll(TIMEOUT_S)
    assert is_done()


def test_a_signal_in_a_call_that_changes_a_consumer(consumer: Consumer) -> None:
    is_done = once(consumer._core, "assign", signal.SIGTERM)
    with pytest.raises(Stop):
        consumer.assign([("t", 1)])
    assert is_done()
    assert consumer.assignment() == {TopicPartition("t", 1)}


def test_a_call_of_the_listener_before_which_a_signal_comes_stays_due(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = TopicPartition("t", 0)
    due, calls = [Callback(Call.REVOKED, (partition,))], []
    monkeypatch.setattr(ConsumerCore, "callback", property(lambda _core: due[0] if due else None))
    monkeypatch.setattr(ConsumerCore, "on_callback_done", lambda _core: due.clear())
    consumer._listener = ListenerCalls(None, calls.append, None)
    is_done = once(consumer, "_claim_callback", signal.SIGTERM)
    with pytest.raises(Stop):
        consumer.poll(0)
    assert is_done()
    assert (calls, len(due)) == ([], 1)
    assert consumer.poll(0) == []
    assert (calls, due) == ([[partition]], [])


def test_records_that_a_poll_could_not_return_are_returned_by_the_next_one(consumer: Consumer) -> None:
    taken = [Record("t", 0, offset, 1, 0, None, b"v", (), None) for offset in (5, 6)]
    put_back: list[dict[TopicPartition, int]] = []
    core = consumer._core
    core.take_records = lambda _limit: taken  # type: ignore[method-assign]
    core.put_back = lambda offsets: put_back.append(dict(offsets))  # type: ignore[method-assign]
    is_done = once(core, "take_records", signal.SIGTERM)
    with pytest.raises(Stop):
        consumer.poll(TIMEOUT_S)
    assert is_done()
    assert put_back == [{TopicPartition("t", 0): 5}]
    assert consumer.poll(TIMEOUT_S) == taken


def test_chunks_that_were_not_decoded_are_fetched_again(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"value": [b"v"]}).to_batches()[0]
    put_back: list[dict[TopicPartition, int]] = []
    core = consumer._core
    core.take_chunks = lambda _rows: [Taken("t", 0, memoryview(b""), 5, None, None)]  # type: ignore[method-assign]
    core.put_back = lambda offsets: put_back.append(dict(offsets))  # type: ignore[method-assign]
    monkeypatch.setattr(columns, "to_one_batch", lambda _taken: columns.Decoded(rows, {}, None))
    is_done = once(columns, "to_one_batch", signal.SIGTERM)
    with pytest.raises(Stop):
        consumer.poll_arrow(TIMEOUT_S)
    assert not is_done()
    assert put_back == [{TopicPartition("t", 0): 5}]
    assert consumer.poll_arrow(TIMEOUT_S) is rows


def test_a_client_that_waits_on_its_own_thread_holds_signals_back_on_the_main_one(producer: Producer) -> None:
    io = producer._thread
    with io._baton:
        io._is_selecting = True
        try:
            io.signals.hold()
            signal.raise_signal(signal.SIGTERM)
            assert io.signals.is_any
            with pytest.raises(Stop):
                io.signals.release()
        finally:
            io._is_selecting = False


# -- clients that the garbage collector finds


def _collected_under(lock: Any, held_by: list[Any]) -> bool:
    """Whether the last reference to a client can be dropped by a thread that has one of its locks."""

    def collect() -> None:
        with lock:
            held_by.clear()
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    return not thread.is_alive()


def test_a_producer_is_collected_while_its_lock_is_held() -> None:
    with AcknowledgingBroker() as broker:
        producer = [Producer(bootstrap_servers=broker.address, enable_idempotence=False)]
        core, thread = producer[0]._core, producer[0]._thread
        producer[0].send("t", b"v").result(TIMEOUT_S)
        assert _collected_under(core.accumulator.lock, producer)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_a_consumer_is_collected_while_its_lock_is_held() -> None:
    with AcknowledgingBroker() as broker:
        consumer = [Consumer(bootstrap_servers=broker.address)]
        io, lock = consumer[0]._io, consumer[0]._driven.lock
        assert _collected_under(lock, consumer)
        io.join(TIMEOUT_S)
        assert not io.is_alive()


FORKS = """
import os, signal
from kalda.client.transport.held_signals import held_signals
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    with held_signals():
        if not os.fork():
            os._exit(0)
    print("lost")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_in_what_runs_at_a_fork_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
