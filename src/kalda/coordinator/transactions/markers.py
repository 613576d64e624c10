"""Transaction markers that are to be written: a queue for each broker that leads partitions of ended transactions.

When the outcome of a transaction is committed, each of its partitions gets a marker. They are sent in WriteTxnMarkers
requests, one under way to a broker at a time, each with all that was queued for it meanwhile. A marker that fails is
tried again after a pause, without limit, to whichever broker leads the partition by then. So a broker that is away
holds up only the transactions that have partitions there. A partition that does not exist any more needs no marker.

`MarkerQueues` sends nothing and has no clock: its driver takes `requests`, and brings responses and the time.

Invariant: each partition in `Completion.remaining` of a completion that is not cancelled is in exactly one place: in a
queue, in a request under way, or in `_delayed`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.coordinator.transactions.metadata import Partitions
from kalda.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger(__name__)

NO_LEADER = -1
_FIRST_RETRY_MS = 20
_LAST_RETRY_MS = 1_000
_MAX_DOUBLINGS = 6
_MAX_PARTITIONS = 2_000
"""In one request; a broker writes as many markers in some ten milliseconds."""
_WARN_AFTER = 10
"""Failures of one transaction's markers, some five seconds long, after which its next failure is a warning; so is each
hundredth from then on."""
_WARN_EVERY = 100

_WRITTEN = frozenset(
    (
        ErrorCode.NONE,
        # The partition cannot hold transactional records, so it holds none of this transaction.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        # The partition has a record of a higher epoch, which the producer gets only after this transaction has ended
        # there. The same marker would be refused for ever.
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
)
"""Codes after which a partition needs no marker any more."""


class Completion:
    """A transaction whose outcome is committed, and the partitions that still need its marker."""

    __slots__ = (
        "began_ms",
        "committed",
        "coordinator_epoch",
        "failures",
        "is_cancelled",
        "on_completed",
        "on_written",
        "producer_epoch",
        "producer_id",
        "remaining",
        "shard",
        "transaction_version",
        "transactional_id",
    )

    def __init__(
        self,
        shard: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int,
        partitions: Partitions,
        on_written: Callable[[str], None],
        began_ms: int,
        *,
        committed: bool,
    ) -> None:
        """`shard` is the partition of `__transaction_state`, `coordinator_epoch` its leader epoch. `began_ms` is when
        the outcome was committed. `on_written(transactional_id)` is called once no partition remains."""
        self.shard = shard
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version
        self.committed = committed
        self.remaining = {topic: set(numbers) for topic, numbers in partitions.items()}
        self.on_written = on_written
        self.began_ms = began_ms
        self.failures = 0
        """Attempts that failed, in any partition."""
        self.is_cancelled = False
        self.on_completed: list[Callable[[], None]] = []
        """Requests that wait until the id is complete: called once, when it is or when this node resigns."""


Held = dict[Completion, dict[str, set[int]]]
"""Markers, by transaction and topic."""


class _Delayed(NamedTuple):
    """Markers that failed; compared by the first two."""

    due_ms: int
    number: int
    completion: Completion
    partitions: dict[str, set[int]]


class _Broker:
    """What is queued for a broker, and what is under way to it."""

    __slots__ = ("failures", "queue", "resumes_ms", "under_way")

    def __init__(self) -> None:
        self.queue: Held = {}
        """In the order in which the transactions ended; the rest of a very large one is moved to the end."""
        self.under_way: Held | None = None
        self.failures = 0
        """Requests in sequence that the broker has not answered."""
        self.resumes_ms = 0
        """No request is sent before."""


class MarkerQueues:
    """All markers of one broker's coordinator that are not written yet."""

    def __init__(self, leader_of: Callable[[str, int], int | None], on_queued: Callable[[], None]) -> None:
        """`leader_of(topic, partition)` is the broker that leads it, `NO_LEADER` while none does, None where the
        partition does not exist. `on_queued` is called when `requests` may have something to send; it must not call
        back."""
        self._leader_of = leader_of
        self._on_queued = on_queued
        self._brokers: dict[int, _Broker] = {}
        self._delayed: list[_Delayed] = []
        """A heap."""
        self._delays = 0
        """Counts entries of `_delayed`, so that those of one time keep their order."""
        self._completions: dict[int, set[Completion]] = {}
        """Those that are not written, by shard."""

    @property
    def size(self) -> int:
        """Transactions whose markers are not all written."""
        return sum(len(completions) for completions in self._completions.values())

    @property
    def retries(self) -> int:
        """Groups of markers that are sent again later: they failed, or their partitions have no leader."""
        return len(self._delayed)

    # -- transactions --------------------------------------------------------------------------------------------

    def add(self, completion: Completion, now_ms: int) -> None:
        """Queue the markers of a transaction. Where it needs none, `on_written` is called before this returns."""
        self._completions.setdefault(completion.shard, set()).add(completion)
        self._route(completion, {topic: set(numbers) for topic, numbers in completion.remaining.items()}, now_ms)
        self._finish_if_written(completion)

    def drop_shard(self, shard: int) -> None:
        """This node no longer coordinates the transactions of a shard: their markers are not sent from now on."""
        for completion in self._completions.pop(shard, ()):
            completion.is_cancelled = True

    def _finish_if_written(self, completion: Completion) -> None:
        if completion.remaining or completion.is_cancelled:
            return
        completion.is_cancelled = True  # nothing is left, and `on_written` is called once
        self._completions.get(completion.shard, set()).discard(completion)
        completion.on_written(completion.transactional_id)

    def _route(self, completion: Completion, partitions: Mapping[str, set[int]], now_ms: int) -> None:
        """Queue markers for the leaders that the partitions have now."""
        homeless: dict[str, set[int]] = {}
        deleted: list[str] = []
        for topic, numbers in partitions.items():
            for number in numbers:
                leader = self._leader_of(topic, number)
                if leader is None:
                    deleted.append(f"{topic}-{number}")
                    _remove(completion.remaining, topic, number)
                elif leader == NO_LEADER:
                    homeless.setdefault(topic, set()).add(number)
                else:
                    queue = self._brokers.setdefault(leader, _Broker()).queue
                    queue.setdefault(completion, {}).setdefault(topic, set()).add(number)
        if deleted:
            log.info(
                "%s: %d partitions do not exist any more and need no transaction marker, among them %s",
                completion.transactional_id,
                len(deleted),
                deleted[0],
            )
        if homeless:
            self._delay(completion, homeless, "has no leader", now_ms)
        self._on_queued()

    def _delay(self, completion: Completion, partitions: dict[str, set[int]], why: str, now_ms: int) -> None:
        completion.failures += 1
        failures = completion.failures
        topic, numbers = next(iter(partitions.items()))
        level = logging.WARNING if failures == _WARN_AFTER or failures % _WARN_EVERY == 0 else logging.DEBUG
        log.log(
            level,
            "%s: the transaction marker of producer id %d, epoch %d is not written to %d partitions, "
            "and is sent again: %s-%d %s (attempt %d)",
            completion.transactional_id,
            completion.producer_id,
            completion.producer_epoch,
            sum(map(len, partitions.values())),
            topic,
            min(numbers),
            why,
            failures,
        )
        due_ms = now_ms + min(_FIRST_RETRY_MS << min(failures - 1, _MAX_DOUBLINGS), _LAST_RETRY_MS)
        self._delays += 1
        heapq.heappush(self._delayed, _Delayed(due_ms, self._delays, completion, partitions))

    # -- requests ------------------------------------------------------------------------------------------------

    def requests(self, now_ms: int) -> list[tuple[int, WriteTxnMarkersRequest]]:
        """Requests that are to be sent now, by broker. `on_response` or `on_failure` is to be called for each."""
        while self._delayed and self._delayed[0].due_ms <= now_ms:
            delayed = heapq.heappop(self._delayed)
            if not delayed.completion.is_cancelled:
                self._route(delayed.completion, delayed.partitions, now_ms)
                self._finish_if_written(delayed.completion)
        requests = []
        for broker_id, broker in list(self._brokers.items()):
            if broker.under_way is not None or broker.resumes_ms > now_ms:
                continue
            taken = self._take(broker_id, broker.queue, now_ms)
            if taken:
                broker.under_way = taken
                requests.append((broker_id, _to_request(taken)))
            elif not broker.queue:
                del self._brokers[broker_id]
        return requests

    def _take(self, broker_id: int, queue: Held, now_ms: int) -> Held:
        """Markers for one request. Those whose partition another broker leads by now are queued anew."""
        taken: Held = {}
        room = _MAX_PARTITIONS
        for completion in list(queue):
            if room <= 0:
                break
            topics = queue.pop(completion)
            if completion.is_cancelled:
                continue
            moved: dict[str, set[int]] = {}
            left: dict[str, set[int]] = {}
            for topic, numbers in topics.items():
                for number in sorted(numbers):
                    if self._leader_of(topic, number) != broker_id:
                        moved.setdefault(topic, set()).add(number)
                    elif room > 0:
                        room -= 1
                        taken.setdefault(completion, {}).setdefault(topic, set()).add(number)
                    else:
                        left.setdefault(topic, set()).add(number)
            if left:
                queue[completion] = left
            if moved:
                self._route(completion, moved, now_ms)
                self._finish_if_written(completion)
        return taken

    def next_deadline_ms(self) -> int | None:
        """When `requests` has something to send at the earliest; None while it needs a response or a new marker."""
        deadlines = [self._delayed[0].due_ms] if self._delayed else []
        deadlines += [
            broker.resumes_ms for broker in self._brokers.values() if broker.queue and broker.under_way is None
        ]
        return min(deadlines, default=None)

    def on_response(self, broker_id: int, response: WriteTxnMarkersResponse, now_ms: int) -> None:
        """The broker has answered the request under way."""
        sent = self._end_request(broker_id)
        self._brokers[broker_id].failures = 0
        codes = {
            (marker.producer_id, topic.name, each.partition_index): each.error_code
            for marker in response.markers
            for topic in marker.topics
            for each in topic.partitions
        }
        missing = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        for completion, topics in sent.items():
            if completion.is_cancelled:
                continue
            failed: dict[str, set[int]] = {}
            refused: dict[ErrorCode, int] = {}
            why = ""
            for topic, numbers in topics.items():
                for number in numbers:
                    code = ErrorCode(codes.get((completion.producer_id, topic, number), missing))
                    if code in _WRITTEN:
                        _remove(completion.remaining, topic, number)
                        if code is not ErrorCode.NONE:
                            refused[code] = refused.get(code, 0) + 1
                    else:
                        failed.setdefault(topic, set()).add(number)
                        why = f"has failed with {code.name}"
            for code, count in refused.items():
                log.info(
                    "%s: %d partitions on broker %d take no transaction marker of producer id %d, epoch %d: %s",
                    completion.transactional_id,
                    count,
                    broker_id,
                    completion.producer_id,
                    completion.producer_epoch,
                    code.name,
                )
            if failed:
                self._delay(completion, failed, why, now_ms)
            else:
                completion.failures = 0
            self._finish_if_written(completion)
        self._on_queued()

    def on_failure(self, broker_id: int, error: ApiError, now_ms: int) -> None:
        """The request under way has no answer. The broker may have written its markers all the same: a marker that is
        written twice changes nothing."""
        sent = self._end_request(broker_id)
        broker = self._brokers[broker_id]
        broker.failures += 1
        broker.resumes_ms = now_ms + min(_FIRST_RETRY_MS << min(broker.failures - 1, _MAX_DOUBLINGS), _LAST_RETRY_MS)
        for completion, topics in sent.items():
            if not completion.is_cancelled:
                self._delay(completion, topics, f"was not reached on broker {broker_id} ({error})", now_ms)
        self._on_queued()

    def _end_request(self, broker_id: int) -> Held:
        broker = self._brokers[broker_id]
        sent = broker.under_way
        assert sent is not None, f"no request is under way to broker {broker_id}"
        broker.under_way = None
        return sent


def _to_request(markers: Held) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=completion.producer_id,
                producer_epoch=completion.producer_epoch,
                transaction_result=completion.committed,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=sorted(numbers))
                    for topic, numbers in topics.items()
                ],
                coordinator_epoch=completion.coordinator_epoch,
                transaction_version=completion.transaction_version,
            )
            for completion, topics in markers.items()
        ]
    )


def _remove(remaining: dict[str, set[int]], topic: str, number: int) -> None:
    numbers = remaining.get(topic)
    if numbers is not None:
        numbers.discard(number)
        if not numbers:
            del remaining[topic]
