"""Controllers alone, around one log, in virtual time: what a whole cluster shows in minutes, these show in a moment.

The controllers are the real ones. The quorum is one list of batches, of which an election drops some that are not
committed. Brokers send registrations, heartbeats and changes of ISRs; they have no logs. A node handles its timer and
its messages one by one. While it is stalled both wait, and after the stall the timer comes first, as on an event loop;
the node's time does not count the stall (`kalda.base.scheduling`).

What must hold meanwhile:

- A broker is fenced only where it has sent no heartbeat for a session timeout, or a probe of it was refused.
- An unclean election takes no partition from a broker whose session, by the last heartbeat that was handled, would not
  have ended by time.
- No call of a controller raises, and only a record that cannot be applied stops a node.
- Every node can apply every committed record.

A seed has stalls, bugs in requests and tasks, records that cannot be applied, a log that refuses, elections; brokers
that die, restart, fall silent, or are refused wrongly. In the end all faults are removed. Then one controller is
active, all have the state of the log, brokers are fenced exactly where they are dead, and what can have a leader has
one.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kalda.base.background import TURN_BUDGET_NS, Background
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import LoopTime, Pending
from kalda.controller.config import ControllerConfig, ControllerHost
from kalda.controller.config_schema import NodeConfigSchema
from kalda.controller.liveness import Probe
from kalda.controller.quorum_controller import QuorumController
from kalda.metadata.features import LATEST_PRODUCTION, default_levels, supported_ranges
from kalda.metadata.formatter import BootstrapMetadata
from kalda.protocol.access import Caller
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
)
from kalda.protocol.messages.metadata_records import BrokerRegistrationChangeRecord, PartitionChangeRecord, TopicRecord
from kalda.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kalda.protocol.record_framing import VersionedRecord, decode_metadata_record, encode_metadata_record
from kalda.sim.world import PARTS, raise_once
from kalda.statemachine.runtime import ReplayFault

CLUSTER = "cluster"
SESSION_MS = 9_000
HEARTBEAT_MS = 1_500
FETCH_TIMEOUT_MS = 2_000
"""So long a leader may do nothing before the others elect another one."""
RECORDS_PER_BATCH = 16
"""So few that fencing a broker takes several batches; the activation needs nearly as many."""


@dataclass(frozen=True, slots=True)
class SimBatch:
    base_offset: int
    epoch: int
    records: Sequence[VersionedRecord]
    append_timestamp_ms: int = 0
    size_bytes: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + max(1, len(self.records)) - 1


class ControllerNode:
    """A controller, and what it has to handle. It is the `QuorumClient` of its controller."""

    def __init__(self, world: Controllers, node_id: int) -> None:
        self.world = world
        self.id = node_id
        self.up = True
        self.stalled = False
        self.time = LoopTime()
        self.refuses = False
        """Whether its log refuses every batch."""
        self.is_poisoned = False
        """Whether it was given a record that cannot be applied, so that it has to stop."""
        self.inbox: deque[Callable[[], None]] = deque()
        """What has arrived while it was stalled, in order."""
        self.delivered = 0
        """How many batches its controller has received."""
        self.local_end: int | None = None
        """The end of its log, where it has appended as a leader that another one had replaced."""
        self.prepared: SimBatch | None = None
        self.timer_ms: int | None = None
        self.life = 1
        """What an earlier life has scheduled is dropped."""
        self.controller = self._new_controller()

    def _new_controller(self) -> QuorumController:
        world = self.world
        return QuorumController(
            ControllerConfig(
                node_id=self.id,
                cluster_id=CLUSTER,
                broker_session_timeout_ms=SESSION_MS,
                leader_imbalance_check_interval_ms=7_000,
                unclean_leader_election_interval_ms=5_000,
                max_records_per_batch=RECORDS_PER_BATCH,
            ),
            self,
            NodeConfigSchema({}),
            ControllerHost(
                new_id=world.new_id,
                rng=world.rng,
                background=Background(self._next_turn, itertools.count(0, TURN_BUDGET_NS).__next__),
                elapsed_ms=lambda: self.now,
                on_fatal=self._on_fatal,
                on_poll=self.arm,
            ),
            BootstrapMetadata.from_levels(LATEST_PRODUCTION, world.levels, "the simulator").records,
        )

    def _next_turn(self, turn: Callable[[], None]) -> None:
        """The turns of the background: each step of an event takes one, after what has arrived meanwhile."""
        life = self.life
        self.world.at(1, lambda: self.do(turn) if self.life == life else None)

    # The quorum of its controller.

    @property
    def log_end_offset(self) -> int:
        return self.world.end_offset if self.local_end is None else self.local_end

    def prepare_append(self, epoch: int, records: Sequence[VersionedRecord]) -> int:
        if self.refuses:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many metadata records wait for their commit")
        framed = [decode_metadata_record(encode_metadata_record(record, version)) for record, version in records]
        self.prepared = SimBatch(self.log_end_offset, epoch, framed)
        if self.world.leads(self, epoch):
            self.world.check_decisions(self.controller, framed)
        return self.prepared.last_offset

    def schedule_append(self) -> None:
        batch = self.prepared
        assert batch is not None
        if self.world.leads(self, batch.epoch):
            self.world.append(batch)
        else:
            self.local_end = batch.last_offset + 1

    def resign(self, epoch: int) -> None:
        if self.world.leads(self, epoch):
            self.world.no_leader()
            self.world.at(self.world.rng.randint(500, 1_500), self.world.elect)

    # Its life.

    @property
    def now(self) -> int:
        """The time by which its controller goes."""
        return self.time.read(self.world.now)

    def do(self, action: Callable[[], object]) -> None:
        """Handle a message, now or after the stall. A message to a node that is down is lost."""
        if not self.up:
            return
        if self.stalled:
            self.inbox.append(lambda: self._handle(action))
        else:
            self._handle(action)

    def _handle(self, action: Callable[[], object]) -> None:
        try:
            action()
        except ReplayFault as fault:
            raise AssertionError(f"node {self.id} cannot read the metadata log: {fault}") from fault
        self.arm()

    def arm(self) -> None:
        """As the shell does after each event: probe, poll, set the timer."""
        world, now = self.world, self.now
        if not self.up:
            return
        for probe in self.controller.probes_due(now):
            world.at(world.delay(), lambda probe=probe: self._probed(probe))  # type: ignore[misc]
        deadline = self.controller.poll(now)
        self.timer_ms = None if deadline is None else max(now + 1, deadline)
        if self.timer_ms is not None:
            life, due = self.life, self.timer_ms
            world.at(due - now, lambda: self._tick(life, due))

    def _tick(self, life: int, due: int) -> None:
        if self.life == life and self.timer_ms == due and not self.stalled:
            self.arm()

    def _probed(self, probe: Probe) -> None:
        broker = self.world.brokers[probe.broker_id]
        refused = not broker.up or broker.behind_firewall
        if refused:
            self.world.refused.add((probe.broker_id, probe.broker_epoch))
        self.do(lambda: self.controller.on_probed(probe, refused))

    def stall(self) -> None:
        self.stalled = True
        self.time.turn(self.world.now)

    def go_on(self) -> None:
        """The timer first, then what has arrived."""
        if not self.stalled:
            return
        self.stalled = False
        if self.timer_ms is not None and self.timer_ms <= self.now:
            self.arm()
        while self.inbox and self.up:
            self.inbox.popleft()()
        self.time.free(self.world.now)
        self.arm()

    def kill(self) -> None:
        self.up = self.stalled = False
        self.inbox.clear()
        self.time.free(self.world.now)
        self.timer_ms = None
        self.life += 1

    def start(self) -> None:
        """A new process, which applies what is committed."""
        self.up, self.refuses, self.local_end, self.delivered = True, False, None, 0
        self.controller = self._new_controller()
        self.deliver()
        self.do(lambda: self.controller.on_leader_change(self.world.leader_id, self.world.epoch))

    def _on_fatal(self, error: BaseException) -> None:
        world = self.world
        if not self.is_poisoned:
            world.broken(f"node {self.id} stops: {error!r}")
        self.is_poisoned = False
        world.at(0, lambda: world.kill(self))
        world.at(1_500, lambda: None if self.up else self.start())

    def deliver(self) -> None:
        """Hand on what is committed."""

        def commit() -> None:
            batches = self.world.committed()[self.delivered :]
            self.delivered += len(batches)
            self.controller.on_commit(batches)

        self.do(commit)


class SimBroker:
    """Sends what a broker sends to the active controller. It reads all metadata at once."""

    def __init__(self, world: Controllers, broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.up = True
        self.silent = False
        """Whether none of its messages arrive."""
        self.behind_firewall = False
        """Whether probes of it are refused although it is up."""
        self.incarnation = 1
        self.epoch: int | None = None
        """None until it is registered."""
        self.heartbeats_ms = [-SESSION_MS]
        """When it has sent the last one that a controller has handled, and those after it, of any epoch."""
        world.at(world.rng.randint(0, HEARTBEAT_MS), self.turn)

    def turn(self) -> None:
        world = self.world
        world.at(HEARTBEAT_MS if self.epoch is not None else 300, self.turn)
        node = world.leader
        if not self.up or self.silent or node is None:
            return
        if self.epoch is None:
            self._send(node, "broker_registration", self._registration(), self._on_registered)
            return
        self.heartbeats_ms.append(world.now)
        offset = world.committed_end - 1
        request = BrokerHeartbeatRequest(
            broker_id=self.id, broker_epoch=self.epoch, current_metadata_offset=offset, want_shut_down=False
        )
        self._send(node, "broker_heartbeat", request, self._on_heartbeat)

    def _send(self, node: ControllerNode, api: str, request: Any, on_response: Callable[[Any, Any], None]) -> None:
        world, incarnation, sent_ms = self.world, self.incarnation, self.world.now

        def answer(response: Any, error: ApiError | None) -> None:
            if self.up and self.incarnation == incarnation:
                world.at(world.delay(), lambda: on_response(response, error))

        def handle() -> None:
            world.call(node, api, request).then(answer)
            if api == "broker_heartbeat":
                self.heartbeats_ms = [ms for ms in self.heartbeats_ms if ms >= sent_ms]

        def arrive() -> None:
            node.do(handle)

        world.at(world.delay(), arrive)

    def _on_registered(self, response: Any, error: ApiError | None) -> None:
        if error is None and self.up:
            self.epoch = response.broker_epoch

    def _on_heartbeat(self, _: Any, error: ApiError | None) -> None:
        if error is not None and error.code is ErrorCode.STALE_BROKER_EPOCH:
            self.epoch = None

    def _registration(self) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=self.id,
            cluster_id=CLUSTER,
            incarnation_id=Uuid(bytes([self.id + 1, self.incarnation % 256]) * 8),
            listeners=[BrokerRegistrationRequestListener(name="PLAINTEXT", host=f"host{self.id}", port=9092)],
            features=[
                BrokerRegistrationRequestFeature(
                    name=name, min_supported_version=levels.min, max_supported_version=levels.max
                )
                for name, levels in supported_ranges().items()
            ],
            log_dirs=[Uuid(bytes([0xD0, self.id]) + bytes(13) + b"\1")],
        )

    def break_connection(self) -> None:
        """The active controller sees that the connection of the heartbeats is closed."""
        node, epoch = self.world.leader, self.epoch
        if node is not None and epoch is not None:
            node.do(lambda: node.controller.on_broker_disconnected(self.id, epoch, node.now))

    def kill(self, breaks_connection: bool) -> None:
        self.up = False
        if breaks_connection:
            self.break_connection()

    def start(self) -> None:
        if not self.up:
            self.up, self.epoch = True, None
            self.incarnation += 1


class Controllers:
    """The nodes, the brokers, the log, and the time in ms."""

    def __init__(self, controllers: int, brokers: int, *, elr: bool, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.levels = {**default_levels(LATEST_PRODUCTION), "eligible.leader.replicas.version": int(elr)}
        self.max_delay_ms = 20
        """Of each message, and of each commit."""
        self.has_healed = False
        """Whether all faults were removed, also those that have not come about yet."""
        self.epoch = 0
        self.leader_id: int | None = None
        self.batches: list[SimBatch] = []
        """The log of the leader."""
        self.committed_count = 0
        """So many batches of it are committed."""
        self.refused: set[tuple[int, int]] = set()
        """Brokers and epochs of which a probe was refused."""
        self._broken: list[str] = []
        """Promises that were broken inside a call of a controller, which would take an exception for a bug."""
        self._sessions_end_ms: dict[int, int] = {}
        """By broker id, when the session would have ended of which it was fenced last."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._ids = 0
        self.nodes = {node_id: ControllerNode(self, node_id) for node_id in range(1, controllers + 1)}
        self.brokers = {broker_id: SimBroker(self, broker_id) for broker_id in range(brokers)}

    # Time.

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._sequence, action))

    def run(self, ms: int) -> None:
        until = self.now + ms
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            assert not self._broken, self._broken[0]
        self.now = until

    def delay(self) -> int:
        return self.rng.randint(1, self.max_delay_ms)

    def new_id(self) -> Uuid:
        self._ids += 1
        return Uuid(self._ids.to_bytes(16, "big").replace(b"\0", b"\x07", 1))

    # The quorum.

    @property
    def leader(self) -> ControllerNode | None:
        return None if self.leader_id is None else self.nodes[self.leader_id]

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @property
    def committed_end(self) -> int:
        return self.batches[self.committed_count - 1].last_offset + 1 if self.committed_count else 0

    def committed(self) -> list[SimBatch]:
        return self.batches[: self.committed_count]

    def leads(self, node: ControllerNode, epoch: int) -> bool:
        return self.leader_id == node.id and self.epoch == epoch

    def append(self, batch: SimBatch) -> None:
        assert batch.base_offset == self.end_offset, f"a batch at {batch.base_offset} of a log up to {self.end_offset}"
        self.batches.append(batch)
        count, epoch = len(self.batches), self.epoch
        self.at(self.delay(), lambda: self._commit(count, epoch))

    def _commit(self, count: int, epoch: int) -> None:
        leader = self.leader
        if epoch != self.epoch or leader is None or leader.stalled or count <= self.committed_count:
            return
        self.committed_count = count
        for node in self.nodes.values():
            self.at(0 if node is leader else self.delay(), node.deliver)

    def no_leader(self) -> None:
        """The leader is not one any more; its epoch goes on until the next election."""
        self.leader_id = None
        self._announce(None)

    def _announce(self, leader_id: int | None) -> None:
        epoch = self.epoch
        for node in self.nodes.values():
            node.do(lambda node=node: node.controller.on_leader_change(leader_id, epoch))  # type: ignore[misc]

    def elect(self) -> None:
        """Elect one that is up and not stalled, where there is no leader. It has all that is committed, and perhaps
        more."""
        able = [node for node in self.nodes.values() if node.up and not node.stalled]
        if self.leader_id is not None or not able or len(able) * 2 <= len(self.nodes):
            return
        node = self.rng.choice(able)
        del self.batches[self.rng.randint(self.committed_count, len(self.batches)) :]
        self.epoch += 1
        self._announce(None)
        self.batches.append(SimBatch(self.end_offset, self.epoch, []))
        self.committed_count = len(self.batches)
        self.leader_id = node.id
        for each in self.nodes.values():
            each.local_end = None if each.up and not each.stalled else each.local_end
            each.deliver()
        self._announce(node.id)

    def kill(self, node: ControllerNode) -> None:
        node.kill()
        if self.leader_id == node.id:
            self.no_leader()
        self.at(FETCH_TIMEOUT_MS, self.elect)

    def stall(self, node: ControllerNode, ms: int) -> None:
        """The node does nothing for so long. If it leads, and the others are enough, they elect another leader."""
        node.stall()
        self.at(ms, node.go_on)

        def replace() -> None:
            others = [each for each in self.nodes.values() if each.up and not each.stalled]
            if node.stalled and self.leader_id == node.id and len(others) * 2 > len(self.nodes):
                node.local_end = self.end_offset
                self.no_leader()
                self.elect()

        self.at(FETCH_TIMEOUT_MS, replace)

    # Requests.

    def call(self, node: ControllerNode, api: str, request: Any) -> Pending[Any]:
        handler = getattr(node.controller, f"handle_{api}")
        pending: Pending[Any] = handler(request, Caller(), node.now)
        return pending

    def request(self, api: str, request: Any) -> Pending[Any] | None:
        """At the leader; None where there is none, or it does not answer now."""
        node = self.leader
        if node is None or node.stalled or not node.up:
            return None
        answers: list[Pending[Any]] = []
        node.do(lambda: answers.append(self.call(node, api, request)))
        return answers[0]

    # What must hold.

    def broken(self, promise: str) -> None:
        """A promise was broken; `run` raises."""
        self._broken.append(promise)

    def check_decisions(self, controller: QuorumController, records: Sequence[VersionedRecord]) -> None:
        """The leader's controller is about to apply these records."""
        for versioned in records:
            record = versioned.record
            if isinstance(record, BrokerRegistrationChangeRecord) and record.fenced > 0:
                self._check_fencing(record)
            elif isinstance(record, PartitionChangeRecord) and record.leader >= 0:
                self._check_election(controller, record)

    def _check_fencing(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self.brokers[record.broker_id]
        # After a stall, the controller's time may come to the end of a session before the heartbeat that arrived in the
        # stall: the broker was silent for a session, though it is not any more.
        times = [*broker.heartbeats_ms, self.now]
        was_silent = any(next_ms - sent_ms >= SESSION_MS for sent_ms, next_ms in pairwise(times))
        self._sessions_end_ms[broker.id] = times[0] + SESSION_MS
        if not was_silent and (broker.id, record.broker_epoch) not in self.refused:
            self.broken(f"broker {broker.id} is fenced at {self.now}, and sent a heartbeat at {times[-2]}")

    def _check_election(self, controller: QuorumController, record: PartitionChangeRecord) -> None:
        partition = controller.partitions.partition(record.topic_id, record.partition_id)
        if partition is None or record.leader in (*partition.isr, *partition.elr, *partition.last_known_elr):
            return
        for replica in (*partition.isr, *partition.elr):
            end_ms = self._sessions_end_ms.get(replica, 0)
            if end_ms >= self.now:
                self.broken(
                    f"{record.leader} is elected uncleanly at {self.now}; the session of broker {replica}, which has "
                    f"all records, lasts until {end_ms}"
                )


_BUGS = (*PARTS, ("topics", "create"))
"""Parts of a controller that raise once."""


def storm(seed: int, steps: int = 60) -> Controllers:
    """A cluster after `steps` faults. Raises `AssertionError` where a promise is broken."""
    rng = random.Random(~seed)
    world = Controllers(rng.choice((1, 1, 3)), rng.choice((3, 4)), elr=rng.random() < 0.5, seed=seed)
    world.max_delay_ms = rng.choice((5, 50, 300))
    world.elect()
    world.run(5_000)
    for number in range(rng.randint(2, 4)):
        _create(world, rng, f"t{number}")
        world.run(500)
    for _ in range(steps):
        roll = rng.random()
        if roll < 0.35:
            _change_isr(world, rng)
        elif roll < 0.6:
            _befall_broker(world, rng)
        elif roll < 0.7:
            _create(world, rng, f"n{rng.randrange(10**6)}")
        else:
            _befall_controller(world, rng)
        world.run(rng.choice((5, 100, 1_000, 4_000)))
    return world


def stalls(seed: int, rounds: int = 5) -> Controllers:
    """A lone controller that stalls again and again, while all brokers go on."""
    rng = random.Random(~seed)
    world = Controllers(1, 3, elr=rng.random() < 0.5, seed=seed)
    world.elect()
    world.run(5_000)
    _create(world, rng, "t")
    for _ in range(rounds):
        world.run(rng.randint(1_000, 20_000))
        world.stall(world.nodes[1], rng.randint(2_000, 5 * SESSION_MS))
        world.run(5 * SESSION_MS + 1)
    return world


def recover(world: Controllers) -> None:
    """Remove all faults but one: a broker is dead, and the log refuses its fencing at first. Raises `AssertionError`
    where the end is not as it must be."""
    world.max_delay_ms, world.has_healed = 5, True
    for node in world.nodes.values():
        node.refuses = False
        node.is_poisoned = False
        node.go_on()
        if not node.up:
            node.start()
    for broker in world.brokers.values():
        broker.silent = broker.behind_firewall = False
        broker.start()
    world.elect()
    world.run(3 * FETCH_TIMEOUT_MS)
    world.elect()
    world.run(2 * SESSION_MS)
    leader = world.leader
    assert leader is not None, "there is no leader without faults"
    world.brokers[0].kill(breaks_connection=False)
    leader.refuses = True
    world.run(SESSION_MS + SESSION_MS // 2)
    leader.refuses = False
    world.run(SESSION_MS)
    assert world.leader is leader, "the leader was replaced without faults"
    assert leader.controller.is_active, "the leader's controller is not active"
    created = _create(world, random.Random(0), "the-end")
    world.run(1_000)
    assert created is not None
    assert created.value is not None, f"a topic cannot be created without faults: {created.error}"
    result = created.value.topics[0]
    assert result.error_code == ErrorCode.NONE, f"a topic cannot be created without faults: {result.error_message}"
    _check_end(world, leader.controller)


def _check_end(world: Controllers, controller: QuorumController) -> None:
    fresh = ControllerNode(world, 99)
    fresh.deliver()
    for node in (*world.nodes.values(), fresh):
        assert _state(node.controller) == _state(controller), f"node {node.id} has another state than the leader"
    for broker_id, broker in world.brokers.items():
        is_fenced = controller.cluster.brokers[broker_id].fenced
        assert is_fenced != broker.up, f"broker {broker_id}: fenced {is_fenced}, up {broker.up}"
    for at, partition in controller.partitions.partitions.items():
        last = (*partition.isr, *partition.elr)
        if not partition.has_leader and any(world.brokers[replica].up for replica in last):
            raise AssertionError(f"{at} has no leader, and the replicas {last} have all its records")


def _state(controller: QuorumController) -> list[dict[Any, Any]]:
    partitions = controller.partitions
    return [
        dict(each.items())
        for each in (
            controller.cluster.brokers,
            partitions.topic_ids,
            partitions.partitions,
            partitions.partition_counts,
            controller.configs.values,
        )
    ]


# What happens.


def _create(world: Controllers, rng: random.Random, name: str) -> Any:
    """A topic with some ten partitions; of every other one unclean elections are allowed."""
    brokers, factor = list(world.brokers), rng.choice((2, 3))
    assignments = [
        CreatableReplicaAssignment(partition_index=at, broker_ids=rng.sample(brokers, factor))
        for at in range(rng.randint(4, 12))
    ]
    unclean = CreatableTopicConfig(name="unclean.leader.election.enable", value=str(rng.random() < 0.5).lower())
    least = CreatableTopicConfig(name="min.insync.replicas", value=rng.choice(("1", "2")))
    topic = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[unclean, least]
    )
    return world.request("create_topics", CreateTopicsRequest(topics=[topic]))


def _change_isr(world: Controllers, rng: random.Random) -> None:
    """Leaders take replicas out of their ISRs, or all live ones into them."""
    node = world.leader
    if node is None or node.stalled or not node.controller.is_active:
        return
    shrinks = rng.random() < 0.5
    for at, partition in list(node.controller.partitions.partitions.items()):
        leader = world.brokers.get(partition.leader)
        if leader is None or not leader.up or leader.epoch is None or rng.random() < 0.5:
            continue
        isr = [leader.id] if shrinks else [each for each in partition.replicas if world.brokers[each].up]
        states = [
            AlterPartitionRequestBrokerState(broker_id=each, broker_epoch=world.brokers[each].epoch or -1)
            for each in isr
        ]
        data = AlterPartitionRequestPartitionData(
            partition_index=at.partition_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=states,
        )
        topics = [AlterPartitionRequestTopicData(topic_id=at.topic_id, partitions=[data])]
        request = AlterPartitionRequest(broker_id=leader.id, broker_epoch=leader.epoch, topics=topics)
        if world.request("alter_partition", request) is None or not node.controller.is_active:
            return


def _befall_broker(world: Controllers, rng: random.Random) -> None:
    broker = rng.choice(list(world.brokers.values()))
    match rng.randrange(5):
        case 0:
            broker.kill(breaks_connection=rng.random() < 0.7)
        case 1:
            for each in world.brokers.values():
                each.start()
        case 2:
            broker.silent = not broker.silent
        case 3:
            broker.behind_firewall = True
            broker.break_connection()
        case _:
            for each in world.brokers.values():
                each.silent = each.behind_firewall = False


def _befall_controller(world: Controllers, rng: random.Random) -> None:
    node = world.leader or rng.choice(list(world.nodes.values()))
    match rng.randrange(6):
        case 0:
            if not node.stalled and node.up:
                world.stall(node, rng.choice((500, 3_000, 12_000, 30_000)))
        case 1:
            raise_once(node.controller, *rng.choice(_BUGS), lambda: not world.has_healed)
        case 2:
            _poison(node)
        case 3:
            node.refuses = rng.random() < 0.7
            world.at(rng.choice((500, 5_000, 15_000)), lambda: setattr(node, "refuses", False))
        case 4:
            world.kill(node)
            world.at(rng.choice((1_000, 5_000)), lambda: None if node.up else node.start())
            world.at(8_000, world.elect)
        case _:
            world.elect()


def _poison(node: ControllerNode) -> None:
    """A request with a bug makes a record that no node can apply: a topic that there is already."""
    controller = node.controller
    if node.stalled or not node.up or not controller.is_active or node.refuses:
        return
    name = next(iter(controller.partitions.topic_ids), None)
    if name is None:
        return
    record = TopicRecord(name=name, topic_id=node.world.new_id())
    node.is_poisoned = True
    node.do(lambda: controller._write_records("bug", lambda: [VersionedRecord(record, 0)]))
