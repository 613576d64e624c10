"""One broker's replicas over a simulated disk, in virtual time: requests in, answers now or later.

`World` leads its partitions (or follows, where a test says so), runs jobs at once or holds them, and moves the clock.
"""

from __future__ import annotations

import random
from typing import Any, TypeVar

from by_hand import HandJobs, HandTime

from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.base.scheduling import Pending
from kalda.base.sensors import Sensors
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
    FetchResponsePartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kalda.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch
from kalda.replication import produce
from kalda.replication.fetch import Fetch
from kalda.replication.fetch_session import FetchSessionCache
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.verification import TransactionVerifier
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log

T = TypeVar("T")
SELF = 1


class Assigned:
    """The metadata of one partition."""

    def __init__(self, leader: int, epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> None:
        self.leader, self.leader_epoch, self.partition_epoch = leader, epoch, epoch
        self.replicas, self.isr = replicas, isr
        self.adding_replicas: tuple[int, ...] = ()


class World(HandTime, HandJobs):
    """Time, disk, jobs, partitions, sessions."""

    def __init__(self, slots: int = 1000) -> None:
        HandTime.__init__(self, 1_700_000_000_000)
        HandJobs.__init__(self)
        self.disk = SimDisk(random.Random(1), now_ms=lambda: self.now_ms)
        self.sensors = Sensors()
        self.replicas = ReplicaManager(
            SELF,
            self,
            self,
            self.background(),
            57_671_680,
            lambda name, topic_id, _: name in self.elsewhere,
            sensors=self.sensors,
        )
        self.coordinator: int | None = 9
        """The broker that coordinates all transactions."""
        self.asked: list[tuple[int, AddPartitionsToTxnRequest, Pending[AddPartitionsToTxnResponse]]] = []
        """What was sent to it, with the answers that the test gives."""
        self.verifier = TransactionVerifier(
            SELF, lambda _: self.coordinator, self._ask, lambda: self.now_ms, self.sensors
        )
        self.sessions = FetchSessionCache(slots, random.Random(2).randint)
        self.elsewhere: set[str] = set()
        self.ids: dict[Uuid, str] = {}
        self.verifies = False
        """Whether logs that are opened from now on take only verified transactions."""

    def _ask(self, broker_id: int, request: AddPartitionsToTxnRequest) -> Pending[AddPartitionsToTxnResponse]:
        self.asked.append((broker_id, request, Pending()))
        return self.asked[-1][2]

    # -- partitions

    def assign(self, topic: str, index: int = 0, assigned: Assigned | None = None, **config: str) -> Partition:
        topic_id = Uuid(topic.encode().ljust(16, b"\1"))
        self.ids[topic_id] = topic
        at = TopicPartition(topic, index)
        self.replicas.apply(
            at,
            topic_id,
            assigned or Assigned(SELF, 0, (SELF,), (SELF,)),
            lambda: Log.open(
                Unopened(
                    self.disk,
                    f"/data/{topic}-{index}",
                    LogConfig.from_dict({key.replace("_", "."): value for key, value in config.items()}),
                    topic_partition=at,
                    topic_id=topic_id,
                    now_ms=self.now_ms,
                    clean=True,
                    verify_transactions=self.verifies,
                )
            ),
        )
        partition = self.replicas.find(topic, index)
        assert partition is not None
        return partition

    # -- requests

    def produce(
        self, topic: str, count: int = 1, *, index: int = 0, acks: int = -1, timeout_ms: int = 1000, size: int = 10
    ) -> PartitionProduceResponse | Pending[ProduceResponse]:
        """Produce one batch of `count` records: the partition's answer, or one that is pending."""
        batch = build_batch([(self.now_ms, b"k", b"v" * size, ()) for _ in range(count)])
        data = [PartitionProduceData(index=index, records=batch)]
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(partition_data=data)])
        answer = produce.run(self.replicas, request, [topic], self.now_ms).finish(timeout_ms)
        return answer if isinstance(answer, Pending) else answer.responses[0].partition_responses[0]

    def fetch(
        self,
        *wanted: tuple[str, int, int],
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        max_bytes: int = 1 << 20,
        partition_bytes: int = 1 << 20,
        session: tuple[int, int] = (0, -1),
        forget: tuple[tuple[str, int], ...] = (),
        **fields: Any,
    ) -> FetchResponse | Pending[FetchResponse]:
        """A fetch of `(topic, partition, offset)`s, by names. `session` is (id, epoch)."""
        request = FetchRequest(
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            session_id=session[0],
            session_epoch=session[1],
            topics=[
                FetchRequestFetchTopic(
                    topic=topic,
                    topic_id=ZERO_UUID,
                    partitions=[
                        FetchRequestFetchPartition(
                            partition=index, fetch_offset=offset, partition_max_bytes=partition_bytes
                        )
                    ],
                )
                for topic, index, offset in wanted
            ],
            forgotten_topics_data=[
                FetchRequestForgottenTopic(topic=topic, partitions=[index]) for topic, index in forget
            ],
            **fields,
        )
        context = self.sessions.context(request, False, self.ids.get, self.now_ms)
        answer = Fetch(self.replicas, request, context).run()
        return answer if isinstance(answer, FetchResponse | Pending) else self.replicas.background.run(answer)


def offsets(answer: FetchResponsePartitionData) -> list[int]:
    """The base offsets of the batches in an answer."""
    data = answer.records
    joined = b"".join(bytes(each) for each in data) if isinstance(data, list) else bytes(data or b"")
    return [header.base_offset for _, header in iter_batches(joined)]


def answers_of(response: FetchResponse | Pending[FetchResponse]) -> dict[tuple[str, int], FetchResponsePartitionData]:
    """The answers of a response by topic and partition, in its order."""
    if isinstance(response, Pending):
        assert response.done, "the fetch waits"
        assert response.value is not None, response.error
        response = response.value
    return {
        (topic.topic, partition.partition_index): partition
        for topic in response.responses
        for partition in topic.partitions
    }
