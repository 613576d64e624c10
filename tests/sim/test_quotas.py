"""Whole nodes with quotas, in virtual time: rates converge, nobody starves, and no connection stays muted.

Each safeguard has an ablation: without it the same world shows the harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.broker.handlers.data import DataHandlers
from kalda.network.server.connection import Connection
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.quota.client_quotas import ClientQuotas
from kalda.records.builder import build_batch
from kalda.sim.client import SimClient
from kalda.sim.cluster import SimCluster
from kalda.sim.machine import EPOCH_MS
from kalda.sim.workload import Administrator
from kalda.sim.world import World

RATE = 100_000.0
PARTITION = TopicPartition("t", 0)
SETTLED_S, MEASURED_S = 22, 33
"""The first bursts of a new client, and three times the windows of its quota."""
BATCH = build_batch([(EPOCH_MS, None, bytes(20_000), ())])


def produce(size: int | None = None) -> ProduceRequest:
    batch = BATCH if size is None else build_batch([(EPOCH_MS, None, bytes(size), ())])
    data = [PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(acks=1, timeout_ms=3_000, topic_data=[TopicProduceData(name="t", partition_data=data)])


class Quotas:
    """One node whose clients have quotas."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world, 1)
        self.admin = SimClient(world, "admin", self.cluster.bootstrap)
        self.produced: dict[str, list[tuple[float, int]]] = {}
        """By client: times and sizes of the batches that were acknowledged."""
        self.longest_s = 0.0
        """The longest wait of the client without a quota."""

    async def start(self) -> None:
        await self.cluster.start()
        await self.admin.spawn(Administrator(self.admin, 1, churning=False).create("t", 1, keep=True))

    async def limit(self, client_id: str, key: str, value: float) -> None:
        entity = [AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=client_id)]
        entry = AlterClientQuotasRequestEntryData(entity=entity, ops=[OpData(key=key, value=value)])
        await self.admin.spawn(self.admin.ask_any(AlterClientQuotasRequest(entries=[entry])))

    def client(self, name: str) -> SimClient:
        made = SimClient(self.world, name, self.cluster.bootstrap)
        made.timeout_ms = 60_000
        return made

    async def greedy(self, client: SimClient) -> None:
        """Send as much as the node takes, without a pause, four requests at a time."""
        sent = self.produced.setdefault(client.name, [])
        while True:
            try:
                leader = await client.find_leader(PARTITION)
            except ApiError:
                await client.pause()
                continue
            requests = [client.ask(leader, produce(), 9) for _ in range(4)]
            for outcome in await asyncio.gather(*requests, return_exceptions=True):
                if isinstance(outcome, ApiError):
                    client.forget_leaders()
                else:
                    sent.append((self.world.now_s, len(BATCH)))
            await asyncio.sleep(0.01)  # for tests without the safeguard, in which nothing else limits it

    async def modest(self, client: SimClient) -> None:
        """One small request after another, ten a second."""
        while True:
            began = self.world.now_s
            await client.until(lambda: client.ask_leader(PARTITION, produce(10), 9))
            self.longest_s = max(self.longest_s, self.world.now_s - began)
            await asyncio.sleep(0.1)

    def rate(self, *names: str) -> float:
        """Bytes a second of these clients, after the first bursts."""
        sizes = [size for name in names for at, size in self.produced[name] if SETTLED_S <= at < SETTLED_S + MEASURED_S]
        return sum(sizes) / MEASURED_S

    @property
    def connections(self) -> list[Connection]:
        node = self.cluster.nodes[1].node
        assert node is not None
        return list(node.running.listeners.server.connections.values())


def run(scenario: Callable[[Quotas], Any], seed: str = "quotas") -> None:
    with World(seed) as world:
        world.run(scenario(Quotas(world)), 200)


async def two_greedy_clients(quotas: Quotas, breaks: bool = False) -> None:
    """Two connections of one client id, and a client without a quota, until the measurement is over."""
    await quotas.start()
    await quotas.limit("greedy", "producer_byte_rate", RATE)
    one, other, modest = quotas.client("greedy"), quotas.client("other"), quotas.client("modest")
    tasks = [one.spawn(quotas.greedy(one)), other.spawn(quotas.modest(other)), modest.spawn(quotas.modest(modest))]
    while quotas.world.now_s < SETTLED_S + MEASURED_S:
        await asyncio.sleep(1)
        if breaks:
            for connection in quotas.connections:
                if connection._unmuting is not None and quotas.world.rng(str(quotas.world.now_s)).random() < 0.2:
                    connection.abort()
    for task in tasks:
        task.cancel()


def test_a_client_that_ignores_its_pauses_gets_its_rate_and_starves_nobody() -> None:
    async def scenario(quotas: Quotas) -> None:
        await two_greedy_clients(quotas)
        assert quotas.rate("greedy") == pytest.approx(RATE, rel=0.05)
        assert quotas.longest_s < 0.5

    run(scenario)


