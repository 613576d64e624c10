"""Items on their way to the controller: one request at a time, the newest item of each key, sent until decided.

    put(key, item)   an item waits; a newer one for its key takes the place of one that waits
    send             all that wait, up to `max_items`, go in one request; what comes meanwhile waits for the next one
    answer           items that the controller has decided on are settled; the others wait again, unless a newer item
                     for their key does, and the next request is sent after a pause, which grows from one request to
                     the next while some item stays undecided

So many items that arrive together take a few requests, not one each, and a controller that does not answer is not
flooded. ISR changes and directory assignments are sent this way; they differ in their `Exchange`.

A driver: given `send` and `Timers`. Whatever it calls may call `put` before it returns: requests are made in a timer's
call only, and outcomes are handed out when the queue's own state is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending, Timer, Timers
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
)
from kalda.replication.followers import IsrOutcome, IsrProposal

KeyT = TypeVar("KeyT")
"""Key: what an item is about. A newer item of the same key makes an older one obsolete."""
ItemT = TypeVar("ItemT")
"""Item: what the controller decides on, or records."""
AnswerT = TypeVar("AnswerT")
"""Response to a request with some items."""
OutcomeT = TypeVar("OutcomeT")
"""Outcome of one item."""


class Exchange(Protocol[KeyT, ItemT, AnswerT, OutcomeT]):
    """What a queue's user decides. None of the first three may call the queue."""

    def is_needed(self, key: KeyT, item: ItemT) -> bool:
        """Whether an item that is about to be sent still has to be. One that is not is settled with None."""
        ...

    def send(self, items: dict[KeyT, ItemT]) -> Pending[AnswerT]:
        """Send one request for these items."""
        ...

    def outcomes(
        self, items: dict[KeyT, ItemT], response: AnswerT | None, error: ApiError | None
    ) -> dict[KeyT, OutcomeT]:
        """Outcomes of those items of one request that its response decides; the others are sent again."""
        ...

    def settle(self, key: KeyT, item: ItemT, outcome: OutcomeT | None) -> None:
        """One item is decided, or not needed any more. May call the queue."""
        ...


class ControllerQueue(Generic[KeyT, ItemT, AnswerT, OutcomeT]):
    """Invariants: at most one request is in flight, and no timer runs meanwhile; while items wait and none is in
    flight, a timer runs."""

    __slots__ = (
        "_backoff_ms",
        "_closed",
        "_exchange",
        "_first_backoff_ms",
        "_in_flight",
        "_max_backoff_ms",
        "_max_items",
        "_timer",
        "_timers",
        "_waiting",
    )

    def __init__(
        self,
        exchange: Exchange[KeyT, ItemT, AnswerT, OutcomeT],
        timers: Timers,
        *,
        max_items: int,
        first_backoff_ms: int,
        max_backoff_ms: int,
    ) -> None:
        """`max_items` bounds one request. The pause is `first_backoff_ms` at first, and doubles up to
        `max_backoff_ms`."""
        self._exchange = exchange
        self._timers = timers
        self._max_items = max_items
        self._first_backoff_ms = first_backoff_ms
        self._max_backoff_ms = max_backoff_ms
        self._waiting: dict[KeyT, ItemT] = {}
        self._in_flight: dict[KeyT, ItemT] = {}
        """Items of the request that has been sent and not answered."""
        self._backoff_ms = 0
        """The last pause; 0 where the last request left nothing undecided."""
        self._timer: Timer | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def put(self, key: KeyT, item: ItemT) -> None:
        """Send an item, with others that come before the timer's call."""
        if not self._closed:
            self._waiting[key] = item
            self._schedule()

    def close(self) -> None:
        """Send nothing more, and settle nothing more."""
        self._closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._timer is None and not self._in_flight and self._waiting and not self._closed:
            self._timer = self._timers.call_later_ms(self._backoff_ms, self._send)

    def _send(self) -> None:
        self._timer = None
        assert not self._in_flight, "one request at a time"
        items: dict[KeyT, ItemT] = {}
        dropped: list[tuple[KeyT, ItemT]] = []
        for key in list(self._waiting):
            if len(items) == self._max_items:
                break
            item = self._waiting.pop(key)
            if self._exchange.is_needed(key, item):
                items[key] = item
            else:
                dropped.append((key, item))
        self._in_flight = items
        pending = self._exchange.send(items) if items else None
        for key, item in dropped:
            self._exchange.settle(key, item, None)
        if pending is not None:
            pending.then(self._on_response)

    def _on_response(self, response: AnswerT | None, error: ApiError | None) -> None:
        if self._closed:
            return
        items, self._in_flight = self._in_flight, {}
        outcomes = self._exchange.outcomes(items, response, error)
        undecided = [key for key in items if key not in outcomes]
        for key in undecided:
            self._waiting.setdefault(key, items[key])
        self._backoff_ms = min(self._max_backoff_ms, self._backoff_ms * 2 or self._first_backoff_ms) if undecided else 0
        self._schedule()
        for key, outcome in outcomes.items():
            self._exchange.settle(key, items[key], outcome)


