"""Safeguards, switched off one by one: without each of them some seed must violate an invariant, or the simulator
would prove nothing about it.

A switch patches named attributes and restores them afterwards. The product has no code for it.

Not obvious:

- Ablations patch attributes by name, on the class that defines them: a rename goes there too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.topics import NewTopic
from kalda.clientcore.consuming.consumer_errors import LogTruncated
from kalda.metadata.topics import PartitionRegistration
from kalda.sim import controllers, faults
from kalda.sim.client import SimAdmin, SimClient, SimConsumer, SimProducer
from kalda.sim.cluster import PORT, SimCluster
from kalda.sim.network import SimAddress
from kalda.sim.quorum import recover, stale_leaders, storm
from kalda.sim.scenario import SimPlan, SimVerdict, simulate
from kalda.sim.world import World

if TYPE_CHECKING:
    from kalda.base.configs.producer import ProducerConfig
    from kalda.clientcore.producing.idempotence import Idempotence
    from kalda.clientcore.producing.producer_batch import ProducerBatch
    from kalda.clientcore.producing.transaction_manager import TransactionManager

# Unclean elections under consumers: each truncation is raised before a record in the place of a lost one is returned.
#
# The followers of a leader are cut off from it until it is alone in sync, and records are written and read. Then it
# loses power, and another replica is elected uncleanly, without those records. New ones are written at their offsets.
# A consumer without a reset policy gets `LogTruncated` with the end of what both logs have in common (KIP-320), and
# forgets what it has read from there on. In the end, what it holds must be the log: else it had gone on behind a
# truncation.

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
        others = {(node.name, SimAddress(leader.name, PORT)) for node in self.cluster if node is not leader}
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


class Switch:
    """Replaces attributes, and restores them."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value` until `restore`. Raises `KeyError` where there is no such attribute."""
        self._undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._undo:
            setattr(*self._undo.pop())


_MANY_IN_FLIGHT = 30


def number_each_attempt(switch: Switch) -> None:
    """A batch gets a new sequence number whenever it is drained, not only the first time."""
    from kalda.clientcore.producing.idempotence import Idempotence

    checked = Idempotence.number

    def number(self: Idempotence, batch: ProducerBatch) -> bool:
        sequence = self._sequences.get(batch.topic_partition)
        if batch.has_sequence and sequence is not None:
            self._remove(sequence, batch)
            batch.base_sequence = -1
        return checked(self, batch)

    switch.set(Idempotence, "number", number)


def send_without_bound(switch: Switch) -> None:
    """More batches of a partition are in flight than the five that brokers recognize when they arrive again."""
    from kalda.clientcore.producer import ProducerCore

    checked = ProducerCore.__init__

    def init(self: ProducerCore, config: ProducerConfig, **others: Any) -> None:
        checked(self, replace(config, max_in_flight=_MANY_IN_FLIGHT), **others)

    switch.set(ProducerCore, "__init__", init)


def begin_anew_in_the_same_epoch(switch: Switch) -> None:
    """Behind a gap, numbers begin at 0 again, and the epoch is not incremented."""
    from kalda.clientcore.producing.idempotence import Idempotence

    checked = Idempotence.run

    def run(self: Idempotence) -> None:
        epoch = self.epoch
        checked(self)
        if self.epoch != epoch and self.has_producer_id:
            self.epoch = epoch
            for sequence in self._sequences.values():
                sequence.epoch = epoch
                for batch in sequence.in_flight:
                    batch.set_producer(self.producer_id, epoch, batch.base_sequence, self.is_transactional)

    switch.set(Idempotence, "run", run)


def go_on_when_fenced(switch: Switch) -> None:
    """A producer that was fenced gets a new epoch, as if it were the latest of its transactional id."""
    from kalda.clientcore.producing.producer_errors import FENCED, AbortableTransactionError
    from kalda.clientcore.producing.transaction_manager import TransactionManager
    from kalda.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

    checked = TransactionManager._fail

    def fail(self: TransactionManager, error: ApiError) -> None:
        if error.code in FENCED:
            self.producer_id, self.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            self._is_started, self._bump_required = False, True
            error = AbortableTransactionError(error.code, error.message)
        checked(self, error)

    switch.set(TransactionManager, "_fail", fail)


def follow_any_log(switch: Switch) -> None:
    """A consumer goes on at its position behind a change of the leader."""
    from kalda.clientcore.consuming.positions import Positions

    switch.set(Positions, "_compare_epochs", lambda self: None)


