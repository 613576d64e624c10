"""The memory that peers occupy: requests that arrive, and answers that are not read.

`queued.max.request.bytes`: the memory of requests that arrive, and of those that wait for their answer.

Apache Kafka takes a request's whole size out of its pool when the size has arrived, and mutes connections while the
pool is empty. A peer that announces much and sends nothing so takes the pool away from all others. Here memory counts
when bytes have arrived, so many requests may have begun, and the pool may be used up by them before one is complete.
Then:

- a connection whose request is not complete waits, and reads nothing meanwhile. Only the oldest of these requests goes
  on, beyond the limit: so one after the other is completed, and the limit is exceeded by one request, and by one read
  of each connection. One whose connection reads nothing for another reason is passed over;
- while others wait, a request of which less than `_LEAST_BYTES` arrive between two checks is closed;
- a request of at most `SMALL_BYTES` counts, but does not wait;
- requests that wait for their answer keep their connection from sending more where they alone reach the limit. What
  arrives cannot keep those waiting.

The inter-broker listener and those of controllers have a memory of their own, which clients of others cannot use up.

Not obvious:

- What has arrived of a request counts for `queued.max.request.bytes` until its frame is handed out, then as long as
  the answer is pending. Beyond the limit only the oldest request that is not complete goes on, or none would ever be;
  where it stops for 2 to 4 s while others wait, its connection is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kalda.base.errors import ApiError, as_api_error
from kalda.base.scheduling import Pending
from kalda.network.server.peer_log import log

SMALL_BYTES = 64 * 1024
_CHECK_MS = 2_000
_LEAST_BYTES = 2 * 1024 * 1024
_READ_BYTES = 256 * 1024
"""What a connection may read before it takes from the pool again."""
_NOT_SEEN = -1


class Reader(Protocol):
    """A connection."""

    @property
    def arrived_bytes(self) -> int:
        """Of the request that arrives."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether it reads nothing for another reason."""
        ...

    def budget_is_back(self) -> None:
        """Read again."""
        ...

    def close_slow(self) -> None:
        """Its request arrives too slowly while others wait."""
        ...