log = logging.getLogger("kalda.isr")

_MAX_ITEMS = 1_000
_BACKOFF_MS = 50
_FINAL = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
"""Error codes of a partition that decide a proposal. After any other the same proposal may still be accepted."""

Key = tuple[Uuid, int]
"""Topic id and partition."""


class _Item(NamedTuple):
    proposal: IsrProposal
    answered: Callable[[IsrOutcome], None]


class AlterPartitionQueue:
    """ISR changes on their way to the controller (AlterPartition, KIP-497).

    Every partition has at most one proposal waiting, and all that wait go in one request (`ControllerQueue`). The
    proposer gets the outcome, unless the controller could not decide: then the proposal is sent again. A driver.

    The ISR proposals of one broker.
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AlterPartitionRequest], Pending[AlterPartitionResponse]],
        timers: Timers,
    ) -> None:
        self._queue: ControllerQueue[Key, _Item, AlterPartitionResponse, IsrOutcome] = ControllerQueue(
            _Exchange(broker_id, broker_epoch, send),
            timers,
            max_items=_MAX_ITEMS,
            first_backoff_ms=_BACKOFF_MS,
            max_backoff_ms=_BACKOFF_MS,
        )

    def propose(
        self, topic_id: Uuid, partition: int, proposal: IsrProposal, answered: Callable[[IsrOutcome], None]
    ) -> None:
        """Send a proposal in place of an older one of that partition. `answered` is called with its outcome."""
        self._queue.put((topic_id, partition), _Item(proposal, answered))

    def close(self) -> None:
        """Send nothing more, and call nothing back."""
        self._queue.close()


class _Exchange:
    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AlterPartitionRequest], Pending[AlterPartitionResponse]],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send

    def is_needed(self, key: Key, item: _Item) -> bool:
        return True

    def send(self, items: dict[Key, _Item]) -> Pending[AlterPartitionResponse]:
        topics: dict[Uuid, AlterPartitionRequestTopicData] = {}
        for (topic_id, partition), (proposal, _) in items.items():
            topic = topics.setdefault(topic_id, AlterPartitionRequestTopicData(topic_id=topic_id))
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequestBrokerState(broker_id=broker_id, broker_epoch=epoch)
                        for broker_id, epoch in proposal.members
                    ],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return self._send(
            AlterPartitionRequest(
                broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
            )
        )

    def outcomes(
        self, items: dict[Key, _Item], response: AlterPartitionResponse | None, error: ApiError | None
    ) -> dict[Key, IsrOutcome]:
        if response is None or response.error_code:
            reason = error if response is None else ErrorCode(response.error_code)
            log.info("%d ISR changes are proposed again: the controller answered %s", len(items), reason)
            return {}
        return {
            key: IsrOutcome(code, tuple(data.isr), data.leader_epoch, data.partition_epoch)
            for topic in response.topics
            for data in topic.partitions
            if (key := (topic.topic_id, data.partition_index)) in items
            and (code := ErrorCode(data.error_code)) in _FINAL
        }

    def settle(self, key: Key, item: _Item, outcome: IsrOutcome | None) -> None:
        assert outcome is not None, "every proposal is sent"
        item.answered(outcome)
