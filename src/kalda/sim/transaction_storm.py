"""Seeds of transactions: whole nodes, clients of transactions, faults of both, and the verdict of `kalda.verify`.

Writers, consume-transform-produce loops and read_committed observers work while nodes are killed, stopped, paused and
cut off. Clients are paused for longer than their transaction timeout, and successors take over their transactional ids
meanwhile. With `upgrades`, an operator moves `transaction.version` up and down while transactions are open; the faults
of such a run let no request arrive late, since version 1 has no defence against that. With `failovers`, coordinators
are killed between two records that they write. With `late_markers`, requests for markers arrive a second time.

After the faults the loops must process all input, and end; then the last stable offsets must reach the high watermarks
in time, and the history must be sound.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TRANSACTIONS_TOPIC, TopicPartition
from kalda.broker.process.node import Node
from kalda.protocol.kinds import UpgradeType
from kalda.protocol.messages.admin import FeatureUpdateKey, UpdateFeaturesRequest
from kalda.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kalda.protocol.messages.transactions import WriteTxnMarkersRequest
from kalda.replication.markers import MarkerWriter
from kalda.replication.partition import Partition
from kalda.sim import faults
from kalda.sim.checks import ClusterObserver as ClusterObserver
from kalda.sim.client import SimClient, SimConsumer
from kalda.sim.cluster import SimCluster, SimNode
from kalda.sim.faults import Losses
from kalda.sim.group_loops import GroupLoop
from kalda.sim.transaction_clients import (
    FEATURE,
    StableOffsetObserver,
    TransactionLoop,
    TransactionWriter,
    Worker,
    committed_offsets,
    final_log,
    latest_offset,
    read_at,
    stable_consumer,
)
from kalda.sim.world import World
from kalda.verify.history import Fault, FinalOffset, History, Settings
from kalda.verify.rules import judge

# Transaction coordinators that are killed between two records, and requests for markers that arrive a second time.
#
# A record is appended to `__transaction_state` in one step of the loop; its commit, the markers and the answers follow
# in later ones. The node is killed right after the append, so that its successor, or its own next start, finds the
# record and nothing of what should follow.
#
# A coordinator sends markers again until they are answered, so a copy of a request may be delayed on a broken
# connection, and arrive when the producer's next transaction is open in the partition. It must not end that one.
#
# A switch patches the append, or the handler, as ablations do.

_DOWN_S = (0.1, 5.0)


class CoordinatorKills:
    """Kills the leader of a partition of `__transaction_state` after some of its appends, in this context."""

    def __init__(self, cluster: SimCluster, rng: Random, records_apart: int) -> None:
        """Between two kills there are 1 to `records_apart` appends."""
        self._cluster = cluster
        self._rng = rng
        self._records_apart = records_apart
        self._left = rng.randint(1, records_apart)
        self._append: Any = None
        self._has_ended = False
        self.kills = 0

    def __enter__(self) -> CoordinatorKills:
        append = self._append = Partition.append
        kills = self

        def counted(self: Partition, *arguments: Any, **options: Any) -> Any:
            info = append(self, *arguments, **options)
            if self.topic_partition.topic == TRANSACTIONS_TOPIC:
                kills.on_append(self)
            return info

        setattr(Partition, "append", counted)  # noqa: B010 (mypy refuses the assignment to a method)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(Partition, "append", self._append)  # noqa: B010
        self.end()

    def end(self) -> None:
        """Kill no more."""
        self._has_ended = True

    def on_append(self, partition: Partition) -> None:
        """Called after each append; kills only where all nodes serve, so that the cluster goes on."""
        self._left -= 1
        if self._left > 0 or self._has_ended or not all(node.serving for node in self._cluster):
            return
        self._left = self._rng.randint(1, self._records_apart)
        world = self._cluster.world
        node = next(
            each
            for each in self._cluster
            if each.node is not None and each.node.replicas is not None and partition in each.node.replicas
        )
        down_s = self._rng.uniform(*_DOWN_S)
        self.kills += 1
        world.loop.call_soon(self._kill, node)
        world.loop.call_later(down_s, self._start, node)

    def _kill(self, node: SimNode) -> None:
        node.kill()

    def _start(self, node: SimNode) -> None:
        if not node.machine.up:
            node.start()


_DOUBLED = 0.4
_AFTER_S = (0.0, 1.5)


class LateMarkers:
    """Repeats some WriteTxnMarkers requests at the broker that has received them, in this context."""

    def __init__(self, cluster: SimCluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._write: Any = None
        self._has_ended = False

    def __enter__(self) -> LateMarkers:
        write = self._write = MarkerWriter.write
        late = self

        def twice(self: MarkerWriter, request: WriteTxnMarkersRequest) -> Any:
            late.on_request(self, request)
            return write(self, request)

        setattr(MarkerWriter, "write", twice)  # noqa: B010 (mypy refuses the assignment to a method)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(MarkerWriter, "write", self._write)  # noqa: B010
        self._has_ended = True

    def on_request(self, writer: MarkerWriter, request: WriteTxnMarkersRequest) -> None:
        """Called for each request; has some of them repeated."""
        if self._rng.random() >= _DOUBLED:
            return
        for each in self._cluster:
            if each.node is not None and each.node.replicas is writer.replicas:
                self._cluster.world.loop.call_later(
                    self._rng.uniform(*_AFTER_S), self._repeat, each, each.node, writer, request
                )

    def _repeat(self, sim: SimNode, node: Node, writer: MarkerWriter, request: WriteTxnMarkersRequest) -> None:
        if sim.node is node and not self._has_ended:
            self._cluster.world.trace(sim.name, "markers arrive a second time")
            sim.run(lambda: self._write(writer, request))


KINDS = ("kill", "stop", "pause", "cut", "cut-one-way", "slow", "loss", "reset", "slow-disk")
"""Faults of nodes and links."""
UPGRADE_KINDS = ("kill", "stop")
"""Faults after which no request arrives late."""
_TIMEOUT_MS = 3_000
_SLACK_MS = 25_000
"""Elections, fencing and the takeover of coordinators, besides the search for what has timed out."""
_HEALED_S = 90.0
_LIMIT_S = 400.0
_GROUP = "loops"
_MEMBERS = 3
"""One more than partitions, so that one waits for the others' partitions."""
_INPUTS = [TopicPartition("input", index) for index in range(2)]
_OUTPUTS = {each: TopicPartition("output", each.partition) for each in _INPUTS}
_UPDATE_VERSION = 1
_CREATE_VERSION = 7


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """What to simulate. `zombies`: clients are paused and replaced."""

    seed: int
    nodes: int = 3
    kinds: tuple[str, ...] = KINDS
    duration_s: float = 12.0
    zombies: bool = True
    upgrades: bool = False
    version: int = 2
    failovers: bool = False
    """Coordinators are killed right after records that they have written."""
    late_markers: bool = False
    """Requests for markers arrive a second time."""
    members: bool = False
    """The loops are members of a group, and share the inputs."""


