"""The memory of answers: which are begun where peers do not read, and who is closed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Generator
from functools import partial

from by_hand import HandTime, one_step_a_turn

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.network.answer_memory import AnswerMemory

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
        self.memory = AnswerMemory(LIMIT, lambda: self.time.now_ms, self.time.call_later_ms)
        self.making: list[Pending[str]] = []

    def ask(self, reserved_bytes: int = 40 * MB) -> Pending[str]:
        """A request whose answer may have so many bytes."""

        def begin() -> Pending[str]:
            self.making.append(Pending())
            return self.making[-1]

        return self.memory.run(begin, reserved_bytes)

    def peers(self, count: int, unread_bytes: int) -> list[PaperPeer]:
        return [PaperPeer(self.memory, unread_bytes) for _ in range(count)]


def test_answers_are_begun_as_long_as_what_is_reserved_leaves_room() -> None:
    bench = Bench()
    answers = [bench.ask() for _ in range(5)]
    assert len(bench.making) == 3
    bench.making[1].complete("second")
    assert answers[1].value == "second"
    assert len(bench.making) == 4
    for each in bench.making[:1] + bench.making[2:]:
        each.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
    bench.making[-1].complete("last")
    assert [each.done for each in answers] == [True] * 5
    assert not bench.memory.reserved_bytes
    bench.time.advance(10_000)
    assert not bench.time.timers


def test_an_answer_waits_until_others_are_read() -> None:
    bench = Bench()
    peer, other = bench.peers(2, LIMIT // 2)
    bench.ask()
    assert not bench.making
    peer.read(MB)
    bench.time.advance(1_000)
    assert len(bench.making) == 1
    assert not other.is_closed


def test_peers_that_read_nothing_are_closed_where_there_is_no_room() -> None:
    bench = Bench()
    large, small = bench.peers(1, LIMIT - 10 * MB) + bench.peers(1, 20 * MB)
    bench.ask()
    bench.time.advance(1_500)
    assert not large.is_closed, "it has some time to read"
    bench.time.advance(1_000)
    assert large.is_closed
    assert not small.is_closed
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
    assert [each.is_closed for each in peers] == [True, True, True, False], "until half is left"


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
        pending = bench.memory.run(partial(runner.run, steps(value)), MB)
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


def test_a_request_that_is_abandoned_reserves_nothing() -> None:
    bench = Bench()
    answers = [bench.ask() for _ in range(5)]
    answers[4].abandon()
    abandoned: list[int] = []
    bench.making[0].on_abandoned = lambda: abandoned.append(0)
    answers[0].abandon()
    assert abandoned == [0]
    assert len(bench.making) == 4
    bench.making[0].complete("too late")
    assert not answers[0].done
    for each in bench.making[1:]:
        each.complete("")
    assert not bench.memory.reserved_bytes
    assert len(bench.making) == 4


def test_answers_that_wait_for_other_nodes_do_not_keep_all_others_waiting() -> None:
    bench = Bench()
    for _ in range(5):
        bench.ask()
    bench.time.advance(9_000)
    assert len(bench.making) == 3
    bench.time.advance(3_000)
    assert len(bench.making) == 5


def test_an_answer_that_cannot_be_begun_fails_alone() -> None:
    bench = Bench()
    for _ in range(3):
        bench.ask()

    def begin() -> Pending[str]:
        raise ValueError("unforeseen")

    failed, behind = bench.memory.run(begin, 40 * MB), bench.ask()
    bench.making[0].complete("room")
    assert failed.error is not None
    assert failed.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not behind.done
    assert len(bench.making) == 4
    for each in bench.making[1:]:
        each.complete("done")
    assert not bench.memory.reserved_bytes
