"""Clients beside each other at one Kalda node: records produced a second, round trips, CPU a record, resident memory.

    .venv/bin/python bench/clients.py [--quick] [--count N] [--size BYTES] [--batch BYTES] [--only NAME ...] [--json]

Every client is a process of its own, and they take turns, `--rounds` times; figures are medians. All of them ask for
the acknowledgement of all replicas, linger for 5 ms, and gather batches of `--batch` bytes (Kafka's default; 1000000 is
librdkafka's). Ratios are medians of the rounds' ratios to confluent-kafka in the same round: of the rate, or of the p50
and p99 of round trips, which do not linger.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "compat"))

Figures = dict[str, float]
TOPIC = "bench"
PARTITIONS = 3
RATIOS = ("records_s", "p50_us", "p99_us")


def measured(count: int, work: Callable[[], None]) -> Figures:
    """Records a second, and µs of CPU a record."""
    cpu, began = time.process_time(), time.perf_counter()
    work()
    return {
        "records_s": count / (time.perf_counter() - began),
        "cpu_us": 1e6 * (time.process_time() - cpu) / count,
    }


def percentiles(count: int, trip: Callable[[], object]) -> Figures:
    """p50 and p99 of one record after another, in µs."""
    taken = []
    for at in range(count + 50):
        began = time.perf_counter_ns()
        trip()
        if at >= 50:
            taken.append((time.perf_counter_ns() - began) / 1_000)
    taken.sort()
    return {"p50_us": taken[count // 2], "p99_us": taken[count * 99 // 100]}


def kalda_send(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """`kalda.Producer.send`, one by one."""
    from kalda import Producer

    with Producer(bootstrap_servers=servers, batch_size=batch) as producer:
        producer.send(TOPIC, value).result(30)

        def work() -> None:
            send = producer.send
            for _ in range(count):
                send(TOPIC, value)
            producer.flush()

        return measured(count, work)


def kalda_aio_send(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """`kalda.aio.Producer.send`, one by one."""
    from kalda.aio import Producer

    async def main() -> Figures:
        async with Producer(bootstrap_servers=servers, batch_size=batch) as producer:
            await (await producer.send(TOPIC, value))
            cpu, began = time.process_time(), time.perf_counter()
            for _ in range(count):
                await producer.send(TOPIC, value)
            await producer.flush()
            seconds = time.perf_counter() - began
            return {"records_s": count / seconds, "cpu_us": 1e6 * (time.process_time() - cpu) / count}

    return asyncio.run(main())


def kalda_send_batch(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """`kalda.Producer.send_batch` of an Arrow table, sixteen times."""
    import pyarrow as pa

    from kalda import Producer

    rows, times = max(1, count // 4), 16
    table = pa.table({"value": pa.array([value] * rows, pa.binary())})
    with Producer(bootstrap_servers=servers, batch_size=batch) as producer:
        producer.send(TOPIC, value).result(30)

        def work() -> None:
            for written in [producer.send_batch(TOPIC, table) for _ in range(times)]:
                written.result()

        return measured(rows * times, work)


def confluent(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """`confluent_kafka.Producer.produce`."""
    from confluent_kafka import Producer

    settings = {"linger.ms": 5, "batch.size": batch, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **settings})
    producer.produce(TOPIC, value)
    producer.flush()

    def work() -> None:
        produce = producer.produce
        for at in range(count):
            while True:
                try:
                    produce(TOPIC, value)
                    break
                except BufferError:
                    producer.poll(0.01)
            if at % 1_000 == 0:
                producer.poll(0)
        producer.flush()

    return measured(count, work)


def kafka_python(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """`kafka.KafkaProducer.send`."""
    from kafka import KafkaProducer

    count //= 10
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5, batch_size=batch)
    producer.send(TOPIC, value).get(30)

    def work() -> None:
        for _ in range(count):
            producer.send(TOPIC, value)
        producer.flush()

    return measured(count, work)


def aiokafka(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """`aiokafka.AIOKafkaProducer.send`."""
    from aiokafka import AIOKafkaProducer

    count //= 4

    async def main() -> Figures:
        producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5, max_batch_size=batch)
        await producer.start()
        await producer.send_and_wait(TOPIC, value)
        cpu, began = time.process_time(), time.perf_counter()
        for _ in range(count):
            await producer.send(TOPIC, value)
        await producer.flush()
        seconds = time.perf_counter() - began
        await producer.stop()
        return {"records_s": count / seconds, "cpu_us": 1e6 * (time.process_time() - cpu) / count}

    return asyncio.run(main())


def kalda_round_trip(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """`send(...).result()`, without linger."""
    from kalda import Producer

    with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        return percentiles(count // 200, lambda: producer.send(TOPIC, value, partition=0).result())


def confluent_round_trip(servers: str, count: int, value: bytes, batch: int, *, is_idempotent: bool = False) -> Figures:
    """`produce` and `flush`, without linger."""
    from confluent_kafka import Producer

    settings = {"acks": "all", "linger.ms": 0, "enable.idempotence": is_idempotent}
    producer = Producer({"bootstrap.servers": servers, **settings})

    def trip() -> None:
        producer.produce(TOPIC, value, partition=0)
        producer.flush()

    return percentiles(count // 200, trip)


def confluent_idempotent_round_trip(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """The same of an idempotent producer, as Kalda's is by default."""
    return confluent_round_trip(servers, count, value, batch, is_idempotent=True)


