"""A connection over a recording transport. No loop runs: the test runs the callbacks."""

from __future__ import annotations

import socket
from collections.abc import Callable

from by_hand import HandTime, HandTimer

from kalda.base.errors import InvalidRequest
from kalda.base.scheduling import Pending
from kalda.network.frames import Arena
from kalda.network.server.connection import Answer, Buffer, Connection, FrameHandler
from kalda.network.server.limits import Limits
from kalda.network.server.peer_memory import AnswerMemory, RequestMemory
from kalda.network.server.turns import Turns


class PaperTransport:
    """Records what a connection does to its transport."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.writes: list[Buffer] = []
        self.reading = True
        self.closed = False
        self.aborted = False
        self.unsent_bytes = 0
        self.socket: socket.socket | None = None

    def write(self, data: Buffer) -> None:
        assert not self.closed
        self.writes.append(data)
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_extra_info(self, name: str) -> object:
        if name == "socket":
            return self.socket
        return {"peername": ("::ffff:10.1.2.3", 4567, 0, 0), "sockname": ("10.0.0.1", 9092)}.get(name)

    def answers(self) -> list[bytes]:
        stream = b"".join(self.written)
        found = []
        while stream:
            size = int.from_bytes(stream[:4], "big")
            found.append(stream[4 : 4 + size])
            assert len(found[-1]) == size
            stream = stream[4 + size :]
        return found


class PaperListener:
    """What a connection needs of its listener. The test sets the time and runs the callbacks."""

    name = "PLAINTEXT"
    security_protocol = "PLAINTEXT"
    min_request_bytes = 8

    def __init__(self, handler: FrameHandler, limits: Limits, budget: int = 0) -> None:
        self.handler = handler
        self.limits = limits
        self.arena = Arena()
        self.now_ns = 0
        self.time = HandTime(1_000)
        self.memory = RequestMemory(budget, self.time.call_later_ms)
        self.answers = AnswerMemory(100_000_000, self.time.call_later_ms)
        self.soon: list[Callable[[], None]] = []
        self.turns = Turns(lambda: self.now_ns, self.soon.append)
        self.peer_lines: list[str] = []
        self.lost = 0

    def now_ms(self) -> int:
        return self.time.now_ms

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> HandTimer:
        return self.time.call_later_ms(delay_ms, callback)

    def connected(self, connection: Connection, transport: object) -> None:
        connection.admit()

    def disconnected(self, connection: Connection) -> None:
        self.lost += 1

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def log_peer(self, message: str, *args: object) -> None:
        self.peer_lines.append(message % args)

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class Bench:
    """A connection, its transport, and a handler that acts by each frame's first letter: `w` waits for `settle`, `n`
    has no answer, `i` is invalid, `x` fails, others are answered at once."""

    def __init__(self, limits: Limits | None = None, budget: int = 0, frame_ns: int = 0) -> None:
        """Each frame takes `frame_ns`."""
        self.frame_ns = frame_ns
        self.pending: dict[bytes, Pending[list[Buffer]]] = {}
        self.seen: list[bytes] = []
        self.answer: FrameHandler = self.handle
        """tests may replace it"""
        self.listener = PaperListener(lambda *arguments: self.answer(*arguments), limits or Limits(), budget)
        self.transport = PaperTransport()
        self.connection = Connection(self.listener, 7)
        self.connection.connection_made(self.transport)

    def handle(self, connection: Connection, frame: memoryview) -> Answer:
        self.listener.now_ns += self.frame_ns
        body = bytes(frame)
        self.seen.append(body)
        match body[:1]:
            case b"w":
                self.pending[body] = Pending()
                return self.pending[body]
            case b"n":
                return None
            case b"i":
                raise InvalidRequest("nonsense")
            case b"x":
                raise RuntimeError("broken handler")
        return [b"re:", body]

    def send(self, *frames: bytes) -> None:
        self.receive(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))

    def receive(self, data: bytes) -> None:
        while data:
            assert self.transport.reading or self.transport.closed
            if self.transport.closed:
                return
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            self.connection.buffer_updated(count)

    def settle(self, body: bytes) -> None:
        self.pending.pop(body).complete([b"late:", body])


def body(kind: str, number: int = 0) -> bytes:
    return f"{kind}{number:08d}".encode()
