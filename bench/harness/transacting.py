"""Transactions through librdkafka: the workloads of `harness.client` that commit them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Producer

Figures = dict[str, float]
_RECORDS = 1_000
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
    """Records a second in transactions of 1,000 records, and of as many records, flushed likewise, outside of any."""
    figures = {}
    for name, transactional_id in (("within", topic), ("without", None)):
        producer = _producer(port, transactional_id)
        began = 0.0
        for at in range(-count // _RECORDS // 5, count // _RECORDS):
            if at == 0:
                began = time.perf_counter()
            if transactional_id is not None:
                producer.begin_transaction()
            for _ in range(_RECORDS):
                producer.produce(topic, bytes(size), partition=0)
            if transactional_id is not None:
                producer.commit_transaction(_WAIT_S)
            else:
                producer.flush(_WAIT_S)
        figures[name] = count / (time.perf_counter() - began)
    return figures