class RequestMemory:
    """That of all connections of some listeners."""

    def __init__(self, limit_bytes: int, call_later_ms: Callable[[int, Callable[[], None]], Any]) -> None:
        """A limit that is not positive is none."""
        self.limit_bytes = limit_bytes
        self.queued_bytes = 0
        """Size of the requests that wait for their answer."""
        self.arriving_bytes = 0
        """What has arrived of requests that are not complete."""
        self._call_later_ms = call_later_ms
        self._answers: OrderedDict[Reader, None] = OrderedDict()
        """Connections that read nothing until answers have left."""
        self._unfinished: dict[Reader, int] = {}
        """Connections with a request that is not complete, the oldest request first, and what of it had arrived at the
        last check; `_NOT_SEEN` where it has not read all the time since."""
        self._waiting: set[Reader] = set()
        """Those of them that read nothing until there is memory for the rest of their request."""
        self._is_checking = False
        """Whether a check is scheduled: while any of them waits."""

    @property
    def used_bytes(self) -> int:
        """All that counts."""
        return self.queued_bytes + self.arriving_bytes

    @property
    def is_used_up(self) -> bool:
        """Whether requests that arrive have to wait."""
        return 0 < self.limit_bytes <= self.used_bytes

    def update(self, limit_bytes: int) -> None:
        """Apply another limit."""
        self.limit_bytes = limit_bytes
        self._wake()

    # -- requests that wait for their answer

    def queue(self, frame_bytes: int) -> None:
        """Count a request that waits for its answer."""
        self.queued_bytes += frame_bytes

    def unqueue(self, frame_bytes: int) -> None:
        """Undo `queue` when it was answered or abandoned."""
        self.queued_bytes -= frame_bytes
        if self._answers or self._waiting:
            self._wake()

    def over_budget(self) -> bool:
        """Whether a connection whose request waits for its answer has to wait before it sends the next."""
        return 0 < self.limit_bytes <= self.queued_bytes

    def wait_for_budget(self, connection: Reader) -> None:
        """Call `budget_is_back` of the connection when there is budget again."""
        self._answers[connection] = None

    # -- requests that arrive

    def arrive(self, change_bytes: int) -> None:
        """Count what has arrived; less where a request was completed."""
        self.arriving_bytes += change_bytes
        if change_bytes < 0 and (self._answers or self._waiting):
            self._wake()

    def may_go_on(self, connection: Reader) -> bool:
        """Whether more of its request may be read; else `budget_is_back` is called when it may."""
        if self.limit_bytes <= 0:
            return True
        self._unfinished.setdefault(connection, _NOT_SEEN)
        if not self.is_used_up or connection is self._oldest():
            return True
        self._unfinished[connection] = _NOT_SEEN
        self._waiting.add(connection)
        self._check_later()
        return False

    def completed(self, connection: Reader) -> None:
        """Its request has arrived, or will not."""
        if self._unfinished.pop(connection, None) is not None:
            self._wake_oldest()

    def forget(self, connection: Reader) -> None:
        """It has ended."""
        self._answers.pop(connection, None)
        self._waiting.discard(connection)
        self.completed(connection)

    def _oldest(self) -> Reader | None:
        return next((each for each in self._unfinished if not each.is_held), None)

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._call_later_ms(_CHECK_MS, self._check)

    def _check(self) -> None:
        """Close connections whose requests arrive slowly. Let the oldest go on: another one may have been held."""
        self._is_checking = False
        are_wanted = bool(self._waiting)
        for connection, before in list(self._unfinished.items()):
            if not are_wanted or connection in self._waiting or connection.is_held:
                self._unfinished[connection] = _NOT_SEEN
            elif before == _NOT_SEEN or connection.arrived_bytes - before >= _LEAST_BYTES:
                self._unfinished[connection] = connection.arrived_bytes
            else:
                self.forget(connection)
                connection.close_slow()
        self._wake()
        if self._waiting:
            self._check_later()

    def _wake(self) -> None:
        """Let connections send and read again, as far as there is memory, and the oldest request beyond that."""
        while self._answers and not self.over_budget():
            self._answers.popitem(last=False)[0].budget_is_back()
        room = self.limit_bytes - self.used_bytes if self.limit_bytes > 0 else _READ_BYTES * len(self._waiting)
        if self._waiting and room > 0:
            for connection in [each for each in self._unfinished if each in self._waiting]:
                if room <= 0:
                    break
                self._let_go_on(connection)
                room -= _READ_BYTES
        self._wake_oldest()

    def _wake_oldest(self) -> None:
        oldest = self._oldest() if self._waiting else None
        if oldest in self._waiting:
            self._let_go_on(oldest)

    def _let_go_on(self, connection: Reader) -> None:
        self._waiting.remove(connection)
        connection.budget_is_back()


# The memory of answers that their peers have not read, and of those that are being made.
#
# An answer leaves memory as its peer reads it. A connection whose peer reads nothing serves no further request, so it
# keeps one answer; but many such connections keep many, and an answer may have 64 MB. Therefore:
#
# - at each check at which what is not read has reached the limit, connections whose peers have read less than
#   `_LEAST_UNREAD_BYTES` since the check before are closed, the one with most of it first, until half of the limit
#   is left;
# - of answers that take several steps, and may be much larger than their requests, `MAX_MADE` are made at a time, and
#   none is begun while what is not read is at the limit. Requests for others wait, in the order in which they came.
#
# So unread answers take the limit, `MAX_MADE` answers, one answer of a connection that has just been sent it, and one
# read of each connection.
#
# The inter-broker listener and those of controllers have a memory of their own, which clients of others cannot use
# up.
#
# Not obvious:
#
# - Of answers that may be much larger than their requests (`Row.has_large_answer`) four are made at a time; others wait
#   after their first step, so that step keeps little, and what makes them waits for no other node. Above the limit of
#   unread answers those with most of them are closed, but never one that reads 256 KB/s.

T = TypeVar("T")

MAX_MADE = 4
_ANSWER_CHECK_MS = 500
_LEAST_UNREAD_BYTES = 128 * 1024