@dataclass(frozen=True, slots=True)
class Ablation:
    """A safeguard, the function that switches it off, and the plan in which one of `seeds` seeds must then fail."""

    name: str
    off: Callable[[Switch], None]
    nodes: int
    kinds: tuple[str, ...]
    duration_s: float = 20.0
    seeds: int = 40

    loads: tuple[str, ...] = ()

    def plan(self, seed: int) -> SimPlan:
        return SimPlan(seed, self.nodes, self.kinds, self.duration_s, self.loads)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The safeguard is off inside this context."""
        switch = Switch()
        try:
            self.off(switch)
            yield
        finally:
            switch.restore()

    def find(self, seeds: Iterable[int] | None = None) -> SimVerdict | None:
        """The first run that violates an invariant without the safeguard; None where none does."""
        with self.applied():
            for seed in range(self.seeds) if seeds is None else seeds:
                verdict = simulate(self.plan(seed))
                if not verdict.passed:
                    return verdict
        return None


def _acknowledge_unsynced(switch: Switch) -> None:
    from kalda.replication.partition import Partition

    switch.set(Partition, "_local_end", lambda self: self.log.log_end_offset)


def _recover_without_checksums(switch: Switch) -> None:
    from kalda.storage.log import loader

    switch.set(loader, "check_crc", lambda *_: None)


def _take_any_sequence(switch: Switch) -> None:
    from kalda.storage.log.producer_state import ProducerStates

    switch.set(ProducerStates, "admit", lambda *_: None)


def _commit_without_followers(switch: Switch) -> None:
    from kalda.replication.followers import InSync

    switch.set(InSync, "committed_end", lambda self, local_end, leader_end: local_end)


def _diverge(switch: Switch) -> None:
    from kalda.replication import fetch

    switch.set(fetch, "_diverges", lambda *_: False)


def _commit_below_min_isr(switch: Switch) -> None:
    from kalda.replication.partition import Partition

    switch.set(Partition, "min_isr", 1)


def _keep_what_a_snapshot_lacks(switch: Switch) -> None:
    from kalda.broker.quorum import raft_driver
    from kalda.metadata.topics import TopicsDelta

    switch.set(raft_driver, "CLEAN_INTERVAL_MS", 500)
    switch.set(TopicsDelta, "finish_snapshot", lambda self: None)


def _trust_any_broker_epoch(switch: Switch) -> None:
    from kalda.controller.replica_reports import AlterPartitionControl

    switch.set(AlterPartitionControl, "_is_eligible", lambda self, replica: self._cluster.is_active(replica.broker_id))


def _read_all_of_followers(switch: Switch) -> None:
    from kalda.replication.partition import Partition

    checked = Partition.readable_end

    def readable_end(self: Partition, read_committed: bool) -> int:
        return checked(self, read_committed) if self.is_leader else self.log.log_end_offset

    switch.set(Partition, "readable_end", readable_end)


def _take_any_copy(switch: Switch) -> None:
    """Where the copy lacks records when the logs are swapped, the log is truncated: else an assertion stops the
    move."""
    from kalda.replication import dir_moves
    from kalda.storage.dirs.future_logs import FutureLogs
    from kalda.storage.log.deletion import truncate_to
    from kalda.storage.log.log import Log

    checked = FutureLogs.swap

    def swap(self: FutureLogs, topic_partition: TopicPartition) -> Log:
        current, future = self._manager.get(topic_partition), self._logs[topic_partition]
        assert current is not None
        truncate_to(current, future.log_end_offset)
        return checked(self, topic_partition)

    switch.set(FutureLogs, "swap", swap)
    switch.set(FutureLogs, "is_as_durable", lambda self, topic_partition: True)
    switch.set(dir_moves._Move, "is_caught_up", property(lambda self: self.future.log_end_offset > 0))


def _move_unsynced(switch: Switch) -> None:
    """The copy is not synced, and the log's flushes do not wait for that."""
    from kalda.replication.dir_moves import DirMoves
    from kalda.replication.partition import Partition
    from kalda.storage.dirs.future_logs import FutureLogs
    from kalda.storage.log.log import Log

    checked = FutureLogs.swap

    def swap(self: FutureLogs, topic_partition: TopicPartition) -> Log:
        current = self._manager.get(topic_partition)
        assert current is not None
        future = self._logs[topic_partition]
        future.recovery_point = max(future.recovery_point, current.recovery_point)
        return checked(self, topic_partition)

    def hold_flushes(self: Partition) -> bool:
        return True

    switch.set(FutureLogs, "is_as_durable", lambda self, topic_partition: True)
    switch.set(FutureLogs, "swap", swap)
    switch.set(Partition, "hold_flushes", hold_flushes)
    switch.set(DirMoves, "_sync", lambda self, move: self._continue(move))


