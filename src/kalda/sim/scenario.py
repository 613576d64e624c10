"""One seed, from its start to its verdict.

The seed chooses the cluster's configuration (for example whether topics sync before they acknowledge, and the size of
segments), the clients, and the faults. After the end of all faults everything must complete in time: producers finish,
replicas come into sync, and the logs must fit the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import OFFSETS_TOPIC, TopicPartition, Uuid, uuid_to_text
from kalda.metadata.image import MetadataImage
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kalda.records.builder import build_batch
from kalda.sim import faults
from kalda.sim.admin import Churner, Deleter, DirMover, Operator, Reassigner, VoterChanger
from kalda.sim.checks import ClusterObserver
from kalda.sim.client import SimClient
from kalda.sim.cluster import SimCluster, rack_name
from kalda.sim.groups import (
    HEARTBEAT_MS,
    SESSION_MS,
    STANDBYS,
    Ownership,
    SimGroup,
    SimMember,
    SimStreamsGroup,
    SimStreamsMember,
)
from kalda.sim.history import Deleted, RunHistory
from kalda.sim.machine import EPOCH_MS
from kalda.sim.recreated import SHARE_GROUP, TOPICS, RecreatedTopics
from kalda.sim.share_members import (
    DELIVERY_LIMIT,
    LETTERS,
    LOCK_MS,
    Deliveries,
    SimShareGroup,
    SimShareMember,
    letters_of,
)
from kalda.sim.workload import Administrator, Records, WorkloadConsumer, WorkloadProducer, records_of
from kalda.sim.world import World

# A topic that is deleted and created again under its name, again and again, while it is written and read by its id.
#
# Each of these topics (called a life here) is independent: no record, no offset and no log start offset of an earlier
# life is ever seen in it, whatever the disks of its replicas had when their brokers restarted.

NAME = "phoenix"
_PARTITIONS = 2
_BY_ID = 13
"""The first version of Produce, and of Fetch, that names topics by their ids."""
_TIMEOUT_MS = 3_000


@dataclass(slots=True)
class WrittenPartition:
    """The history of one partition in one life."""

    attempted: int = 0
    acked: dict[int, int] = field(default_factory=dict)
    """Offsets by number."""
    seen: dict[int, bytes] = field(default_factory=dict)
    deleted: Deleted = field(default_factory=Deleted)


class Phoenix(Operator):
    """Creates the topic, writes to it, reads from it, deletes records, deletes the topic."""

    def __init__(self, client: SimClient, replicas: int, configs: dict[str, str], pause_s: float = 0.8) -> None:
        self._replicas = replicas
        self._configs = configs
        self._lives: dict[Uuid, list[WrittenPartition]] = {}
        """The history of each life, by topic id and partition."""
        self._ended: set[Uuid] = set()
        """Lives whose deletion was requested."""
        self._now: Uuid | None = None
        """The current life's topic id."""
        self._late = 0
        """The highest offset of a DeleteRecords without a response. It has the topic's name and no id, so it may be
        carried out in a later life."""
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        if self._now is None:
            await self._create()
            return
        roll, index = self._rng.random(), self._rng.randrange(_PARTITIONS)
        written = self._lives[self._now][index]
        try:
            if roll < 0.12:
                await self._delete(self._now)
            elif roll < 0.25 and written.acked:
                await self._shorten(index, written)
            elif roll < 0.75:
                await self._write(self._now, index, written)
            else:
                await self._read(self._now, index, written)
        except ApiError as error:
            self._client.forget_leaders()
            if error.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                await self._find_life()

    # Creation and deletion.

    async def _create(self) -> None:
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in self._configs.items()]
        topic = CreatableTopic(
            name=NAME, num_partitions=_PARTITIONS, replication_factor=self._replicas, configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        await self._repeat_until_done(request, 7, lambda a: a.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS)
        await self._find_life()

    async def _find_life(self) -> None:
        """Set `_now` from the metadata of a random node."""
        try:
            await self._client.refresh()
        except ApiError:
            return
        topic = self._client.metadata.topics.get(NAME)
        self._now = None if topic is None or topic.error_code or topic.topic_id in self._ended else topic.topic_id
        if self._now is not None and self._now not in self._lives:
            self._lives[self._now] = [WrittenPartition() for _ in range(_PARTITIONS)]
            self._client.world.trace(self._client.name, f"has life {len(self._lives)}, {uuid_to_text(self._now)}")

    async def _delete(self, life: Uuid) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=life)], timeout_ms=_TIMEOUT_MS)
        self._ended.add(life)
        await self._repeat_until_done(request, 6, lambda a: a.responses[0].error_code, ErrorCode.UNKNOWN_TOPIC_ID)
        self._client.world.trace(self._client.name, f"ends the life {uuid_to_text(life)}")
        self._now = None

    # Records.

    async def _write(self, life: Uuid, index: int, written: WrittenPartition) -> None:
        """Send records without retries, so that each is written at most once."""
        numbers = range(written.attempted, written.attempted + self._rng.randint(1, 5))
        written.attempted = numbers.stop
        records = [(EPOCH_MS + number, None, _value(life, index, number), ()) for number in numbers]
        data = PartitionProduceData(index=index, records=build_batch(records))
        request = ProduceRequest(
            acks=-1, timeout_ms=2_000, topic_data=[TopicProduceData(topic_id=life, partition_data=[data])]
        )
        answer = await self._client.ask_leader(TopicPartition(NAME, index), request, _BY_ID)
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            raise ApiError(ErrorCode(result.error_code))
        written.acked.update((number, result.base_offset + at) for at, number in enumerate(numbers))

    async def _read(self, life: Uuid, index: int, written: WrittenPartition) -> None:
        position = written.deleted.acknowledged
        entry = FetchRequestFetchPartition(partition=index, fetch_offset=position, partition_max_bytes=1 << 16)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[FetchRequestFetchTopic(topic_id=life, partitions=[entry])],
        )
        answer = await self._client.ask_leader(TopicPartition(NAME, index), request, _BY_ID)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        data = answer.responses[0].partitions[0]
        if data.error_code:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not max(written.deleted.requested, self._late):
                self._client.world.violated(f"{NAME}-{index} of {uuid_to_text(life)} does not begin at 0")
            raise ApiError(ErrorCode(data.error_code))
        for offset, value in records_of(data.records, position):
            earlier = written.seen.setdefault(offset, value)
            if earlier != value or not value.startswith(uuid_to_text(life).encode()):
                self._client.world.violated(f"{value!r} is read at {offset} of {NAME}-{index}, {uuid_to_text(life)}")

    async def _shorten(self, index: int, written: WrittenPartition) -> None:
        offset = self._rng.choice(list(written.acked.values())) + 1
        if offset > written.deleted.acknowledged:
            written.deleted.requested = max(written.deleted.requested, offset)
            if await self.delete_records(TopicPartition(NAME, index), offset):
                written.deleted.acknowledged = max(written.deleted.acknowledged, offset)
            else:
                self._late = max(self._late, offset)

    # At the end.

    def judge(self, image: MetadataImage, read: Callable[[TopicPartition], tuple[int, Records]]) -> None:
        """Compare the records of the last life with its history."""
        topic = image.topics.by_name.get(NAME)
        if topic is not None and topic.id in self._lives:
            for index, written in enumerate(self._lives[topic.id]):
                written.deleted.requested = max(written.deleted.requested, self._late)
                for violation in _violations(written, index, topic.id, *read(TopicPartition(NAME, index))):
                    self._client.world.violated(f"{NAME}-{index} of {uuid_to_text(topic.id)}: {violation}")


