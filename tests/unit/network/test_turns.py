"""Connections over a recording transport: how those with many requests, or with slow ones, take turns."""

from __future__ import annotations

from collections.abc import Callable

from connection_bench import Bench, PaperTransport, body

from kalda.network.connection import Connection
from kalda.network.turns import LONG_NS, SHARED_NS, SHORT_NS


def served_by_turns(bench: Bench) -> list[int]:
    """How many requests were served before, and after each turn."""
    counts = [len(bench.seen)]
    while bench.listener.soon:
        bench.listener.soon.pop(0)()
        if len(bench.seen) != counts[-1]:
            counts.append(len(bench.seen))
    return counts


def other_peer(bench: Bench, connection_id: int) -> Callable[..., None]:
    """Another connection of the listener: what its peer sends."""
    connection = Connection(bench.listener, connection_id)  # type: ignore[arg-type]
    connection.connection_made(PaperTransport())  # type: ignore[arg-type]

    def send(*frames: bytes) -> None:
        data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))

    return send


def test_a_connection_with_many_requests_is_served_by_turns() -> None:
    bench = Bench(frame_ns=LONG_NS // 20)
    bench.send(*(body("a", n) for n in range(50)))
    assert not bench.transport.reading, "what the peer sends meanwhile stays in the socket"
    assert served_by_turns(bench) == [20, 40, 50]
    assert bench.transport.reading
    assert bench.transport.answers() == [b"re:" + body("a", n) for n in range(50)]
    assert len(bench.transport.writes) == 3, "answers leave at the end of a long turn"
    assert bench.connection.requests == 50


def test_turns_are_short_while_another_connection_has_single_requests() -> None:
    bench = Bench(frame_ns=SHORT_NS // 20)
    other_peer(bench, 8)(body("b"))
    bench.send(*(body("a", n) for n in range(450)))
    assert served_by_turns(bench) == [401, 421, 441, 451], "the first turn is long"
    assert len(bench.transport.writes) == 2, "short turns do not add writes"
    bench.send(*(body("a", n) for n in range(30)))
    assert served_by_turns(bench) == [471, 481], "the next requests too"
    bench.listener.now_ns += SHARED_NS
    bench.send(*(body("a", n) for n in range(450)))
    assert served_by_turns(bench) == [501, 901, 931], "it has had none for a while"


def test_a_turn_that_no_other_follows_makes_the_next_short_too() -> None:
    bench = Bench(frame_ns=SHORT_NS // 20)
    other_peer(bench, 8)(body("b"))
    bench.send(*(body("a", n) for n in range(30)))
    assert len(bench.seen) == 31
    bench.send(*(body("a", n) for n in range(30)))
    assert len(bench.seen) == 51


def test_connections_with_requests_left_are_served_one_in_each_turn_of_the_loop() -> None:
    bench = Bench(frame_ns=LONG_NS // 4)
    for number in range(3):
        other_peer(bench, 8 + number)(*(body(f"{number}", n) for n in range(6)))
    assert served_by_turns(bench) == [4, 6, 10, 14, 16, 18]
    assert [seen[:1] for seen in bench.seen] == [b"0"] * 6 + [b"1"] * 4 + [b"2"] * 4 + [b"1"] * 2 + [b"2"] * 2


def test_slow_requests_that_arrive_together_take_the_time_of_one_turn() -> None:
    """Of ten new connections; that of the quick one is served in the next turn of the loop, the others one by one."""
    bench = Bench()
    quick = other_peer(bench, 8)
    quick(body("q"))
    bench.listener.run()
    bench.frame_ns = LONG_NS // 2
    for number in range(10):
        other_peer(bench, 10 + number)(body(f"{number}"))
    quick(body("q"))
    assert [seen[:1] for seen in bench.seen] == [b"q", b"0", b"1"]
    assert served_by_turns(bench) == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [seen[:1] for seen in bench.seen[3:5]] == [b"2", b"q"]


def test_answers_of_short_turns_leave_where_others_wait() -> None:
    bench = Bench(frame_ns=SHORT_NS // 2)
    others = [other_peer(bench, 8 + number) for number in range(2)]
    bench.send(body("a", 0))
    for send in others:
        send(*(body("o", n) for n in range(3)))
    bench.send(*(body("a", n) for n in range(1, 30)))
    served = len(bench.seen)
    assert len(bench.transport.answers()) == sum(seen[:1] == b"a" for seen in bench.seen)
    bench.listener.run()
    assert len(bench.seen) == 36 > served


def test_a_slow_request_ends_a_turn_and_its_answer_leaves() -> None:
    bench = Bench(frame_ns=2 * LONG_NS)
    bench.send(body("a", 1))
    assert len(bench.transport.answers()) == 1
    assert not bench.transport.reading
    bench.listener.run()
    assert bench.transport.reading


def test_a_connection_without_requests_left_waits_for_no_turn() -> None:
    bench = Bench(frame_ns=LONG_NS)
    bench.send(body("a", 1))
    assert bench.transport.reading


def test_many_answers_leave_at_the_end_of_a_turn() -> None:
    bench = Bench(frame_ns=LONG_NS // 200)
    bench.send(*(body("a", n) for n in range(300)))
    assert len(bench.transport.answers()) == 200
    bench.listener.run()
    assert len(bench.transport.answers()) == 300


def test_answers_leave_where_a_mute_begins_between_two_turns() -> None:
    bench = Bench(frame_ns=SHORT_NS)
    other_peer(bench, 8)(body("b"))
    bench.send(*(body("a", n) for n in range(2)))
    bench.listener.run()
    bench.transport.written.clear()
    bench.send(*(body("a", n) for n in range(3)))
    bench.connection.mute(1_000)
    assert bench.transport.answers() == []
    bench.listener.run()
    assert len(bench.transport.answers()) == 1
    assert not bench.transport.reading
    bench.listener.time.advance(1_000)
    bench.listener.run()
    assert len(bench.transport.answers()) == 3


def test_a_connection_that_closes_between_two_turns_sends_its_answers() -> None:
    bench = Bench(frame_ns=LONG_NS)
    bench.send(*(body("a", n) for n in range(3)))
    bench.connection.close()
    assert len(bench.transport.answers()) == 1
    bench.listener.run()
    assert len(bench.seen) == 1
