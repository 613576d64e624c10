"""A producer without pauses: `python -m harness.steady BOOTSTRAP TOPIC PARTITIONS INTERVAL_MS [KEY=VALUE]...`.

Idempotent, acks=all, with librdkafka's defaults except the given settings. Each partition gets a record every
INTERVAL_MS. It reads commands from stdin: `mark` begins a new window, `report` prints the window's figures as a line of
JSON, `end` flushes, reads the topic back, and prints which records were lost, doubled or out of order.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition


class Steady:
    """Writes, and keeps the time of each partition's last acknowledgement."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_s: float, settings: Mapping[str, str]
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._interval_s = interval_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 2,
                **settings,
            }
        )
        self.acked: list[list[int]] = [[] for _ in range(partitions)]
        self._last = [0.0] * partitions
        self._last_any = 0.0
        self._longest = [0.0] * partitions
        self._longest_any = 0.0
        self._marked = 0.0
        self.failed: list[str] = []
        self._next = [0] * partitions

    def send(self) -> None:
        """Send a record to each partition."""
        for partition, number in enumerate(self._next):
            self._next[partition] += 1
            self._producer.produce(self._topic, str(number).encode(), partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        now, partition = time.perf_counter(), message.partition()
        value = message.value()
        assert partition is not None
        assert isinstance(value, bytes)
        self.acked[partition].append(int(value))
        self._longest[partition] = max(self._longest[partition], now - self._last[partition])
        self._longest_any = max(self._longest_any, now - self._last_any)
        self._last[partition] = self._last_any = now

    def mark(self) -> None:
        """Begin a new window."""
        now = self._marked = time.perf_counter()
        self._last = [now] * len(self._last)
        self._longest = [0.0] * len(self._longest)
        self._last_any, self._longest_any = now, 0.0

    def report(self) -> dict[str, Any]:
        """The longest times without an acknowledgement since the mark: of all partitions together, and of each. The
        current wait counts."""
        now = time.perf_counter()
        waits = [max(longest, now - last) for longest, last in zip(self._longest, self._last, strict=True)]
        return {
            "window_s": now - self._marked,
            "any_s": max(self._longest_any, now - self._last_any),
            "partitions_s": waits,
            "acked": sum(len(each) for each in self.acked),
            "failed": len(self.failed),
        }

    def run(self, orders: queue.Queue[str]) -> None:
        """Write until `end` is read."""
        due = time.perf_counter()
        while True:
            while due <= time.perf_counter():
                self.send()
                due += self._interval_s
            self._producer.poll(max(0.0, due - time.perf_counter()))
            try:
                order = orders.get_nowait()
            except queue.Empty:
                continue
            if order == "mark":
                self.mark()
            elif order == "report":
                _print(self.report())
            else:
                return

    def check(self) -> dict[str, Any]:
        """Read everything back: each acknowledged record must be there once, in order."""
        left = self._producer.flush(60)
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "check", "enable.auto.commit": False, "log_level": 2}
        )
        parts = range(len(self.acked))
        consumer.assign([TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in parts])
        ends = {p: consumer.get_watermark_offsets(TopicPartition(self._topic, p), timeout=20)[1] for p in parts}
        found: list[list[int]] = [[] for _ in parts]
        while any(len(found[p]) < ends[p] for p in parts):
            messages = consumer.consume(10_000, 20)
            if not messages:
                break
            for message in messages:
                if message.error() is None:
                    found[message.partition()].append(int(message.value()))
        consumer.close()
        return {
            "unsent": left,
            "failed": self.failed[:3],
            "acked": sum(len(each) for each in self.acked),
            "lost": sum(len(set(a) - set(f)) for a, f in zip(self.acked, found, strict=True)),
            "doubled": sum(len(f) - len(set(f)) for f in found),
            "disordered": sum(f != sorted(f) for f in found),
        }


def _print(figures: dict[str, Any]) -> None:
    print(json.dumps(figures), flush=True)


def _listen(orders: queue.Queue[str]) -> None:
    for line in sys.stdin:
        orders.put(line.strip())
    orders.put("end")


def main() -> None:
    bootstrap, topic, partitions, interval_ms, *settings = sys.argv[1:]
    further = dict(each.split("=", 1) for each in settings)
    steady = Steady(bootstrap, topic, int(partitions), float(interval_ms) / 1000, further)
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    steady.run(orders)
    _print(steady.check())


if __name__ == "__main__":
    main()