def _violations(written: WrittenPartition, index: int, life: Uuid, start: int, records: Records) -> Iterator[str]:
    log = dict(records)
    places = {value: offset for offset, value in records}
    if len(places) < len(log):
        yield "a record was written twice"
    if start > written.deleted.requested:
        yield f"it begins at {start}, but deletions were requested up to {written.deleted.requested}"
    for offset, value in written.seen.items():
        if offset >= start and log.get(offset) != value:
            yield f"{value!r} was read at {offset}, and now {log.get(offset)!r} is there"
    for number, offset in written.acked.items():
        if offset >= start and log.get(offset) != _value(life, index, number):
            yield f"record {number} was acknowledged at {offset}, and now {log.get(offset)!r} is there"
    for value in set(places) - {_value(life, index, number) for number in range(written.attempted)}:
        yield f"{value!r} was not written in this life"


def _value(life: Uuid, index: int, number: int) -> bytes:
    return f"{uuid_to_text(life)}:{index}:{number}".encode() + b"." * (700 if number % 4 == 0 else 0)


_LIMIT_S = 600.0
_HEALED_S = 90.0

_SHORT_METADATA_LOG = {
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "internal.metadata.log.segment.bytes": "4000",
    "metadata.max.retention.bytes": "2000",
}
"""Many snapshots, and little of the log before them: a node that was down for a time fetches a snapshot."""


