"""The memory of answers that their peers have not read.

An answer leaves memory as its peer reads it. A connection whose peer reads nothing serves no further request, so it
keeps one answer; but many such connections keep many, and an answer may have 64 MB. Therefore:

- an answer that takes several steps, and so may be large, is begun only while there is room: what is not read, and
  what each answer that is being made reserves, is less than the limit. Requests for others wait, in the order in which
  they came. One that has waited for `_LONGEST_WAIT_MS` is begun all the same, one at each check: answers that are being
  made may themselves wait for other nodes, for as long as their clients allow;
- when what is not read reaches the limit, connections whose peers read less than `_LEAST_BYTES_PER_S` are closed, those
  with most of it first, until half of the limit is left. A peer that has just been sent an answer has `_WINDOW_MS` to
  read.

Small answers never wait. They are bounded by the second rule alone.

The inter-broker listener and those of controllers have a memory of their own, which clients of others cannot use up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from kalda.base.errors import ApiError, as_api_error
from kalda.base.pending import Pending
from kalda.network.peer_log import log

T = TypeVar("T")

_CHECK_MS = 500
_WINDOW_MS = 2_000
_LEAST_BYTES_PER_S = 256 * 1024
_LONGEST_WAIT_MS = 10_000


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


class _Reading:
    """How fast a peer reads."""

    __slots__ = ("is_slow", "since_ms", "size")

    def __init__(self, size: int, since_ms: int) -> None:
        self.size = size
        """What it had not read at the beginning of the window."""
        self.since_ms = since_ms
        self.is_slow = False
        """In the window before this one."""

    def look(self, size: int, now_ms: int) -> None:
        """It has not read so much now."""
        passed_ms = now_ms - self.since_ms
        if passed_ms >= _WINDOW_MS:
            self.is_slow = self.size - size < _LEAST_BYTES_PER_S * passed_ms // 1000
            self.size, self.since_ms = size, now_ms


class _Answer(Generic[T]):
    """An answer that takes several steps."""

    __slots__ = ("begin", "has_ended", "pending", "reserved_bytes", "since_ms")

    def __init__(self, begin: Callable[[], Pending[T]], reserved_bytes: int, since_ms: int) -> None:
        self.begin = begin
        self.reserved_bytes = reserved_bytes
        self.since_ms = since_ms
        self.pending: Pending[T] = Pending()
        self.has_ended = False


class AnswerMemory:
    """That of all connections of some listeners."""

    def __init__(
        self,
        limit_bytes: int,
        now_ms: Callable[[], int],
        call_later_ms: Callable[[int, Callable[[], None]], Any],
    ) -> None:
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0
        """For answers that are being made."""
        self._now_ms = now_ms
        self._call_later_ms = call_later_ms
        self._unread: dict[Peer, _Reading] = {}
        """Connections with answers that have not left."""
        self._waiting: OrderedDict[_Answer[Any], None] = OrderedDict()
        self._is_checking = False
        """Whether a check is scheduled: while there is anything in the two above."""

    @property
    def unread_bytes(self) -> int:
        """Of all connections."""
        return sum(each.unread_bytes for each in self._unread)

    @property
    def waiting(self) -> int:
        """Requests whose answers have not been begun."""
        return len(self._waiting)

    # -- connections

    def add(self, connection: Peer) -> None:
        """It has an answer that does not leave at once."""
        if connection not in self._unread:
            self._unread[connection] = _Reading(_size(connection), self._now_ms())
            self._check_later()

    def remove(self, connection: Peer) -> None:
        """Its answers have left, or it has ended."""
        if self._unread.pop(connection, None) is not None:
            self._begin_waiting()

    # -- answers

    def run(self, begin: Callable[[], Pending[T]], reserved_bytes: int) -> Pending[T]:
        """Begin to make an answer when there is room for it; `reserved_bytes` is what it may have."""
        answer = _Answer(begin, reserved_bytes, self._now_ms())
        answer.pending.on_abandoned = lambda: self._forget(answer)
        self._waiting[answer] = None
        self._begin_waiting()
        if self._waiting:
            self._check_later()
        return answer.pending

    def _forget(self, answer: _Answer[Any]) -> None:
        self._waiting.pop(answer, None)

    def _begin_waiting(self) -> None:
        """Begin answers for which there is room."""
        if not self._waiting:
            return
        room = self.limit_bytes - self.unread_bytes
        while self._waiting and self.reserved_bytes < room:
            self._begin(self._waiting.popitem(last=False)[0])

    def _begin(self, answer: _Answer[T]) -> None:
        self.reserved_bytes += answer.reserved_bytes
        try:
            making = answer.begin()
        except Exception as error:  # it must not harm the connection whose answers have made room
            log.exception("an answer could not be begun")
            self._end(answer)
            answer.pending.fail(as_api_error(error))
            return

        def end(value: T | None, error: ApiError | None) -> None:
            if not answer.has_ended:  # what was abandoned may be settled all the same
                self._end(answer)
                answer.pending.settle(value, error)
                self._begin_waiting()

        def abandon() -> None:
            self._end(answer)
            making.abandon()
            self._begin_waiting()

        answer.pending.on_abandoned = abandon
        making.then(end)

    def _end(self, answer: _Answer[Any]) -> None:
        answer.has_ended = True
        self.reserved_bytes -= answer.reserved_bytes

    # -- checks

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._call_later_ms(_CHECK_MS, self._check)

    def _check(self) -> None:
        """Close connections whose peers do not read, where there is no room, and begin answers for which there is."""
        self._is_checking = False
        now_ms = self._now_ms()
        slow: list[tuple[int, Peer]] = []
        total = 0
        for connection, reading in list(self._unread.items()):
            unread = connection.unread_bytes
            if not unread:
                del self._unread[connection]
                continue
            total += unread
            reading.look(_size(connection), now_ms)
            if reading.is_slow:
                slow.append((unread, connection))
        slow.sort(key=lambda each: each[0])
        is_used_up = total + (self.reserved_bytes if self._waiting else 0) >= self.limit_bytes
        while is_used_up and slow and total >= self.limit_bytes // 2:
            unread, connection = slow.pop()
            total -= unread
            del self._unread[connection]
            connection.close_unread()
        self._begin_waiting()
        first = next(iter(self._waiting), None)
        if first is not None and now_ms - first.since_ms >= _LONGEST_WAIT_MS:
            self._begin(self._waiting.popitem(last=False)[0])
        if self._unread or self._waiting:
            self._check_later()


def _size(connection: Peer) -> int:
    return connection.unread_bytes + connection.unacknowledged_bytes