class Peer(Protocol):
    """A connection."""

    @property
    def unread_bytes(self) -> int:
        """Of answers that are in the memory of this process."""
        ...

    @property
    def unacknowledged_bytes(self) -> int:
        """Of answers that the kernel still has to send, or of which it does not know whether they have arrived."""
        ...

    def close_unread(self) -> None:
        """The peer reads too slowly."""
        ...


class AnswerMemory:
    """That of all connections of some listeners."""

    def __init__(self, limit_bytes: int, call_later_ms: Callable[[int, Callable[[], None]], Any]) -> None:
        self.limit_bytes = limit_bytes
        self._call_later_ms = call_later_ms
        self._unread: dict[Peer, int] = {}
        """Connections with answers that have not left, and what of these the peer had not read at the last check, in
        this process or in the kernel; `_NOT_SEEN` before the first."""
        self._waiting: OrderedDict[Pending[Any], Callable[[], Pending[Any]]] = OrderedDict()
        """Answers that have not been begun, and what begins them."""
        self._made: set[object] = set()
        """A token for each answer that is being made."""
        self._is_checking = False
        """Whether a check is scheduled: while there is anything in the first two of these."""

    @property
    def unread_bytes(self) -> int:
        """Of all connections."""
        return sum(each.unread_bytes for each in self._unread)

    # -- connections

    def add(self, connection: Peer) -> None:
        """It has an answer that does not leave at once."""
        if connection not in self._unread:
            self._unread[connection] = _NOT_SEEN
            self._check_later()

    def remove(self, connection: Peer) -> None:
        """Its answers have left, or it has ended."""
        if self._unread.pop(connection, None) is not None:
            self._begin_waiting()

    # -- answers

    def make(self, begin: Callable[[], Pending[T]]) -> Pending[T]:
        """Begin to make an answer when there is room for it. It must not wait for other nodes: others wait for it."""
        answer: Pending[T] = Pending()

        def forget() -> None:
            del self._waiting[answer]

        answer.on_abandoned = forget
        self._waiting[answer] = begin
        self._begin_waiting()
        if self._waiting:
            self._check_later()
        return answer

    def _begin_waiting(self) -> None:
        """Begin answers for which there is room."""
        while self._waiting and len(self._made) < MAX_MADE and self.unread_bytes < self.limit_bytes:
            self._begin(*self._waiting.popitem(last=False))

    def _begin(self, answer: Pending[T], begin: Callable[[], Pending[T]]) -> None:
        token = object()
        self._made.add(token)

        def settle(value: T | None, error: ApiError | None) -> None:
            if token in self._made:  # what was abandoned may be settled all the same
                self._made.remove(token)
                answer.settle(value, error)
                self._begin_waiting()

        def abandon() -> None:
            self._made.remove(token)
            making.abandon()
            self._begin_waiting()

        try:
            making = begin()
        except Exception as error:  # it must not harm the connection whose answers have made room
            log.exception("an answer could not be begun")
            settle(None, as_api_error(error))
            return
        answer.on_abandoned = abandon
        making.then(settle)

    # -- checks

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._call_later_ms(_ANSWER_CHECK_MS, self._check)

    def _check(self) -> None:
        """Close connections whose peers do not read, where there is no room, and begin answers for which there is."""
        self._is_checking = False
        slow: list[tuple[int, Peer]] = []
        total = 0
        for connection, before in list(self._unread.items()):
            unread = connection.unread_bytes
            if not unread:
                del self._unread[connection]
                continue
            total += unread
            self._unread[connection] = now = unread + connection.unacknowledged_bytes
            if before != _NOT_SEEN and before - now < _LEAST_UNREAD_BYTES:
                slow.append((unread, connection))
        slow.sort(key=lambda each: each[0])
        is_used_up = total >= self.limit_bytes
        while is_used_up and slow and total >= self.limit_bytes // 2:
            unread, connection = slow.pop()
            total -= unread
            del self._unread[connection]
            connection.close_unread()
        self._begin_waiting()
        if self._unread or self._waiting:
            self._check_later()
