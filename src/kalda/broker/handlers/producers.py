"""InitProducerId (22): ids for idempotent producers, from blocks that the controller allocates.

A block is asked for when the one at hand is nearly used up, so that producers seldom wait for it; ids of a block that
a restart throws away are never given out again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.dispatch import RequestContext
from kalda.protocol.messages.brokers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kalda.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
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
        self._end = 0
        self._prefetch_from = 0
        self._coming: range | None = None
        self._asking = False
        self._waiting: deque[Pending[int]] = deque()

    def take(self) -> int | Pending[int]:
        """A producer id that nobody has."""
        if self._next == self._end and self._coming is not None:
            self._start_block(self._coming)
        if self._next < self._end:
            producer_id = self._next
            self._next += 1
            if self._next >= self._prefetch_from and self._coming is None:
                self._ask()
            return producer_id
        if len(self._waiting) >= _MAX_WAITING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "too many producers wait for a block of ids")
        pending: Pending[int] = Pending()
        self._waiting.append(pending)
        self._ask()
        return pending

    def _start_block(self, block: range) -> None:
        self._next, self._end = block.start, block.stop
        self._prefetch_from = block.start + int(len(block) * _PREFETCH_AT)
        self._coming = None

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        self._send(request).then(self._on_block)

    def _on_block(self, response: AllocateProducerIdsResponse | None, error: ApiError | None) -> None:
        self._asking = False
        if response is None or response.error_code or response.producer_id_len <= 0:
            # Producers retry what says that the coordinator is still loading.
            for pending in list(self._waiting):
                pending.fail(ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error or "no block of producer ids")))
            self._waiting.clear()
            return
        self._coming = range(response.producer_id_start, response.producer_id_start + response.producer_id_len)
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            producer_id = self.take()
            if isinstance(producer_id, Pending):
                producer_id.then(pending.settle)
            else:
                pending.complete(producer_id)


class ProducerHandlers:
    """InitProducerId for producers without a transactional id."""

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids

    def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
        """A fresh id at epoch 0: an idempotent producer that lost its place starts anew (KIP-360)."""
        if request.transactional_id is not None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "this broker serves no transactions")
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise ApiError(ErrorCode.INVALID_REQUEST, "producer id and epoch go together")
        producer_id = self._ids.take()
        if not isinstance(producer_id, Pending):
            return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
        pending: Pending[InitProducerIdResponse] = Pending()

        def settle(value: int | None, error: ApiError | None) -> None:
            if error is not None:
                pending.fail(error)
            else:
                assert value is not None
                pending.complete(InitProducerIdResponse(producer_id=value, producer_epoch=0))

        producer_id.then(settle)
        return pending
