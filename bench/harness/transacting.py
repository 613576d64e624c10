"""Transactions through librdkafka: the workloads of `harness.client` that commit them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from statistics import median

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

Figures = dict[str, float]
_RECORDS = 1_000
_TURN = 20
_WAIT_S = 60


def _producer(port: int, transactional_id: str | None) -> Producer:
    settings: dict[str, object] = {"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 0, "acks": "all"}
    if transactional_id is None:
        return Producer({**settings, "enable.idempotence": True})
    producer = Producer({**settings, "transactional.id": transactional_id})
    producer.init_transactions(_WAIT_S)
    return producer


def _commit_one(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(_WAIT_S)


def transact(port: int, topic: str, count: int, size: int) -> Figures:
    """Begin, one record, commit, one at a time: percentiles in µs, and transactions a second."""
    producer = _producer(port, topic)
    taken = []
    for at in range(count + count // 10):
        began = time.perf_counter_ns()
        _commit_one(producer, topic, bytes(size))
        if at >= count // 10:
            taken.append((time.perf_counter_ns() - began) / 1000)
    taken.sort()
    return {
        "p50_us": taken[count // 2],
        "p99_us": taken[count * 99 // 100],
        "per_s": 1e6 * count / sum(taken),
    }


def transact_many(port: int, topic: str, count: int, size: int) -> Figures:
    """`count` transactions of one record in all, by fifty producers at once: transactions a second."""
    producers = [_producer(port, f"{topic}-{number}") for number in range(50)]
    each = max(1, count // len(producers))

    def work(producer: Producer, rounds: int) -> None:
        for _ in range(rounds):
            _commit_one(producer, topic, bytes(size))

    _together(work, producers, max(1, each // 10))
    began = time.perf_counter()
    _together(work, producers, each)
    return {"per_s": each * len(producers) / (time.perf_counter() - began)}


def _together(work: object, producers: Sequence[Producer], rounds: int) -> None:
    threads = [threading.Thread(target=work, args=(producer, rounds)) for producer in producers]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def thousands(port: int, topic: str, count: int, size: int) -> Figures:
    """Records a second in transactions of 1,000 records, and of as many records, flushed likewise, outside of any.

    The two take turns, twenty times 1,000 records each: the speed of a machine that others use drifts.
    """
    producers = {"within": _producer(port, topic), "without": _producer(port, None)}
    value = bytes(size)
    rounds = max(1, count // _RECORDS // _TURN)
    rates: dict[str, list[float]] = {name: [] for name in producers}
    for at in range(-(rounds // 5) - 1, rounds):
        for name, producer in producers.items():
            began = time.perf_counter()
            for _ in range(_TURN):
                if name == "within":
                    producer.begin_transaction()
                for _ in range(_RECORDS):
                    producer.produce(topic, value, partition=0)
                if name == "within":
                    producer.commit_transaction(_WAIT_S)
                else:
                    producer.flush(_WAIT_S)
            if at >= 0:
                rates[name].append(_TURN * _RECORDS / (time.perf_counter() - began))
    figures = {name: median(found) for name, found in rates.items()}
    figures["share"] = median(
        within / without for within, without in zip(rates["within"], rates["without"], strict=True)
    )
    return figures


def pipelined_thousands(port: int, topic: str, count: int, size: int) -> Figures:
    """`thousands` by eight producers at once: what a transaction costs the nodes, since other producers fill its
    waits."""
    figures = {}
    for name, transactional_id in (("within", topic), ("without", None)):
        producers = [
            _producer(port, None if transactional_id is None else f"{transactional_id}-{number}") for number in range(8)
        ]

        def work(producer: Producer, rounds: int, within: bool = transactional_id is not None) -> None:
            for _ in range(rounds):
                if within:
                    producer.begin_transaction()
                for _ in range(_RECORDS):
                    producer.produce(topic, bytes(size), partition=0)
                if within:
                    producer.commit_transaction(_WAIT_S)
                else:
                    producer.flush(_WAIT_S)

        each = max(1, count // _RECORDS // len(producers))
        _together(work, producers, max(1, each // 5))
        began = time.perf_counter()
        _together(work, producers, each)
        figures[name] = each * len(producers) * _RECORDS / (time.perf_counter() - began)
    return figures


def isolation(port: int, topic: str, count: int, size: int) -> Figures:
    """Records a second that a read_committed consumer reads, and a read_uncommitted one, of a topic of transactions of
    1,000 records, each tenth of which was aborted. They take turns."""
    producer = _producer(port, f"{topic}-isolation")
    visible = 0
    for number in range(count // _RECORDS):
        producer.begin_transaction()
        for _ in range(_RECORDS):
            producer.produce(topic, bytes(size), partition=1)
        if number % 10 == 9:
            producer.flush(_WAIT_S)
            producer.abort_transaction(_WAIT_S)
        else:
            producer.commit_transaction(_WAIT_S)
            visible += _RECORDS
    everything = count // _RECORDS * _RECORDS
    rates: dict[str, list[float]] = {"read_committed": [], "read_uncommitted": []}
    for at in range(-1, 5):
        for level, found in rates.items():
            per_s = _read(port, topic, level, visible if level == "read_committed" else everything)
            if at >= 0:
                found.append(per_s * everything / visible if level == "read_committed" else per_s)
    return {level: median(found) for level, found in rates.items()}


def _read(port: int, topic: str, level: str, count: int) -> float:
    """Records a second of the log that a consumer has passed."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}", "group.id": "bench", "enable.auto.commit": False,
            "isolation.level": level, "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 256 * 1024,
        }
    )  # fmt: skip
    consumer.list_topics(topic)
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, 1, OFFSET_BEGINNING)])
    got = 0
    while got < count:
        messages = consumer.consume(min(1_000, count - got), 30)
        if not messages:
            raise SystemExit(f"only {got} of {count} records came with {level}")
        got += len(messages)
    per_s = got / (time.perf_counter() - began)
    consumer.close()
    return per_s
