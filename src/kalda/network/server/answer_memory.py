"""The memory of answers that their peers have not read, and of those that are being made.

An answer leaves memory as its peer reads it. A connection whose peer reads nothing serves no further request, so it
keeps one answer; but many such connections keep many, and an answer may have 64 MB. Therefore:

- at each check at which what is not read has reached the limit, connections whose peers have read less than
  `_LEAST_BYTES` since the check before are closed, the one with most of it first, until half of the limit is left;
- of answers that take several steps, and may be much larger than their requests, `MAX_MADE` are made at a time, and
  none is begun while what is not read is at the limit. Requests for others wait, in the order in which they came.

So unread answers take the limit, `MAX_MADE` answers, one answer of a connection that has just been sent it, and one
read of each connection.

The inter-broker listener and those of controllers have a memory of their own, which clients of others cannot use up.

Not obvious:

- Of answers that may be much larger than their requests (`Row.has_large_answer`) four are made at a time; others wait
  after their first step, so that step keeps little, and what makes them waits for no other node. Above the limit of
  unread answers those with most of them are closed, but never one that reads 256 KB/s.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kalda.base.errors import ApiError, as_api_error
from kalda.base.scheduling import Pending
from kalda.network.server.peer_log import log

T = TypeVar("T")

MAX_MADE = 4
_CHECK_MS = 500
_LEAST_BYTES = 128 * 1024
_NOT_SEEN = -1


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
            self._call_later_ms(_CHECK_MS, self._check)

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
            if before != _NOT_SEEN and before - now < _LEAST_BYTES:
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
