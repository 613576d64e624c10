"""The memory of requests: who waits where it is used up, in which order, and what is given back."""

from __future__ import annotations

from by_hand import HandTime

from kalda.network.request_memory import RequestMemory

LIMIT = 1_000_000


class PaperReader:
    """A connection whose request arrives."""

    def __init__(self, memory: RequestMemory, missing_bytes: int = 10_000_000) -> None:
        self._memory = memory
        self.missing_bytes = missing_bytes
        self.is_held = False
        self.reads = True
        self.closed = False
        self.arrived = 0

    def read(self, count: int) -> None:
        assert self.reads, "it reads nothing"
        self.arrived += count
        self._memory.arrive(count)
        self.reads = self._memory.may_go_on(self, has_read=bool(count))

    def complete(self) -> None:
        self._memory.arrive(-self.arrived)
        self.arrived = 0
        self._memory.completed(self)

    def end(self) -> None:
        self._memory.arrive(-self.arrived)
        self._memory.forget(self)

    def budget_is_back(self) -> None:
        self.reads = True

    def close_slow(self) -> None:
        self.closed = True

    def wait_for_memory(self) -> None:
        self.reads = False


class Bench:
    def __init__(self, readers: int, limit_bytes: int = LIMIT) -> None:
        self.time = HandTime(1_000)
        self.memory = RequestMemory(limit_bytes, self.time.call_later_ms)
        self.readers = [PaperReader(self.memory) for _ in range(readers)]

    def reading(self) -> list[int]:
        return [at for at, each in enumerate(self.readers) if each.reads]


def test_without_a_limit_nobody_waits() -> None:
    bench = Bench(3, limit_bytes=-1)
    for each in bench.readers:
        each.read(LIMIT)
    assert bench.reading() == [0, 1, 2]
    assert bench.memory.used_bytes == 3 * LIMIT


def test_one_at_a_time_goes_on_beyond_the_limit_in_order() -> None:
    bench = Bench(4)
    for each in bench.readers:
        each.read(400_000)
    assert bench.reading() == [0, 1, 2], "the third was the first to reach the limit; the others have not read since"
    bench.readers[0].read(1)
    bench.readers[1].read(1)
    assert bench.reading() == [2]
    for at, following in ((2, 3), (3, 0), (0, 1)):
        bench.readers[at].read(2_000_000)
        assert bench.reading() == [at]
        bench.memory.queue(LIMIT)  # it waits for its answer now
        bench.readers[at].complete()
        assert bench.reading() == sorted((at, following))
        bench.readers[at].reads = False


def test_memory_that_is_given_back_is_shared_in_order() -> None:
    bench = Bench(9)
    bench.memory.queue(LIMIT)
    for each in bench.readers:
        each.read(100_000)
    assert bench.reading() == [0]
    bench.memory.unqueue(LIMIT)
    assert bench.reading() == [0, 1], "100 KB, less than a connection reads at a time"
    bench.memory.update(2_000_000)
    assert bench.reading() == [0, 1, 2, 3, 4, 5, 6]


def test_a_connection_that_ends_gives_back_what_it_holds() -> None:
    bench = Bench(3)
    for each in bench.readers:
        each.read(LIMIT)
    assert bench.reading() == [0]
    bench.readers[1].end()
    bench.readers[0].end()
    assert bench.reading() == [0, 2]
    bench.readers[2].end()
    assert bench.memory.used_bytes == 0
    assert not bench.memory.is_waited_for


def test_who_found_the_memory_taken_again_stays_the_first() -> None:
    bench = Bench(4)
    for each in bench.readers:
        each.read(300_000)
    assert bench.reading() == [0, 1, 2, 3]
    for at in (0, 1, 2):
        bench.readers[at].read(1)
    assert bench.reading() == [3]
    bench.memory.update(2_000_000)
    bench.memory.queue(2_000_000)
    bench.readers[1].read(1)
    bench.readers[0].read(0)
    bench.readers[3].complete()
    assert bench.reading() == [0, 2, 3]


def test_requests_that_miss_least_go_on_together() -> None:
    bench = Bench(6)
    first, *others = bench.readers
    for each, missing in zip(others, (900_000, 100_000, 800_000, 130_000, 11_000), strict=True):
        each.missing_bytes = missing
    first.read(LIMIT)
    for each in others:
        each.read(1)
    assert bench.reading() == [0]
    bench.memory.queue(LIMIT)
    first.complete()
    assert bench.reading() == [0, 2, 4, 5], "a quarter of the limit, and those that miss least"
    for at in (2, 4, 5):
        bench.readers[at].complete()
    assert bench.reading() == [0, 2, 3, 4, 5], "alone it may miss more"


def test_the_one_that_has_waited_longest_is_not_passed_over_for_ever() -> None:
    bench = Bench(2)
    bench.memory.queue(2 * LIMIT)
    first, longest = bench.readers
    first.read(1)
    longest.read(1)
    passed = 0
    while not longest.reads:
        following = PaperReader(bench.memory, 9_000_000)
        following.read(1)
        assert not following.reads
        first.complete()
        first = following
        passed += 1
    assert 60 < passed < 70


def test_a_slow_request_is_closed_where_others_wait() -> None:
    bench = Bench(2)
    first, second = bench.readers
    first.missing_bytes = 100 * 1024 * 1024
    first.read(LIMIT)
    bench.time.advance(20_000)
    assert not first.closed, "nobody waits"
    second.read(1)
    assert bench.reading() == [0]
    bench.time.advance(1_000)
    assert first.closed
    assert second.reads, "it goes on before the first has given back anything"


def test_a_request_that_takes_long_is_closed_where_others_wait() -> None:
    bench = Bench(2)
    first, second = bench.readers
    first.missing_bytes = 100 * 1024 * 1024
    first.read(LIMIT)
    second.read(1)
    for _ in range(11):
        assert not first.closed
        first.missing_bytes -= 2 * 1024 * 1024
        bench.time.advance(1_000)
    bench.time.advance(1_000)
    assert first.closed


def test_who_reads_nothing_for_another_reason_waits_again() -> None:
    bench = Bench(2)
    first, second = bench.readers
    first.read(LIMIT)
    second.read(1)
    first.is_held = True
    bench.time.advance(1_000)
    assert not first.closed
    assert bench.reading() == [1]
    second.complete()
    assert bench.reading() == [0, 1]


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
