"""One connection over a recording transport: order, holds, bounds. No loop runs; the test runs the callbacks."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable
from typing import cast

import pytest
from by_hand import HandJobs
from connection_bench import Bench, PaperTransport, body
from paper_files import PaperFile

from kalda.base.disk import FileSlice
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.network.server.connection import Answer, Buffer, Connection
from kalda.network.server.limits import Limits


def test_answers_of_one_read_leave_in_one_write() -> None:
    bench = Bench()
    bench.send(*(body("a", n) for n in range(50)))
    assert len(bench.transport.writes) == 1
    assert bench.transport.answers() == [b"re:" + body("a", n) for n in range(50)]
    assert (bench.connection.requests, bench.connection.responses) == (50, 50)


def test_order_with_pending_in_the_middle() -> None:
    bench = Bench()
    frames = [body("a", 1), body("w", 2), body("a", 3), body("n", 4), body("w", 5), body("a", 6)]
    bench.send(*frames)
    assert bench.transport.answers() == [b"re:" + frames[0]]
    bench.settle(frames[4])
    assert len(bench.transport.answers()) == 1
    assert bench.connection.unanswered == 4
    bench.settle(frames[1])
    assert bench.transport.answers() == [
        b"re:" + frames[0],
        b"late:" + frames[1],
        b"re:" + frames[2],
        b"late:" + frames[4],
        b"re:" + frames[5],
    ]
    assert bench.connection.unanswered == 0
    assert bench.listener.memory.queued_bytes == 0


def test_a_pending_answer_that_is_complete_needs_no_slot() -> None:
    bench = Bench()
    done: Pending[list[Buffer]] = Pending()
    done.complete([b"done"])
    bench.answer = lambda connection, frame: done
    bench.send(body("a"))
    assert bench.transport.answers() == [b"done"]


def test_an_answer_is_made_after_the_earlier_ones() -> None:
    bench = Bench()
    news = b"old"

    def handle(connection: Connection, frame: memoryview) -> Answer:
        if frame[:1] != b"t":
            return bench.handle(connection, frame)
        earlier = connection.after_earlier()
        return [news] if earlier is None else earlier.and_then(lambda _: [news])

    bench.answer = handle
    bench.send(body("t"))
    assert bench.transport.answers() == [b"old"], "no answer is before it"
    bench.send(body("w"), body("t"), body("a"), body("t"))
    news = b"new"
    bench.settle(body("w"))
    assert bench.transport.answers() == [b"old", b"late:" + body("w"), b"new", b"re:" + body("a"), b"new"]
    assert len(bench.transport.writes) == 2, "they leave in one write"
    assert bench.connection.unanswered == 0
    assert bench.listener.memory.queued_bytes == 0


def test_an_answer_after_the_earlier_ones_that_fails_closes_the_connection() -> None:
    bench = Bench()

    def handle(connection: Connection, frame: memoryview) -> Answer:
        earlier = connection.after_earlier()
        return bench.handle(connection, frame) if earlier is None else earlier.and_then(lambda _: [][0])

    bench.answer = handle
    bench.send(body("w"), body("t"), body("a"))
    bench.settle(body("w"))
    assert bench.transport.closed
    assert bench.transport.answers() == [b"late:" + body("w")]


def test_nothing_is_made_after_the_earlier_answers_of_a_lost_connection() -> None:
    bench = Bench()
    made: list[str] = []

    def handle(connection: Connection, frame: memoryview) -> Answer:
        earlier = connection.after_earlier()
        if earlier is None:
            return bench.handle(connection, frame)
        earlier.then(lambda _, __: made.append("made"))
        return bench.handle(connection, frame)

    bench.answer = handle
    bench.send(body("w"), body("a"))
    bench.connection.connection_lost(None)
    assert made == []


def test_own_earlier_request_settled_by_a_later_one() -> None:
    bench = Bench()

    def handle(connection: Connection, frame: memoryview) -> Answer:
        if bytes(frame[:1]) == b"s":
            bench.settle(body("w", 1))
        return bench.handle(connection, frame)

    bench.answer = handle
    bench.send(body("w", 1), body("a", 2), body("s", 3), body("a", 4))
    assert [answer[-8:] for answer in bench.transport.answers()] == [b"%08d" % n for n in (1, 2, 3, 4)]
    assert len(bench.transport.writes) == 1


def test_large_buffers_are_neither_joined_nor_copied() -> None:
    bench = Bench()
    large = memoryview(bytearray(100_000))
    bench.answer = lambda connection, frame: [b"head", large, b"tail"]
    bench.send(body("a"))
    assert any(piece is large for piece in bench.transport.writes)
    assert bench.transport.answers() == [b"head" + bytes(large) + b"tail"]


def test_slow_reader_is_bounded() -> None:
    bench = Bench(Limits(write_high_bytes=10_000))
    answer = bytes(6_000)

    def handle(connection: Connection, frame: memoryview) -> Answer:
        bench.seen.append(bytes(frame))
        return [answer]

    def write(data: Buffer) -> None:
        PaperTransport.write(bench.transport, data)
        bench.connection.pause_writing()  # the peer takes nothing

    bench.answer = handle
    bench.transport.write = write  # type: ignore[method-assign]
    bench.send(*(body("a", n) for n in range(100)))
    assert len(bench.seen) == 2
    assert not bench.transport.reading
    bench.connection.resume_writing()
    bench.listener.run()
    assert len(bench.seen) == 4
    for _ in range(60):
        bench.connection.resume_writing()
        bench.listener.run()
    assert len(bench.seen) == 100
    assert bench.seen == [body("a", n) for n in range(100)]


def test_unanswered_requests_are_bounded() -> None:
    bench = Bench(Limits(max_unanswered=3))
    bench.send(*(body("w", n) for n in range(6)))
    assert len(bench.seen) == 3
    assert not bench.transport.reading
    bench.settle(body("w", 0))
    bench.listener.run()
    assert len(bench.seen) == 4
    for n in range(1, 6):
        bench.settle(body("w", n))
        bench.listener.run()
    assert len(bench.transport.answers()) == 6
    assert bench.transport.reading


def test_answers_behind_a_pending_one_are_bounded() -> None:
    bench = Bench(Limits(write_high_bytes=1_000))
    bench.answer = lambda connection, frame: bench.handle(connection, frame) if frame[0] == ord("w") else [bytes(600)]
    bench.send(body("w"), *(body("a", n) for n in range(10)))
    assert bench.connection.unanswered == 3
    assert not bench.transport.reading
    bench.settle(body("w"))
    bench.listener.run()
    assert len(bench.transport.answers()) == 11


def test_what_a_peer_has_not_read_counts_while_it_has_not() -> None:
    bench = Bench(Limits(write_high_bytes=1_000))
    answers = bench.listener.answers
    bench.answer = lambda connection, frame: bench.handle(connection, frame) if frame[0] == ord("w") else [bytes(600)]
    bench.send(body("w"), body("a", 1), body("a", 2))
    assert answers.unread_bytes == 1_200, "behind a pending answer"
    bench.connection.pause_writing()
    bench.connection.resume_writing()
    assert answers.unread_bytes == 1_200
    bench.transport.unsent_bytes = 5_000
    bench.connection.pause_writing()
    bench.settle(body("w"))
    assert answers.unread_bytes == 5_000
    bench.connection.resume_writing()
    assert answers.unread_bytes == 0
    bench.connection.pause_writing()
    bench.connection.connection_lost(None)
    assert answers.unread_bytes == 0
    assert not bench.transport.aborted


def test_a_peer_that_reads_nothing_is_closed_where_unread_answers_use_up_their_memory() -> None:
    bench = Bench()
    bench.transport.unsent_bytes = bench.listener.answers.limit_bytes
    bench.connection.pause_writing()
    bench.listener.time.advance(500)
    assert not bench.transport.aborted
    bench.listener.time.advance(1_000)
    assert bench.transport.aborted
    (line,) = bench.listener.peer_lines
    assert "does not read" in line


def test_no_request_is_served_while_the_nodes_budget_is_used_up() -> None:
    bench = Bench(budget=15)
    bench.send(body("w", 1), body("w", 2), body("a", 3))
    assert len(bench.seen) == 2
    assert not bench.transport.reading
    bench.settle(body("w", 1))
    bench.listener.run()
    assert len(bench.seen) == 3


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "a TLS handshake"),
        (b"\xff\xff\xff\xff", "ff ff ff ff"),
        (b"\x00\x00\x00\x00", "00 00 00 00"),
        (b"\x00\x00\x00\x07", "00 00 00 07"),
    ],
)
def test_garbage_closes_with_one_line(opening: bytes, words: str) -> None:
    bench = Bench()
    bench.receive(opening)
    assert bench.transport.closed
    assert len(bench.listener.peer_lines) == 1
    assert words in bench.listener.peer_lines[0]
    assert "10.1.2.3:4567" in bench.listener.peer_lines[0]


def test_invalid_request_closes_after_earlier_answers() -> None:
    bench = Bench()
    bench.send(body("a", 1), body("i", 2), body("a", 3))
    assert bench.transport.answers() == [b"re:" + body("a", 1)]
    assert bench.transport.closed
    assert len(bench.seen) == 2
    assert bench.connection.closed


def test_broken_handler_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.ERROR, "kalda.network"):
        bench.send(body("x"))
    assert bench.transport.closed
    assert "broken handler" in (caplog.text)


def test_failed_pending_closes() -> None:
    bench = Bench()
    bench.send(body("w"))
    bench.pending[body("w")].fail(ApiError(ErrorCode.NOT_CONTROLLER, "moved"))
    assert bench.transport.closed
    assert len(bench.listener.peer_lines) == 1


def test_settling_after_the_connection_was_lost_is_harmless() -> None:
    bench = Bench()
    bench.send(body("w"))
    bench.connection.connection_lost(None)
    assert bench.listener.memory.queued_bytes == 0
    bench.settle(body("w"))
    assert bench.transport.answers() == []
    assert bench.listener.lost == 1


def test_draining_answers_what_is_pending_first() -> None:
    bench = Bench()
    bench.send(body("w"))
    bench.connection.drain()
    assert not bench.transport.closed
    bench.settle(body("w"))
    assert bench.transport.closed
    assert bench.transport.answers() == [b"late:" + body("w")]


def test_no_request_is_served_while_a_large_answer_is_pending() -> None:
    bench = Bench()

    def handle(connection: Connection, frame: memoryview) -> Answer:
        if frame[0] in b"wl":
            connection.answer_alone()
        return bench.handle(connection, frame)

    bench.answer = handle
    bench.send(body("w", 1), body("w", 2), body("l", 3), body("a", 4))
    assert len(bench.seen) == 1
    bench.settle(body("w", 1))
    bench.listener.run()
    assert len(bench.seen) == 2
    bench.settle(body("w", 2))
    bench.listener.run()
    assert len(bench.transport.answers()) == 4
    assert bench.transport.reading


def test_pending_requests_are_abandoned_when_the_connection_is_lost() -> None:
    bench = Bench()
    abandoned: list[bytes] = []
    bench.send(body("w", 1), body("w", 2), body("w", 3))
    for each, pending in bench.pending.items():
        pending.on_abandoned = lambda each=each: abandoned.append(each)  # type: ignore[misc]
    bench.settle(body("w", 2))
    bench.connection.connection_lost(None)
    assert abandoned == [body("w", 1), body("w", 3)]
    bench.settle(body("w", 1))
    assert bench.listener.memory.queued_bytes == 0


class Sliced:
    """A bench whose handler answers frames that begin with `s` by two slices of a file, with bytes around them."""

    def __init__(self, size: int = 2_000_000, cached: int | None = None) -> None:
        self.data = random.Random(1).randbytes(size)
        self.jobs = HandJobs(hold_jobs=True)
        self.bench = Bench()
        self.file = PaperFile(self.data, size if cached is None else cached)
        self.bench.answer = self.handle
        self.transport = self.bench.transport
        self.connection = self.bench.connection

    def handle(self, connection: Connection, frame: memoryview) -> Answer:
        if frame[0] != ord("s"):
            return self.bench.handle(connection, frame)
        half = len(self.data) // 2
        parts = [FileSlice(self.file, at, half, self.jobs, lambda _: None) for at in (0, half)]
        return [b"head", cast(Buffer, parts[0]), b"between", cast(Buffer, parts[1]), b"tail"]

    @property
    def answer(self) -> bytes:
        half = len(self.data) // 2
        return b"head" + self.data[:half] + b"between" + self.data[half:] + b"tail"


def test_slices_of_files_leave_in_order() -> None:
    sliced = Sliced()
    sliced.bench.send(body("a", 1), body("s"), body("a", 2))
    sliced.bench.listener.run()
    assert sliced.transport.answers() == [b"re:" + body("a", 1), sliced.answer, b"re:" + body("a", 2)]
    assert max(map(len, sliced.transport.writes)) <= 512 * 1024


def test_slices_are_read_only_as_fast_as_the_peer_reads() -> None:
    sliced = Sliced()
    write = sliced.transport.write

    def full(data: Buffer) -> None:
        write(data)
        if len(data) > 100_000:
            sliced.connection.pause_writing()

    sliced.transport.write = full  # type: ignore[method-assign]
    sliced.bench.send(body("s"), body("a", 2))
    written = 0
    while len(sliced.bench.seen) < 1:
        assert len(sliced.transport.writes) > written, "each time the peer has read, something is written"
        assert sum(map(len, sliced.transport.writes[written:])) < 600_000, "and no more than a piece"
        assert not sliced.transport.reading
        written = len(sliced.transport.writes)
        sliced.connection.resume_writing()
        sliced.bench.listener.run()
    assert sliced.transport.answers() == [sliced.answer, b"re:" + body("a", 2)]
    assert sliced.transport.reading


def test_uncached_pieces_are_waited_for() -> None:
    sliced = Sliced(cached=1_200_000)
    sliced.bench.send(body("s"), body("a", 2))
    while sliced.jobs.waiting:
        assert not sliced.transport.reading
        sliced.jobs.waiting.pop()()
        sliced.bench.listener.run()
    assert sliced.transport.answers() == [sliced.answer, b"re:" + body("a", 2)]


def test_closing_sends_the_complete_answers_first() -> None:
    sliced = Sliced(cached=0)
    sliced.bench.send(body("s"))
    sliced.connection.close()
    assert not sliced.transport.closed
    while sliced.jobs.waiting:
        sliced.jobs.waiting.pop()()
    assert sliced.transport.closed
    assert sliced.transport.answers() == [sliced.answer]


def test_a_slice_that_cannot_be_read_ends_the_connection() -> None:
    sliced = Sliced()
    sliced.file.data = sliced.data[:-1]
    sliced.bench.send(body("s"))
    assert sliced.transport.aborted
    assert sliced.connection.closed


def test_a_connection_lost_while_a_slice_is_read() -> None:
    sliced = Sliced(cached=0)
    sliced.bench.send(body("s"))
    sliced.connection.connection_lost(None)
    sliced.jobs.waiting.pop()()
    assert not sliced.jobs.waiting
    assert len(sliced.transport.writes) <= 1


class TestSweep:
    """The sweep, at times that the test passes."""

    def test_idle(self) -> None:
        bench = Bench(Limits(idle_ms=1_000))
        assert bench.connection.sweep(1_000) is None
        assert bench.connection.sweep(1_999) is None
        bench.send(body("a"))
        assert bench.connection.sweep(2_500) is None
        assert bench.connection.sweep(3_499) is None
        assert "idle" in (bench.connection.sweep(3_500) or "")

    def test_waiting_for_an_answer_is_not_idle(self) -> None:
        bench = Bench(Limits(idle_ms=1_000))
        bench.send(body("w"))
        bench.connection.sweep(1_000)
        assert bench.connection.sweep(50_000) is None

    def test_a_peer_that_never_reads_is_idle(self) -> None:
        bench = Bench(Limits(idle_ms=1_000))
        bench.send(body("w"))
        bench.connection.pause_writing()
        bench.connection.sweep(1_000)
        assert "idle" in (bench.connection.sweep(50_000) or "")

    def test_a_half_sent_frame(self) -> None:
        bench = Bench(Limits(slow_frame_ms=1_000))
        bench.receive(b"\x00\x00\x00\x40abc")
        bench.connection.sweep(1_000)
        assert bench.connection.sweep(1_500) is None
        bench.receive(b"d")  # single bytes do not extend the time
        assert "did not arrive" in (bench.connection.sweep(2_010) or "")

    def test_a_large_frame_has_the_time_that_its_size_takes(self) -> None:
        bench = Bench(Limits(slow_frame_ms=1_000, slow_frame_bytes_per_s=1_000))
        bench.receive((10_000).to_bytes(4, "big") + b"abc")
        bench.connection.sweep(1_000)
        assert bench.connection.sweep(11_000) is None
        assert bench.connection.sweep(12_004) is not None

    def test_each_partial_frame_has_a_time_of_its_own(self) -> None:
        bench = Bench(Limits(slow_frame_ms=1_000))
        half = b"\x00\x00\x00\x09" + body("a")[:4]
        bench.receive(half)
        bench.connection.sweep(1_000)
        bench.receive(body("a")[4:] + half)
        assert bench.connection.sweep(2_500) is None
        assert bench.connection.sweep(3_000) is None
        assert bench.connection.sweep(3_510) is not None

    def test_a_peer_that_is_gone_while_a_request_waits(self) -> None:
        bench = Bench()
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = socket.create_connection(server.getsockname())
            bench.transport.socket, _ = server.accept()

        def alone(connection: Connection, frame: memoryview) -> Answer:
            answer = bench.handle(connection, frame)
            if isinstance(answer, Pending):
                connection.answer_alone()
            return answer

        bench.answer = alone
        with bench.transport.socket as near, peer:
            bench.send(body("w"), body("n"))  # the second as a Produce without acknowledgements
            assert bench.seen == [body("w")]
            peer.sendall(b"unread")
            peer.shutdown(socket.SHUT_WR)
            assert near.recv(1, socket.MSG_PEEK)
            bench.connection.sweep(1_000)
            assert not bench.transport.closed, "the peer has sent more than was served"
            bench.settle(body("w"))
            bench.listener.run()
            assert bench.seen == [body("w"), body("n")]

            bench.send(body("w", 1))
            bench.connection.sweep(2_000)
            assert not bench.transport.closed, "the kernel has more"
            near.recv(100)
            bench.connection.sweep(3_000)
            assert bench.transport.closed, "all is served but what waits, and nobody is there for its answer"

    def test_a_peer_that_is_gone_while_a_request_waits_for_long(self) -> None:
        bench = Bench(Limits(closing_ms=500))
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = socket.create_connection(server.getsockname())
            bench.transport.socket, _ = server.accept()
        with bench.transport.socket as near, peer:
            peer.sendall(b"unread")
            peer.shutdown(socket.SHUT_WR)
            assert near.recv(1, socket.MSG_PEEK)
            bench.send(body("w"))
            bench.connection.answer_alone()
            bench.connection.sweep(1_000)
            bench.connection.sweep(1_499)
            assert not bench.transport.closed
            bench.connection.sweep(1_500)
            assert bench.transport.closed

    def test_last_answers_that_cannot_be_sent(self) -> None:
        bench = Bench(Limits(closing_ms=500))
        bench.connection.close()
        assert bench.connection.sweep(1_400) is None
        assert bench.connection.sweep(1_500) is not None


class TestMute:
    """Throttled connections: answers leave, requests wait, others are served."""

    def muted(self, duration_ms: int = 100) -> Bench:
        """A connection whose first request was answered and which was muted with that answer."""
        bench = Bench()

        def handle(connection: Connection, frame: memoryview) -> Answer:
            if not bench.seen:
                connection.mute(duration_ms)
            return bench.handle(connection, frame)

        bench.answer = handle
        bench.send(body("a", 1), body("a", 2))
        return bench

    def pass_time(self, bench: Bench, ms: int) -> None:
        bench.listener.time.advance(ms)
        bench.listener.run()

    def test_the_answer_leaves_and_the_next_request_waits(self) -> None:
        bench = self.muted()
        assert bench.transport.answers() == [b"re:" + body("a", 1)]
        assert not bench.transport.reading
        self.pass_time(bench, 99)
        assert len(bench.seen) == 1
        self.pass_time(bench, 1)
        assert bench.transport.answers() == [b"re:" + body("a", 1), b"re:" + body("a", 2)]
        assert bench.transport.reading

    def test_another_connection_is_not_held(self) -> None:
        self.muted()
        other = Bench()
        other.send(body("a", 1))
        assert len(other.transport.answers()) == 1

    def test_pending_answers_leave_meanwhile(self) -> None:
        bench = Bench()
        bench.send(body("w"))
        bench.connection.mute(100)
        assert not bench.transport.reading
        bench.settle(body("w"))
        assert bench.transport.answers() == [b"late:" + body("w")]
        assert not bench.transport.reading

    @pytest.mark.parametrize(("second_ms", "end_ms"), [(30, 100), (80, 130), (50, 100)])
    def test_the_later_end_of_two_mutes_holds(self, second_ms: int, end_ms: int) -> None:
        bench = self.muted(100)
        self.pass_time(bench, 50)
        bench.connection.mute(second_ms)
        assert bench.listener.time.timers == 1
        self.pass_time(bench, end_ms - 51)
        assert len(bench.seen) == 1
        self.pass_time(bench, 1)
        assert len(bench.seen) == 2

    def test_muted_again(self) -> None:
        bench = self.muted(100)
        self.pass_time(bench, 100)
        bench.connection.mute(10)
        assert not bench.transport.reading
        self.pass_time(bench, 10)
        assert bench.transport.reading

    @pytest.mark.parametrize("end", [Connection.close, Connection.drain, lambda each: each.connection_lost(None)])
    def test_the_end_of_the_connection_ends_the_mute(self, end: Callable[[Connection], None]) -> None:
        bench = self.muted()
        end(bench.connection)
        assert bench.listener.time.timers == 0
        bench.connection.mute(100)
        assert bench.listener.time.timers == 0
        self.pass_time(bench, 1_000)
        assert len(bench.seen) == 1

    def test_a_muted_connection_is_not_idle(self) -> None:
        bench = self.muted(100_000)
        bench.connection.sweep(1_000)
        assert bench.connection.sweep(10_000_000) is None
