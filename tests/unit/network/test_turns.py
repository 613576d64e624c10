"""Connections over recording transports: for how long the requests of one keep those of others waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from connection_bench import Bench, PaperTransport, body

from kalda.network.server.connection import Answer, Connection

US = 1_000
MS = 1_000_000
COSTS_NS = {b"p": 50 * US, b"s": 50 * US, b"m": MS // 2, b"h": 30 * MS}
"""How long a request takes, by the first letter of its frame: a ping, one of a storm, one of half a millisecond, and a
heavy one, which is legal."""
READ_BYTES = 65_536


class Peer:
    """Another connection of the listener, and what its peer has still to send."""

    def __init__(self, bench: Bench, connection_id: int) -> None:
        self._bench = bench
        self.transport = PaperTransport()
        self.connection = Connection(bench.listener, connection_id)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self._unsent: deque[bytes] = deque()

    def send(self, *frames: bytes) -> None:
        self._unsent.extend(len(frame).to_bytes(4, "big") + frame for frame in frames)

    def arrive(self) -> None:
        """The node reads what the socket holds."""
        data = bytearray()
        while self._unsent and self.transport.reading and len(data) < READ_BYTES:
            data += self._unsent.popleft()
        if data:
            self.connection.get_buffer(-1)[: len(data)] = data
            self.connection.buffer_updated(len(data))


class World:
    """A loop whose clock is moved by what it serves."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.bench.answer = self._handle
        self.peers: list[Peer] = []
        self.served: list[bytes] = []
        self.longest_turn_ns = 0

    def _handle(self, connection: Connection, frame: memoryview) -> Answer:
        self.bench.listener.now_ns += COSTS_NS[bytes(frame[:1])]
        self.served.append(bytes(frame))
        return [b"re:", bytes(frame)]

    def now_ns(self) -> int:
        return self.bench.listener.now_ns

    def peer(self) -> Peer:
        self.peers.append(Peer(self.bench, 100 + len(self.peers)))
        return self.peers[-1]

    def turn(self) -> None:
        """A turn of the loop: what was to be called, then what the sockets hold."""
        listener = self.bench.listener
        began_ns = listener.now_ns
        callbacks, listener.soon[:] = list(listener.soon), []
        for callback in callbacks:
            callback()
        for peer in self.peers:
            peer.arrive()
        self.longest_turn_ns = max(self.longest_turn_ns, listener.now_ns - began_ns)
        listener.now_ns += 10 * US

    def run(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self.turn()

    def longest_ping_ns(self, count: int) -> int:
        """Of round trips of a client that has been served before, each some turns of the loop after the last one."""
        client = self.peer()
        self.peers.insert(0, self.peers.pop())  # the first of those that the loop reads from
        longest_ns = 0
        for number in range(count):
            client.send(body("p", number))
            began_ns = self.now_ns()
            self.run(lambda number=number: client.connection.responses > number)
            if number:
                longest_ns = max(longest_ns, self.now_ns() - began_ns)
            for _ in range(number % 3):
                self.turn()
        return longest_ns


def test_round_trips_beside_a_storm_are_hardly_longer_than_alone() -> None:
    world = World()
    alone_ns = world.longest_ping_ns(5)
    storm = world.peer()
    storm.send(*(body("s", n) for n in range(5_000)))
    assert world.longest_ping_ns(3) < alone_ns + MS
    assert world.longest_ping_ns(50) < alone_ns + 200 * US
    world.run(lambda: len(world.served) == 5_058)
    assert storm.transport.answers() == [b"re:" + body("s", n) for n in range(5_000)]
    assert storm.transport.reading


def test_requests_come_in_long_shares_where_all_send_many() -> None:
    """Each share costs a turn of the loop and a write."""
    world = World()
    storms = [world.peer() for _ in range(3)]
    for storm in storms:
        storm.send(*(body("s", n) for n in range(2_000)))
    world.run(lambda: len(world.served) == 6_000)
    assert sum(len(storm.transport.writes) for storm in storms) < 6_000 / 8


def test_a_ping_waits_for_the_share_of_each_storm() -> None:
    world = World()
    for _ in range(20):
        world.peer().send(*(body("s", n) for n in range(1_000)))
    assert world.longest_ping_ns(5) < 20 * MS
    world.run(lambda: len(world.served) == 20_005)


@pytest.mark.parametrize("pipelined", [1, 3])
def test_heavy_requests_of_many_peers_delay_a_ping_by_a_few_of_them(pipelined: int) -> None:
    """Pipelined, or each sent when the last one is answered."""
    world = World()
    peers = [world.peer() for _ in range(200)]
    sent = [0] * len(peers)

    def go_on() -> None:
        for at, peer in enumerate(peers):
            if peer.connection.responses == sent[at]:
                peer.send(*(body("h", n) for n in range(pipelined)))
                sent[at] += pipelined

    turn = world.turn
    world.turn = lambda: (go_on(), turn())[1]  # type: ignore[method-assign]
    assert world.longest_ping_ns(20) < 150 * MS
    world.run(lambda: all(peer.transport.answers() for peer in peers))


def test_heavy_requests_are_served_beside_storms() -> None:
    world = World()
    for _ in range(10):
        world.peer().send(*(body("s", n) for n in range(10_000)))
    heavy = world.peer()
    heavy.send(body("h", 1), body("h", 2))
    for _ in range(20):
        world.turn()
    assert len(heavy.transport.answers()) == 2


def test_requests_that_arrive_together_do_not_keep_all_else_waiting() -> None:
    """A turn of the loop has two milliseconds of requests, and what the last connection's take beyond."""
    world = World()
    for _ in range(200):
        world.peer().send(body("m"), body("m"))
    world.run(lambda: len(world.served) == 400)
    assert world.longest_turn_ns <= 3 * MS


def test_requests_of_a_peer_stay_in_its_socket_while_it_waits() -> None:
    world = World()
    peer = world.peer()
    peer.send(body("m", 1), body("m", 2), body("m", 3))
    peer.arrive()
    assert peer.transport.answers() == [b"re:" + body("m", 1)], "the answers of a share leave with it"
    assert not peer.transport.reading
    world.run(lambda: len(world.served) == 3)
    assert peer.transport.reading


def test_a_request_that_is_not_complete_waits_for_no_turn() -> None:
    world = World()
    world.peer().send(*(body("s", n) for n in range(10_000)))
    world.turn()
    peer = world.peer()
    peer.connection.get_buffer(-1)[:8] = (1_000_000).to_bytes(4, "big") + b"part"
    peer.connection.buffer_updated(8)
    assert peer.transport.reading


def test_a_connection_that_is_muted_between_two_turns_is_served_after_that() -> None:
    world = World()
    peer = world.peer()
    peer.send(*(body("m", n) for n in range(3)))
    peer.arrive()
    peer.connection.mute(1_000)
    for _ in range(5):
        world.turn()
    assert len(peer.transport.answers()) == 1
    assert not peer.transport.reading
    world.bench.listener.time.advance(1_000)
    world.run(lambda: len(peer.transport.answers()) == 3)


def test_a_connection_that_closes_between_two_turns_is_served_no_more() -> None:
    world = World()
    peer = world.peer()
    peer.send(*(body("m", n) for n in range(3)))
    peer.arrive()
    peer.connection.close()
    assert peer.transport.closed
    world.run(lambda: not world.bench.listener.soon)
    assert len(world.served) == 1
