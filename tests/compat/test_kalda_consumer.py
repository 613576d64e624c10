"""Kalda's consumers against real nodes: groups through kills, dead leaders, broken connections, forks, signals."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from consuming_members import Members
from cutting_proxy import CuttingProxy
from lone_node import LoneNode

import kalda
from kalda import aio
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.consumer.common_calls import ConsumerClosed
from kalda.clientcore.consuming.consumer_errors import UndecodableRecord, Wakeup
from kalda.testing import Cluster

pytestmark = pytest.mark.compat


def send(servers: str, topic: str, values: list[bytes], partitions: int | None = None) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number, value in enumerate(values):
        place = {} if partitions is None else {"partition": number % partitions}
        producer.produce(topic, value, **place)
    assert producer.flush(60) == 0


def take(consumer: kalda.Consumer, count: int, within_s: float = 60) -> list[Any]:
    got: list[Any] = []
    end = time.monotonic() + within_s
    while len(got) < count and time.monotonic() < end:
        got += consumer.poll(1)
    assert len(got) >= count, f"only {len(got)} of {count} records came"
    return got


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as made:
        yield made


@pytest.mark.parametrize("strategy", ["range,cooperative-sticky", "cooperative-sticky"])
def test_a_group_of_eight_through_kills(cluster: Cluster, strategy: str) -> None:
    topic = f"eight-{len(strategy)}"
    cluster.create_topic(topic, partitions=16)
    chooser = random.Random(8)
    members = Members(cluster.bootstrap_servers, f"group-{topic}", topic, strategy)
    expected: set[str] = set()
    try:
        for _ in range(8):
            members.start()
        for step in range(6):
            new = [b"%d" % number for number in range(step * 500, step * 500 + 500)]
            send(cluster.bootstrap_servers, topic, new, 16)
            expected |= {value.decode() for value in new}
            members.kill(chooser.choice(members.processes))
            members.start()
        end = time.monotonic() + 120
        while not expected <= members.seen and time.monotonic() < end:
            threading.Event().wait(0.1)
        assert expected <= members.seen, f"{len(expected - members.seen)} records were not processed"
    finally:
        members.stop()


def test_a_killed_leader_and_coordinator(cluster: Cluster) -> None:
    cluster.create_topic("survivor", partitions=3)
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "survivors",
        "auto.offset.reset": "earliest",
    }
    with kalda.Consumer(settings) as consumer:
        consumer.subscribe(["survivor"])
        send(cluster.bootstrap_servers, "survivor", [b"%d" % n for n in range(300)], 3)
        got = take(consumer, 300)
        consumer.commit()
        for node_id in (1, 2, 3):
            cluster.kill_node(node_id)
            first = 300 + node_id * 300
            send(cluster.bootstrap_servers, "survivor", [b"%d" % n for n in range(first, first + 300)], 3)
            got += take(consumer, 300)
            consumer.commit(timeout=60)
            cluster.start_node(node_id)
        assert len({(r.partition, r.offset) for r in got}) == len(got) == 1200
        by_partition: dict[int, list[int]] = {}
        for record in got:
            by_partition.setdefault(record.partition, []).append(record.offset)
        assert all(offsets == sorted(offsets) for offsets in by_partition.values())


def test_a_topic_deleted_and_made_again(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("again")
    server = f"127.0.0.1:{node.port}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": server})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, 1, 1)])[topic].result()
    send(server, topic, [b"a", b"b"])
    settings = {
        "bootstrap.servers": server,
        "auto.offset.reset": "earliest",
        "metadata.max.age.ms": 500,
        "allow.auto.create.topics": False,
    }
    with kalda.Consumer(settings) as consumer:
        consumer.assign([(topic, 0)])
        take(consumer, 2)
        admin.delete_topics([topic])[topic].result()
        consumer.poll(1)
        admin.create_topics([confluent_kafka.admin.NewTopic(topic, 1, 1)])[topic].result()
        send(server, topic, [b"c", b"d", b"e"])
        assert [record.value for record in take(consumer, 3)] == [b"c", b"d", b"e"]


@pytest.mark.parametrize("seed", range(3))
def test_a_connection_cut_in_the_middle_of_a_response(
    node: LoneNode, fresh: Callable[[str], str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("cut")
    server = f"127.0.0.1:{node.port}"
    send(server, topic, [b"%d" % n + b"x" * 200 for n in range(3_000)], 2)
    connect = socket.socket.connect_ex

    def through_proxy(self: socket.socket, address: Any) -> int:
        return connect(self, ("127.0.0.1", proxy.port) if address[1] == node.port else address)

    monkeypatch.setattr(socket.socket, "connect_ex", through_proxy)
    chooser = random.Random(seed)
    settings = {"bootstrap.servers": server, "auto.offset.reset": "earliest", "max.partition.fetch.bytes": 20_000}
    with CuttingProxy(node.port) as proxy, kalda.Consumer(settings) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        got: list[Any] = []
        end = time.monotonic() + 60
        while len(got) < 3_000 and time.monotonic() < end:
            if proxy.left == 0 and proxy.cuts < 5:
                proxy.left = chooser.randrange(1, 60_000)
            got += consumer.poll(0.5, 100)
    assert proxy.cuts
    assert sorted((r.partition, r.offset) for r in got) == [(p, o) for p in (0, 1) for o in range(1_500)]


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x04\xff\xff\xff\xff", b"\x00" * 64, b""],
    ids=["http", "huge", "wrong id", "zeros", "closes"],
)
def test_a_hostile_broker_is_an_error_and_no_hang(garbage: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1_000)
                    peer.sendall(garbage)

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        with kalda.Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "default.api.timeout.ms": 1_500}) as consumer:
            consumer.assign([("t", 0)])
            assert consumer.poll(0.2) == []
            with pytest.raises(ApiError, match="in time"):
                consumer.end_offsets(("t", 0))


def test_wakeup_use_after_close_and_threads(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("wake")
    server = f"127.0.0.1:{node.port}"
    send(server, topic, [b"a"], 1)
    consumer = kalda.Consumer(bootstrap_servers=server, auto_offset_reset="earliest")
    with pytest.raises(RuntimeError, match="reads nothing"):
        consumer.poll()
    consumer.assign([(topic, 0)])
    take(consumer, 1)
    timer = threading.Timer(0.2, consumer.wakeup)
    timer.start()
    with pytest.raises(Wakeup):
        consumer.poll(None)
    ends: list[Any] = []
    asking = threading.Thread(target=lambda: ends.append(consumer.end_offsets((topic, 0))))
    asking.start()
    consumer.poll(0.5)
    asking.join()
    assert ends == [{TopicPartition(topic, 0): 1}]
    consumer.close()
    consumer.close()
    with pytest.raises(ConsumerClosed):
        consumer.poll()


def test_a_fork_an_exit_and_a_signal_do_not_hang(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("exit")
    server = f"127.0.0.1:{node.port}"
    send(server, topic, [b"a"], 1)
    code = f"""
