"""Brokers that hold one partition, in virtual time: real logs on simulated disks, real fetchers, a controller of ten
lines. Every request and answer is encoded and decoded, and takes a millisecond each way.

`World.lines` is a transcript of the brokers' ISR proposals and of the controller's decisions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from by_hand import HandJobs, HandTime, HandTimer

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Pending
from kalda.base.sensors import Sensors
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kalda.records.builder import build_batch, read_records
from kalda.replication.controller_requests import AlterPartitionQueue
from kalda.replication.fetch import Fetch
from kalda.replication.fetch_session import FetchSessionCache
from kalda.replication.followers import IsrOutcome, IsrProposal
from kalda.replication.partition import Partition
from kalda.replication.replica_fetcher import FetcherConfig, ReplicaFetcher, ReplicaFetchers
from kalda.replication.replica_manager import ReplicaManager
from kalda.sim.disk import SimDisk
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import start_truncations
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log

TP = TopicPartition("t", 0)
TOPIC_ID = Uuid(bytes(15) + b"\x77")
LAG_MAX_MS = 1_000
REFUSED = ApiError(ErrorCode.NETWORK_EXCEPTION, "connection refused")


class Assignment(NamedTuple):
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()


class Broker:
    """One broker, from its start to its kill. Its disk outlives it."""

    def __init__(self, world: World, broker_id: int, epoch: int) -> None:
        self.world = world
        self.id = broker_id
        self.epoch = epoch
        self.lag_max_ms = LAG_MAX_MS
        self.up = True
        self.paused = False
        """It receives no metadata."""
        self.fenced = False
        self.sensors = Sensors()
        self.jobs = HandJobs()
        self.replicas = ReplicaManager(
            broker_id,
            world.time,
            self.jobs,
            world.time.background(),
            50_000_000,
            lambda *_: True,
            self,
            sensors=self.sensors,
        )
        self.fetchers = ReplicaFetchers(FetcherConfig(broker_id, "cluster"), lambda: self.epoch, self._started)
        self.replicas.following = self.fetchers
        self.sessions = FetchSessionCache(10, random.Random(broker_id).randint)
        self.isr_changes = AlterPartitionQueue(broker_id, lambda: self.epoch, self._send_to_controller, world.time)

    # -- `ReplicationPeers`

    def now_ms(self) -> int:
        return self.world.time.now_ms

    def eligible_epoch(self, broker_id: int) -> int | None:
        broker = self.world.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.epoch

    def propose(self, tp: TopicPartition, topic_id: Uuid, proposal: IsrProposal, answered: Any) -> None:
        self.world.say(f"{self.id} proposes {list(proposal.isr)}")

        def deliver(outcome: IsrOutcome) -> None:
            if self.up:
                answered(outcome)

        self.isr_changes.propose(topic_id, tp.partition, proposal, deliver)

    def _send_to_controller(self, request: AlterPartitionRequest) -> Pending[AlterPartitionResponse]:
        request = decode(AlterPartitionRequest, encode(request, 3), 3)
        pending: Pending[AlterPartitionResponse] = Pending()
        self.world.time.call_later_ms(self.world.controller_delay_ms, lambda: self.world.on_alter(request, pending))
        return pending

    # -- the partition

    @property
    def partition(self) -> Partition:
        return self.replicas.get(*TP)

    @property
    def log(self) -> Log:
        return self.partition.log

    @property
    def values(self) -> str:
        """The records' values, run together."""
        info = self.log.read(self.log.log_start_offset, 1_000_000, self.log.log_end_offset, True)
        data = memoryview(info.records)
        found, at = "", 0
        while at < len(data):
            found += "".join((record.value or b"").decode() for record in read_records(data, at))
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        return found

    def take(self, assignment: Assignment) -> None:
        self.replicas.apply(TP, TOPIC_ID, assignment, self._open)

    def _open(self) -> Log:
        disk = self.world.disks[self.id]
        config = LogConfig(min_insync_replicas=self.world.min_isr)
        return Log.open(
            Unopened(disk, "/t-0", config, topic_partition=TP, topic_id=TOPIC_ID, now_ms=self.now_ms(), clean=False)
        )

    def write(self, values: str, acks: int = 1) -> None:
        """Append one batch, a record a letter."""
        records = [(self.now_ms(), None, value.encode(), ()) for value in values]
        self.partition.append(build_batch(records), acks, self.now_ms())

    def kill(self) -> None:
        self.up = False
        self.isr_changes.close()
        self.log.close(clean=False)

    # -- fetching: what the asyncio shell does, in virtual time

    def _started(self, fetcher: ReplicaFetcher) -> None:
        busy = False
        timer: HandTimer | None = None

        def turn() -> None:
            nonlocal busy, timer
            if timer is not None:
                timer.cancel()
            if busy or not self.up:
                return
            request = fetcher.next_request(self.now_ms())
            if request is not None:
                busy = True
                self.world.send(self, fetcher.leader_id, request, done)
            elif (deadline := fetcher.deadline_ms(self.now_ms())) is not None:
                timer = self.world.time.call_later_ms(max(1, deadline - self.now_ms()), turn)

        def done(response: Any, error: ApiError | None) -> None:
            nonlocal busy
            busy = False
            if self.up:
                if error is not None:
                    fetcher.on_failure(error, self.now_ms())
                else:
                    fetcher.on_response(response, self.now_ms())
                turn()

        def wake() -> None:
            self.world.time.call_later_ms(0, turn)

        fetcher.wake = wake
        fetcher.start_truncations = partial(start_truncations, self.jobs)

    def answer(self, request: FetchRequest | ListOffsetsRequest) -> Any:
        """Answer as a leader."""
        if isinstance(request, ListOffsetsRequest):
            return self._offsets(request)
        try:
            context = self.sessions.context(request, True, lambda topic_id: "t", self.now_ms())
        except ApiError as error:
            return FetchResponse(error_code=error.code)
        return Fetch(self.replicas, request, context).run()

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked = request.topics[0].partitions[0]
        answer = ListOffsetsPartitionResponse(partition_index=0)
        try:
            self.partition.check_leader(asked.current_leader_epoch)
            answer.offset = self.log.log_end_offset if asked.timestamp == -1 else self.log.log_start_offset
        except ApiError as error:
            answer.error_code = error.code
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[answer])])


