"""Partitions that this broker leads by the newest image, but has not opened yet, and requests that wait for them.

The log of a new partition is made by a job, so there are some milliseconds between the image and the open partition.
A client may have the same image from another broker already. Answered NOT_LEADER_OR_FOLLOWER, it would look for another
leader, find none, and wait until it asks for metadata again: librdkafka for seconds. So a request for such a partition
waits until the partition is open, for at most `MAX_WAIT_MS`, and is then handled as if it had just arrived. Of many
that waited for the same partition, or are parts of one large request, one is handled in each turn of the loop.

A follower waits too: after an error it would fetch the partition again only when its next fetch has returned, which
may be half a second later. But producers wait for what it fetches of other partitions, so it waits shortly, and not
while many partitions are being opened.

`partitions` is empty nearly always, and handlers check that it is before anything else: a request costs nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any

from kalda.base.errors import as_api_error
from kalda.base.ids import TopicPartition
from kalda.base.pending import Pending
from kalda.base.scheduling import Timer, Timers
from kalda.base.steps import StepRunner, by_timers
from kalda.broker.context import Encoded, Reply, RequestContext
from kalda.protocol.notation import Request

MAX_WAIT_MS = 1_000
MAX_WAITING = 1_000
"""Requests; more are handled at once."""

_FOLLOWER_WAIT_MS = 100
_MAX_OPENING_FOR_FOLLOWERS = 100

Handle = Callable[[RequestContext, Any], Reply[Any]]


class _Waiting:
    """A request that waits."""

    __slots__ = ("missing", "pending", "resume", "timer")

    def __init__(self, missing: set[TopicPartition], pending: Pending[Any], resume: Callable[[], None]) -> None:
        self.missing = missing
        """Partitions that are not open yet."""
        self.pending = pending
        self.resume = resume
        self.timer: Timer | None = None
        """None when the request does not wait any more."""


class OpeningPartitions:
    """Which partitions are being opened, and who waits for them."""

    def __init__(self, timers: Timers) -> None:
        self.partitions: dict[TopicPartition, list[_Waiting]] = {}
        """Those that are to be led and are not open, with the requests that wait for each."""
        self._timers = timers
        self._steps = StepRunner(by_timers(timers))
        """Replies of requests that have waited, which are made in steps."""
        self._waiting = 0
        """How many requests wait."""
        self._due: deque[_Waiting] = deque()
        """Those whose wait is over. Invariant: a turn for the first one is scheduled while there are any."""
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
            if not waiting.missing and waiting.timer is not None:
                waiting.timer.cancel()
                self._end_wait(waiting)

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
        pending: Pending[Any] = Pending()
        waiting = _Waiting(missing, pending, lambda: self._resume(waiting, context, request, handle))
        pending.on_abandoned = lambda: self._end(waiting)
        for topic_partition in missing:
            self.partitions[topic_partition].append(waiting)
        waiting.timer = self._timers.call_later_ms(min(timeout_ms, MAX_WAIT_MS), lambda: self._end_wait(waiting))
        self._waiting += 1
        context.connection.answer_alone()
        return pending

    def _end_wait(self, waiting: _Waiting) -> None:
        """Have the request handled in a turn of its own: not on the stack of the publisher, which has other partitions
        to open."""
        self._due.append(waiting)
        if len(self._due) == 1:
            self._timers.call_later_ms(0, self._resume_next)

    def _resume_next(self) -> None:
        waiting = self._due.popleft()
        if self._due:
            self._timers.call_later_ms(0, self._resume_next)
        if waiting.timer is not None:  # it was not abandoned, and was not due twice
            waiting.resume()

    def _end(self, waiting: _Waiting) -> None:
        """The request does not wait any more."""
        if waiting.timer is None:
            return
        waiting.timer.cancel()
        waiting.timer = None
        self._waiting -= 1
        for topic_partition in waiting.missing:
            self.partitions[topic_partition].remove(waiting)

    def _resume(self, waiting: _Waiting, context: RequestContext, request: Request, handle: Handle) -> None:
        self._end(waiting)
        pending = waiting.pending
        self._resumed = request
        try:
            reply = handle(context, request)
        except Exception as error:
            pending.fail(as_api_error(error))
            return
        finally:
            self._resumed = None
        if isinstance(reply, GeneratorType):
            reply = self._steps.run(reply)
        if isinstance(reply, Pending):
            pending.on_abandoned = reply.abandon
            reply.then(pending.settle)
        else:
            # None is the reply to a Produce with acks=0.
            pending.complete(Encoded([]) if reply is None else reply)
