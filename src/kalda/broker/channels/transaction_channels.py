"""What transactional producers need of other nodes: blocks of producer ids, and markers in the logs of partitions.

Producer ids, from blocks that the controller allocates.

The next block is requested when the current one is nearly used up, so that producers seldom wait for it. A restart
drops the rest of a block: its ids are never used.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Clock, Pending, Timer, Timers
from kalda.coordinator.transactions.markers import Completion, MarkerQueues
from kalda.protocol.messages.brokers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kalda.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kalda.protocol.notation import Request

_PREFETCH_AT = 0.9
_MAX_WAITING = 10_000


class ProducerIds:
    """This broker's producer ids."""

    def __init__(
        self, broker_id: int, broker_epoch: Callable[[], int], send: Callable[[Request], Pending[Any]]
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._next = 0
        """the next id to be given out; ids up to `_end` remain in the current block"""
        self._end = 0
        self._prefetch_from = 0
        """the id from which on the next block is requested"""
        self._next_block: range | None = None
        """the block after the current one, where it has arrived already"""
        self._is_requesting = False
        self._waiting: deque[Pending[int]] = deque()

    def take(self) -> int | Pending[int]:
        """A producer id that has never been given out."""
        if self._next == self._end and self._next_block is not None:
            self._start_block(self._next_block)
        if self._next < self._end:
            producer_id = self._next
            self._next += 1
            if self._next >= self._prefetch_from and self._next_block is None:
                self._request_block()
            return producer_id
        if len(self._waiting) >= _MAX_WAITING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "too many producers wait for a block of ids")
        pending: Pending[int] = Pending()
        self._waiting.append(pending)
        self._request_block()
        return pending

    def _start_block(self, block: range) -> None:
        self._next, self._end = block.start, block.stop
        self._prefetch_from = block.start + int(len(block) * _PREFETCH_AT)
        self._next_block = None

    def _request_block(self) -> None:
        if self._is_requesting:
            return
        self._is_requesting = True
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        self._send(request).then(self._on_block)

    def _on_block(self, response: AllocateProducerIdsResponse | None, error: ApiError | None) -> None:
        self._is_requesting = False
        if response is None or response.error_code or response.producer_id_len <= 0:
            # A code after which producers try again.
            failed, self._waiting = self._waiting, deque()
            for pending in failed:
                pending.fail(ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error or "no block of producer ids")))
            return
        self._next_block = range(response.producer_id_start, response.producer_id_start + response.producer_id_len)
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            producer_id = self.take()
            if isinstance(producer_id, Pending):
                producer_id.then(pending.settle)
            else:
                pending.complete(producer_id)


log = logging.getLogger("kalda.coordinator")


class TransactionMarkers:
    """Sends the transaction markers of this broker's coordinator: carries `MarkerQueues` out.

    Requests go to the brokers that lead the partitions; those for partitions of this broker are handled by a call. All
    that is queued in one turn of the event loop leaves together, in the next turn: a coordinator queues markers while
    its log reports a commit, and sending would call that log back.

    Not obvious:

    - Markers leave in the next turn of the loop: sent at once, they would call the log back inside its commit.

    The `Markers` of this broker's transaction coordinator.
    """

    def __init__(
        self,
        node_id: int,
        leader_of: Callable[[str, int], int | None],
        send: Callable[[int, WriteTxnMarkersRequest], Pending[Any]],
        write_here: Callable[[WriteTxnMarkersRequest], WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]],
        clock: Clock,
        timers: Timers,
    ) -> None:
        """`leader_of` is that of `MarkerQueues`. `send(broker, request)` settles with the response of another broker,
        `write_here(request)` with this one's."""
        self._node_id = node_id
        self._send = send
        self._write_here = write_here
        self._clock = clock
        self._timers = timers
        self._queues = MarkerQueues(leader_of, self._pump_soon)
        self._timer: Timer | None = None
        """For the next call of `_pump`; None while nothing is queued."""
        self._timer_at_ms = 0
        self._closed = False

    @property
    def size(self) -> int:
        """Transactions whose markers are not all written."""
        return self._queues.size

    @property
    def retries(self) -> int:
        """Groups of markers that are sent again later."""
        return self._queues.retries

    def add(self, completion: Completion, now_ms: int) -> None:
        """Write the markers of a transaction, then call its `on_written`."""
        self._queues.add(completion, now_ms)

    def drop_shard(self, shard: int) -> None:
        """Write no more markers of the shard's transactions."""
        self._queues.drop_shard(shard)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pump_soon(self) -> None:
        self._arm(self._clock.mono_ms())

    def _arm(self, at_ms: int) -> None:
        if self._closed or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._timers.call_later_ms(max(0, at_ms - self._clock.mono_ms()), self._pump)

    def _pump(self) -> None:
        self._timer = None
        for broker_id, request in self._queues.requests(self._clock.mono_ms()):
            if broker_id == self._node_id:
                try:
                    reply = self._write_here(request)
                except ApiError as error:
                    self._answered(broker_id, None, error)
                    continue
            else:
                reply = self._send(broker_id, request)
            if isinstance(reply, Pending):
                reply.then(partial(self._answered, broker_id))
            else:
                self._answered(broker_id, reply, None)
        deadline_ms = self._queues.next_deadline_ms()
        if deadline_ms is not None:
            self._arm(deadline_ms)

    def _answered(self, broker_id: int, response: WriteTxnMarkersResponse | None, error: ApiError | None) -> None:
        if self._closed:
            return
        now_ms = self._clock.mono_ms()
        if response is None:
            self._queues.on_failure(broker_id, error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR), now_ms)
        else:
            self._queues.on_response(broker_id, response, now_ms)
