"""A producer of transactions in the simulator: Kalda's own, on a machine of the simulated network.

Answers to EndTxn are lost on purpose, so that the request is repeated; and a second copy of an EndTxn may arrive long
after the first was answered. Such a late copy is sent for transactions of version 2 only: version 1 has no defence
against it, since the next transaction has the same epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.connections import OnDone
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.clientcore.producing.producer_errors import AbortableTransactionError
from kalda.clientcore.producing.transaction_manager import TransactionManager
from kalda.protocol.messages.transactions import EndTxnRequest
from kalda.protocol.notation import Request
from kalda.sim.client import SimClient
from kalda.sim.client_io import SimProducer

_GIVE_UP_S = 12.0
"""How long a call is retried, in virtual time."""
_LOST_ANSWERS = 0.1
_DOUBLED_REQUESTS = 0.15
_DOUBLED_AFTER_S = (0.0, 3.0)
FEATURE = "transaction.version"

Sent = list[asyncio.Future[RecordMetadata]]


class SimTransactions:
    """A producer of one transactional id. The calls raise what the producer's raise, and REQUEST_TIMED_OUT."""

    def __init__(self, client: SimClient, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        self._rng = client.world.rng(f"{client.name}'s answers")
        self._producer = SimProducer(
            client,
            {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "delivery.timeout.ms": int(_GIVE_UP_S * 1000),
                "max.block.ms": int(_GIVE_UP_S * 1000),
                "linger.ms": client.rng.choice((0, 5)),
                "batch.size": client.rng.choice((100, 16_384)),
            },
            self._tap,
        )
        self._late: set[asyncio.Task[Any]] = set()
        """Doubled requests on their way."""
        self._keeps_end = False
        """The next EndTxn is not sent by the producer: a copy of it is, some time later."""
        self._end_was_kept: asyncio.Future[None] | None = None

    async def init(self) -> None:
        """Get a producer id. Raises `ApiError`."""
        await self._timed(self._producer.init_transactions())

    async def begin(self) -> None:
        """Begin a transaction. Raises `ApiError`."""
        await self._producer.begin_transaction()

    async def send(self, records: Mapping[TopicPartition, list[str]]) -> dict[TopicPartition, Sent]:
        """Send records, without waiting for their outcomes."""
        return {
            partition: [
                await self._producer.send(partition.topic, value.encode(), partition=partition.partition)
                for value in values
            ]
            for partition, values in records.items()
        }

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: object) -> None:
        """Commit a group's offsets within the transaction. Raises `ApiError`."""
        await self._timed(self._producer.send_offsets_to_transaction(offsets, group))

    async def commit(self) -> None:
        """Raises `ApiError`; REQUEST_TIMED_OUT: it may be committed or not."""
        await self._timed(self._producer.commit_transaction())

    async def commit_without_answer(self) -> None:
        """Send the request to commit, some time later, and do nothing more. Raises `ApiError` where the transaction
        has to be aborted instead."""
        self._keeps_end, self._end_was_kept = True, asyncio.get_running_loop().create_future()
        committing = asyncio.ensure_future(self.commit())
        await asyncio.wait((committing, self._end_was_kept), return_when=asyncio.FIRST_COMPLETED)
        self._keeps_end = False
        if committing.done():
            committing.result()
        committing.cancel()

    async def abort(self) -> None:
        """Raises `ApiError`."""
        await self._timed(self._producer.abort_transaction())

    async def close(self) -> None:
        """End the producer; its last transaction is not ended."""
        await self._producer.close(0)

    @staticmethod
    async def _timed(call: Awaitable[None]) -> None:
        try:
            await call
        except TimeoutError as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None

    # EndTxn.

    def _tap(self, node_id: int, request: Request, on_done: OnDone) -> OnDone | None:
        if not isinstance(request, EndTxnRequest):
            return on_done
        if self._keeps_end:
            self._double(node_id, request)
            assert self._end_was_kept is not None
            if not self._end_was_kept.done():
                self._end_was_kept.set_result(None)
            return None
        if self._manager.is_v2 and self._rng.random() < _DOUBLED_REQUESTS:
            self._double(node_id, request)
        return self._losing(on_done) if self._rng.random() < _LOST_ANSWERS else on_done

    def _losing(self, on_done: OnDone) -> OnDone:
        def lost(_response: Any, _error: ApiError | None) -> None:
            self._client.world.trace(self._client.name, "loses the answer to an EndTxn")
            on_done(None, ApiError(ErrorCode.NETWORK_EXCEPTION, "the answer is lost"))

        return lost

    @property
    def _manager(self) -> TransactionManager:
        transactions = self._producer.core.transactions
        assert transactions is not None, "the producer has a transactional id"
        return transactions.manager

    def _double(self, node_id: int, request: EndTxnRequest) -> None:
        """Send a second copy of a request after a while."""
        after_s = self._rng.uniform(*_DOUBLED_AFTER_S)
        address = self._producer.core.metadata.brokers[node_id].address
        version = None if self._manager.is_v2 else _LAST_END_BEFORE_V2

        async def again() -> None:
            await asyncio.sleep(after_s)
            self._client.world.trace(self._client.name, "an EndTxn arrives a second time")
            try:
                await self._client.ask((address.host, address.port), request, version)
            except ApiError:
                return

        task = self._client.spawn(again())
        self._late.add(task)
        task.add_done_callback(self._late.discard)


_LAST_END_BEFORE_V2 = 4


async def until_answered(end: Callable[[], Awaitable[None]]) -> None:
    """Await `end()`, again where it had no answer in time. Raises `ApiError`."""
    for attempt in range(3):
        try:
            await end()
        except AbortableTransactionError:
            raise
        except ApiError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT or attempt == 2:
                raise
        else:
            return
