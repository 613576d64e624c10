"""One connection of a listener: frames in, answers out in the order of the requests.

A frame goes to the handler in the callback that read it; no task, future or closure is made for it. The handler
returns the answer's buffers, a `Pending` that will complete with them, or None where the request has no answer. While
nothing is pending, answers go straight to the output; behind a pending one they wait in slots, so that they leave in
request order. All answers of one read leave in one write.

Reading stops while any hold is set (see `Hold`). This slows down a peer that reads slowly, is throttled or has too many
unanswered requests, without effect on other peers. The memory that such a peer can make the node hold is bounded: one
read, `write_high_bytes` and one answer more (for slices of files, one piece), and the answers of `max_unanswered`
parked requests, or of one where its handler called `Connection.answer_alone`. Requests that are pending when the
connection ends are abandoned. While nothing is read from a connection, only the sweep can find that the peer has
closed it.

Invariants: slots are in request order; `_out` holds only answers that come before all slots, and `_sending` what comes
before `_out`; while a hold is set no frame goes to the handler.

Not obvious:

- While a hold is set, no frame reaches the handler. While nothing is read from a connection, only the sweep finds
  that its peer has closed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Protocol, TypeAlias, TypeVar, cast

from kalda.base.disk import FileSlice
from kalda.base.errors import ApiError, InvalidRequest
from kalda.base.scheduling import Pending, Timer
from kalda.network.frames import SIZE_BYTES, Arena, BadFrameSize, FrameReader
from kalda.network.server.limits import Limits
from kalda.network.server.peer_log import describe_opening, log
from kalda.network.server.peer_memory import SMALL_BYTES, AnswerMemory, RequestMemory
from kalda.network.server.turns import FEW_REQUESTS, SLOW_NS, Turns
from kalda.protocol.access import ANONYMOUS

Buffer: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")


Answer: TypeAlias = list[Buffer] | Pending[list[Buffer]] | None
FrameHandler: TypeAlias = Callable[["Connection", memoryview], Answer]


class ConnectionOwner(Protocol):
    """What a connection needs of its listener."""

    name: str
    security_protocol: str
    handler: FrameHandler
    limits: Limits
    min_request_bytes: int
    arena: Arena
    turns: Turns
    memory: RequestMemory
    answers: AnswerMemory

    def connected(self, connection: Connection, transport: asyncio.BaseTransport) -> None:
        """The connection was made: admit it, let it wait or refuse it."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """The connection has ended."""
        ...

    def log_peer(self, message: str, *args: object) -> None:
        """Log a warning about a peer, within the limit of lines per second."""
        ...

    def now_ms(self) -> int:
        """A monotonic clock."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back in the next turn of the loop."""
        ...

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back once, not before `delay_ms` have passed."""
        ...


_LARGE = 16 * 1024
"""Buffers of at least this size go to the transport uncopied; smaller ones beside each other are joined."""


class Hold:
    """Reasons why a connection's next request has to wait, as bits. Plain ints, as every read checks them."""

    ADMISSION = 1
    """the connection is not admitted yet"""
    WRITE = 2
    """the transport's buffer is full: the peer does not read its answers"""
    UNANSWERED = 4
    """this connection has too many unanswered requests"""
    QUEUED = 8
    """the node's memory for requests (`queued.max.request.bytes`) is used up"""
    TURN = 16
    """its requests wait for their turn; see `kalda.network.server.turns`"""
    CLOSED = 32
    STOPPING = 64
    """the node stops: no more requests are read, and the last answer closes the connection"""
    ALONE = 128
    """a request whose answer may be large is pending; see `answer_alone`"""
    SENDING = 256
    """slices of files are being sent, piece by piece"""
    MUTED = 512
    """the client has used up a quota; see `mute`"""


_WRITE = Hold.WRITE
_TURN = Hold.TURN
_CLOSED = Hold.CLOSED
_ALONE = Hold.ALONE
_SENDING = Hold.SENDING
_MUTED = Hold.MUTED
_PIECE_BYTES = 512 * 1024
"""Of a slice that is read and written at once. Half of it costs a seventh more CPU, twice as much no less."""
_ENDED = frozenset((7, 8))
"""TCP's states CLOSE and CLOSE_WAIT, as `TCP_INFO` numbers them."""
_pack_size = Struct(">i").pack


