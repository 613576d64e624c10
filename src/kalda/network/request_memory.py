"""`queued.max.request.bytes`: the memory of requests that arrive, and of those that wait for their answer.

Apache Kafka takes a request's whole size out of its pool when the size has arrived, and mutes connections while the
pool is empty. A peer that announces much and sends nothing so takes the pool away from all others. Here memory counts
when bytes have arrived, so many requests may have begun, and the pool may be used up by them before one is complete.
Then:

- a connection whose request is not complete waits, and reads nothing meanwhile. Requests that together miss at most a
  quarter of the limit, or one that misses more, may go on beyond the limit: so requests are completed, and the limit is
  exceeded by that, and by one read of each connection. Those that miss least come first, but one of `_PICKS` is the one
  that has waited longest;
- a request that goes on beyond the limit while others wait must arrive at `_LEAST_BYTES_PER_S`, and as a whole at
  `_USUAL_BYTES_PER_S`; else its connection is closed;
- a request of at most `SMALL_BYTES` counts, but does not wait;
- requests that wait for their answer keep their connection from sending more where they alone reach the limit. What
  arrives cannot keep those waiting.

Connections are closed sooner where their requests arrive slowly while others wait (`Connection.sweep`).

The inter-broker listener and those of controllers have a memory of their own, which clients of others cannot use up.

Invariant: while connections wait for memory, at least one may go on beyond the limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

SMALL_BYTES = 64 * 1024
_LEAST_BYTES_PER_S = 1024 * 1024
_USUAL_BYTES_PER_S = 10 * 1024 * 1024
_CHECK_MS = 1_000
_PICKS = 64
_READ_BYTES = 256 * 1024
"""What a connection may read before it asks again."""


class Reader(Protocol):
    """A connection."""

    @property
    def missing_bytes(self) -> int:
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

    def wait_for_memory(self) -> None:
        """Read nothing until `budget_is_back`."""
        ...


class _Beyond:
    """A connection whose request may exceed the limit."""

    __slots__ = ("checks_left", "missing_bytes", "reserved_bytes", "timer")

    def __init__(self, missing_bytes: int) -> None:
        self.reserved_bytes = self.missing_bytes = missing_bytes
        """What it missed at first, and at the last check."""
        self.checks_left = 1 + missing_bytes // _USUAL_BYTES_PER_S
        self.timer: Any = None


class RequestMemory:
    """That of all connections of some listeners."""

    def __init__(self, limit_bytes: int, call_later_ms: Callable[[int, Callable[[], None]], Any]) -> None:
        """A limit that is not positive is none. `call_later_ms` returns a timer, which has `cancel()`."""
        self.limit_bytes = limit_bytes
        self.queued_bytes = 0
        """Size of the requests that wait for their answer."""
        self.arriving_bytes = 0
        """What has arrived of requests that are not complete."""
        self._call_later_ms = call_later_ms
        self._answers: OrderedDict[Reader, None] = OrderedDict()
        """Connections that read nothing until answers have left."""
        self._memory: OrderedDict[Reader, None] = OrderedDict()
        """Connections that read nothing until there is memory for the rest of their request."""
        self._beyond: dict[Reader, _Beyond] = {}
        """Those that may exceed the limit."""
        self._picks = 0
        """How many of them were the ones that missed least, since one had waited longest."""

    @property
    def used_bytes(self) -> int:
        """All that counts."""
        return self.queued_bytes + self.arriving_bytes

    @property
    def is_used_up(self) -> bool:
        """Whether requests that arrive have to wait."""
        return 0 < self.limit_bytes <= self.used_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether connections wait for memory."""
        return bool(self._memory)

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
        if self._answers or self._memory:
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
        if change_bytes < 0 and (self._answers or self._memory):
            self._wake()

    def may_go_on(self, connection: Reader, *, has_read: bool) -> bool:
        """Whether more of its request may be read; else `budget_is_back` is called when it may. `has_read`: since it
        was called last; a connection that found the memory taken again stays the first."""
        if not self.is_used_up or connection in self._beyond:
            return True
        if self._may_be_beyond(connection):
            self._let_beyond(connection)
            return True
        self._memory[connection] = None
        if not has_read:
            self._memory.move_to_end(connection, last=False)
        return False

    def completed(self, connection: Reader) -> None:
        """Its request has arrived, or will not."""
        beyond = self._beyond.pop(connection, None)
        if beyond is not None:
            beyond.timer.cancel()
            self._let_more_beyond()

    def forget(self, connection: Reader) -> None:
        """It has ended."""
        self._answers.pop(connection, None)
        self._memory.pop(connection, None)
        self.completed(connection)

    def _may_be_beyond(self, connection: Reader) -> bool:
        reserved = sum(each.reserved_bytes for each in self._beyond.values())
        return not self._beyond or reserved + connection.missing_bytes <= self.limit_bytes // 4

    def _let_beyond(self, connection: Reader) -> None:
        self._beyond[connection] = _Beyond(connection.missing_bytes)
        self._check_later(connection)

    def _check_later(self, connection: Reader) -> None:
        self._beyond[connection].timer = self._call_later_ms(_CHECK_MS, lambda: self._check(connection))

    def _check(self, connection: Reader) -> None:
        """Whether it may go on beyond the limit."""
        beyond, missing = self._beyond[connection], connection.missing_bytes
        is_slow = beyond.missing_bytes - missing < _LEAST_BYTES_PER_S * _CHECK_MS // 1000 or not beyond.checks_left
        beyond.checks_left -= 1
        beyond.missing_bytes = missing
        if not is_slow or not self._memory:
            beyond.checks_left = max(0, beyond.checks_left)
            self._check_later(connection)
            return
        del self._beyond[connection]
        if connection.is_held:
            self._memory[connection] = None
            connection.wait_for_memory()
        else:
            connection.close_slow()
        self._let_more_beyond()

    def _wake(self) -> None:
        """Let connections send and read again, as far as there is memory, and some of them beyond that."""
        while self._answers and not self.over_budget():
            self._answers.popitem(last=False)[0].budget_is_back()
        room = self.limit_bytes - self.used_bytes if self.limit_bytes > 0 else _READ_BYTES * len(self._memory)
        while self._memory and room > 0:
            self._memory.popitem(last=False)[0].budget_is_back()
            room -= _READ_BYTES
        self._let_more_beyond()

    def _let_more_beyond(self) -> None:
        while self._memory:
            connection = next(iter(self._memory))
            if self._picks < _PICKS:
                connection = min(self._memory, key=lambda each: each.missing_bytes)
            if not self._may_be_beyond(connection):
                return
            self._picks = (self._picks + 1) % (_PICKS + 1)
            del self._memory[connection]
            self._let_beyond(connection)
            connection.budget_is_back()