_BUSY_CLEANER = {
    "log.roll.ms": "700",
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "500",
}

LOADS = ("groups", "churn", "moves", "voters", "dirs", "racks", "deletes", "phoenix", "compaction")
"""Additional load besides producers and readers: consumer groups; operators of topics, replicas and the quorum; an
operator that moves replicas between log directories; readers that send their rack; deletion of records, and retention;
a topic that is deleted and created again; a cleaner with short intervals, for the offsets that groups commit."""


RECREATED_LOAD = "recreated-topics"
"""Topics that are deleted and created again, below Kalda's own producers, consumers and share consumers."""

GROUP_LOADS = ("consumer-groups", "migrating-groups", "share-groups", "streams-groups")
"""Groups of the newer kinds: of KIP-848; with members of both protocols, so that they change their kind; of KIP-932; of
KIP-1071."""
_GROUP_TIMES = {
    f"group.{kind}.{end}{key}": str(value)
    for kind in ("consumer", "share", "streams")
    for key, value in (("session.timeout.ms", SESSION_MS), ("heartbeat.interval.ms", HEARTBEAT_MS))
    for end in ("", "min.")
} | {
    "group.consumer.assignment.interval.ms": "100",
    "group.share.assignment.interval.ms": "100",
    "group.streams.assignment.interval.ms": "100",
    "group.streams.initial.rebalance.delay.ms": "300",
    "group.streams.num.standby.replicas": str(STANDBYS),
}