def _forget_votes(switch: Switch) -> None:
    from kalda.raft.replica import Replica

    switch.set(Replica, "persist", lambda self: None)


def _vote_again(switch: Switch) -> None:
    from kalda.raft import elections

    switch.set(elections, "_same_candidate", lambda voted, candidate: True)


def _vote_for_any_log(switch: Switch) -> None:
    from kalda.raft.voters import OffsetAndEpoch

    switch.set(OffsetAndEpoch, "is_up_to_date", lambda self, other: True)


def _append_for_any_leader(switch: Switch) -> None:
    """Three checks keep a leader of a former epoch from changing the log of a replica with a newer epoch: the replica
    does not follow that leader, that leader refuses its fetch, and the replica ignores that leader's response. Each one
    is enough: with any two of them off, 60 seeds pass. So all three are switched off. The assertion that stops a
    replica before it truncates committed records is off too, so that the violation itself is found."""
    _follow_any_leader(switch)
    _serve_any_epoch(switch)
    _read_any_epoch(switch)
    _truncate_what_is_committed(switch)


def _follow_any_leader(switch: Switch) -> None:
    from kalda.raft import elections, rpc
    from kalda.raft.replica import Replica
    from kalda.raft.roles import Follower, Prospective, Unattached

    checked = elections.handle_begin_epoch

    def handle_begin_epoch(replica: Replica, call: rpc.BeginEpochCall, now: int) -> rpc.BeginEpochReply:
        leader = replica.destination_of(call.leader_id, call.leader_endpoints)
        free = isinstance(replica.role, Unattached | Prospective | Follower) and call.leader_id != replica.leader_id
        if leader is None or not free or call.epoch > replica.epoch:
            return checked(replica, call, now)
        replica.become_follower(replica.epoch, call.leader_id, call.leader_endpoints, leader, now)
        return rpc.BeginEpochReply(replica.reply_header())

    switch.set(elections, "handle_begin_epoch", handle_begin_epoch)


def _serve_any_epoch(switch: Switch) -> None:
    from kalda.raft.replica import Replica

    checked = Replica.leader_refusal

    def refusal(self: Replica, cluster_id: str | None, _: int) -> ErrorCode | None:
        return checked(self, cluster_id, self.epoch)

    switch.set(Replica, "leader_refusal", refusal)


def _read_any_epoch(switch: Switch) -> None:
    from kalda.raft import rpc
    from kalda.raft.machine import HeaderOutcome, RaftMachine

    checked = RaftMachine._on_reply_header

    def on_reply_header(self: RaftMachine, header: rpc.ReplyHeader, now: int) -> HeaderOutcome:
        if header.epoch < self.epoch and header.error is ErrorCode.NONE:
            return HeaderOutcome.READ_BODY
        return checked(self, header, now)

    switch.set(RaftMachine, "_on_reply_header", on_reply_header)


def _truncate_what_is_committed(switch: Switch) -> None:
    from kalda.raft import replication
    from kalda.raft.replica import Replica
    from kalda.raft.voters import OffsetAndEpoch

    checked = replication._truncate

    def truncate(replica: Replica, diverging: OffsetAndEpoch) -> None:
        known, replica.high_watermark = replica.high_watermark, 0
        checked(replica, diverging)
        replica.high_watermark = known

    switch.set(replication, "_truncate", truncate)


def _schedule_before_applying(switch: Switch) -> None:
    """As it once was: a record that cannot be applied is in the log by then."""
    from kalda.statemachine.runtime import ReplicatedRuntime

    checked = ReplicatedRuntime._write_batch

    def write_batch(self: ReplicatedRuntime[Any], epoch: int, records: Sequence[Any]) -> None:
        prepare, schedule = self._prepare, self._schedule
        assert schedule is not None
        place = prepare(epoch, records)
        schedule()
        self._prepare, self._schedule = lambda *_: place, None
        try:
            checked(self, epoch, records)
        finally:
            self._prepare, self._schedule = prepare, schedule

    switch.set(ReplicatedRuntime, "_write_batch", write_batch)


def _overlook_stalls(switch: Switch) -> None:
    from kalda.base.scheduling import LoopTime

    switch.set(LoopTime, "read", lambda self, machine_ms: machine_ms)


