"""Topics that are deleted and created again under their names, below Kalda's own clients.

Producers write to them, and an assigned consumer, the members of a classic, a consumer and a share group read them; the
two groups of consumers subscribe by a pattern, and commit by themselves. A record may be lost with its topic, and
sending one may fail. But no client may fail for good: when all faults have ended and the topics stay, every partition
takes a last record, the consumers have read every record of the topics that there are then (they begin at the beginning
of a topic that was created again, whatever was committed for the former one), and the share group the last ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from random import Random

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.consumer import SubscriptionPattern
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kalda.records.builder import Record
from kalda.sim.admin import Operator
from kalda.sim.client import SimClient, SimConsumer, SimProducer, SimShareConsumer
from kalda.sim.groups import HEARTBEAT_MS, SESSION_MS

TOPICS = ("recreated-0", "recreated-1")
PARTITIONS = [TopicPartition(topic, index) for topic in TOPICS for index in range(2)]
SHARE_GROUP = "recreated-share"
_PATTERN = "recreated-.*"
_TIMEOUT_MS = 3_000
_POLL_S = 0.5
_CLOSE_S = 5.0


class Recreator(Operator):
    """Deletes each topic and creates it again, by turns; at the end all of them exist."""

    def __init__(self, client: SimClient, replicas: int, configs: dict[str, str]) -> None:
        self._replicas = replicas
        self._configs = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        super().__init__(client, 2.5)

    async def finish(self) -> None:
        await super().finish()
        await self._client.spawn(self._create_all())

    async def _create_all(self) -> None:
        for name in TOPICS:
            await self._create(name)

    async def _act(self) -> None:
        name = self._rng.choice(TOPICS)
        try:
            await self._client.refresh()
        except ApiError:
            return
        topic = self._client.metadata.topics.get(name)
        if topic is None or topic.error_code:
            await self._create(name)
            return
        # By its id: a request whose answer is lost must not delete a later topic of this name.
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic.topic_id)], timeout_ms=_TIMEOUT_MS)
        await self._repeat_until_done(request, 6, lambda a: a.responses[0].error_code, ErrorCode.UNKNOWN_TOPIC_ID)
        self._client.world.trace(self._client.name, f"deleted {name}")
        await asyncio.sleep(self._rng.choice((0, 0.3, 2)))
        await self._create(name)

    async def _create(self, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=2, replication_factor=self._replicas, configs=self._configs)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        await self._repeat_until_done(request, 7, lambda a: a.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS)
        self._client.world.trace(self._client.name, f"created {name}")


class RecreatedWriter:
    """Writes to all partitions until `finish`, and then a last record to each."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        rng = client.rng
        self._producer = SimProducer(
            client,
            {
                "enable.idempotence": rng.random() < 0.8,
                "max.in.flight.requests.per.connection": rng.choice((1, 5)),
                "linger.ms": rng.choice((0, 20)),
                "batch.size": rng.choice((100, 1_200)),
                "delivery.timeout.ms": 6_000,
                "max.block.ms": 4_000,
                "metadata.max.age.ms": rng.choice((2_000, 300_000)),
            },
        )
        self._count = 0
        self._finishing = False
        self.last: set[bytes] = set()
        """The last records, once they are acknowledged."""
        self._task = client.spawn(self._run())

    async def finish(self) -> None:
        """Write a last record to each partition, with as many attempts as it takes."""
        self._finishing = True
        await self._task
        await self._client.spawn(self._finish())

    async def _finish(self) -> None:
        for partition in PARTITIONS:
            while (value := await self._send(partition)) is None:
                await self._client.pause()
            self.last.add(value)
        await self._producer.close()

    async def _run(self) -> None:
        rng = self._client.rng
        while not self._finishing:
            partition = rng.choice(PARTITIONS)
            await asyncio.gather(*(self._send(partition) for _ in range(rng.randint(1, 6))))
            await asyncio.sleep(rng.choice((0, 0.1, 0.4)))

    async def _send(self, partition: TopicPartition) -> bytes | None:
        """One record; returns its value where it was acknowledged."""
        client, self._count = self._client, self._count + 1
        value = f"{client.name}:{partition}:{self._count}".encode()
        try:
            await (await self._producer.send(partition.topic, value, partition=partition.partition))
        except ApiError as error:
            client.world.trace(client.name, f"record {self._count} of {partition} fails: {error}")
            return None
        return value


