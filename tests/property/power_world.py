"""For tests of losses of power: jobs whose halves run in any order, and a producer that sends again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kalda.base.ids import TopicPartition, Uuid
from kalda.records.builder import build_batch

TP = TopicPartition("t", 0)
TOPIC_ID = Uuid(bytes(15) + b"\x09")
PRODUCER = 77
IN_FLIGHT = 5


class Threads:
    """Jobs whose halves run one by one, in any order among jobs."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self._done: list[Callable[[], None]] = []

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        self._waiting.append((job, finish))

    def step(self) -> None:
        """One half of one job."""
        if self._done and (not self._waiting or self._rng.random() < 0.5):
            self._done.pop(0)()
        elif self._waiting:
            job, finish = self._waiting.pop(self._rng.randrange(len(self._waiting)))
            try:
                value, error = job(), None
            except BaseException as failure:
                value, error = None, failure
            self._done.append(lambda: finish(value, error))

    def all(self) -> None:
        while self._waiting or self._done:
            self.step()


class Producer:
    """Idempotent: up to five batches under way, sent again in order after a failure until they are acknowledged."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.under_way: list[tuple[int, int]] = []
        """(number, offset after it), oldest first."""

    def send(self, broker: Any, number: int) -> None:
        rows = [(broker.now_ms, None, b"%d" % number, [])]
        batch = build_batch(rows, producer_id=PRODUCER, producer_epoch=0, base_sequence=number)
        info = broker.partition.append(batch, -1, broker.now_ms)
        self.under_way.append((number, info.last_offset + 1))

    def take_acknowledgements(self, broker: Any) -> None:
        """Acknowledgements come in order."""
        while self.under_way and broker.partition.is_committed(self.under_way[0][1]):
            self.under_way.pop(0)
            self.acknowledged += 1

    def begin_anew(self, broker: Any) -> None:
        """To a broker that has started again: everything that was not acknowledged, in order."""
        self.under_way.clear()
        for number in range(self.acknowledged, self.sent):
            self.send(broker, number)