def test_no_connection_stays_muted_whatever_happens_to_it() -> None:
    async def scenario(quotas: Quotas) -> None:
        await two_greedy_clients(quotas, breaks=True)
        await asyncio.sleep(70)
        assert [each for each in quotas.connections if each._unmuting is not None] == []
        assert quotas.longest_s < 0.5

    run(scenario)


def test_a_throttled_consumer_reads_everything_at_its_rate() -> None:
    async def scenario(quotas: Quotas) -> None:
        await quotas.start()
        await fill(quotas, 200)
        assert await read_rate(quotas, 200) == pytest.approx(RATE, rel=0.25), "the first windows may be used at once"

    run(scenario)


async def fill(quotas: Quotas, count: int) -> None:
    writer = quotas.client("writer")

    async def write() -> None:
        for _ in range(count):
            await writer.until(lambda: writer.ask_leader(PARTITION, produce(), 9))

    await writer.spawn(write())


async def read_rate(quotas: Quotas, count: int) -> float:
    """A consumer with a session and a quota reads every record once. Returns the bytes a second."""
    await quotas.limit("reader", "consumer_byte_rate", RATE)
    await asyncio.sleep(1)
    reader, world = quotas.client("reader"), quotas.world

    async def read() -> float:
        offset = session = epoch = seen = 0
        began = world.now_s
        is_new = True
        while offset < count and world.now_s < began + 150:
            asked = [FetchRequestFetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=100_000)]
            topics = [FetchRequestFetchTopic(topic="t", partitions=asked)] if is_new else []
            request = FetchRequest(
                max_bytes=100_000, max_wait_ms=100, session_id=session, session_epoch=epoch, topics=topics
            )
            response: FetchResponse = await reader.ask_leader(PARTITION, request, 11)
            if not response.session_id:
                session, epoch, is_new = 0, 0, True
                continue
            session, epoch, is_new = response.session_id, epoch + 1, False
            for topic in response.responses:
                records = bytes(topic.partitions[0].records or b"")
                seen += len(records)
                offset += len(records) // len(BATCH)
                is_new = bool(records)
        return seen / (world.now_s - began)

    return await reader.spawn(read())


# -- ablations


def test_without_mutes_a_client_that_ignores_its_pauses_exceeds_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "mute", lambda self, duration_ms: None)

    async def scenario(quotas: Quotas) -> None:
        await quotas.start()
        await quotas.limit("greedy", "producer_byte_rate", RATE)
        client = quotas.client("greedy")
        task = client.spawn(quotas.greedy(client))
        await asyncio.sleep(5)
        task.cancel()
        assert sum(size for _, size in quotas.produced["greedy"]) > 2 * 10 * RATE, "twice what all windows allow"

    run(scenario)


def test_without_taking_back_throttled_bytes_a_consumer_stays_below_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientQuotas, "record_unthrottled", lambda *_: None)

    async def scenario(quotas: Quotas) -> None:
        await quotas.start()
        await fill(quotas, 200)
        assert await read_rate(quotas, 200) < 0.75 * RATE

    run(scenario)


def test_without_retraction_a_consumer_gets_a_session_whose_partitions_it_was_never_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients refuse such an answer, and begin anew for ever."""

    def throttled(self: DataHandlers, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        return FetchResponse(session_id=response.session_id)

    def first_answer(quotas: Quotas) -> Any:
        reader = quotas.client(f"reader-{quotas.world.now_s}")
        asked = [FetchRequestFetchPartition(partition=0, partition_max_bytes=100_000)]
        topics = [FetchRequestFetchTopic(topic="t", partitions=asked)]
        request = FetchRequest(max_bytes=100_000, max_wait_ms=100, session_epoch=0, topics=topics)
        return reader.spawn(reader.ask_leader(PARTITION, request, 11))

    async def scenario(quotas: Quotas) -> None:
        await quotas.start()
        await fill(quotas, 10)
        entity = [AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=None)]
        entry = AlterClientQuotasRequestEntryData(entity=entity, ops=[OpData(key="consumer_byte_rate", value=1_000.0)])
        await quotas.admin.spawn(quotas.admin.ask_any(AlterClientQuotasRequest(entries=[entry])))
        await asyncio.sleep(1)
        kept = await first_answer(quotas)
        assert (kept.throttle_time_ms > 0, kept.session_id, kept.responses) == (True, 0, [])
        monkeypatch.setattr(DataHandlers, "throttled_fetch", throttled)
        quotas.cluster.nodes[1].kill()
        quotas.cluster.nodes[1].start()
        await quotas.cluster.wait(lambda: quotas.cluster.nodes[1].serving, "it serves", 60)
        ablated = await first_answer(quotas)
        assert (ablated.throttle_time_ms > 0, ablated.session_id > 0, ablated.responses) == (True, True, [])

    run(scenario)
