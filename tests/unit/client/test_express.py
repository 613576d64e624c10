"""Records that are sent at once: the same bytes and numbers as in the general way, and what becomes of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from model_cluster import TOPIC_ID, World
from scripted_broker import ScriptedBroker

from kalda import Producer
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client import producer_io
from kalda.client.core.lone_batches import LoneBatches
from kalda.client.core.lone_request import LoneRequest
from kalda.client.core.producer_batch import FinalState, ProducerBatch, RecordMetadata
from kalda.client.delivery import DeliveryFuture
from kalda.protocol.apis import ApiKey
from kalda.protocol.calls import Call, frame_body
from kalda.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.records.appending import NO_HEADERS, Ticket
from kalda.records.batch import read_header
from kalda.records.compression import Compression

PARTITION = TopicPartition("t", 2)
TIMEOUT_S = 20


# -- the request


@pytest.mark.parametrize(
    "value", [None, b"", b"v", *(bytes(size) for size in (40, 56, 57, 58, 63, 64, 65, 200, 3_000))]
)
@pytest.mark.parametrize("key", [None, b"", b"k" * 70])
def test_a_request_has_the_bytes_of_the_general_way(key: bytes | None, value: bytes | None) -> None:
    requests = LoneBatches(None, -1, 30_000).of(PARTITION, TOPIC_ID, 13)
    batch = ProducerBatch(PARTITION, bytearray(8_192), 8_192, 0)
    batch.put(1_700_000_000_123, key, value, NO_HEADERS, Ticket())
    batch.set_producer(2**40 + 3, 7, 2**31 - 1, False)
    batch.seal(Compression.NONE, None)
    assert batch.sealed is not None
    general = b"".join(frame_body(Call(ApiKey.PRODUCE, 13, 70_000), requests.body(batch.sealed), "client"))
    prefix = b"".join(frame_body(Call(ApiKey.PRODUCE, 13, 0), requests.body(b"")[:1], "client"))[:-1]
    made = LoneRequest(prefix, bytearray(4_096))
    for _ in range(2):
        encoded = made.encode(70_000, 2**40 + 3, 7, 2**31 - 1, 1_700_000_000_123, key, value)
        assert encoded == general
        assert made.batch_size == batch.position


def test_what_does_not_fit_is_not_encoded() -> None:
    made = LoneRequest(b"p" * 30, bytearray(200))
    sizes = [size for size in range(200) if made.encode(1, -1, -1, -1, 0, None, bytes(size)) is not None]
    assert sizes == list(range(sizes[-1] + 1))
    longest = made.encode(1, -1, -1, -1, 0, None, bytes(sizes[-1]))
    assert longest is not None
    assert 190 < len(longest) <= 200


# -- at model brokers


def idle_world(**keys: object) -> World:
    """A producer that has sent a record to each partition, and has nothing left to do."""
    world = World(partitions=3, brokers=3, **{"linger.ms": 0, **keys})
    world.core.may_send_at_once(Ticket)
    for partition in range(3):
        world.send(b"first", partition)
    world.run_until_idle()
    world.run(100)
    world.requests.clear()
    world.delivered.clear()
    return world


def sequences(world: World) -> list[int]:
    produced = [request for _, key, request in world.requests if key is ApiKey.PRODUCE]
    return [read_header(bytes(each.topic_data[0].partition_data[0].records)).base_sequence for each in produced]


def test_records_in_both_ways_share_their_numbers() -> None:
    world = idle_world()
    for value in (b"1", b"2"):
        assert world.send_at_once(value, 1)
        world.run(20)
    world.send(b"3", 1)
    world.run_until_idle()
    assert world.send_at_once(b"4", 1)
    world.run(20)
    assert sequences(world) == [1, 2, 3, 4]
    assert world.partitions[1].values == [b"first", b"1", b"2", b"3", b"4"]
    assert [value for value, _ in world.delivered] == [b"1", b"2", b"3", b"4"]


def test_a_record_that_another_one_precedes_is_not_sent_at_once() -> None:
    world = idle_world()
    world.send(b"queued", 1)
    assert not world.send_at_once(b"v", 0)
    world.run_until_idle()
    assert world.send_at_once(b"in flight", 0)
    assert not world.send_at_once(b"v", 1)


def test_a_record_behind_one_that_has_to_be_repeated_stays_behind_it() -> None:
    world = idle_world()
    left = [1]

    def refuse(_partition: TopicPartition, _batch: bytes) -> ErrorCode | None:
        left[0] -= 1
        return ErrorCode.NOT_ENOUGH_REPLICAS if left[0] >= 0 else None

    world.on_produce = refuse
    assert world.send_at_once(b"1", 0)
    world.send(b"2", 0)
    world.run_until_idle()
    assert world.partitions[0].values == [b"first", b"1", b"2"]
    assert [value for value, _ in world.delivered] == [b"1", b"2"]


def test_a_record_whose_response_is_lost_is_repeated_with_its_number() -> None:
    world = idle_world()
    assert world.send_at_once(b"1", 0)
    world.cut(0)
    world.run_until_idle()
    assert world.partitions[0].values == [b"first", b"1"]
    assert set(sequences(world)) == {1}


@pytest.mark.parametrize("at_once", [False, True])
def test_a_request_whose_response_is_lost_is_not_in_flight(at_once: bool) -> None:
    world = idle_world()
    assert world.send_at_once(b"1", 0) if at_once else world.send(b"1", 0)
    world.run(0)
    world.cut(0)
    world.run_until_idle()
    assert world.core.metrics.snapshot(world.now_ms)["requests-in-flight"] == 0


def test_a_record_expires_as_any_other_one() -> None:
    world = idle_world(**{"delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000})
    world.down.update(world.nodes)
    assert world.send_at_once(b"1", 0)
    world.run(3_100)
    ((value, error),) = world.delivered
    assert value == b"1"
    assert isinstance(error, Exception)


def test_a_throttled_node_is_sent_nothing_at_once() -> None:
    world = idle_world()
    world.core.connections.throttle(1, 50, world.now_ms)
    assert not world.send_at_once(b"v", 1)
    assert world.send_at_once(b"v", 0)


def test_after_a_throttle_time_nothing_is_sent_at_once() -> None:
    world = idle_world()
    world.throttle_ms = 50
    assert world.send_at_once(b"v", 0)
    world.run(20)
    assert not world.send_at_once(b"v", 0)
    world.run(60)
    assert world.send_at_once(b"v", 0)


def test_where_something_is_due_a_turn_comes_first() -> None:
    world = idle_world()
    world.core.metadata.request_update()
    assert not world.send_at_once(b"v", 0)
    assert not world.core.accumulator.incomplete


def test_a_moved_leader_is_found_before_the_next_record_is_sent_at_once() -> None:
    world = idle_world()
    world.partitions[0].leader, world.partitions[0].epoch = 2, 1
    assert world.send_at_once(b"1", 0)
    world.run_until_idle()
    world.run(500)
    assert world.send_at_once(b"2", 0)
    world.run(20)
    assert [node for node, key, _ in world.requests if key is ApiKey.PRODUCE] == [0, 2, 2]
    assert world.partitions[0].values == [b"first", b"1", b"2"]


def test_the_sticky_partition_changes_as_in_the_general_way() -> None:
    world = idle_world(**{"batch.size": 300})
    for _ in range(60):
        if not world.send_at_once(b"v" * 80):
            world.send(b"v" * 80)
        world.run(20)
    assert world.sent_at_once > 30
    assert all(len(partition.values) > 5 for partition in world.partitions)


def test_a_closed_producer_sends_nothing_at_once() -> None:
    world = idle_world()
    world.core.accumulator.close()
    assert not world.send_at_once(b"v", 0)


def test_counters_have_every_record() -> None:
    world = idle_world()
    before = world.core.metrics.snapshot(world.now_ms)
    for _ in range(3):
        assert world.send_at_once(b"v", 0)
        world.run(20)
    after = world.core.metrics.snapshot(world.now_ms)
    names = ("record-send-total", "request-total", "response-total", "t.record-send-total")
    assert [after[name] - before[name] for name in names] == [3] * 4
    assert after["requests-in-flight"] == 0
    assert all(batch.final_state is FinalState.SUCCEEDED for batch in world.done)


# -- at a scripted broker


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
def producer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """Its own thread takes a turn 0.2 s after the last wait of a thread."""
    monkeypatch.setattr(producer_io, "_GRACE_S", 0.2)
    keys = {"linger_ms": 0, "enable_idempotence": False, "reconnect_backoff_ms": 1, "retry_backoff_ms": 1}
    with Producer(bootstrap_servers=broker.address, **keys) as made:
        made.send("t", b"first").result(TIMEOUT_S)
        yield made


def send_at_once(producer: Producer, before: Callable[[], None] | None = None, **keywords: Any) -> DeliveryFuture:
    """The future of the first record that is sent at once. `before` is called before each."""
    express, begun = producer._core.express, []
    assert express is not None
    begin = express.begin

    def noted(*arguments: Any) -> Ticket | None:
        ticket = begin(*arguments)
        begun.append(ticket)
        return ticket

    express.begin = noted  # type: ignore[method-assign]
    try:
        while True:
            producer.send("t", b"v").result(TIMEOUT_S)
            if before is not None:
                before()
            future = producer.send("t", b"v", **keywords)
            if future in begun:
                return future
            future.result(TIMEOUT_S)
    finally:
        express.begin = begin  # type: ignore[method-assign]


def test_a_record_is_sent_by_the_calling_thread(broker: Broker, producer: Producer) -> None:
    future = send_at_once(producer)
    assert future.result(TIMEOUT_S).topic == "t"
    assert future.done()
    assert future.exception() is None


def test_a_record_that_no_thread_waits_for_is_delivered(producer: Producer) -> None:
    delivered = threading.Event()
    send_at_once(producer, on_delivery=lambda _metadata, _error: delivered.set())
    assert delivered.wait(TIMEOUT_S)


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


def test_a_callback_cannot_wait_and_may_send(producer: Producer) -> None:
    others: list[DeliveryFuture] = []

    def delivered(_metadata: RecordMetadata | None, _error: Exception | None) -> None:
        others.append(producer.send("t", b"w"))
        with pytest.raises(RuntimeError, match="a callback cannot wait"):
            others[-1].result()

    send_at_once(producer, on_delivery=delivered).result(TIMEOUT_S)
    assert others[-1].result(TIMEOUT_S).topic == "t"


def test_flush_and_close_wait_for_it(producer: Producer) -> None:
    future = send_at_once(producer)
    producer.flush(TIMEOUT_S)
    assert future.done()
    future = send_at_once(producer)
    producer.close(TIMEOUT_S)
    assert future.result(0).topic == "t"


def test_a_broker_that_answers_late(broker: Broker, producer: Producer) -> None:
    """The wait goes over to turns, which another record does not end."""

    def hold() -> None:
        broker.is_open.clear()
        threading.Timer(0.05, broker.is_open.set).start()

    future = send_at_once(producer, hold)
    other = producer.send("t", b"w")
    assert future.result(TIMEOUT_S).offset <= other.result(TIMEOUT_S).offset


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
def test_any_other_response_is_left_to_the_general_way(broker: Broker, producer: Producer, kind: str) -> None:
    def distort() -> None:
        broker.distort = DISTORTED[kind]

    assert send_at_once(producer, distort).result(TIMEOUT_S).topic == "t"
    assert broker.distort is None
    assert producer.send("t", b"w").result(TIMEOUT_S).topic == "t"


def test_a_thread_that_is_interrupted_while_it_waits_may_wait_again(producer: Producer) -> None:
    io = producer._thread
    future = send_at_once(producer)
    select = io._select

    def interrupted(timeout: float | None = None) -> Any:
        if threading.current_thread() is io:
            return select(timeout)
        io._select = select  # type: ignore[method-assign]
        raise KeyboardInterrupt

    io._select = interrupted  # type: ignore[method-assign]
    with contextlib.suppress(KeyboardInterrupt):  # not where the producer's own thread was faster
        future.result(TIMEOUT_S)
    assert future.result(TIMEOUT_S).topic == "t"


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
    producer.send("t", b"w").result(TIMEOUT_S)
    assert producer.send("t", value, **keywords).result(TIMEOUT_S).partition == 0


def test_what_cannot_be_sent_raises_and_breaks_nothing(producer: Producer) -> None:
    producer.send("t", b"w").result(TIMEOUT_S)
    with pytest.raises(ValueError, match="not negative"):
        producer.send("t", b"v", partition=-1)
    assert producer.send("t", b"v").result(TIMEOUT_S).topic == "t"