@dataclass(frozen=True, slots=True)
class TransactionVerdict:
    """`violation` is empty where all rules and invariants held."""

    plan: TransactionPlan
    violation: str
    virtual_s: float
    committed: int
    aborted: int
    unknown: int

    @property
    def passed(self) -> bool:
        return not self.violation


class _Role:
    """A client over its incarnations.

    A successor fences the incarnation before it, by the same transactional id. Where that one has ended, the successor
    may have another id instead; then it has to wait for stable offsets (KIP-447)."""

    def __init__(self, name: str, make: Callable[[str, int], Worker]) -> None:
        self.name = name
        """The transactional id."""
        self._make = make
        self._first_name = name
        self.is_member = False
        """A member of a group, which fences the one before it by its generation: a successor has another id."""
        self.incarnation = 0
        self.worker = make(name, 0)
        self.workers = [self.worker]
        """All incarnations; the last one is `worker`."""

    def succeed(self, *, with_new_id: bool = False) -> None:
        """Start the next incarnation; with the same id, the last one may still run."""
        self.incarnation += 1
        if with_new_id or self.is_member:
            self.name = f"{self._first_name}+{self.incarnation}"
        self.worker = self._make(self.name, self.incarnation)
        self.workers.append(self.worker)


def _number_of(name: str) -> int:
    """The number of a loop, which is that of its input partition: 1 of `loop-1` and of `loop-1+3`."""
    return int(name.partition("+")[0].rpartition("-")[2])


