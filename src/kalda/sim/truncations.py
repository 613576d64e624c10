"""Unclean elections under consumers: each truncation is raised before a record in the place of a lost one is returned.

The followers of a leader are cut off from it until it is alone in sync, and records are written and read. Then it loses
power, and another replica is elected uncleanly, without those records. New ones are written at their offsets. A
consumer without a reset policy gets `LogTruncated` with the end of what both logs have in common (KIP-320), and forgets
what it has read from there on. In the end, what it holds must be the log: else it had gone on behind a truncation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import count

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.admin.topics import NewTopic
from kalda.client.core.consumer_errors import LogTruncated
from kalda.metadata.partition import PartitionRegistration
from kalda.sim.client import SimClient
from kalda.sim.client_io import SimAdmin, SimConsumer, SimProducer
from kalda.sim.cluster import PORT, SimCluster
from kalda.sim.network import Address
from kalda.sim.world import World

_LIMIT_S = 300.0
_WAIT_S = 60.0
_ROUNDS = 2
_PARTITION = TopicPartition("loose", 0)
_LAST = b"last"


class _Writer:
    """Writes with acks=1; what fails is not repeated."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._numbers = count()
        self.acked = 0
        self._producer = SimProducer(client, {"acks": "1", "enable.idempotence": False, "linger.ms": 0})
        self.task = client.spawn(self._run())

    async def _run(self) -> None:
        while True:
            delivery = await self._producer.send(_PARTITION.topic, b"%d" % next(self._numbers), partition=0)
            with contextlib.suppress(ApiError):
                await delivery
                self.acked += 1
            await asyncio.sleep(self._client.rng.uniform(0, 0.1))


class _Reader:
    """Reads from the beginning on, and holds what no truncation has taken back."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self.held: dict[int, bytes] = {}
        self.truncations = 0
        self._consumer = SimConsumer(
            client, {"auto.offset.reset": "none", "fetch.max.wait.ms": 200, "metadata.max.age.ms": 1_000}
        )
        self.task = client.spawn(self._run())

    @property
    def end(self) -> int:
        return max(self.held, default=-1) + 1

    async def _run(self) -> None:
        consumer = self._consumer
        consumer.assign([_PARTITION])
        consumer.seek(_PARTITION, 0)
        while True:
            try:
                records = await consumer.poll(1.0)
            except LogTruncated as error:
                self.truncations += 1
                self._go_back(error.divergent.get(_PARTITION, 0))
                continue
            except ApiError as error:
                self._client.world.violated(f"{self._client.name} cannot read: {error!r}")
                return
            self.held.update((record.offset, record.value or b"") for record in records)

    def _go_back(self, end: int) -> None:
        self._client.world.trace(self._client.name, f"goes back from {self.end} to {end}")
        self.held = {offset: value for offset, value in self.held.items() if offset < end}
        self._consumer.seek(_PARTITION, end)


class _Run:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng("truncations")
        self.cluster = SimCluster(world, 3, {"min.insync.replicas": "1"})

    async def main(self) -> None:
        cluster = self.cluster
        await cluster.start()
        admin = SimClient(self.world, "admin", cluster.bootstrap)
        await admin.spawn(self._create(admin))
        writer = _Writer(SimClient(self.world, "writer", cluster.bootstrap))
        reader = _Reader(SimClient(self.world, "reader", cluster.bootstrap))
        await cluster.wait(lambda: reader.end > 5, "records are read", _WAIT_S)
        for _ in range(_ROUNDS):
            await self._lose_records(writer, reader)
        writer.task.cancel()
        await self._wait(lambda found: len(found.isr) == 3, "all replicas are in sync")
        judge = SimClient(self.world, "judge", cluster.bootstrap)
        await judge.spawn(_write_last(judge))
        await cluster.wait(lambda: _LAST in reader.held.values(), "the reader gets the last record", _WAIT_S)
        reader.task.cancel()
        log: dict[int, bytes] = await judge.spawn(_read_all(judge))
        for offset in sorted({*log, *reader.held}):
            if log.get(offset) != reader.held.get(offset):
                self.world.violated(
                    f"the reader holds {reader.held.get(offset)!r} at {offset}, where {log.get(offset)!r} is"
                )
                return

    async def _create(self, admin: SimClient) -> None:
        configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        client = SimAdmin(admin)
        (await client.create_topics([NewTopic(_PARTITION.topic, 1, 3, configs=configs)])).check()
        await client.close()

    def _registration(self) -> PartitionRegistration | None:
        image = self.cluster.image()
        topic = None if image is None else image.topics.by_name.get(_PARTITION.topic)
        return None if topic is None else topic.partitions[0]

    async def _wait(self, holds: Callable[[PartitionRegistration], bool], what: str) -> None:
        def check() -> bool:
            found = self._registration()
            return found is not None and holds(found)

        await self.cluster.wait(check, what, _WAIT_S)

    async def _lose_records(self, writer: _Writer, reader: _Reader) -> None:
        await self._wait(lambda found: len(found.isr) == 3, "all replicas are in sync")
        found = self._registration()
        assert found is not None
        leader, blocked = self.cluster.nodes[found.leader], self.world.network.blocked
        others = {(node.name, Address(leader.name, PORT)) for node in self.cluster if node is not leader}
        blocked |= others
        await self._wait(lambda found: set(found.isr) == {leader.id}, "the leader is alone in sync")
        acked, read = writer.acked, reader.end
        await self.cluster.wait(lambda: writer.acked > acked + 20 and reader.end > read + 20, "records", _WAIT_S)
        leader.lose_power()
        blocked -= others
        await self._wait(lambda found: found.leader not in (leader.id, -1), "another replica is elected")
        acked = writer.acked
        await self.cluster.wait(lambda: writer.acked > acked + self.rng.choice((1, 30)), "new records", _WAIT_S)
        leader.start()


async def _write_last(client: SimClient) -> None:
    producer = SimProducer(client, {})
    await (await producer.send(_PARTITION.topic, _LAST, partition=0))
    await producer.close()


async def _read_all(client: SimClient) -> dict[int, bytes]:
    consumer = SimConsumer(client, {"auto.offset.reset": "none"})
    consumer.assign([_PARTITION])
    consumer.seek(_PARTITION, 0)
    log: dict[int, bytes] = {}
    while _LAST not in log.values():
        log.update((record.offset, record.value or b"") for record in await consumer.poll(1.0))
    await consumer.close()
    return log


def truncate_under_consumers(seed: int) -> None:
    """Run one seed. Raises `Violation`."""
    with World(seed) as world:
        run = _Run(world)
        main = run.main()
        try:
            world.run(main, _LIMIT_S)
        finally:
            with contextlib.suppress(RuntimeError):
                main.close()
