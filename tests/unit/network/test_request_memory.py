"""The memory of requests: who reads on where it is used up, who is closed, and what is given back."""

from __future__ import annotations

import pytest
from by_hand import HandTime

from kalda.network.server.peer_memory import RequestMemory

KB = 1_000
MB = 1_000 * KB
LIMIT = 10 * MB


class PaperReader:
    """A connection whose request arrives."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.is_held = False
        self.reads = True
        self.closed = False
        self.arrived_bytes = 0

    def read(self, count: int) -> None:
        """Some of the request arrives, where the connection reads."""
        if self.reads:
            self.arrived_bytes += count
            self._memory.arrive(count)
            self.ask()

    def ask(self) -> None:
        self.reads = self._memory.may_go_on(self)

    def complete(self) -> None:
        """The request has arrived, and is answered."""
        arrived, self.arrived_bytes = self.arrived_bytes, 0
        self._memory.arrive(-arrived)
        self._memory.completed(self)

    def end(self) -> None:
        self._memory.arrive(-self.arrived_bytes)
        self._memory.forget(self)

    def budget_is_back(self) -> None:
        assert not self.reads
        self.reads = True

    def close_slow(self) -> None:
        self.closed = True
        self._memory.arrive(-self.arrived_bytes)


class Bench:
    def __init__(self, readers: int, limit_bytes: int = LIMIT) -> None:
        self.time = HandTime(1_000)
        self.memory = RequestMemory(limit_bytes, self.time.call_later_ms)
        self.readers = [PaperReader(self.memory) for _ in range(readers)]

    def reading(self) -> list[int]:
        return [at for at, each in enumerate(self.readers) if each.reads and not each.closed]

    def fill(self) -> None:
        """All send as much as they may."""
        for _ in range(100):
            for each in self.readers:
                if self.memory.used_bytes < LIMIT or each.reads:
                    each.read(KB * 200)
            if self.memory.is_used_up:
                return


@pytest.mark.parametrize("limit_bytes", [-1, 0])
def test_without_a_limit_nobody_waits(limit_bytes: int) -> None:
    bench = Bench(3, limit_bytes)
    for each in bench.readers:
        each.read(LIMIT)
    assert bench.reading() == [0, 1, 2]
    assert bench.memory.used_bytes == 3 * LIMIT


def test_all_requests_are_completed_one_after_the_other_and_memory_is_bounded() -> None:
    """Two hundred of ten megabytes each: the limit is exceeded by one of them, and one read of each connection."""
    bench = Bench(200)
    completed: list[int] = []
    most = 0
    while len(completed) < 200:
        for at, each in enumerate(bench.readers):
            if each.reads and at not in completed:
                each.read(200 * KB)
                most = max(most, bench.memory.used_bytes)
                if each.arrived_bytes >= 10 * MB:
                    each.complete()
                    completed.append(at)
    assert completed[0] == 0
    assert most <= LIMIT + 10 * MB + 200 * 200 * KB
    assert not bench.memory.used_bytes


def test_only_the_oldest_request_goes_on_beyond_the_limit() -> None:
    bench = Bench(4)
    for each in bench.readers:
        each.read(4 * MB)
    for each in bench.readers[::-1]:
        each.read(1)
    assert bench.reading() == [0]
    bench.memory.queue(LIMIT)  # the oldest waits for its answer when it has arrived
    bench.readers[0].complete()
    bench.readers[0].read(1)
    assert bench.reading() == [1], "and its next request is the youngest"
    bench.readers[1].end()
    assert bench.reading() == [1, 2]


def test_one_that_reads_nothing_for_another_reason_is_passed_over() -> None:
    bench = Bench(3)
    for each in bench.readers:
        each.read(4 * MB)
    for each in bench.readers:
        each.read(1)
    assert bench.reading() == [0]
    bench.readers[0].is_held = True
    bench.time.advance(2_000)
    assert bench.reading() == [0, 1]
    for _ in range(10):
        bench.readers[1].read(3 * MB)
        bench.time.advance(2_000)
    assert bench.reading() == [0, 1]
    bench.readers[0].is_held = False
    bench.readers[1].read(1)
    assert bench.reading() == [0], "it is the oldest again"


def test_memory_that_is_given_back_goes_to_the_oldest_that_wait() -> None:
    bench = Bench(9)
    bench.memory.queue(2 * LIMIT)
    for each in bench.readers:
        each.read(100 * KB)
    assert bench.reading() == [0]
    bench.memory.unqueue(LIMIT + 900 * KB + 600 * KB)
    reading = bench.reading()
    assert 1 < len(reading) < 9
    assert reading == list(range(len(reading)))
    bench.memory.update(-1)
    assert len(bench.reading()) == 9


def test_a_connection_that_ends_gives_back_what_it_holds() -> None:
    bench = Bench(3)
    for each in bench.readers:
        each.read(LIMIT)
    assert bench.reading() == [0]
    for each in bench.readers:
        each.end()
    assert bench.memory.used_bytes == 0
    bench.time.advance(60_000)
    assert not bench.time.timers


def test_a_request_that_stops_is_closed_where_others_wait() -> None:
    bench = Bench(2)
    first, second = bench.readers
    first.read(LIMIT)
    bench.time.advance(20_000)
    assert not first.closed, "nobody waits"
    second.read(1)
    assert bench.reading() == [0]
    bench.time.advance(1_900)
    assert not first.closed, "it has some time"
    bench.time.advance(2_100)
    assert first.closed
    assert second.reads


def test_what_arrives_fast_enough_is_not_closed() -> None:
    """Neither the oldest, nor those that wait."""
    bench = Bench(3)
    bench.fill()
    for _ in range(100):
        bench.readers[0].read(1_200 * KB)
        bench.time.advance(1_000)
    assert not any(each.closed for each in bench.readers)


def test_one_that_could_not_read_has_time_again() -> None:
    bench = Bench(3)
    for each in bench.readers:
        each.read(4 * MB)
    for each in bench.readers:
        each.read(1)
    bench.time.advance(3_900)
    assert bench.readers[0].reads
    bench.readers[0].complete()
    bench.time.advance(100)
    assert not any(each.closed for each in bench.readers)


def test_what_arrives_does_not_keep_answers_waiting() -> None:
    bench = Bench(2)
    bench.readers[0].read(LIMIT)
    bench.memory.queue(1_000)
    assert not bench.memory.over_budget()
    bench.memory.queue(LIMIT)
    assert bench.memory.over_budget()
    bench.memory.wait_for_budget(bench.readers[1])
    bench.readers[1].reads = False
    bench.memory.unqueue(LIMIT)
    assert bench.readers[1].reads
