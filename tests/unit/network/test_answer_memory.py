"""The memory of answers: which are begun where peers do not read, and who is closed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Generator
from functools import partial

from by_hand import HandTime, one_step_a_turn

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.network.server.peer_memory import AnswerMemory

MB = 1_000_000
LIMIT = 100 * MB


class PaperPeer:
    """A connection. `unread_bytes` is in the node's memory, `unacknowledged_bytes` in the kernel's."""

    def __init__(self, memory: AnswerMemory, unread_bytes: int) -> None:
        self.unread_bytes = unread_bytes
        self.unacknowledged_bytes = MB
        self.is_closed = False
        self._memory = memory
        memory.add(self)

    def read(self, size: int) -> None:
        self.unread_bytes -= size
        if not self.unread_bytes:
            self._memory.remove(self)

    def close_unread(self) -> None:
        self.is_closed = True
        self._memory.remove(self)


class Text(str):
    """One that can be referred to weakly."""


class Bench:
    def __init__(self) -> None:
        self.time = HandTime(1_000)
        self.memory = AnswerMemory(LIMIT, self.time.call_later_ms)
        self.making: list[Pending[str]] = []

    def ask(self) -> Pending[str]:
        """A request whose answer may be large."""

        def begin() -> Pending[str]:
            self.making.append(Pending())
            return self.making[-1]

        return self.memory.make(begin)

    def peers(self, count: int, unread_bytes: int) -> list[PaperPeer]:
        return [PaperPeer(self.memory, unread_bytes) for _ in range(count)]


def test_few_answers_are_made_at_a_time_in_the_order_of_their_requests() -> None:
    bench = Bench()
    answers = [bench.ask() for _ in range(20)]
    at_a_time = len(bench.making)
    assert at_a_time <= 4
    bench.making[1].complete("second")
    assert answers[1].value == "second"
    assert len(bench.making) == at_a_time + 1
    for number in range(20):
        if number != 1:
            bench.making[number].fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
    assert [each.done for each in answers] == [True] * 20
    bench.time.advance(10_000)
    assert not bench.time.timers


def test_an_answer_waits_until_others_are_read() -> None:
    bench = Bench()
    peer, other = bench.peers(2, LIMIT // 2)
    bench.ask()
    assert not bench.making
    peer.read(MB)
    bench.time.advance(500)
    assert len(bench.making) == 1
    assert not other.is_closed


def test_peers_that_read_nothing_are_closed_where_there_is_no_room() -> None:
    bench = Bench()
    large, small = bench.peers(1, LIMIT - 10 * MB) + bench.peers(1, 20 * MB)
    bench.ask()
    bench.time.advance(900)
    assert not large.is_closed, "it has some time to read"
    bench.time.advance(600)
    assert large.is_closed
    assert not small.is_closed, "the one with most is closed"
    assert len(bench.making) == 1


def test_whoever_reads_is_not_closed() -> None:
    bench = Bench()
    reading, slow = bench.peers(1, 3 * LIMIT) + bench.peers(1, MB)
    for _ in range(40):
        reading.read(MB)
        slow.read(10_000)
        bench.time.advance(500)
    assert not reading.is_closed
    assert slow.is_closed


def test_where_there_is_room_nobody_is_closed() -> None:
    bench = Bench()
    peers = bench.peers(3, LIMIT // 4)
    bench.time.advance(60_000)
    assert not any(each.is_closed for each in peers)
    peers += bench.peers(1, LIMIT // 4)
    bench.time.advance(500)
    assert [each.is_closed for each in peers].count(True) == 3, "until half is left"
    assert not peers[3].is_closed, "it has just been sent its answer"


def test_unread_answers_are_bounded_whoever_asks() -> None:
    """A thousand peers ask for 20 MB each, and read nothing."""
    bench = Bench()
    peers: list[PaperPeer] = []
    for _ in range(1_000):
        bench.ask().then(lambda value, error: peers.extend(bench.peers(1, 20 * MB)))
    most = made = 0
    while made < 1_000:
        if made < len(bench.making):
            bench.making[made].complete("")
            made += 1
        else:
            bench.time.advance(100)
        most = max(most, sum(each.unread_bytes for each in peers if not each.is_closed))
    assert most <= LIMIT + 4 * 20 * MB


def test_nothing_keeps_an_answer_that_has_left() -> None:
    class Value(list[bytes]):
        """An answer's buffers."""

    def steps(value: Value) -> Generator[None, None, Value]:
        yield
        return value

    gc.disable()
    try:
        bench, turns = Bench(), list[Callable[[], None]]()
        runner = one_step_a_turn(turns.append)
        value = Value()
        kept = weakref.ref(value)
        pending = bench.memory.make(partial(runner.run, steps(value)))
        del value
        while turns:
            turns.pop()()
        assert pending.value == []
        del pending
        assert kept() is None
    finally:
        gc.enable()


def test_nothing_keeps_an_answer_that_was_abandoned() -> None:
    gc.disable()
    try:
        bench = Bench()
        answer = bench.ask()
        (making,) = bench.making
        bench.making.clear()
        answer.abandon()
        making.complete(Text("it cannot be stopped"))
        kept = weakref.ref(making.value)
        del answer, making
        assert kept() is None
    finally:
        gc.enable()


def test_a_request_that_is_abandoned_makes_room_for_others() -> None:
    bench = Bench()
    answers = [bench.ask() for _ in range(6)]
    at_a_time = len(bench.making)
    answers[5].abandon()
    abandoned: list[int] = []
    bench.making[0].on_abandoned = lambda: abandoned.append(0)
    answers[0].abandon()
    assert abandoned == [0]
    assert len(bench.making) == at_a_time + 1
    bench.making[0].complete("too late")
    assert not answers[0].done
    for each in bench.making[1:]:
        each.complete("")
    assert [each.done for each in answers] == [False, True, True, True, True, False]


def test_an_answer_that_cannot_be_begun_fails_alone() -> None:
    bench = Bench()
    before = [bench.ask() for _ in range(4)]

    def begin() -> Pending[str]:
        raise ValueError("unforeseen")

    failed, behind = bench.memory.make(begin), bench.ask()
    bench.making[0].complete("room")
    assert before[0].value == "room"
    assert failed.error is not None
    assert failed.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    bench.making[-1].complete("done")
    assert behind.value == "done"