class _Storm:
    """The parts of one run."""

    def __init__(self, world: World, plan: TransactionPlan) -> None:
        self.world = world
        self.plan = plan
        self.rng = world.rng("transactions")
        replicas = str(min(3, plan.nodes))
        self.cluster = SimCluster(
            world,
            plan.nodes,
            {
                "transaction.state.log.num.partitions": "2",
                "transaction.state.log.replication.factor": replicas,
                "transaction.state.log.min.isr": "2" if plan.nodes > 2 else "1",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
                "min.insync.replicas": "2" if plan.nodes > 2 else "1",
                **({"group.min.session.timeout.ms": "1000"} if plan.members else {}),
            },
            voters=min(3, plan.nodes),
        )
        self.history = History(Settings(_TIMEOUT_MS, _SLACK_MS))
        self.checks = ClusterObserver(self.cluster)
        self.roles: list[_Role] = []
        self.partitions = [*_INPUTS, *_OUTPUTS.values()]

    def client(self, name: str) -> SimClient:
        return SimClient(self.world, name, self.cluster.bootstrap)

    async def main(self) -> None:
        world, plan = self.world, self.plan
        await self.cluster.start()
        watching = world.loop.create_task(self.checks.watch())
        admin = self.client("admin")
        await admin.spawn(self._prepare(admin))
        self._start_clients()
        observer = StableOffsetObserver(self.client("observer"), self.history, self.partitions)
        losses = Losses(self.cluster, [], set(), _HEALED_S)
        storm = faults.SimFaults(self.cluster, plan.kinds, ["observer"], losses)
        running = [world.loop.create_task(self._disturb_clients(world.rng("zombies")))]
        if plan.upgrades:
            running.append(admin.spawn(self._upgrade(admin, world.rng("upgrades"))))
        begun_us = self._now_us
        apart = world.rng("failovers").choice((2, 5, 20))
        with contextlib.ExitStack() as more:
            if plan.failovers:
                more.enter_context(CoordinatorKills(self.cluster, world.rng("coordinators"), apart))
            if plan.late_markers:
                more.enter_context(LateMarkers(self.cluster, world.rng("late markers")))
            await storm.run(plan.duration_s)
        self.history.add(Fault("storm", begun_us, self._now_us))
        for task in running:
            task.cancel()
        await self._finish(admin, observer)
        watching.cancel()

    @property
    def _now_us(self) -> int:
        return int(self.world.now_s * 1_000_000)

    async def _prepare(self, admin: SimClient) -> None:
        replicas = min(3, self.plan.nodes)
        configs = [CreatableTopicConfig(name="min.insync.replicas", value=str(max(1, replicas - 1)))]
        topics = [
            CreatableTopic(name=name, num_partitions=len(_INPUTS), replication_factor=replicas, configs=configs)
            for name in ("input", "output")
        ]

        async def create() -> None:
            answer = await admin.ask_any(CreateTopicsRequest(topics=topics, timeout_ms=4_000), _CREATE_VERSION)
            for topic in answer.topics:
                if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise ApiError(ErrorCode(topic.error_code), topic.name)

        await admin.until(create)
        await self._set_version(admin, self.plan.version)

    async def _set_version(self, admin: SimClient, version: int) -> None:
        """Move `transaction.version` to a level, up or down."""

        async def update() -> None:
            for kind in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE):
                key = FeatureUpdateKey(feature=FEATURE, max_version_level=version, upgrade_type=kind)
                request = UpdateFeaturesRequest(timeout_ms=4_000, feature_updates=[key])
                answer = await admin.ask_any(request, _UPDATE_VERSION)
                codes = [answer.error_code, *(result.error_code for result in answer.results)]
                failed = [ErrorCode(code) for code in codes if code]
                if not failed:
                    self.world.trace("admin", f"sets transaction.version to {version}")
                    return
                if failed[0].retriable:
                    raise ApiError(failed[0])

        await admin.until(update)

    async def _upgrade(self, admin: SimClient, rng: Random) -> None:
        version = self.plan.version
        while True:
            await asyncio.sleep(rng.uniform(0.5, 3))
            version = 3 - version
            await self._set_version(admin, version)

    def _start_clients(self) -> None:
        def writer(name: str, incarnation: int) -> Worker:
            client = self.client(f"{name}.{incarnation}")
            return TransactionWriter(client, self.history, name, incarnation, _TIMEOUT_MS, partitions=_INPUTS)

        def loop(name: str, incarnation: int) -> Worker:
            client = self.client(f"{name}.{incarnation}")
            source = _INPUTS[_number_of(name)]
            return TransactionLoop(
                client, self.history, name, incarnation, _TIMEOUT_MS,
                group=_GROUP, source=source, output=_OUTPUTS[source],
            )  # fmt: skip

        self.roles = [_Role(f"writer-{number}", writer) for number in range(self.rng.randint(1, 3))]
        if not self.plan.members:
            self.roles += [_Role(f"loop-{number}", loop) for number in range(len(_INPUTS))]
            return

        def member(name: str, incarnation: int) -> Worker:
            client = self.client(f"{name}.{incarnation}")
            return GroupLoop(client, self.history, name, incarnation, _TIMEOUT_MS, group=_GROUP, outputs=_OUTPUTS)

        members = [_Role(f"member-{number}", member) for number in range(_MEMBERS)]
        for role in members:
            role.is_member = True
        self.roles += members

    async def _disturb_clients(self, rng: Random) -> None:
        """Replace incarnations that have ended; pause some, and start a successor meanwhile."""
        next_s = self.world.now_s + rng.uniform(0.5, 3)
        paused: list[tuple[float, str]] = []
        try:
            while True:
                await asyncio.sleep(0.1)
                self._replace_ended()
                for due_s, name in [each for each in paused if each[0] <= self.world.now_s]:
                    paused.remove((due_s, name))
                    self.world.trace(name, "is resumed")
                    self.world.machine(name).resume()
                victims = [role for role in self.roles if role.worker.is_ready and not role.worker.has_ended]
                if not self.plan.zombies or self.world.now_s < next_s or not victims:
                    continue
                next_s = self.world.now_s + rng.uniform(0.5, 3)
                role, length_s = rng.choice(victims), rng.choice((0.3, 1.5, 5.0)) * rng.uniform(0.5, 1.5)
                name = role.worker.client.name
                self.world.trace(name, "is paused")
                self.world.machine(name).pause()
                paused.append((self.world.now_s + length_s, name))
                if rng.random() < 0.6:
                    role.succeed()
        finally:
            for _, name in paused:
                self.world.machine(name).resume()

    def _replace_ended(self) -> None:
        for role in self.roles:
            if role.worker.has_ended and not role.worker.is_stopping:
                role.succeed(
                    with_new_id=isinstance(role.worker, TransactionLoop) and all(w.has_ended for w in role.workers)
                )

    async def _finish(self, admin: SimClient, observer: StableOffsetObserver) -> None:
        """Without faults, everything must complete in time."""
        cluster = self.cluster
        await cluster.wait(cluster.all_serve, "all nodes serve again", _HEALED_S)
        writers = [worker for role in self.roles for worker in role.workers if isinstance(worker, TransactionWriter)]
        for writer in writers:
            writer.stop()
        await cluster.wait(lambda: all(writer.has_ended for writer in writers), "all writers have ended", _HEALED_S)
        await self._wait_stable(admin, _INPUTS)
        until_s = self.world.now_s + _HEALED_S
        group = stable_consumer(admin, _GROUP)
        while not self.world.violations and not await self._is_drained(admin, group):
            self._replace_ended()
            if self.world.now_s > until_s:
                self.world.violated(f"not within {_HEALED_S:.0f} s: the loops have processed all input")
            await asyncio.sleep(0.2)
        workers = [worker for role in self.roles for worker in role.workers]
        for worker in workers:
            worker.stop()
        # Before the outputs are found stable: neither a producer that still sends, nor records that are not below the
        # high watermark yet, may make one unstable again.
        await cluster.wait(lambda: all(worker.has_ended for worker in workers), "all clients have ended", _HEALED_S)
        await cluster.wait(self.checks.settled, lambda: self.checks.unsettled, _HEALED_S)
        await self._wait_stable(admin, self.partitions)
        await observer.finish()
        if not self.world.violations:
            for partition in self.partitions:
                await admin.spawn(observer.sample(partition))
            await self._judge(admin, group)

    async def _wait_stable(self, admin: SimClient, partitions: list[TopicPartition]) -> None:
        """Wait until the last stable offsets are the high watermarks; it is a violation if they are not in time."""
        until_s = self.world.now_s + (_TIMEOUT_MS + _SLACK_MS) / 1_000
        for partition in partitions:
            while True:
                stable = await self._latest(admin, partition, True)
                end = await self._latest(admin, partition, False)
                if stable >= end:
                    break
                if self.world.now_s > until_s:
                    self.world.violated(f"the last stable offset of {partition} stays at {stable}, below {end}")
                    return
                await asyncio.sleep(0.2)

    async def _latest(self, admin: SimClient, partition: TopicPartition, read_committed: bool) -> int:
        """The last stable offset, or the high watermark."""
        offset: int = await admin.spawn(latest_offset(admin, partition, read_committed=read_committed))
        return offset

    async def _is_drained(self, admin: SimClient, group: SimConsumer) -> bool:
        """Whether the group's offsets have reached the ends of its inputs. `group` reads what follows them, without
        being a member."""
        for partition, offset in (await admin.spawn(committed_offsets(group, _INPUTS))).items():
            end = await self._latest(admin, partition, False)
            while offset < end:
                records, offset = await admin.spawn(read_at(group, partition, offset))
                if records:
                    return False
        return True

    async def _judge(self, admin: SimClient, group: SimConsumer) -> None:
        for partition in self.partitions:
            self.history.add(await admin.spawn(final_log(admin, partition)))
        committed = await admin.spawn(committed_offsets(group, _INPUTS))
        for partition, offset in committed.items():
            self.history.add(FinalOffset(_GROUP, partition, offset))
        for finding in judge(self.history).findings[:10]:
            self.world.violated(str(finding))


def simulate_transactions(
    plan: TransactionPlan, trace: Callable[[str], None] | None = None, *, verbose: bool = False
) -> TransactionVerdict:
    """Run one seed. The same plan gives the same trace and the same verdict."""
    with World(plan.seed, trace, verbose=verbose) as world:
        storm = _Storm(world, plan)
        violation = world.violation_of(storm.main(), _LIMIT_S)
        counts = {outcome.value: count for outcome, count in judge(storm.history).outcomes.items()}
        return TransactionVerdict(
            plan, violation, world.now_s, counts["committed"], counts["aborted"], counts["unknown"]
        )


PLANS = {
    "storm": TransactionPlan(0),
    "upgrades": TransactionPlan(0, kinds=UPGRADE_KINDS, upgrades=True),
    "failovers": TransactionPlan(0, kinds=(), failovers=True),
    "late-markers": TransactionPlan(0, kinds=(), late_markers=True),
    "members": TransactionPlan(0, members=True),
}
"""By name; the seed is to be replaced."""