class World:
    """Brokers 1 to `size`, led by 1 at first."""

    def __init__(self, size: int = 3, min_isr: int = 1) -> None:
        self.time = HandTime(1_000)
        self.min_isr = min_isr
        self.controller_delay_ms = 2
        self.refuses: ErrorCode | None = None
        self.lines: list[str] = []
        self.cut: set[tuple[int, int]] = set()
        """(sender, receiver) of messages that are lost."""
        self.disks = {broker_id: SimDisk(random.Random(broker_id)) for broker_id in range(1, size + 1)}
        self.brokers = {broker_id: Broker(self, broker_id, 10 + broker_id) for broker_id in self.disks}
        everybody = tuple(self.disks)
        self.assignment = Assignment(1, 0, 0, everybody, everybody)
        self.publish()

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    def say(self, line: str) -> None:
        self.lines.append(line)

    def run(self, ms: int = 50) -> None:
        self.time.advance(ms)

    # -- the controller

    def publish(self) -> None:
        """Every broker that is up, and not paused, receives the metadata."""
        for broker in self.brokers.values():
            if broker.up and not broker.paused:
                broker.take(self.assignment)

    def elect(self, leader: int, isr: tuple[int, ...] | None = None) -> None:
        """A new leader, in a new epoch."""
        old = self.assignment
        isr = old.isr if isr is None else isr
        self.assignment = Assignment(leader, old.leader_epoch + 1, old.partition_epoch + 1, old.replicas, isr)
        self.say(f"{leader} leads, ISR {list(isr)}")
        self.publish()

    def on_alter(self, request: AlterPartitionRequest, pending: Pending[AlterPartitionResponse]) -> None:
        """AlterPartition, as the controller decides it; the metadata follows a moment later."""
        asked, now = request.topics[0].partitions[0], self.assignment
        answer = AlterPartitionResponsePartitionData(partition_index=0)
        if self.refuses is not None:
            answer.error_code = self.refuses
        elif asked.leader_epoch < now.leader_epoch:
            answer.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.partition_epoch < now.partition_epoch:
            answer.error_code = ErrorCode.INVALID_UPDATE_VERSION
        else:
            isr = tuple(member.broker_id for member in asked.new_isr_with_epochs)
            self.assignment = now = now._replace(isr=isr, partition_epoch=now.partition_epoch + 1)
            self.say(f"the ISR is {list(isr)}")
            self.time.call_later_ms(1, self.publish)
        answer.leader_id, answer.leader_epoch, answer.isr = now.leader, now.leader_epoch, list(now.isr)
        answer.partition_epoch = now.partition_epoch
        topic = AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])
        pending.complete(AlterPartitionResponse(topics=[topic]))

    # -- deaths and restarts

    def kill(self, broker_id: int) -> None:
        """The process dies, and the broker is fenced."""
        self[broker_id].kill()
        self[broker_id].fenced = True

    def restart(self, broker_id: int) -> None:
        """A new incarnation on the old disk."""
        self.brokers[broker_id] = Broker(self, broker_id, self[broker_id].epoch + 100)
        self[broker_id].take(self.assignment)

    def watch_isrs(self) -> None:
        """Remove laggards from ISRs twice in every `LAG_MAX_MS`, as the broker's shell does."""

        def shrink() -> None:
            for broker in self.brokers.values():
                if broker.up:
                    broker.replicas.shrink_isrs()
            self.time.call_later_ms(LAG_MAX_MS // 2, shrink)

        shrink()

    # -- the network

    def send(self, sender: Broker, to: int, request: Any, done: Callable[[Any, ApiError | None], None]) -> None:
        version = 18 if isinstance(request, FetchRequest) else 9
        request = decode(type(request), encode(request, version), version)
        response_class = FetchResponse if isinstance(request, FetchRequest) else ListOffsetsResponse

        def back(response: Any, error: ApiError | None) -> None:
            if error is None and (to, sender.id) not in self.cut:
                decoded = decode(response_class, bytearray(encode(response, version)), version)
                self.time.call_later_ms(1, lambda: done(decoded, None))
            else:
                self.time.call_later_ms(1, lambda: done(None, error or REFUSED))

        def arrive() -> None:
            target = self.brokers[to]
            if not target.up or (sender.id, to) in self.cut:
                done(None, REFUSED)
                return
            answer = target.answer(request)
            if isinstance(answer, Pending):
                answer.then(lambda response, error: back(response, error if target.up else REFUSED))
            else:
                back(answer, None)

        self.time.call_later_ms(1, arrive)