def _share_configs(nodes: int) -> dict[str, str]:
    """Short locks, few deliveries, dead letters in a topic that is made with the first of them, and short sessions of
    brokers, so that a leader has a successor while it still lives."""
    return {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(LOCK_MS),
        "group.share.delivery.count.limit": str(DELIVERY_LIMIT),
        "share.coordinator.state.topic.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": str(min(3, nodes)),
        "share.coordinator.state.topic.min.isr": "2" if nodes > 2 else "1",
        "share.coordinator.snapshot.update.records.per.snapshot": "5",
        "errors.deadletterqueue.auto.create.topics.enable": "true",
    } | ({"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "200"} if nodes > 1 else {})


@dataclass(frozen=True, slots=True)
class SimPlan:
    """What to simulate. `kinds` are the names of faults. At most three nodes are initial voters."""

    seed: int
    nodes: int = 1
    kinds: tuple[str, ...] = faults.ALL
    duration_s: float = 20.0
    loads: tuple[str, ...] = LOADS


@dataclass(frozen=True, slots=True)
class SimVerdict:
    """The result of a run. `violation` describes the invariants that were violated; empty where all held."""

    plan: SimPlan
    violation: str
    virtual_s: float
    acked: int
    seen: int
    elections: int

    @property
    def passed(self) -> bool:
        """Whether all invariants held."""
        return not self.violation


def _group_configs(plan: SimPlan, durable: bool) -> dict[str, str]:
    """Configs that make the offsets that groups commit as durable as the records of producers."""
    configs = {"group.min.session.timeout.ms": "1000"}
    if plan.nodes > 2:
        configs["min.insync.replicas"] = "2"
    if durable:
        configs["log.flush.interval.messages"] = "1"
    return configs


class _LoadChoices:
    """The random choices of one seed about its loads. Each load has a random source of its own, so that the choices of
    one do not depend on whether another is on."""

    def __init__(self, world: World, plan: SimPlan) -> None:
        def rng(load: str) -> Random | None:
            return world.rng(load) if load in plan.loads else None

        dirs, racks, deletes, again = rng("dirs"), rng("racks"), rng("deletes"), rng("phoenix")
        self.log_dirs = dirs.choice((1, 2, 2, 3)) if dirs else 1
        self.move_bytes_per_s = dirs.choice((30_000, 100_000, None)) if dirs else None
        self.racks = racks.choice((0, 2, 3)) if racks and plan.nodes > 1 else 0
        self.deletes = deletes is not None and deletes.random() < 0.5
        self.retires = deletes is not None and deletes.random() < 0.25
        cleaner = rng("compaction")
        self.compacts = cleaner is not None and cleaner.random() < 0.4
        self.phoenix = again is not None and again.random() < 0.6

    def overrides(self, apart: bool) -> dict[str, str]:
        """Properties of all nodes. `apart`: the metadata log is in a directory of its own."""
        found = {"log.dirs": faults.DATA_DIR, "metadata.log.dir": "/metadata"} if apart or self.log_dirs > 1 else {}
        if self.log_dirs > 1:
            found["log.dirs"] = ",".join(f"{faults.DATA_DIR}/{number}" for number in range(self.log_dirs))
        if self.move_bytes_per_s is not None:
            found["replica.alter.log.dirs.io.max.bytes.per.second"] = str(self.move_bytes_per_s)
        if self.compacts:
            found |= _BUSY_CLEANER
        if self.retires:
            found["log.retention.check.interval.ms"] = "1500"
        return found

    @property
    def topic_configs(self) -> dict[str, str]:
        return {"retention.bytes": "12000"} if self.retires else {}


class _Run:
    """The parts of one simulation."""

    def __init__(self, world: World, plan: SimPlan) -> None:
        rng = world.rng("plan")
        self.world = world
        self.plan = plan
        self.durable = plan.nodes == 1 or rng.random() < 0.5
        overrides = {
            "log.roll.ms": str(rng.choice((2_000, 600_000))),
            **(_SHORT_METADATA_LOG if rng.random() < 0.5 else {}),
        }
        choices = self.choices = _LoadChoices(world, plan)
        overrides |= choices.overrides(bool(set(plan.kinds) & set(faults.KINDS)))
        if plan.nodes == 1:
            # A broker that restarts waits for the end of its old session; a single broker could do nothing meanwhile.
            overrides |= {"broker.session.timeout.ms": "500", "broker.heartbeat.interval.ms": "100"}
        if "stale" in plan.kinds:
            overrides["replica.lag.time.max.ms"] = "1500"
        if plan.loads:
            overrides |= _group_configs(plan, self.durable)
        if set(plan.loads) & {RECREATED_LOAD, *GROUP_LOADS}:
            overrides |= _GROUP_TIMES
        if {"share-groups", RECREATED_LOAD} & set(plan.loads):
            overrides |= _share_configs(plan.nodes)
        if RECREATED_LOAD in plan.loads:
            overrides["auto.create.topics.enable"] = "false"
        self.cluster = SimCluster(world, plan.nodes, overrides, voters=min(3, plan.nodes), racks=choices.racks)
        self.history = RunHistory(world)
        self.history.retires = choices.retires
        self.history.forgets_beginnings = bool(faults.RESTARTS & set(plan.kinds))
        self.observer = ClusterObserver(self.cluster)
        self.topics = {"alpha": rng.randint(1, 3), "beta": 1}
        self.partitions = [TopicPartition(name, i) for name, count in self.topics.items() for i in range(count)]
        self.producers: list[WorkloadProducer] = []
        self.consumers: list[WorkloadConsumer] = []
        self.groups: list[SimGroup] = []
        self.members: list[SimMember] = []
        self.share_groups: list[SimShareGroup] = []
        self.share_members: list[SimShareMember] = []
        self.streams_groups: list[SimStreamsGroup] = []
        self.streams_members: list[SimStreamsMember] = []
        self.recreated: RecreatedTopics | None = None
        self.operators: list[Operator | Administrator] = []
        self._racks = world.rng("readers' racks")
        self.losses = faults.Losses(self.cluster, self.partitions, self.history.damaged, _HEALED_S)

    def _client(self, name: str) -> SimClient:
        return SimClient(self.world, name, self.cluster.bootstrap)

    async def main(self) -> None:
        plan, cluster = self.plan, self.cluster
        await cluster.start()
        watching = self.world.loop.create_task(self.observer.watch())
        founder = self._client("admin")
        replicas = min(3, plan.nodes)
        admin = Administrator(founder, replicas, churning="churn" not in plan.loads)
        self.operators.append(admin)
        configs = {"min.insync.replicas": "2" if plan.nodes > 2 else "1"}
        if self.durable:
            configs["flush.messages"] = "1"
        configs["internal.segment.bytes"] = str(self.world.rng("segments").choice((2_000, 20_000, 1 << 20)))
        configs |= self.choices.topic_configs
        for name, count in self.topics.items():
            await founder.spawn(admin.create(name, count, configs, keep=True))
        self._start_clients()
        await self._start_group_loads(founder)
        if RECREATED_LOAD in plan.loads:
            await founder.spawn(SimShareGroup(SHARE_GROUP, [], self.world.violated).configure(founder))
            self.recreated = RecreatedTopics(self._client, self.world.rng(RECREATED_LOAD), replicas, configs)
            self.operators.append(self.recreated.operator)
            self.history.judged_elsewhere |= {*TOPICS, LETTERS}
        self._start_loads(replicas, configs)
        kinds = faults.bearable(plan.kinds, self.durable, plan.nodes, self.choices.log_dirs)
        clients = [name for name in self.world.machines if not name.startswith("node")]
        storm = faults.SimFaults(cluster, kinds, clients, self.losses)
        with Deliveries(self.world.violated):
            await storm.run(plan.duration_s)
            await self._finish()
        watching.cancel()

    def _start_clients(self) -> None:
        rng = self.world.rng("clients")
        for number in range(rng.randint(1, 3)):
            mine = rng.sample(self.partitions, rng.randint(1, len(self.partitions)))
            client = self._client(f"writer-{number}")
            idempotent = rng.random() < 0.7
            in_flight = 1 if faults.RESTARTS & set(self.plan.kinds) else 4
            self.producers.append(
                WorkloadProducer(client, self.history, mine, idempotent=idempotent, in_flight=in_flight)
            )
        for number in range(rng.randint(1, 2)):
            client = self._client(f"reader-{number}")
            self.consumers.append(WorkloadConsumer(client, self.history, self.partitions, self._rack()))

    async def _start_group_loads(self, founder: SimClient) -> None:
        for load in GROUP_LOADS:
            if load not in self.plan.loads:
                continue
            rng = self.world.rng(load)
            for number in range(rng.randint(1, 2)):
                name = f"{load}-{number}"
                members = [self._client(f"{name}.{each}") for each in range(rng.randint(2, 4))]
                if load == "share-groups":
                    shares = SimShareGroup(name, self.partitions, self.world.violated)
                    await founder.spawn(shares.configure(founder))
                    self.share_groups.append(shares)
                    self.share_members += [SimShareMember(client, shares) for client in members]
                    self.history.judged_elsewhere.add(LETTERS)
                    continue
                if load == "streams-groups":
                    streams = SimStreamsGroup(name, self.partitions, self.world.violated)
                    self.streams_groups.append(streams)
                    self.streams_members += [SimStreamsMember(each, streams, n) for n, each in enumerate(members)]
                    self.history.judged_elsewhere.add(streams.changelog)
                    continue
                is_mixed = load == "migrating-groups"
                protocols = ("classic", "consumer") if is_mixed else ("consumer",)
                group = SimGroup(name, self.partitions, rng, protocols)
                group.ownership = Ownership(name, self.world.violated, has_one_kind=not is_mixed)
                self.groups.append(group)
                self.members += [SimMember(client, self.history, group, self._rack()) for client in members]

    def _start_loads(self, replicas: int, configs: dict[str, str]) -> None:
        plan, rng = self.plan, self.world.rng("loads")
        if "groups" in plan.loads:
            for number in range(rng.randint(1, 2)):
                group = SimGroup(f"group-{number}", self.partitions, rng)
                self.groups.append(group)
                for each in range(rng.randint(1, 3)):
                    client = self._client(f"member-{number}{each}")
                    self.members.append(SimMember(client, self.history, group, self._rack()))
        if "churn" in plan.loads:
            self.operators.append(Churner(self._client("churner"), replicas))
        if self.choices.log_dirs > 1:
            everything = [*self.partitions, TopicPartition(OFFSETS_TOPIC, 0)]
            self.operators.append(DirMover(self._client("dir-mover"), self.cluster, everything))
        if self.choices.deletes:
            self.operators.append(Deleter(self._client("deleter"), self.history, self.partitions))
        if self.choices.phoenix:
            self.history.judged_elsewhere.add(NAME)
            self.operators.append(Phoenix(self._client("phoenix"), replicas, configs))
        if plan.nodes < 3:
            return
        if "moves" in plan.loads:
            mover = self._client("mover")
            self.operators.append(Reassigner(mover, self.partitions, list(self.cluster.nodes), replicas))
        if "voters" in plan.loads:
            self.operators.append(VoterChanger(self._client("elector"), self.cluster, rng.choice((2, 3))))

    def _rack(self) -> str:
        """The rack of one more reader; empty: none."""
        racks = self.choices.racks
        return rack_name(self._racks.randrange(racks)) if racks and self._racks.random() < 0.8 else ""

    async def _finish(self) -> None:
        """Without faults, everything must complete within `_HEALED_S`; then check the end."""
        world, cluster = self.world, self.cluster
        await cluster.wait(cluster.all_serve, "all nodes serve again", _HEALED_S)
        if self.plan.loads:
            operating = asyncio.gather(*(operator.finish() for operator in self.operators))
            await cluster.wait(operating.done, "all operators are done", _HEALED_S)
            await self.losses.finish()
        writing = asyncio.gather(*(producer.finish() for producer in self.producers))
        await cluster.wait(writing.done, "all records sent are acknowledged", _HEALED_S)
        await self._finish_recreated_topics()
        await self._settle()
        for group in self.groups:
            group.ends = self.observer.ends(self.partitions)
        reading = asyncio.gather(*(member.task for member in self.members))
        await cluster.wait(reading.done, "all groups have read and committed all records", _HEALED_S)
        await self._finish_share_groups()
        await self._finish_streams_groups()
        others = () if self.plan.loads else (operator.finish() for operator in self.operators)
        await asyncio.gather(*others, *(consumer.finish() for consumer in self.consumers))
        await self._settle()
        if not world.violations:
            self.observer.judge(self.history, self.groups)
            self._judge_topics()

    async def _finish_share_groups(self) -> None:
        """Every record is accepted or has a dead letter."""
        if not self.share_groups:
            return
        ends = self.observer.ends(self.partitions)
        for group in self.share_groups:
            group.is_ending = True

        def missing() -> list[str]:
            letters = letters_of(self.observer.written(LETTERS))
            return [
                f"{group.name}: {partition} {offset}"
                for group in self.share_groups
                for partition, offset in group.missing(ends, letters)
            ]

        def what() -> str:
            return f"every record is accepted or has a dead letter, but not {'; '.join(missing()[:5])}"

        await self.cluster.wait(lambda: not missing(), what, _HEALED_S)
        for group in self.share_groups:
            group.done = True
        ending = asyncio.gather(*(member.task for member in self.share_members))
        await self.cluster.wait(ending.done, "all members of share groups have ended", _HEALED_S)

    async def _finish_streams_groups(self) -> None:
        """Every task runs."""
        for group in self.streams_groups:
            group.is_ending = True

        def missing() -> str:
            return "; ".join(f"{group.name}: {what}" for group in self.streams_groups if (what := group.missing()))

        await self.cluster.wait(lambda: not missing(), lambda: f"all tasks run, but {missing()}", _HEALED_S)
        for group in self.streams_groups:
            group.done = True
        ending = asyncio.gather(*(member.task for member in self.streams_members))
        await self.cluster.wait(ending.done, "all members of streams groups have ended", _HEALED_S)

    async def _finish_recreated_topics(self) -> None:
        """Every partition takes records, and they are read."""
        recreated, written = self.recreated, self.observer.written
        if recreated is None:
            return
        writing = asyncio.ensure_future(recreated.finish_writing())
        await self.cluster.wait(writing.done, "all recreated topics take records", _HEALED_S)

        def what() -> str:
            return f"all recreated topics are read, but not all that {recreated.missing(written)}"

        await self.cluster.wait(lambda: not recreated.missing(written), what, _HEALED_S)
        reading = asyncio.ensure_future(recreated.finish())
        await self.cluster.wait(reading.done, "all readers of recreated topics have ended", _HEALED_S)

    def _judge_topics(self) -> None:
        image = self.cluster.image()
        assert image is not None
        for operator in self.operators:
            if isinstance(operator, Churner):
                operator.judge(image)
            elif isinstance(operator, Phoenix):
                operator.judge(image, self.observer.records)

    async def _settle(self) -> None:
        """Wait until all replicas are in sync, and all nodes have the same metadata."""
        await self.cluster.wait(self.observer.settled, lambda: self.observer.unsettled, _HEALED_S)


def simulate(plan: SimPlan, trace: Callable[[str], None] | None = None, *, verbose: bool = False) -> SimVerdict:
    """Run one seed. The same plan gives the same trace and the same verdict."""
    with World(plan.seed, trace, verbose=verbose) as world:
        run = _Run(world, plan)
        violation = world.violation_of(run.main(), _LIMIT_S)
        seen = sum(len(records) for records in run.history.seen.values())
        return SimVerdict(plan, violation, world.now_s, run.history.acked, seen, run.observer.elections)