import os, signal, sys, threading
from kalda import Consumer
consumer = Consumer(bootstrap_servers={server!r}, auto_offset_reset="earliest")
consumer.assign([({topic!r}, 0)])
assert consumer.poll(20)
if os.fork() == 0:
    try:
        consumer.poll(1)
    except RuntimeError as error:
        os._exit(0 if "parent" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    consumer.poll(None)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr
    assert done.returncode == 0


def test_the_loop_over_records_commits_what_was_processed(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("loop")
    server = f"127.0.0.1:{node.port}"
    send(server, topic, [b"%d" % n for n in range(10)], 1)
    settings = {"bootstrap.servers": server, "group.id": topic, "auto.offset.reset": "earliest"}

    def work() -> None:
        with kalda.Consumer(settings) as consumer:
            consumer.subscribe([topic])
            for record in consumer:
                _ = 1 // (4 - int(record.value))

    with pytest.raises(ZeroDivisionError):
        work()
    with kalda.Consumer(settings) as consumer:
        consumer.subscribe(re.compile(re.escape(topic)))
        assert next(iter(consumer)).value == b"4"


def test_deserializers_arrow_and_lookups(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("typed")
    server = f"127.0.0.1:{node.port}"
    send(server, topic, [b'{"n": 1}', b"[2]", b"{"], 1)
    settings = {"bootstrap.servers": server, "auto.offset.reset": "earliest", "value.deserializer": "json"}
    with kalda.Consumer(settings) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in take(consumer, 2)] == [{"n": 1}, [2]]
        with pytest.raises(UndecodableRecord, match="offset 2"):
            consumer.poll(1)
        consumer.seek((topic, 0), 1)
        batch = consumer.poll_arrow(20)
        assert batch is not None
        assert batch.column("value").to_pylist() == [b"[2]", b"{"]
        assert consumer.position((topic, 0)) == 3
        assert consumer.beginning_offsets((topic, 0)) == {TopicPartition(topic, 0): 0}
        assert consumer.lag() == {TopicPartition(topic, 0): 0}
        assert topic in consumer.list_topics()
        assert len(consumer.partitions_for(topic).partitions) == 2
        assert consumer.metrics()["records-consumed-total"] == 4


def test_asyncio(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("aio")
    server = f"127.0.0.1:{node.port}"
    send(server, topic, [b"%d" % n for n in range(1_000)], 2)

    async def run() -> None:
        settings = {"bootstrap.servers": server, "group.id": topic, "auto.offset.reset": "earliest"}
        async with aio.Consumer(settings) as one, aio.Consumer(settings) as two:
            seen: set[tuple[int, int]] = set()

            async def consume(consumer: aio.Consumer) -> None:
                consumer.subscribe([topic])
                while len(seen) < 1_000:
                    seen.update((r.partition, r.offset) for r in await consumer.poll(0.2))

            await asyncio.wait_for(asyncio.gather(consume(one), consume(two)), 60)
            assert len(await one.list_topics()) >= 1
        async with aio.Consumer(settings) as again:
            again.subscribe([topic])
            assert await again.poll(1) == []

    asyncio.run(run())


def test_a_dropped_consumer_ends_its_thread(node: LoneNode, fresh: Callable[[str], str]) -> None:
    before = threading.active_count()
    consumer = kalda.Consumer(bootstrap_servers=f"127.0.0.1:{node.port}")
    io = consumer._io
    assert threading.active_count() == before + 1
    del consumer
    gc.collect()
    io.join(10)
    assert not io.is_alive()
