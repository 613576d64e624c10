"""Kalda's own producers against real processes: every acknowledgement, every codec; killed, paused and lost brokers."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from apache_kafka import ApacheKafkaNode
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from cutting_proxy import CuttingProxy
from lone_node import LoneNode
from node_cluster import NodeCluster

from kalda import Producer
from kalda.aio import Producer as AsyncProducer
from kalda.client.producer.delivery import DeliveryFuture
from kalda.clientcore.producing.producer_errors import ProducerFencedError
from waiting import wait_until

pytestmark = pytest.mark.compat
TIMEOUT_S = 120


def read(servers: str, topic: str, partitions: int, isolation: str = "read_uncommitted") -> list[list[bytes]]:
    """The values in each partition, up to its end."""
    settings = {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    left = set(range(partitions))
    end_s = time.monotonic() + TIMEOUT_S
    while left:
        assert time.monotonic() < end_s, f"partitions {left} have no end"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            left.discard(message.partition())
        else:
            found[message.partition()].append(message.value())
    consumer.close()
    return found


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars: Path) -> Iterator[LoneNode]:
    with ApacheKafkaNode(tmp_path_factory.mktemp("peer") / "kafka", jars) as made:
        made.format()
        made.start()
        yield made


@pytest.fixture(params=["kalda", pytest.param("kafka", marks=pytest.mark.peer)])
def server(request: pytest.FixtureRequest) -> LoneNode:
    """A node of either kind."""
    found: LoneNode = request.getfixturevalue("node" if request.param == "kalda" else "kafka")
    return found


def create(server: LoneNode, topic: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)
    server.wait_led(topic, partitions)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_acknowledgement_and_codec(server: LoneNode, fresh: Callable[[str], str], acks: str, codec: str) -> None:
    topic = fresh("records")
    create(server, topic)
    keys = {"acks": acks, "compression.type": codec, "batch.size": 2_000}
    with Producer({"bootstrap.servers": server.address, **keys}) as producer:
        futures = [producer.send(topic, b"value %d" % number, partition=number % 2) for number in range(2_000)]
        producer.flush()
        offsets = [future.result(0).offset for future in futures]
        assert offsets == ([-1] * 2_000 if acks == "0" else [number // 2 for number in range(2_000)])
        expected = [[b"value %d" % number for number in range(index, 2_000, 2)] for index in (0, 1)]
        # Without acknowledgements a broker may have records still to append when the producer has sent all, and those
        # that it has not read yet are lost with a connection that is closed.
        wait_until(lambda: read(server.address, topic, 2) == expected, "every record is in the topic, in its order")


def test_the_asyncio_producer(server: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("records")
    create(server, topic)

    async def work() -> None:
        async with AsyncProducer(bootstrap_servers=server.address) as producer:
            futures = [await producer.send(topic, b"%d" % number, partition=0) for number in range(2_000)]
            assert [(await future).offset for future in futures] == list(range(2_000))

    asyncio.run(work())
    assert read(server.address, topic, 2)[0] == [b"%d" % number for number in range(2_000)]


def test_a_topic_deleted_and_made_again_under_load(server: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("again")
    create(server, topic, 1)
    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
    futures: list[DeliveryFuture] = []
    done: list[int] = []
    is_over, more = threading.Event(), threading.Condition()

    def send_all() -> None:
        for number in itertools.count():
            if number % 20 == 0 and is_over.wait(0.001):
                return
            futures.append(producer.send(topic, b"%d" % number, partition=0, on_delivery=partial(count, number)))

    def count(number: int, _metadata: object, _error: object) -> None:
        with more:
            done.append(number)
            more.notify()

    def wait_for(number: int) -> None:
        with more:
            is_done = more.wait_for(lambda: len(done) >= number, TIMEOUT_S)
        assert is_done, f"{len(done)} of {len(futures)} records are done, not {number}"

    with Producer(bootstrap_servers=server.address, metadata_max_age_ms=500) as producer:
        thread = threading.Thread(target=send_all)
        thread.start()
        try:
            wait_for(200)
            admin.delete_topics([topic])[topic].result(TIMEOUT_S)
            with suppress(KafkaException):  # the producer's request for metadata has created it
                create(server, topic, 1)
            wait_for(len(futures) + 200)
        finally:
            is_over.set()
            thread.join()
    assert done == list(range(len(futures))), "each callback once, in order"
    assert all(future.exception(0) is None for future in futures)
    found = [int(value) for value in read(server.address, topic, 1)[0]]
    assert found == list(range(found[0], len(futures))), "no later record is lost, doubled or out of order"


def test_tables(server: LoneNode, fresh: Callable[[str], str]) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = fresh("table")
    create(server, topic, 3)
    values = [b"%d" % number for number in range(20_000)]
    table = pa.table({"k": [b"%d" % (number % 100) for number in range(20_000)], "v": values})
    with Producer(bootstrap_servers=server.address, compression_type="lz4") as producer:
        written = producer.send_batch(topic, table, key="k", value="v").result(TIMEOUT_S)
        by_key = {key: producer.send(topic, b"x", b"%d" % key).result(TIMEOUT_S).partition for key in range(10)}
    assert sum(batch.records_count for batch in written) == 20_000
    found = read(server.address, topic, 3)
    assert sorted(value for each in found for value in each if value != b"x") == sorted(values)
    for key, partition in by_key.items():
        assert b"%d" % (key + 100) in found[partition]


@pytest.mark.peer
def test_transactions(kafka: LoneNode, fresh: Callable[[str], str]) -> None:
    topic, name = fresh("transactions"), fresh("id")
    create(kafka, topic)
    with Producer(bootstrap_servers=kafka.address, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(topic, b"committed", partition=0)
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"aborted", partition=0).result(TIMEOUT_S)
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(topic, b"with offsets", partition=0)
            producer.send_offsets_to_transaction({(topic, 0): 1}, fresh("group"))
        with Producer(bootstrap_servers=kafka.address, transactional_id=name) as newer:
            newer.init_transactions()
            with pytest.raises(ProducerFencedError), producer.transaction():
                producer.send(topic, b"fenced", partition=0)
    assert read(kafka.address, topic, 2, "read_committed")[0] == [b"committed", b"with offsets"]


class Stream:
    """A thread that sends numbered records to the partitions in turn, until it is stopped."""

    def __init__(self, servers: str, topic: str, partitions: int, **keys: object) -> None:
        self.futures: list[DeliveryFuture] = []
        self.values: list[list[bytes]] = [[] for _ in range(partitions)]
        self.calls: list[int] = []
        settings = {"bootstrap.servers": servers, "batch.size": 1_000, "request.timeout.ms": 3_000}
        self._producer = Producer(settings, **keys)
        self._topic = topic
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._is_stopped.is_set():
            partition = number % len(self.values)
            value = b"%d" % number
            self.values[partition].append(value)
            self.futures.append(
                self._producer.send(
                    self._topic, value, partition=partition, on_delivery=lambda _m, _e, n=number: self.calls.append(n)
                )
            )
            number += 1
            if number % 50 == 0:
                time.sleep(0.005)

    def wait_progress(self, records: int = 2_000) -> None:
        """Wait until that many more records are acknowledged."""
        target = len(self.futures) + records
        end_s = time.monotonic() + TIMEOUT_S
        while len(self.futures) < target:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        self.futures[target - 1].result(TIMEOUT_S)

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()
        self._producer.close(TIMEOUT_S)

    def check(self, found: list[list[bytes]]) -> None:
        """No record is lost, doubled or reordered, and each callback came once, in the order of its partition."""
        assert [future.exception(0) for future in self.futures] == [None] * len(self.futures)
        assert found == self.values
        partitions = len(self.values)
        for index in range(partitions):
            assert [n for n in self.calls if n % partitions == index] == list(
                range(index, len(self.futures), partitions)
            )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    with NodeCluster(tmp_path_factory.mktemp("cluster")) as made:
        made.start()
        yield made


def test_a_killed_and_a_paused_leader_lose_nothing(cluster: NodeCluster, fresh: Callable[[str], str]) -> None:
    topic = fresh("stream")
    cluster.create(topic, 3, min_insync_replicas="2")
    cluster.wait_in_sync(topic, 3)
    stream = Stream(cluster.addresses, topic, 3)
    stream.wait_progress()
    node = cluster.leader(topic, 0)
    node.kill()
    stream.wait_progress()
    node.start()
    cluster.wait_in_sync(topic, 3)
    paused = cluster.leader(topic, 1)
    assert paused.process is not None
    paused.process.send_signal(signal.SIGSTOP)
    stream.wait_progress()
    paused.process.send_signal(signal.SIGCONT)
    stream.wait_progress()
    stream.stop()
    stream.check(read(cluster.addresses, topic, 3))


def test_cut_connections_lose_nothing(tmp_path: Path) -> None:
    with LoneNode(tmp_path / "node") as node, CuttingProxy(node.port) as proxy:
        node.properties["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        node.format()
        node.start()
        create(node, "stream", 2)
        stream = Stream(f"127.0.0.1:{proxy.port}", "stream", 2, retry_backoff_ms=10)
        for _ in range(15):
            stream.wait_progress(300)
            proxy.cut()
        stream.stop()
        stream.check(_read_direct(node))


def _read_direct(node: LoneNode) -> list[list[bytes]]:
    """The values on disk."""
    from kalda.records.batch import iter_batches
    from kalda.records.builder import read_records

    node.stop()
    found: list[list[bytes]] = []
    for index in (0, 1):
        (segment,) = Path(str(node.properties["log.dirs"])).glob(f"stream-{index}/*.log")
        data = segment.read_bytes()
        found.append([r.value or b"" for at, header in iter_batches(data) for r in read_records(data, at, header)])
    return found


def test_what_a_killed_broker_leaves(tmp_path: Path) -> None:
    """At most once without acknowledgements, at least once with them, exactly once with sequence numbers."""
    with LoneNode(tmp_path / "node") as node:
        node.format()
        node.start()
        for topic in ("most", "least", "once"):
            create(node, topic, 1)
        keys = {"most": {"acks": "0"}, "least": {"enable_idempotence": False}, "once": {}}
        streams = {topic: Stream(node.address, topic, 1, **more) for topic, more in keys.items()}
        for stream in streams.values():
            stream.wait_progress(500)
        node.kill()
        node.start()
        for stream in streams.values():
            stream.wait_progress(500)
            stream.stop()
        found = {topic: read(node.address, topic, 1)[0] for topic in streams}
        assert len(found["most"]) == len(set(found["most"])), "never doubled"
        assert set(found["most"]) <= set(streams["most"].values[0])
        assert set(found["least"]) == set(streams["least"].values[0]), "never lost"
        streams["once"].check([found["once"]])
