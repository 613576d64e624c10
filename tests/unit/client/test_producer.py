"""The producers' shells: threads, loops, futures, callbacks, the end of each; and brokers that misbehave."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from scripted_broker import ScriptedBroker

from kalda.aio import Producer as AsyncProducer
from kalda.base.configs.definition import InvalidConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.client.producer import delivery
from kalda.client.producer.producer import Producer
from kalda.client.transport.channels import monotonic_ms
from kalda.clientcore.producing.outbound_record import ProducerRecord
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.clientcore.producing.producer_errors import (
    BufferExhausted,
    MetadataTimeout,
    ProducerClosed,
    RecordTooLarge,
    SerializationError,
)
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.protocol.messages.transactions import InitProducerIdResponse
from kalda.records.builder import Record, read_records

TIMEOUT_S = 30


class Broker(ScriptedBroker):
    """Keeps what is produced to topic `t`; `hold` keeps its answers to Produce back."""

    def __init__(self, partitions: int = 2) -> None:
        super().__init__()
        self.topics["t"] = [1] * partitions
        self.logs: list[list[Record]] = [[] for _ in range(partitions)]
        self.hold = threading.Event()
        self.hold.set()
        self.codes: list[ErrorCode] = []
        """Refusals of the next batches."""
        self.answers[ApiKey.PRODUCE] = self._produce
        self.answers[ApiKey.INIT_PRODUCER_ID] = lambda _request, _version: InitProducerIdResponse(
            producer_id=4, producer_epoch=0
        )

    def _produce(self, request: Any, _version: int) -> Any:
        assert self.hold.wait(TIMEOUT_S)
        results = []
        for topic in request.topic_data:
            for data in topic.partition_data:
                code = self.codes.pop(0) if self.codes else ErrorCode.NONE
                offset = len(self.logs[data.index])
                if not code:
                    self.logs[data.index] += read_records(bytes(data.records))
                results.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
        topic_id = request.topic_data[0].topic_id
        return ProduceResponse(
            responses=[TopicProduceResponse(name="t", topic_id=topic_id, partition_responses=results)]
        )

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for log in self.logs for record in log]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made
        made.hold.set()


def producer(broker: Broker, **keys: object) -> Producer:
    return Producer({"bootstrap.servers": broker.address}, **{"linger_ms": 0, **keys})


# -- sending


def test_a_record_arrives_and_its_future_says_where(broker: Broker) -> None:
    with producer(broker) as made:
        future = made.send("t", b"v", b"k", 1, 1_234, [("h", b"x"), ("n", None)])
        found = future.result(TIMEOUT_S)
        assert found == RecordMetadata("t", 1, 0, 1_234)
        assert (found.serialized_key_size, found.serialized_value_size) == (1, 1)
        assert future.done()
        assert future.exception() is None
    ((record,),) = [log for log in broker.logs if log]
    assert record == Record(0, 1_234, b"k", b"v", (("h", b"x"), ("n", None)))


def test_equal_keys_go_to_one_partition(broker: Broker) -> None:
    with producer(broker) as made:
        found = {made.send("t", b"v", b"key").result(TIMEOUT_S).partition for _ in range(5)}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("serializer", "given", "expected"),
    [
        ("str", "ü", "ü".encode()),
        ("int", -2, b"\xff" * 7 + b"\xfe"),
        ("float", 0.5, b"\x3f\xe0" + bytes(6)),
        ("uuid", UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        ("json", {"a": [1, "ü"]}, '{"a":[1,"ü"]}'.encode()),
        ("bytes", bytearray(b"x"), b"x"),
        (lambda value: value[::-1], b"ab", b"ba"),
        ("str", None, None),
    ],
)
def test_serializers(broker: Broker, serializer: object, given: object, expected: bytes | None) -> None:
    with producer(broker, value_serializer=serializer) as made:
        made.send("t", given).result(TIMEOUT_S)
    assert broker.values == [expected]


def test_what_a_serializer_does_not_take_raises(broker: Broker) -> None:
    with producer(broker) as made, pytest.raises(SerializationError, match="bytes are expected, not str"):
        made.send("t", "text")
    with producer(broker, key_serializer="int") as made, pytest.raises(SerializationError, match="an int of 64 bits"):
        made.send("t", b"v", "text")
    with pytest.raises(InvalidConfig, match=r"value\.serializer"):
        producer(broker, value_serializer="pickle")


def test_interceptors_see_and_change_records(broker: Broker) -> None:
    class Shout:
        seen: list[object] = []

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(value=record.value.upper())

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
            self.seen.append(metadata and metadata.offset)
            raise RuntimeError("is logged")

    with producer(broker, interceptor_classes=[Shout()]) as made:
        made.send("t", b"v", partition=0).result(TIMEOUT_S)
    assert broker.values == [b"V"]
    assert Shout.seen == [0]


def test_a_custom_partitioner_chooses(broker: Broker) -> None:
    class Last:
        choice = -1

        def partition(self, topic: str, key: Any, key_bytes: bytes | None, value: Any, partitions: int) -> int:
            return partitions - 1 if self.choice < 0 else self.choice

    chooser = Last()
    with producer(broker, partitioner_class=chooser) as made:
        assert made.send("t", b"v", b"k").result(TIMEOUT_S).partition == 1
        chooser.choice = 7
        with pytest.raises(ValueError, match="chose partition 7 of t, which has 2"):
            made.send("t", b"v", b"k")


# -- callbacks


def test_callbacks_come_once_each_in_order_and_survive_each_other(broker: Broker) -> None:
    calls: list[tuple[int, int | None]] = []

    def note(number: int, metadata: RecordMetadata | None) -> None:
        calls.append((number, metadata and metadata.offset))
        if number == 3:
            raise RuntimeError("is logged")

    with producer(broker, linger_ms=20) as made:
        for number in range(50):
            made.send("t", b"%d" % number, partition=0, on_delivery=lambda m, _e, n=number: note(n, m))
    assert calls == [(number, number) for number in range(50)]


def test_callbacks_of_a_future_come_before_and_after_it_is_done(broker: Broker) -> None:
    calls: list[str] = []
    broker.hold.clear()
    with producer(broker) as made:
        future = made.send("t", b"v", on_delivery=lambda _metadata, _error: calls.append("delivered"))
        future.add_done_callback(lambda done: calls.append(f"early {done.done()}"))
        plain = made.send("t", b"w")
        plain.add_done_callback(lambda _done: calls.append("plain"))
        broker.hold.set()
        plain.result(TIMEOUT_S)
        future.add_done_callback(lambda done: calls.append(f"late {done.done()}"))
    assert sorted(calls) == sorted(["delivered", "early True", "plain", "late True"])


def test_an_error_reaches_future_and_callback(broker: Broker) -> None:
    broker.codes = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    seen: list[Exception | None] = []
    with producer(broker) as made:
        future = made.send("t", b"v", on_delivery=lambda _metadata, error: seen.append(error))
        with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
            future.result(TIMEOUT_S)
    assert seen == [future.exception()]


def test_in_a_callback_flush_raises_close_returns_and_send_goes_on(broker: Broker) -> None:
    found: list[object] = []
    made = producer(broker)

    def use(_metadata: object, _error: object) -> None:
        try:
            made.flush()
        except RuntimeError as error:
            found.append(error)
        found.append(made.send("t", b"from a callback", partition=0))
        made.close()
        found.append("closed")

    made.send("t", b"v", partition=0, on_delivery=use)
    made._thread.join(TIMEOUT_S)
    assert not made._thread.is_alive()
    assert isinstance(found[0], RuntimeError)
    assert found[2] == "closed"
    with pytest.raises(ApiError, match="closed before"):
        found[1].result(TIMEOUT_S)  # type: ignore[attr-defined]


# -- waiting


def test_a_topic_that_does_not_come_fails_the_future(broker: Broker) -> None:
    errors: list[Exception | None] = []
    with producer(broker, max_block_ms=1_000) as made:
        made.send("t", b"v").result(TIMEOUT_S)
        future = made.send("nowhere", b"v", on_delivery=lambda _metadata, error: errors.append(error))
        with pytest.raises(MetadataTimeout, match="nowhere is not in the metadata after 1000 ms: it may not exist"):
            future.result(0)
        with pytest.raises(MetadataTimeout, match="partition 9 of topic t, which has 2"):
            made.send("t", b"v", partition=9).result(0)
    assert errors == [future.exception()]


def test_a_record_that_is_too_large_fails_its_future(broker: Broker) -> None:
    with producer(broker, max_request_size=1_000) as made:
        assert isinstance(made.send("t", bytes(1_000)).exception(0), RecordTooLarge)
        assert made.send("t", bytes(800)).exception(TIMEOUT_S) is None


def test_full_memory_blocks_then_fails_and_comes_back(broker: Broker) -> None:
    broker.hold.clear()
    with producer(broker, buffer_memory=2_000, batch_size=1_000, max_block_ms=200) as made:
        futures = [made.send("t", bytes(800), partition=0) for _ in range(2)]
        blocked = made.send("t", bytes(800), partition=0)
        assert isinstance(blocked.exception(0), BufferExhausted)
        assert made.metrics()["buffer-exhausted-total"] == 1
        broker.hold.set()
        assert [future.result(TIMEOUT_S).offset for future in futures] == [0, 1]
        assert made.send("t", bytes(800), partition=0).result(TIMEOUT_S).offset == 2
        made.flush(TIMEOUT_S)
        assert made._core.pool.available_bytes == made._core.pool.total_bytes


def test_threads_share_a_producer(broker: Broker) -> None:
    with producer(broker, batch_size=500, buffer_memory=5_000) as made:

        def work(name: int) -> None:
            for number in range(300):
                made.send("t", b"%d %d" % (name, number), partition=number % 2)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index, log in enumerate(broker.logs):
        for name in range(4):
            numbers = [
                int(record.value.split()[1])
                for record in log
                if record.value and record.value.startswith(b"%d " % name)
            ]
            assert numbers == list(range(index, 300, 2))


def test_flush_waits_for_all_and_may_time_out(broker: Broker) -> None:
    broker.hold.clear()
    with producer(broker, linger_ms=60_000, delivery_timeout_ms=200_000) as made:
        future = made.send("t", b"v")
        with pytest.raises(TimeoutError):
            made.flush(0.1)
        broker.hold.set()
        made.flush(TIMEOUT_S)
        assert future.done()


# -- the end


def test_close_sends_what_is_left_and_later_use_raises(broker: Broker) -> None:
    made = producer(broker, linger_ms=60_000, delivery_timeout_ms=200_000)
    future = made.send("t", b"v")
    made.close()
    made.close()
    assert future.done()
    assert broker.values == [b"v"]
    with pytest.raises(ProducerClosed, match="the producer is closed"):
        made.send("t", b"v")


def test_close_gives_up_after_its_timeout(broker: Broker) -> None:
    broker.hold.clear()
    made = producer(broker)
    future = made.send("t", b"v")
    made.close(0.1)
    with pytest.raises(ApiError, match="closed before the record was acknowledged"):
        future.result(0)
    assert not made._thread.is_alive()


def test_a_callback_at_the_end_cannot_wait(broker: Broker) -> None:
    broker.hold.clear()
    made = producer(broker)
    found: list[object] = []

    def use(_metadata: object, _error: object) -> None:
        for wait in (other.result, made.flush):
            try:
                wait()
            except RuntimeError as error:
                found.append(str(error))
        made.close()
        found.append("closed")

    made.send("t", b"v", partition=0, on_delivery=use)
    other = made.send("t", b"w", partition=1)
    closing = threading.Thread(target=made.close, args=(0.1,), daemon=True)
    closing.start()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert [str(one).split(" ")[0] for one in found] == ["a", "flush", "closed"]


def test_the_wait_for_a_topic_is_no_part_of_the_time_for_delivery(broker: Broker) -> None:
    with producer(broker) as made:
        wait, found_ms = made._wait_for_topic, []

        def wait_long(*arguments: Any) -> Any:
            began_ms = monotonic_ms()
            partitions = wait(*arguments)
            while monotonic_ms() == began_ms:
                pass
            found_ms.append(monotonic_ms())
            return partitions

        made._wait_for_topic = wait_long  # type: ignore[method-assign]
        assert made.send("t", b"v").batch.created_ms >= found_ms[0]


def test_a_producer_that_is_dropped_ends_its_thread(broker: Broker) -> None:
    made = producer(broker)
    future = made.send("t", b"v")
    thread, gone = made._thread, weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert future.result(0).offset == 0


def test_a_forked_child_cannot_use_its_parents_producer(broker: Broker) -> None:
    with producer(broker) as made:
        made.send("t", b"v").result(TIMEOUT_S)
        child = os.fork()
        if child == 0:
            try:
                made.send("t", b"w")
            except ProducerClosed:
                made.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        made.send("t", b"x").result(TIMEOUT_S)
    assert broker.values.count(b"w") == 0


def test_a_forked_child_does_not_wait_for_its_parents_record_and_may_have_a_producer(broker: Broker) -> None:
    broker.hold.clear()
    with producer(broker) as made:
        future = made.send("t", b"v")
        with delivery._lock:  # as a thread does that is not in the child
            child = os.fork()
            if child == 0:
                signal.alarm(TIMEOUT_S)
                try:
                    future.result()
                except ProducerClosed:
                    own = producer(broker)
                    own.send("t", b"w", on_delivery=lambda *_: os._exit(7))
                    broker.hold.set()
                    own.flush()
                os._exit(1)
        broker.hold.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("answers", [True, False])
def test_the_interpreters_end_sends_what_is_left_and_does_not_hang(broker: Broker, answers: bool) -> None:
    if not answers:
        broker.answers[ApiKey.PRODUCE] = lambda _request, _version: None
    program = (
        "import logging, kalda; logging.basicConfig()\n"
        "import kalda.client.producer.producer as m; m._EXIT_TIMEOUT_S = 1.0\n"
        f"p = kalda.Producer(bootstrap_servers='{broker.address}', linger_ms=50); p.send('t', b'v')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert broker.values == ([b"v"] if answers else [])
    assert ("1 record was not acknowledged" in run.stderr) is not answers


def test_ctrl_c_ends_a_wait(broker: Broker) -> None:
    broker.hold.clear()
    program = (
        "import kalda, os, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        f"p = kalda.Producer(bootstrap_servers='{broker.address}', linger_ms=0)\n"
        "f = p.send('t', b'v'); threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try: f.result(60)\n"
        "except KeyboardInterrupt: print('interrupted'); p.close(0)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "interrupted\n"


def test_importing_kalda_imports_no_client() -> None:
    program = "import sys, kalda; print([name for name in sys.modules if name.startswith('kalda.')])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[]\n"


# -- brokers that misbehave


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 100, b"\x7f\xff\xff\xff" + bytes(50), bytes(4), b"HTTP/1.1 400 Bad Request\r\n"]
)
def test_garbage_instead_of_answers_ends_in_a_clear_error(broker: Broker, garbage: bytes) -> None:
    def reply(_frame: bytes, peer: Any) -> bool:
        peer.sendall(garbage)
        return True

    broker.reply = reply  # type: ignore[method-assign]
    with producer(broker, max_block_ms=1_000) as made, pytest.raises(MetadataTimeout, match="no broker was reachable"):
        made.send("t", b"v").result(0)


def test_a_broker_that_closes_every_connection_ends_in_a_clear_error(broker: Broker) -> None:
    broker.answers[ApiKey.PRODUCE] = lambda _request, _version: None
    keys = {"request_timeout_ms": 200, "delivery_timeout_ms": 400}
    # By whether the time ends in a pause between two attempts, or in one.
    why = r"delivery\.timeout\.ms is 400|closed the connection, after \d+ attempts"
    with producer(broker, **keys) as made, pytest.raises(ApiError, match=why):
        made.send("t", b"v").result(TIMEOUT_S)


def test_endless_redirects_end_in_a_clear_error(broker: Broker) -> None:
    redirects = []

    def redirect(request: Any, _version: int) -> Any:
        redirects.append(request)
        broker.leader_epoch += 1
        result = PartitionProduceResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        result.current_leader.leader_id, result.current_leader.leader_epoch = 1, broker.leader_epoch
        topic = TopicProduceResponse(name="t", topic_id=request.topic_data[0].topic_id, partition_responses=[result])
        return ProduceResponse(responses=[topic])

    broker.answers[ApiKey.PRODUCE] = redirect
    keys = {"request_timeout_ms": 200, "delivery_timeout_ms": 400}
    with producer(broker, **keys) as made, pytest.raises(ApiError, match=r"\d attempts in 4\d\d ms|timeout\.ms is 400"):
        made.send("t", b"v", partition=0).result(TIMEOUT_S)
    assert 3 <= len(redirects) <= 8, "three at once, then behind a backoff"


def test_an_answer_without_the_partition_is_tried_again(broker: Broker) -> None:
    produce = broker.answers[ApiKey.PRODUCE]
    empty = [ProduceResponse(), ProduceResponse()]
    broker.answers[ApiKey.PRODUCE] = lambda request, version: empty.pop() if empty else produce(request, version)
    with producer(broker, retry_backoff_ms=1) as made:
        assert made.send("t", b"v").result(TIMEOUT_S).offset == 0


# -- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and its certificate for localhost in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    files = [str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")]
    subprocess.run([*command.split(), "-keyout", files[0], "-out", files[1]], check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(file).read_text() for file in files))
    return both


def speak_tls(broker: Broker, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = broker._server
    accept = server.get_request

    def get_request() -> Any:
        peer, address = accept()
        return context.wrap_socket(peer, server_side=True, do_handshake_on_connect=False), address

    server.get_request = get_request  # type: ignore[method-assign]


def test_tls_with_large_records(broker: Broker, certificate: Path) -> None:
    speak_tls(broker, certificate)
    values = [os.urandom(300_000) for _ in range(6)]
    keys = {"security_protocol": "SSL", "ssl_truststore_location": str(certificate), "batch_size": 1}
    keys["ssl_endpoint_identification_algorithm"] = ""  # the scripted broker is reached by its address
    with Producer(bootstrap_servers=f"localhost:{broker.port}", **keys) as made:
        futures = [made.send("t", value, partition=0) for value in values]
        assert [future.result(TIMEOUT_S).offset for future in futures] == list(range(6))

    async def work() -> None:
        async with AsyncProducer(bootstrap_servers=f"localhost:{broker.port}", **keys) as other:
            done = [await other.send("t", value, partition=1) for value in values]
            assert [(await future).offset for future in done] == list(range(6))

    asyncio.run(work())
    assert broker.values == values * 2


def test_a_certificate_that_is_not_trusted_ends_in_a_clear_error(broker: Broker, certificate: Path) -> None:
    speak_tls(broker, certificate)
    keys = {"security_protocol": "SSL", "max_block_ms": 2_000}
    with producer(broker, **keys) as made, pytest.raises(ApiError, match="SSL handshake failed: the certificate of"):
        made.send("t", b"v").result(0)


# -- asyncio


def test_the_asyncio_producer_sends_and_awaits(broker: Broker) -> None:
    seen: list[object] = []

    async def work() -> list[RecordMetadata]:
        async with AsyncProducer({"bootstrap.servers": broker.address}, linger_ms=0) as made:
            futures = [
                await made.send("t", b"%d" % number, partition=0, on_delivery=lambda m, _e: seen.append(m and m.offset))
                for number in range(300)
            ]
            await made.flush(TIMEOUT_S)
            return [await future for future in futures]

    found = asyncio.run(work())
    assert [metadata.offset for metadata in found] == list(range(300))
    assert seen == list(range(300))
    assert broker.values == [b"%d" % number for number in range(300)]


def test_the_asyncio_producer_waits_for_room(broker: Broker) -> None:
    broker.hold.clear()

    async def work() -> None:
        keys = {"linger_ms": 0, "buffer_memory": 2_000, "batch_size": 1_000, "max_block_ms": 300}
        async with AsyncProducer({"bootstrap.servers": broker.address}, **keys) as made:
            futures = [await made.send("t", bytes(800), partition=0) for _ in range(2)]
            failed = await made.send("t", bytes(800), partition=0)
            with pytest.raises(BufferExhausted):
                await failed
            broker.hold.set()
            assert [(await future).offset for future in futures] == [0, 1]
            missing = await made.send("nowhere", b"v")
            with pytest.raises(MetadataTimeout):
                await missing
            assert made._core.pool.available_bytes == 2_000
        with pytest.raises(ProducerClosed):
            await made.send("t", b"v")

    asyncio.run(work())


def test_the_asyncio_producer_gives_up_at_close(broker: Broker) -> None:
    broker.hold.clear()

    async def work() -> None:
        made = AsyncProducer({"bootstrap.servers": broker.address}, linger_ms=0)
        future = await made.send("t", b"v")
        await made.close(0.1)
        with pytest.raises(ApiError, match="closed before the record was acknowledged"):
            await future

    asyncio.run(work())


def test_a_cancelled_future_does_not_disturb_the_others(broker: Broker) -> None:
    broker.hold.clear()

    async def work() -> None:
        async with AsyncProducer({"bootstrap.servers": broker.address}, linger_ms=0) as made:
            futures = [await made.send("t", b"v", partition=0) for _ in range(3)]
            futures[1].cancel()
            broker.hold.set()
            assert [(await futures[index]).offset for index in (0, 2)] == [0, 2]

    asyncio.run(work())


# -- tables


def test_rows_of_a_table_arrive_in_order_at_the_partitions_of_their_keys(broker: Broker) -> None:
    pa = pytest.importorskip("pyarrow")
    keys = ["a", "b", None, "c", "a", "b"]
    table = pa.table({"k": keys, "v": [b"%d" % number for number in range(6)], "timestamp": list(range(6))})
    with producer(broker) as made:
        written = made.send_batch("t", table, key="k", value="v").result(TIMEOUT_S)
        by_key = {key: made.send("t", b"", key.encode()).result(TIMEOUT_S).partition for key in "abc"}
        with pytest.raises(KeyError, match="no column 'x' for the value"):
            made.send_batch("t", table, value="x")
        with pytest.raises(KeyError, match="the table has no column 'value'; name the one of the values"):
            made.send_batch("t", table)  # else: no record, or with a column `key` only tombstones
        with pytest.raises(TypeError, match=r"a pyarrow\.Table or RecordBatch is expected, not list"):
            made.send_batch("t", [1])
    assert sum(batch.records_count for batch in written) == 6
    rows = [(index, record) for index, log in enumerate(broker.logs) for record in log if record.value]
    assert {record.value: (record.key, record.timestamp) for _, record in rows} == {
        b"%d" % number: (key and key.encode(), number) for number, key in enumerate(keys)
    }
    assert all(by_key[record.key.decode()] == index for index, record in rows if record.key)
    for log in broker.logs:
        values = [record.value for record in log if record.value]
        assert values == sorted(values)


def test_a_table_waits_for_memory_and_may_name_its_partition(broker: Broker) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"value": [b"%05d" % number for number in range(3_000)]})
    with producer(broker, buffer_memory=20_000, batch_size=1_000) as made:
        written = made.send_batch("t", table, partition=1).result(TIMEOUT_S)
        made.flush()
        assert made._core.pool.available_bytes == 20_000
    assert [record.value for record in broker.logs[1]] == [b"%05d" % number for number in range(3_000)]
    assert len(written) > 4

    async def work() -> None:
        async with AsyncProducer({"bootstrap.servers": broker.address}, buffer_memory=20_000) as made:
            done = await made.send_batch("t", table, partition=0)
            assert sum(batch.records_count for batch in await done) == 3_000

    asyncio.run(work())
    assert [record.value for record in broker.logs[0]] == [b"%05d" % number for number in range(3_000)]