def kalda_first_record(servers: str, count: int, value: bytes, batch: int) -> Figures:
    """From a fresh interpreter to the first acknowledgement, and its CPU. The first of three runs compiles
    modules to bytecode, as an installation does."""
    program = (
        "import time, kalda; "
        f"kalda.Producer(bootstrap_servers={servers!r}, linger_ms=0).send({TOPIC!r}, b'v').result(); "
        "print(time.process_time())"
    )
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    found: list[tuple[float, float]] = []
    for _ in range(3):
        began = time.perf_counter()
        run = subprocess.run([sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.PIPE)
        found.append((1_000 * (time.perf_counter() - began), 1_000 * float(run.stdout)))
    return dict(zip(("first_ms", "first_cpu_ms"), min(found), strict=True))


WORKS: dict[str, Callable[[str, int, bytes, int], Figures]] = {
    work.__name__: work
    for work in (
        confluent, kalda_send, kalda_send_batch, kafka_python, aiokafka, kalda_aio_send, confluent_round_trip,
        kalda_round_trip, confluent_idempotent_round_trip, kalda_first_record,
    )
}  # fmt: skip


def rounds(servers: str, arguments: argparse.Namespace) -> dict[str, Figures]:
    """The medians of each client's figures, and of their ratios to confluent-kafka's of the same round."""
    seen: dict[str, list[Figures]] = {name: [] for name in arguments.only}
    for _ in range(arguments.rounds):
        this_round: dict[str, Figures] = {}
        for name in arguments.only:
            command = [sys.executable, __file__, "--work", name, "--servers", servers]
            command += ["--count", str(arguments.count), "--size", str(arguments.size), "--batch", str(arguments.batch)]
            run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            this_round[name] = json.loads(run.stdout)
        for name, found in this_round.items():
            peer = this_round.get("confluent" if "records_s" in found else "confluent_round_trip", {})
            compared = [key for key in RATIOS if key in found and key in peer]
            seen[name].append(found | {f"{key.split('_')[0]}_ratio": found[key] / peer[key] for key in compared})
    return {
        name: {key: statistics.median(figures[key] for figures in each) for key in each[0]}
        for name, each in seen.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=WORKS, nargs="+", default=list(WORKS), metavar="NAME")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", choices=WORKS)
    parser.add_argument("--servers")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the records")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.count = 1, 100_000
    if arguments.work:
        work = WORKS[arguments.work]
        figures = work(arguments.servers, arguments.count, b"x" * arguments.size, arguments.batch)
        figures["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(figures))
        return
    from lone_node import LoneNode

    with tempfile.TemporaryDirectory() as home, LoneNode(Path(home) / "node", {"num.partitions": PARTITIONS}) as node:
        with contextlib.redirect_stdout(sys.stderr):
            node.format()
        node.start()
        found = rounds(node.address, arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(f"{name:32} " + "  ".join(f"{key} {figure:,.2f}" for key, figure in figures.items()))


if __name__ == "__main__":
    main()