class RecreatedReader:
    """What one consumer, or the members of one group, have read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.read: set[bytes] = set()
        self.is_share = name == SHARE_GROUP
        self.done = False
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, client: SimClient) -> None:
        """Start one more member."""
        self._tasks.append(client.spawn(self._run(client)))

    async def finish(self) -> None:
        self.done = True
        await asyncio.gather(*self._tasks)

    async def _run(self, client: SimClient) -> None:
        while not self.done:
            await self._read(client, self._consumer(client))

    def _consumer(self, client: SimClient) -> SimConsumer | SimShareConsumer:
        rng = client.rng
        age = {"metadata.max.age.ms": rng.choice((500, 3_000))}
        if self.is_share:
            share = SimShareConsumer(client, {"group.id": self.name, **age})
            share.subscribe(TOPICS)
            return share
        config = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 300, **age}
        if self.name == "recreated-assigned":
            consumer = SimConsumer(client, config)
            consumer.assign(PARTITIONS)
            return consumer
        config |= {"group.id": self.name, "enable.auto.commit": True, "auto.commit.interval.ms": 300}
        if self.name == "recreated-consumer":
            consumer = SimConsumer(client, config | {"group.protocol": "consumer"})
            consumer.subscribe(SubscriptionPattern(_PATTERN))
            return consumer
        times = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        strategy = {"partition.assignment.strategy": "cooperative-sticky"}
        consumer = SimConsumer(client, config | times | strategy)
        consumer.subscribe(re.compile(_PATTERN))
        return consumer

    async def _read(self, client: SimClient, consumer: SimConsumer | SimShareConsumer) -> None:
        """Read until a random time; the assigned consumer, which has nothing committed, until the end."""
        world, rng = client.world, client.rng
        until_s = world.now_s + (1e9 if self.name == "recreated-assigned" else rng.choice((2, 6, 60)) * rng.random())
        while not self.done and world.now_s < until_s:
            try:
                self.read.update(record.value or b"" for record in await consumer.poll(_POLL_S))
            except ApiError as error:
                if not error.code.retriable:
                    world.violated(f"{client.name} cannot read: {error!r}")
                world.trace(client.name, f"cannot read: {error}")
                await client.pause()
        with contextlib.suppress(ApiError):
            await consumer.close(timeout=_CLOSE_S)


class RecreatedTopics:
    """The load: its operator, its writers and its readers."""

    def __init__(self, client: Callable[[str], SimClient], rng: Random, replicas: int, configs: dict[str, str]) -> None:
        self.operator = Recreator(client("recreator"), replicas, configs)
        self._writers = [RecreatedWriter(client(f"recreated-writer-{number}")) for number in range(rng.randint(1, 2))]
        self._readers = [RecreatedReader(f"recreated-{kind}") for kind in ("assigned", "classic", "consumer", "share")]
        for reader in self._readers:
            for number in range(1 if reader.name == "recreated-assigned" else 2):
                reader.add(client(f"{reader.name}.{number}"))

    async def finish_writing(self) -> None:
        await asyncio.gather(*(writer.finish() for writer in self._writers))

    def missing(self, written_to: Callable[[str], list[Record]]) -> str:
        """Which records were not read, of those that there are by topic; empty where all were."""
        written = {record.value or b"" for topic in TOPICS for record in written_to(topic)}
        last = {value for writer in self._writers for value in writer.last}
        if lost := last - written:
            return f"the logs have {sorted(lost)[:3]}"
        return "; ".join(
            f"{reader.name} has read {sorted(unread)[:3]}"
            for reader in self._readers
            if (unread := (last if reader.is_share else written) - reader.read)
        )

    async def finish(self) -> None:
        await asyncio.gather(*(reader.finish() for reader in self._readers))