def _end_sessions_first(switch: Switch) -> None:
    """A session ends although the records that fence its broker may be refused."""
    from kalda.controller.liveness import BrokerLiveness

    checked = BrokerLiveness.fence_next

    def fence_next(self: BrokerLiveness, now_ms: int) -> bool:
        heartbeats = self._cluster.heartbeats
        expired = heartbeats.expired(now_ms)[:1]
        more = checked(self, now_ms)
        for session in expired:
            heartbeats.end_session(*session)
        return more

    switch.set(BrokerLiveness, "fence_next", fence_next)


def _elect_uncleanly_at_once(switch: Switch) -> None:
    from kalda.controller.cluster import UncleanHolds

    switch.set(UncleanHolds, "blocks", lambda self, partition: False)


@dataclass(frozen=True, slots=True)
class SmallAblation:
    """A safeguard of the quorum, of controllers or of consumers, tested by a simulation of its own. `weather(seed)`
    is a run in which one of `seeds` seeds must fail without it; it raises where an invariant is violated."""

    name: str
    off: Callable[[Switch], None]
    weather: Callable[[int], None]
    seeds: int = 60

    def run(self, seed: int) -> str:
        """The invariant that the seed violates; empty where it violates none."""
        try:
            self.weather(seed)
        except (AssertionError, IndexError) as error:
            return str(error) or type(error).__name__
        return ""

    def find(self) -> tuple[int, str] | None:
        """The first seed that violates an invariant without the safeguard, and which one; None where none does."""
        switch = Switch()
        try:
            self.off(switch)
            for seed in range(self.seeds):
                violation = self.run(seed)
                if violation:
                    return seed, violation
        finally:
            switch.restore()
        return None


def _storm(seed: int) -> None:
    recover(storm(seed))


def _stale_leaders(seed: int) -> None:
    recover(stale_leaders(seed))


def _controller_storm(seed: int) -> None:
    controllers.recover(controllers.storm(seed))


def _controller_stalls(seed: int) -> None:
    controllers.recover(controllers.stalls(seed))


QUORUM_ABLATIONS = {
    each.name: each
    for each in (
        SmallAblation("votes on disk", _forget_votes, _storm),
        SmallAblation("one vote an epoch", _vote_again, _storm),
        SmallAblation("votes only for logs that lack nothing", _vote_for_any_log, _storm),
        SmallAblation("epoch check on append", _append_for_any_leader, _stale_leaders),
    )
}
"""Safeguards of the quorum, by name."""


CONTROLLER_ABLATIONS = {
    each.name: each
    for each in (
        SmallAblation("apply before scheduling", _schedule_before_applying, _controller_storm),
        SmallAblation("heartbeats that arrived during a stall count", _overlook_stalls, _controller_stalls),
        SmallAblation("sessions end with their records", _end_sessions_first, _controller_storm, seeds=200),
        SmallAblation("unclean elections wait for the session", _elect_uncleanly_at_once, _controller_storm),
    )
}
"""Safeguards of the controller, by name."""
CONSUMER_ABLATIONS = {
    each.name: each
    for each in (SmallAblation("validation of offsets", follow_any_log, truncate_under_consumers, seeds=5),)
}
"""Safeguards of consumers, by name."""


ABLATIONS = {
    each.name: each
    for each in (
        Ablation("sync before acknowledging", _acknowledge_unsynced, 1, faults.POWER),
        Ablation(
            "checksums at recovery", _recover_without_checksums, 1, (*faults.POWER, "slow-disk"), loads=("groups",)
        ),
        Ablation("producers' sequences", _take_any_sequence, 1, ("reset", "kill")),
        Ablation("all in sync before committing", _commit_without_followers, 3, ("kill", "cut", "slow")),
        Ablation("truncation by epoch", _diverge, 3, ("kill", "pause", "cut-one-way"), seeds=80),
        Ablation("the in-sync minimum", _commit_below_min_isr, 3, ("alone",)),
        Ablation("brokers' epochs", _trust_any_broker_epoch, 3, ("stale",)),
        Ablation("the high watermark for readers of followers", _read_all_of_followers, 3, ("slow",), loads=("racks",)),
        Ablation("moves of whole logs only", _take_any_copy, 1, ("slow-disk",), loads=("dirs",)),
        Ablation("moves of synced logs only", _move_unsynced, 1, faults.POWER, seeds=60, loads=("dirs",)),
        Ablation("sequences of first attempts", number_each_attempt, 1, ("reset",)),
        Ablation("five batches in flight", send_without_bound, 1, ("reset", "slow")),
        Ablation("epochs of producers", begin_anew_in_the_same_epoch, 3, ("pause", "cut"), 30.0),
        Ablation("removal of what a snapshot lacks", _keep_what_a_snapshot_lacks, 3, ("kill", "cut"), 40.0),
    )
}
"""By the name of the safeguard."""
