"""A producer of transactions in the simulator: the client's own `TransactionManager` over a `SimClient`.

Answers to EndTxn are lost on purpose, so that the request is repeated; and a second copy of an EndTxn may arrive long
after the first was answered. Such a late copy is sent for transactions of version 2 only: version 1 has no defence
against it, since the next transaction has the same epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.transaction_errors import AbortableTransactionError
from kalda.client.core.transaction_manager import MAX_PRODUCE_BEFORE_V2, GroupMember, Outgoing, TransactionManager
from kalda.network.calls import api_versions_request
from kalda.protocol.messages.groups import FindCoordinatorRequest
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.messages.transactions import EndTxnRequest
from kalda.records.builder import build_batch
from kalda.sim.client import SimClient
from kalda.sim.machine import EPOCH_MS

_API_VERSIONS = 4
_PRODUCE_VERSION = 12
"""The last version with topic names; it adds partitions to transactions."""
_GIVE_UP_S = 12.0
"""How long a call is retried, in virtual time."""
_LOST_ANSWERS = 0.1
_DOUBLED_REQUESTS = 0.15
_DOUBLED_AFTER_S = (0.0, 3.0)
FEATURE = "transaction.version"


class SimTransactions:
    """A producer of one transactional id. The calls are those of `TransactionalProducer`, and raise the same."""

    def __init__(self, client: SimClient, transactional_id: str, timeout_ms: int) -> None:
        self.manager = TransactionManager(transactional_id, timeout_ms)
        self._client = client
        self._rng = client.world.rng(f"{client.name}'s answers")
        self._addresses: dict[int, tuple[str, int]] = {}
        """Of coordinators, by node id."""
        self._late: set[asyncio.Task[Any]] = set()
        """Doubled requests on their way."""

    async def init(self) -> None:
        """Get a producer id. Raises `ApiError`."""
        await self._client.until(self._refresh_features, _GIVE_UP_S)
        self.manager.initialize()
        await self._complete()

    async def begin(self) -> None:
        """Begin a transaction, of the version that is finalized by now. Raises `ApiError`."""
        try:
            await self._refresh_features()
        except ApiError:
            self._client.world.trace(self._client.name, "gets no feature levels")
        self.manager.begin()

    async def write(self, records: Mapping[TopicPartition, list[str]]) -> dict[TopicPartition, int]:
        """Append one batch to each partition; their base offsets, -1 where one is not known. Raises `ApiError`."""
        for partition in records:
            self.manager.add_partition(partition)
        await self._complete()
        found = {}
        for partition, values in records.items():
            try:
                found[partition] = await self._write(partition, values)
            except ApiError as error:
                self.manager.on_batch_failed(error.code, f"{partition}: {error.message}")
                self.manager.check()
                raise
        return found

    async def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], member: GroupMember | None = None
    ) -> None:
        """Commit a group's offsets within the transaction. Raises `ApiError`."""
        self.manager.send_offsets(group_id, offsets, member)
        await self._complete()

    async def commit(self) -> None:
        """Raises `ApiError`; REQUEST_TIMED_OUT: it may be committed or not."""
        self.manager.begin_commit()
        await self._complete()

    def commit_without_answer(self) -> None:
        """Send the request to commit, some time later, and do nothing more. The commit was not begun before."""
        self.manager.begin_commit()
        outgoing = self.manager.next_request(self._now_ms())
        if outgoing is not None and outgoing.node_id is not None:
            self._double(self._addresses[outgoing.node_id], outgoing)

    async def abort(self) -> None:
        """Raises `ApiError`."""
        self.manager.begin_abort()
        await self._complete()

    async def _write(self, partition: TopicPartition, values: list[str]) -> int:
        client, stamp = self._client, self.manager.number(partition, len(values))
        now_ms = EPOCH_MS + int(client.world.now_s * 1000)
        batch = build_batch(
            [(now_ms, None, value.encode(), ()) for value in values], is_transactional=True, **stamp._asdict()
        )
        data = PartitionProduceData(index=partition.partition, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self.manager.transactional_id,
            acks=-1,
            timeout_ms=client.timeout_ms,
            topic_data=[TopicProduceData(name=partition.topic, partition_data=[data])],
        )
        version = _PRODUCE_VERSION if self.manager.is_v2 else MAX_PRODUCE_BEFORE_V2

        async def attempt() -> int:
            answer = await client.ask_leader(partition, request, version)
            result = answer.responses[0].partition_responses[0]
            if result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return -1
            if result.error_code:
                raise ApiError(ErrorCode(result.error_code), result.error_message or "")
            offset: int = result.base_offset
            return offset

        written: int = await client.until(attempt, _GIVE_UP_S)
        return written

    async def _complete(self) -> None:
        world, until_s = self._client.world, self._client.world.now_s + _GIVE_UP_S
        while not self.manager.is_idle:
            outgoing = self.manager.next_request(self._now_ms())
            if outgoing is not None:
                await self._send(outgoing)
            elif not self.manager.is_idle:
                await asyncio.sleep(max(1, self.manager.retry_at_ms - self._now_ms()) / 1000)
            if world.now_s > until_s and not self.manager.is_idle:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"still {self.manager.state.value}")
        self.manager.check()

    async def _send(self, outgoing: Outgoing) -> None:
        client, manager = self._client, self.manager
        is_end = isinstance(outgoing.request, EndTxnRequest)
        try:
            if outgoing.node_id is None:
                response = await client.ask_any(outgoing.request, outgoing.max_version)
            else:
                address = self._addresses[outgoing.node_id]
                if is_end and manager.is_v2 and self._rng.random() < _DOUBLED_REQUESTS:
                    self._double(address, outgoing)
                response = await client.ask(address, outgoing.request, outgoing.max_version)
            if is_end and self._rng.random() < _LOST_ANSWERS:
                client.world.trace(client.name, "loses the answer to an EndTxn")
                raise ApiError(ErrorCode.NETWORK_EXCEPTION, "the answer is lost")
        except ApiError as error:
            manager.on_failure(error.code, error.message, self._now_ms())
            return
        if isinstance(outgoing.request, FindCoordinatorRequest) and not response.error_code:
            self._addresses[response.node_id] = (response.host, response.port)
        manager.on_response(response, self._now_ms())

    def _double(self, address: tuple[str, int], outgoing: Outgoing) -> None:
        """Send a second copy of a request after a while."""
        after_s = self._rng.uniform(*_DOUBLED_AFTER_S)

        async def again() -> None:
            await asyncio.sleep(after_s)
            self._client.world.trace(self._client.name, "an EndTxn arrives a second time")
            try:
                await self._client.ask(address, outgoing.request, outgoing.max_version)
            except ApiError:
                return

        task = self._client.spawn(again())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _refresh_features(self) -> None:
        answer = await self._client.ask_any(api_versions_request("simulated"), _API_VERSIONS)
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        self.manager.on_features(answer.finalized_features_epoch, levels.get(FEATURE, 0))

    def _now_ms(self) -> int:
        return int(self._client.world.now_s * 1000)


async def until_answered(end: Any) -> None:
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