class _Slot:
    """The place of one pending answer in the order of answers."""

    __slots__ = ("answered", "buffers", "connection", "frame_bytes", "parked_bytes", "pending", "settled")

    def __init__(self, connection: Connection, frame_bytes: int, pending: Pending[list[Buffer]] | None) -> None:
        self.connection = connection
        self.frame_bytes = frame_bytes
        self.pending = pending
        self.buffers: list[Buffer] | None = None
        self.parked_bytes = 0
        """Of buffers that wait behind an answer that is pending."""
        self.settled = False
        self.answered: Pending[None] | None = None
        """Completes when this answer has left; None where nothing waits for that."""

    def settle(self, buffers: list[Buffer] | None, error: ApiError | None) -> None:
        self.buffers = buffers
        self.settled = True
        self.connection._slot_settled(self, error)


class Connection(asyncio.BufferedProtocol):
    """One peer. Handlers may read all attributes without an underscore.

    They may set `principal`, `client_software_name`, `client_software_version` and `session` (state of the security
    floor).
    """

    __slots__ = (
        "_arriving_bytes",
        "_draining",
        "_frames",
        "_gone_ms",
        "_handler",
        "_holds",
        "_listener",
        "_muted_until_ms",
        "_out",
        "_out_bytes",
        "_parked_bytes",
        "_reading",
        "_sending",
        "_serving",
        "_slots",
        "_swept_requests",
        "_transport",
        "_unanswered_bytes",
        "_unmuting",
        "active",
        "active_ms",
        "admitted",
        "client_software_name",
        "client_software_version",
        "closing_ms",
        "created_ms",
        "frame_since_ms",
        "id",
        "is_slow",
        "listener_name",
        "peer_host",
        "peer_port",
        "principal",
        "requests",
        "responses",
        "security_protocol",
        "session",
        "token_authenticated",
    )

    def __init__(self, listener: ConnectionOwner, connection_id: int) -> None:
        self.id = connection_id
        self.listener_name = listener.name
        self.security_protocol = listener.security_protocol
        self.peer_host = ""
        self.peer_port = 0
        self.principal = ANONYMOUS
        self.token_authenticated = False
        """Whether the peer has authenticated with a delegation token (KIP-48)."""
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self.session: object | None = None
        self.created_ms = 0
        self.requests = 0
        self.responses = 0
        # Used by the sweep: whether bytes came since the last sweep, when a sweep last found that they had, when a
        # sweep first found the partial frame (-1: none), when closing began (-1: open).
        self.active = True
        self.active_ms = 0
        self.frame_since_ms = -1
        self.closing_ms = -1
        self.admitted = False
        self.is_slow = True
        """Whether its last requests took `SLOW_NS`, or it had none yet."""

        self._listener = listener
        self._handler = listener.handler
        self._swept_requests = -1
        self._frames = FrameReader(listener.arena, listener.limits.max_request_bytes, listener.min_request_bytes)
        self._arriving_bytes = 0
        """What counts of the request that arrives."""
        self._transport: asyncio.Transport | None = None
        self._holds = 0
        self._reading = True
        self._serving = False
        self._gone_ms = -1
        """When the sweep first found that the peer has closed its end; -1 where it has not."""
        self._draining = False
        """Whether answers are being moved from slots to the output."""
        self._slots: deque[_Slot] = deque()
        self._unanswered_bytes = 0
        self._parked_bytes = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._sending: deque[Buffer | FileSlice] = deque()
        self._muted_until_ms = 0
        self._unmuting: Timer | None = None
        """The timer that ends the mute; None where the connection is not muted."""

    def __str__(self) -> str:
        return f"{self.peer_host}:{self.peer_port} on {self.listener_name}"

    # -- what handlers may do

    @property
    def closed(self) -> bool:
        """True from the moment of closing on."""
        return self._holds & _CLOSED != 0

    @property
    def unanswered(self) -> int:
        """Requests whose answer has not left, because it or an answer before it is pending."""
        return len(self._slots)

    def close(self) -> None:
        """Send the answers that are complete, then close. Requests that are still pending get no answer."""
        if self._holds & _CLOSED:
            return
        if not self._serving:
            self._flush()
        self._holds |= _CLOSED
        self.closing_ms = self._listener.now_ms()
        self._unmute()
        if not self._serving:
            self._hang_up()

    def hand_over(self, handler: FrameHandler, min_bytes: int, max_bytes: int) -> None:
        """From the next frame on, frames go to `handler`, and must be of a size in these bounds."""
        self._handler = handler
        self._frames.min_bytes, self._frames.max_bytes = min_bytes, max_bytes
        if self._serving:
            self._wait_for_turn()  # `_serve` ends, and goes on with the new handler

    def answer_alone(self) -> None:
        """Serve no further request until all requests received so far are answered.

        For a handler that parks a request whose answer may be large, such as a Fetch. Otherwise a peer that reads
        nothing could have many of them parked, and each would hold a large answer when it completes.
        """
        self._hold(Hold.ALONE)

    def after_earlier(self) -> Pending[None] | None:
        """Completes when the requests received before have been answered; None where they are. It never completes once
        the connection is closed.

        For an answer that has to be as fresh as possible. A client whose Produce requests wait for a dead leader's
        replacement sends Metadata behind them on the same connection. An answer made on arrival would still name the
        dead leader.
        """
        if not self._slots:
            return None
        last = self._slots[-1]
        if last.answered is None:
            last.answered = Pending()
        return last.answered

    def begin_answer(self, begin: Callable[[], Pending[T]]) -> Pending[T]:
        """Begin to make an answer that may be large, when there is room for it; see `peer_memory`."""
        return self._listener.answers.make(begin)

    def send_to_follower(self) -> None:
        """A follower fetches over this connection: make the socket's send buffer as large as its responses."""
        limits = self._listener.limits
        if 0 < limits.send_buffer_bytes < limits.follower_send_buffer_bytes:
            raw = _tcp_socket(self._transport)
            if raw is not None:
                with contextlib.suppress(OSError):  # the peer may have closed it already
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.follower_send_buffer_bytes)

    def mute(self, duration_ms: int) -> None:
        """Serve no further request for so long; answers still leave. For a client that has used up a quota (KIP-219).

        A later end replaces the end of a mute that is under way; an earlier one changes nothing.
        """
        until_ms = self._listener.now_ms() + duration_ms
        if self._holds & _CLOSED or (self._unmuting is not None and until_ms <= self._muted_until_ms):
            return
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._muted_until_ms = until_ms
        self._unmuting = self._listener.call_later_ms(duration_ms, self._unmute)
        self._hold(_MUTED)

    def _unmute(self) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
            self._release(_MUTED)

    def abort(self) -> None:
        """Close at once; unsent answers are lost."""
        self.close()
        if self._transport is not None:
            self._transport.abort()

    # -- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the server decides about admission."""
        self._transport = cast(asyncio.Transport, transport)
        limits = self._listener.limits
        self._transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        self.peer_host, self.peer_port = _address(transport.get_extra_info("peername"))
        self.created_ms = self.active_ms = self._listener.now_ms()
        self._listener.connected(self, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Memory for the next read."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were read: serve the requests that are complete."""
        self.active = True
        self._frames.filled(nbytes)
        if not self._holds:
            self._serve()

    def pause_writing(self) -> None:
        """The transport's buffer is full: the peer reads its answers too slowly."""
        self._hold(Hold.WRITE)
        self._listener.answers.add(self)

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self.active = True
        if self._parked_bytes < self._listener.limits.write_high_bytes:
            self._listener.answers.remove(self)
        self._release(_WRITE)
        if self._sending:
            self._send()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended, by either side: abandon pending requests and release their budget."""
        self._holds |= _CLOSED
        self._unmute()
        self._transport = None
        self._out.clear()
        self._sending.clear()
        for slot in self._slots:
            self._listener.memory.unqueue(slot.frame_bytes)
            if slot.pending is not None:
                slot.pending.abandon()
        self._slots.clear()
        self._parked_bytes = 0
        self._listener.answers.remove(self)
        self._listener.memory.arrive(-self._arriving_bytes)
        self._arriving_bytes = 0
        self._listener.disconnected(self)

    # -- requests

    def _serve(self, *, in_turn: bool = False) -> None:
        """Pass frames to the handler until there are no more, a hold is set, or the connection's share of the loop is
        used up; then write the answers. `in_turn`: the connection has waited for its turn."""
        frames, turns = self._frames, self._listener.turns
        if turns.must_wait and not in_turn and frames.is_complete:
            self._wait_for_turn()
            return
        next_frame, handler, now_ns = frames.next_frame, self._handler, turns.now_ns
        began_ns = ended_ns = now_ns()
        ends_ns = began_ns + turns.share_ns(self)
        served = 0
        self._serving = True
        try:
            while not self._holds and ended_ns < ends_ns:
                frame = next_frame()
                if frame is None:
                    break
                served += 1
                answer = handler(self, frame)
                if type(answer) is list and not self._slots:
                    self._put(answer)
                elif answer is not None:
                    self._enqueue(answer, len(frame))
                ended_ns = now_ns()
        except BadFrameSize as error:
            self._listener.log_peer(
                "%s sent %s where a Kafka request was expected (%s); closing it",
                self,
                describe_opening(error.seen),
                error.message,
            )
            self._fail()
        except InvalidRequest as error:
            self._listener.log_peer("invalid request from %s: %s; closing it", self, error.message)
            self._fail()
        except Exception:
            log.exception("request handler failed for %s; closing it", self)
            self._fail()
        finally:
            self._serving = False
            self.requests += served
        has_more = ended_ns >= ends_ns and frames.is_complete
        if served:
            self.is_slow = ended_ns - began_ns >= SLOW_NS
            turns.spend(self, ended_ns - began_ns, had_few=served <= FEW_REQUESTS and not has_more and not in_turn)
        if self._arriving_bytes or not frames.in_arena:
            self._count_arriving(served)
        if self._out:
            self._flush()
        if has_more and not self._holds:
            self._wait_for_turn()
        if not self._holds:
            if not self._reading:
                self._steer_reading()
            return
        if self._holds & _ALONE and not self._slots:
            self._release(_ALONE)
        if self._holds & _CLOSED:
            self._hang_up()
        else:
            self._steer_reading()

    def _wait_for_turn(self) -> None:
        if not self._holds & _TURN:
            self._hold(_TURN)
            self._listener.turns.wait(self)

    def take_turn(self) -> None:
        """Other connections have been served: serve this one."""
        self._holds &= ~_TURN
        if not self._holds:
            self._serve(in_turn=True)

    def _count_arriving(self, served: int) -> None:
        """Count what has arrived of the next request; where there is no memory for the rest of it, wait. `served`
        requests were complete."""
        frames, memory = self._frames, self._listener.memory
        arrived = 0 if frames.in_arena else frames.waiting_bytes
        change = arrived - self._arriving_bytes
        self._arriving_bytes = arrived
        memory.arrive(change)
        if served:
            memory.completed(self)
        if not self._holds and frames.announced_bytes > SMALL_BYTES and not memory.may_go_on(self):
            self._hold(Hold.QUEUED)

    @property
    def arrived_bytes(self) -> int:
        """Of the request that arrives."""
        return self._arriving_bytes

    @property
    def is_held(self) -> bool:
        """Whether nothing is read for another reason than memory."""
        return self._holds & ~Hold.QUEUED != 0

    @property
    def unread_bytes(self) -> int:
        """Of answers that are in the memory of this process."""
        transport = self._transport
        return self._parked_bytes + (transport.get_write_buffer_size() if transport is not None else 0)

    @property
    def unacknowledged_bytes(self) -> int:
        """Of answers that the kernel still has to send, or of which it does not know whether they have arrived."""
        return _queued_bytes(self._transport, termios.TIOCOUTQ)

    def close_unread(self) -> None:
        """Close it: its peer reads too slowly while unread answers use up their memory."""
        self._listener.log_peer(
            "closing %s: its peer does not read %d bytes of answers, and those of others", self, self.unread_bytes
        )
        self.abort()

    def close_slow(self) -> None:
        """Close it: its request arrives too slowly while others wait for memory."""
        self._listener.log_peer(
            "closing %s: queued.max.request.bytes are used up, and its request of %d bytes arrives too slowly",
            self,
            self._frames.announced_bytes,
        )
        self.abort()

    def _fail(self) -> None:
        self._holds |= _CLOSED
        self.closing_ms = self._listener.now_ms()

    # -- answers

    def _put(self, buffers: list[Buffer]) -> None:
        """Add one answer to the output; one without buffers is skipped. A bare SASL token may be one empty buffer."""
        size = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if not size and not buffers:
            return
        self.responses += 1
        out = self._out
        out.append(_pack_size(size))
        out += buffers
        self._out_bytes = size = self._out_bytes + size + SIZE_BYTES
        if size >= self._listener.limits.write_high_bytes:
            self._flush()

    def _enqueue(self, answer: list[Buffer] | Pending[list[Buffer]], frame_bytes: int) -> None:
        """Add an answer that is pending, or comes after a pending one."""
        if not self._slots and isinstance(answer, Pending) and answer.done:
            if answer.error is not None:
                raise answer.error
            self._put(answer.value or [])
            return
        limits = self._listener.limits
        slot = _Slot(self, frame_bytes, answer if isinstance(answer, Pending) else None)
        self._slots.append(slot)
        self._unanswered_bytes += frame_bytes
        self._listener.memory.queue(frame_bytes)
        if isinstance(answer, Pending):
            answer.then(slot.settle)
        else:
            slot.settle(answer, None)
        if (
            len(self._slots) >= limits.max_unanswered
            or self._unanswered_bytes >= limits.max_unanswered_bytes
            or self._parked_bytes >= limits.write_high_bytes
        ):
            self._hold(Hold.UNANSWERED)
        elif self._slots and self._listener.memory.over_budget():
            self._hold(Hold.QUEUED)
            self._listener.memory.wait_for_budget(self)

    def _slot_settled(self, settled: _Slot, error: ApiError | None) -> None:
        """Move the settled slots at the head of the queue to the output."""
        if self._holds & _CLOSED:
            return
        if error is not None:
            self._listener.log_peer("request of %s failed without an answer: %s; closing it", self, error)
            self.close()
            return
        slots = self._slots
        if settled is not slots[0]:
            settled.parked_bytes = sum(map(len, settled.buffers or ()))
            self._parked_bytes += settled.parked_bytes
            if self._parked_bytes >= self._listener.limits.write_high_bytes:
                self._listener.answers.add(self)
            return
        if self._draining:
            return  # what waited for the answer before it has settled it: the loop below goes on with it
        self._draining = True
        try:
            while slots and slots[0].settled:
                slot = slots.popleft()
                self._parked_bytes -= slot.parked_bytes
                self._unanswered_bytes -= slot.frame_bytes
                self._listener.memory.unqueue(slot.frame_bytes)
                self._put(slot.buffers or [])
                if slot.answered is not None and not self._holds & _CLOSED:
                    slot.answered.complete(None)
                if self._holds & _CLOSED:
                    return
        finally:
            self._draining = False
        if not self._serving:
            self._flush()
        if self._holds & Hold.UNANSWERED:
            self._release(Hold.UNANSWERED)
        if not slots and self._holds & _ALONE:
            self._release(_ALONE)
        if not slots and self._holds & Hold.STOPPING:
            self.close()

    def _flush(self) -> None:
        """Write the output: small buffers joined, large ones as they are, slices of files piece by piece."""
        out = self._out
        transport = self._transport
        if not out or transport is None or self._sending:
            return
        self._out = []
        size = self._out_bytes
        self._out_bytes = 0
        if size < 4 * _LARGE:
            transport.write(b"".join(out))
            return
        sending = self._sending
        run: list[Buffer] = []
        for buffer in out:
            if len(buffer) < _LARGE:
                run.append(buffer)
                continue
            if run:
                sending.append(b"".join(run))
                run = []
            sending.append(buffer)
        if run:
            sending.append(b"".join(run))
        self._send()

    def _send(self) -> None:
        """Write until everything is written, the transport's buffer is full, or a piece of a slice is read from disk.

        Buffers are in memory already, and are written at once. A piece of a slice is read only when the transport's
        buffer has room for it.
        """
        sending, transport = self._sending, self._transport
        while sending and transport is not None:
            buffer = sending[0]
            if isinstance(buffer, FileSlice):
                self._hold(_SENDING)
                if self._holds & _WRITE:
                    return
                try:
                    piece = buffer.read(_PIECE_BYTES, self._send)
                except OSError as error:
                    log.error("closing %s: the records of its answer cannot be read: %s", self, error)
                    self._fail()
                    transport.abort()
                    return
                if piece is None:
                    return
                if len(piece):
                    transport.write(piece)
                    continue
            else:
                transport.write(buffer)
            sending.popleft()
        self._release(_SENDING)
        self._flush()
        if self._holds & _CLOSED and not self._serving:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the transport, unless slices are still being sent; `_send` closes it then."""
        if self._transport is not None and not self._sending:
            self._transport.close()

    # -- holds

    def _hold(self, why: int) -> None:
        self._holds |= why
        if not self._serving:
            self._steer_reading()

    def _release(self, why: int) -> None:
        """Clear a hold. Serving resumes in a callback of its own, as the caller may be serving another request."""
        if not self._holds & why:
            return
        self._holds &= ~why
        if not self._holds:
            self._listener.call_soon(self._resume)

    def _resume(self) -> None:
        if not self._holds:
            self._serve()

    def _steer_reading(self) -> None:
        """Read from the transport exactly while no hold is set."""
        wanted = not self._holds
        transport = self._transport
        if wanted == self._reading or transport is None or transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # -- called by the server

    def wait_for_admission(self) -> None:
        """Read nothing until `admit` is called."""
        self._hold(Hold.ADMISSION)

    def admit(self) -> None:
        """Start to serve the connection."""
        self.admitted = True
        self._release(Hold.ADMISSION)

    def budget_is_back(self) -> None:
        """The node's budget for unanswered requests has room again."""
        self._release(Hold.QUEUED)

    def drain(self) -> None:
        """Read no more requests, and close when the pending ones are answered."""
        self._hold(Hold.STOPPING)
        if not self._slots:
            self.close()

    def sweep(self, now_ms: int) -> str | None:
        """Check for an inactive peer. Returns why the connection has to be closed, or None. Called every few
        seconds."""
        limits = self._listener.limits
        if self._holds & _CLOSED:
            return "its last answers could not be sent" if now_ms - self.closing_ms >= limits.closing_ms else None
        if self.active:
            self.active = False
            self.active_ms = now_ms
        if self._holds & ~(_WRITE | _SENDING):
            self.frame_since_ms = -1
            if _peer_is_gone(self._transport):
                # What it sent before is served all the same, as by Kafka: no one else has records that were sent
                # without acknowledgements. A hold that does not end must not keep the connection, though.
                self._gone_ms = now_ms if self._gone_ms < 0 else self._gone_ms
                unserved = self._frames.waiting_bytes or _queued_bytes(self._transport, termios.FIONREAD)
                if not unserved or now_ms - self._gone_ms >= limits.closing_ms:
                    self.close()
            return None
        if 0 <= limits.idle_ms <= now_ms - self.active_ms and (not self._slots or self._holds & (_WRITE | _SENDING)):
            return f"idle for {limits.idle_ms} ms"
        if self._holds or not self._frames.waiting_bytes:
            self.frame_since_ms = -1
        elif self.frame_since_ms < 0 or self.requests != self._swept_requests:
            self.frame_since_ms = now_ms
            self._swept_requests = self.requests
        else:
            allowed = limits.slow_frame_ms + self._frames.announced_bytes * 1000 // limits.slow_frame_bytes_per_s
            if now_ms - self.frame_since_ms >= allowed:
                return f"a frame of {self._frames.announced_bytes} bytes did not arrive within {allowed} ms"
        return None


def _tcp_socket(transport: asyncio.Transport | None) -> socket.socket | None:
    raw: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
    return raw if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6) else None


def _queued_bytes(transport: asyncio.Transport | None, queue: int) -> int:
    """What the kernel holds of a connection: TIOCOUTQ, to the peer; FIONREAD, from it."""
    raw = _tcp_socket(transport)
    if raw is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(raw.fileno(), queue, bytes(4)), sys.byteorder)
    except OSError:  # the socket is closed already
        return 0


def _peer_is_gone(transport: asyncio.Transport | None) -> bool:
    """True where the peer has closed its end. While nothing is read, only the kernel's TCP state shows this."""
    raw = _tcp_socket(transport)
    if raw is None:
        return False
    try:
        return raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _ENDED
    except (OSError, ValueError, AttributeError):  # the socket is closed already, or the system has no TCP_INFO
        return False


def _address(name: object) -> tuple[str, int]:
    """Host and port of a socket's name; an IPv4 address mapped into IPv6 (`::ffff:`) is returned as IPv4."""
    if isinstance(name, tuple) and len(name) >= 2:
        host = str(name[0])
        return host.removeprefix("::ffff:") if "." in host else host, int(name[1])
    return str(name or ""), 0
