"""Producer ids, from blocks that the controller allocates.

The next block is requested when the current one is nearly used up, so that producers seldom wait for it. A restart
drops the rest of a block: its ids are never used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.protocol.messages.brokers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
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
