"""Partitions that this broker leads by the newest image, but has not opened yet, and requests that wait for them.

The log of a new partition is made by a job, so there are some milliseconds between the image and the open partition.
A client may have the same image from another broker already. Answered NOT_LEADER_OR_FOLLOWER, it would look for another
leader, find none, and wait until it asks for metadata again: librdkafka for seconds. So a request for such a partition
waits until the partition is open, for at most `MAX_WAIT_MS`, and is then handled as if it had just arrived, in the
background: many may have waited for the same partition.

A follower waits too: after an error it would fetch the partition again only when its next fetch has returned, which
may be half a second later. But producers wait for what it fetches of other partitions, so it waits shortly, and not
while many partitions are being opened.

`partitions` is empty nearly always, and handlers check that it is before anything else: a request costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any

from kalda.base.background import Background, Steps
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending, Timer, Timers
from kalda.broker.requests.context import Encoded, Reply, RequestContext
from kalda.protocol.notation import Request

MAX_WAIT_MS = 1_000
MAX_WAITING = 1_000
"""Requests; more are handled at once."""

_FOLLOWER_WAIT_MS = 100
_MAX_OPENING_FOR_FOLLOWERS = 100

Handle = Callable[[RequestContext, Any], Reply[Any]]


class _Waiting:
    """A request that waits."""

    __slots__ = ("context", "handle", "missing", "pending", "request", "timer")

    def __init__(self, context: RequestContext, request: Request, handle: Handle, missing: set[TopicPartition]) -> None:
        self.context = context
        self.request = request
        self.handle = handle
        self.missing = missing
        """Partitions that are not open yet."""
        self.pending: Pending[Any] = Pending()
        self.timer: Timer | None = None
        """None when the request does not wait any more."""


class OpeningPartitions:
    """Which partitions are being opened, and who waits for them."""

    def __init__(self, timers: Timers, background: Background) -> None:
        self.partitions: dict[TopicPartition, list[_Waiting]] = {}
        """Those that are to be led and are not open, with the requests that wait for each."""
        self._timers = timers
        self._background = background
        self._waiting = 0
        """How many requests wait."""
        self._resumed: Request | None = None
        """The request that is handled after its wait: it does not wait again."""

    # -- the publisher's side

    def add(self, topic_partition: TopicPartition) -> None:
        """An image gives the partition to this broker as its leader."""
        self.partitions.setdefault(topic_partition, [])

    def remove(self, topic_partition: TopicPartition) -> None:
        """The partition is open, cannot be opened, or is not to be led any more."""
        for waiting in self.partitions.pop(topic_partition, ()):
            waiting.missing.discard(topic_partition)
            if not waiting.missing:
                self._resume(waiting)

    # -- the handlers' side

    def fetch_wait_ms(self, max_wait_ms: int, *, is_follower: bool) -> int:
        """How long a Fetch with that `max_wait_ms` may wait."""
        if not is_follower:
            return max_wait_ms
        return min(max_wait_ms, _FOLLOWER_WAIT_MS) if len(self.partitions) <= _MAX_OPENING_FOR_FOLLOWERS else 0

    def wait(
        self,
        context: RequestContext,
        request: Request,
        handle: Handle,
        named: Iterable[tuple[str, int]],
        timeout_ms: int,
    ) -> Pending[Any] | None:
        """Have `handle(context, request)` called when the partitions in `named` are open, or the time is over. None
        where the request must be handled now: none of them is being opened, or it has waited, or too many do.

        No later request of its connection is handled before: the producer relies on their order.
        """
        if request is self._resumed or self._waiting >= MAX_WAITING or timeout_ms <= 0:
            return None
        missing = {TopicPartition(*each) for each in named if each in self.partitions}
        if not missing:
            return None
        waiting = _Waiting(context, request, handle, missing)
        waiting.pending.on_abandoned = lambda: self._end(waiting)
        for topic_partition in missing:
            self.partitions[topic_partition].append(waiting)
        waiting.timer = self._timers.call_later_ms(min(timeout_ms, MAX_WAIT_MS), lambda: self._resume(waiting))
        self._waiting += 1
        context.connection.answer_alone()
        return waiting.pending

    def _end(self, waiting: _Waiting) -> None:
        """The request does not wait any more."""
        assert waiting.timer is not None, "it waits"
        waiting.timer.cancel()
        waiting.timer = None
        self._waiting -= 1
        for topic_partition in waiting.missing:
            self.partitions[topic_partition].remove(waiting)

    def _resume(self, waiting: _Waiting) -> None:
        """Have the request handled, but not on the stack of the publisher, which has other partitions to open."""
        self._end(waiting)
        handled = self._background.run(self._handled(waiting), owner=waiting.context)
        waiting.pending.on_abandoned = handled.abandon
        handled.then(waiting.pending.settle)

    def _handled(self, waiting: _Waiting) -> Steps[Any]:
        """The reply to a request that has waited."""
        self._resumed = waiting.request
        try:
            reply = waiting.handle(waiting.context, waiting.request)
        finally:
            self._resumed = None
        if isinstance(reply, GeneratorType):
            reply = yield from reply
        # None is the reply to a Produce with acks=0.
        return Encoded([]) if reply is None else reply
