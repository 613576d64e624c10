"""A simulated quorum: RaftMachines with their disks and a network, without bytes, on virtual time; and its seeds.

Each node's log is a list of (epoch, payload); what is flushed survives a crash, what is not may be lost. Effects are
carried out as the driver does: in order, `Persist` at once, a flush after a delay. The network delays, loses, repeats
and reorders calls and replies at given rates, and links fail in both directions or in one. A node may be killed, lose
what it has not flushed, be paused, or have a slow disk. After every step Raft's promises are checked.

A storm has delays, losses, repetitions, links that fail in both directions or in one, slow links and disks, pauses,
kills, crashes that lose what was not synced, snapshots, damaged ones among them, and changes of the voters. Stale
leaders lead an epoch without having received the newer one. In the end all faults are removed, all nodes must agree,
and a write must go through. A seed costs a thousandth of one with whole nodes, so rare interleavings of elections are
looked for here.
"""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Callable
from typing import Any

from kalda.base.ids import Uuid
from kalda.protocol.messages.log_records import KRaftVersionRecord, VotersRecord
from kalda.raft import events as ev
from kalda.raft import events as fx
from kalda.raft import rpc
from kalda.raft.log_state import RaftLogState
from kalda.raft.machine import RaftMachine
from kalda.raft.quorum_state import ElectionState
from kalda.raft.roles import LeaderRole
from kalda.raft.voters import (
    BOOTSTRAP_SNAPSHOT,
    OffsetAndEpoch,
    RaftConfig,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterHistory,
    VoterSet,
)

CLUSTER = "cluster"
Entry = tuple[int, object]


def key_of(node_id: int, dynamic: bool = True) -> ReplicaKey:
    return ReplicaKey(node_id, Uuid(bytes([node_id]) * 16) if dynamic else Uuid(bytes(16)))


def endpoint_of(node_id: int) -> VoterEndpoint:
    return VoterEndpoint("CONTROLLER", f"host{node_id}", 9000 + node_id)


def voters_of(*node_ids: int, dynamic: bool = True) -> VoterSet:
    limit = 1 if dynamic else 0
    return VoterSet(Voter(key_of(i, dynamic), (endpoint_of(i),), 0, limit) for i in node_ids)


class QuorumNode:
    """A machine, and what survives its crash: election state, flushed log, snapshots."""

    def __init__(self, cluster: SimQuorum, node_id: int, bootstrap: VoterSet | None, can_be_voter: bool) -> None:
        self.cluster = cluster
        self.id = node_id
        self.can_be_voter = can_be_voter
        self.election = ElectionState()
        """The content of `quorum-state`."""
        self.entries: list[Entry] = []
        """The log from `start_offset` on."""
        self.start_offset = 0
        self.flushed = 0
        """Everything before it survives a crash."""
        self.snapshots: dict[OffsetAndEpoch, list[object]] = {}
        """Their control records, by id."""
        if bootstrap is not None:
            self.snapshots[BOOTSTRAP_SNAPSHOT] = [KRaftVersionRecord(kraft_version=1), bootstrap.to_record()]
        self.partial: list[object] = []
        """Chunks of the snapshot that is being fetched."""
        self.machine: RaftMachine | None = None
        """None while the node is down."""
        self.incarnation = 0
        """How often it was started: what an earlier process has scheduled is dropped."""
        self.high_watermark = 0
        """Of the last `SetHighWatermark`."""
        self.leader: tuple[int | None, int] = (None, 0)
        """Of the last `LeaderChanged`."""
        self.replies: dict[Any, Any] = {}
        """By token: the node that has called (None for an administrator), and the function that takes the reply."""
        self.tick_at: int | None = None
        """For which time a `Tick` is scheduled."""
        self.paused = False
        self.queued_events: list[ev.Event] = []
        """What has arrived while it was paused."""
        self.flush_delay: tuple[int, int] | None = None
        """In the place of the quorum's, where its disk is slow."""
        self.checked_commits: tuple[int, int, int] = (0, 0, 0)
        """Epoch, incarnation, and how many of `commit_order` were compared with its log as the leader of both."""

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def up(self) -> bool:
        return self.machine is not None

    @property
    def leads(self) -> bool:
        return self.machine is not None and isinstance(self.machine.role, LeaderRole)

    def entry(self, offset: int) -> Entry:
        return self.entries[offset - self.start_offset]

    def part(self, low: int, high: int) -> list[Entry]:
        return self.entries[max(0, low - self.start_offset) : max(0, high - self.start_offset)]

    def log_state(self) -> RaftLogState:
        epochs: list[tuple[int, int]] = []
        for at, (epoch, _) in enumerate(self.entries):
            if not epochs or epochs[-1][0] != epoch:
                epochs.append((epoch, self.start_offset + at))
        return RaftLogState(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            epochs=epochs,
            snapshots=sorted(self.snapshots),
        )

    def history(self) -> VoterHistory:
        history = VoterHistory(self.cluster.static_voters)
        records: list[tuple[int, object]] = []
        if self.snapshots:
            latest = max(self.snapshots)
            records += [(latest.offset - 1, record) for record in self.snapshots[latest]]
        records += [(self.start_offset + at, entry[1]) for at, entry in enumerate(self.entries)]
        for offset, record in records:
            if isinstance(record, VotersRecord):
                history.set_voters(offset, VoterSet.from_record(record))
            elif isinstance(record, KRaftVersionRecord):
                history.set_kraft_version(offset, record.kraft_version)
        return history


class SimQuorum:
    """The nodes, their time and their network."""

    def __init__(
        self,
        voters: tuple[int, ...],
        *,
        observers: tuple[int, ...] = (),
        joiners: tuple[int, ...] = (),
        dynamic: bool = True,
        seed: int = 0,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        """`observers` are brokers; `joiners` are controllers that are not voters yet."""
        self.random = random.Random(seed)
        self.now = 0
        self.dynamic = dynamic
        self.static_voters = VoterSet() if dynamic else voters_of(*voters, dynamic=False)
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.sequence = 0
        self.trace = trace
        self.loss_rate = 0.0
        self.delay = (1, 5)
        self.flush_delay = (1, 5)
        self.cut: set[frozenset[int]] = set()
        self.refusal_rate = 1.0
        """How often the host of a node that is down refuses connections, rather than not respond."""
        self.firewalls: set[tuple[int, int]] = set()
        """Directed pairs of nodes: a firewall refuses connections from the first to the second, which is up."""
        self.cut_one_way: set[tuple[int, int]] = set()
        self.slow_nodes: dict[int, tuple[int, int]] = {}
        """Delays of all that these nodes send, in the place of `delay`."""
        self.repeat_rate = 0.0
        """How often a call arrives twice."""
        self.damage_rate = 0.0
        """How often a fetched snapshot is damaged."""
        self._damage_random = random.Random(~seed)
        self.committed: dict[int, Entry] = {}
        """The record at each committed offset."""
        self.commit_order: list[int] = []
        """Committed offsets, in the order in which a node first reported them."""
        self.leaders: dict[int, int] = {}
        """By epoch."""
        bootstrap = voters_of(*voters) if dynamic else None
        self.nodes = {
            i: QuorumNode(self, i, bootstrap if i in voters else None, i not in observers)
            for i in (*voters, *observers, *joiners)
        }
        self.all_snapshots = {
            snapshot: found for node in self.nodes.values() for snapshot, found in node.snapshots.items()
        }
        """Every snapshot ever taken: a node that has fetched one may install it after all others have deleted it."""

    # Life of a node.

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.nodes):
            node = self.nodes[node_id]
            assert not node.up
            node.incarnation += 1
            node.tick_at = None
            node.high_watermark = 0
            node.leader = (None, 0)
            config = RaftConfig(
                key_of(node_id),
                CLUSTER,
                endpoints=(endpoint_of(node_id),) if node.can_be_voter else (),
                bootstrap_servers=tuple((f"host{i}", 9000 + i) for i in self.nodes if i != node_id),
                can_be_voter=node.can_be_voter,
            )
            node.machine = RaftMachine(
                config, node.log_state(), node.history(), node.election, lambda n: self.random.randrange(n)
            )
            self.step(node, ev.Start())

    def crash(self, node_id: int, lose_unflushed: bool = True) -> None:
        node = self.nodes[node_id]
        node.machine = None
        node.partial = []
        if self.random.random() < self.refusal_rate:
            # Its kernel closes its connections, and the callers at the other end find that connections are refused.
            for caller, on_reply in node.replies.values():
                if caller is not None:
                    self.at(self.random.randint(*self.delay), functools.partial(on_reply, None, True))
        node.replies.clear()
        self.wake(node_id)
        if lose_unflushed:
            keep = self.random.randint(min(node.flushed, node.end_offset), node.end_offset)
            del node.entries[keep - node.start_offset :]
        node.flushed = node.end_offset

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        self.nodes[node_id].paused = True

    def wake(self, node_id: int) -> None:
        """SIGCONT: all that has arrived meanwhile is stepped at once."""
        node = self.nodes[node_id]
        node.paused, queued = False, node.queued_events
        node.queued_events = []
        for event in queued:
            self.step(node, event)

    # Time.

    def at(self, delay: int, action: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.queue, (self.now + delay, self.sequence, action))

    def run(self, ms: int) -> None:
        until = self.now + ms
        while self.queue and self.queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self.queue)
            action()
        self.now = until

    @property
    def leader(self) -> QuorumNode | None:
        """The leader of the newest epoch in which a record is committed."""
        leaders = [n for n in self.nodes.values() if n.leads and n.leader[0] == n.id]
        return max(leaders, key=lambda n: n.leader[1], default=None)

    # Driving.

    def step(self, node: QuorumNode, event: ev.Event) -> None:
        if node.machine is None:
            return
        if node.paused:
            node.queued_events.append(event)
            return
        effects = node.machine.step(event, self.now)
        for effect in effects:
            self.carry_out(node, effect)
        self.check(node)
        self.schedule(node)

    def schedule(self, node: QuorumNode) -> None:
        assert node.machine is not None
        due, incarnation = node.machine.deadline, node.incarnation
        if due is None or (node.tick_at is not None and self.now < node.tick_at <= due):
            return
        node.tick_at = max(due, self.now + 1)

        def tick(at: int = node.tick_at) -> None:
            if node.incarnation == incarnation and node.tick_at == at:
                node.tick_at = None
                self.step(node, ev.Tick())

        self.at(node.tick_at - self.now, tick)

    def carry_out(self, node: QuorumNode, effect: fx.Effect) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:6} {node.id}: {describe(effect)}")
        match effect:
            case fx.Persist(state):
                assert state.epoch >= node.election.epoch
                if state.epoch == node.election.epoch and node.election.voted and state.voted:
                    assert state.voted == node.election.voted, "two votes in one epoch"
                node.election = state
            case fx.AppendControls(first, epoch, records):
                assert first == node.end_offset
                node.entries += [(epoch, record) for record in records]
            case fx.AppendPayload(first, epoch, payload):
                assert first == node.end_offset
                node.entries += [(epoch, value) for value in payload]  # type: ignore[attr-defined]
            case fx.AppendFetched(first, end, records):
                assert first == node.end_offset
                node.entries += records[: end - first]  # type: ignore[index]
            case fx.TruncateLog(offset):
                del node.entries[offset - node.start_offset :]
                node.flushed = min(node.flushed, offset)
            case fx.FlushLog(offset, generation):
                self.later_flush(node, offset, generation)
            case fx.SendCall(correlation, destination, call):
                self.send(node, destination.port - 9000, correlation, call)
            case fx.SendReply(token, reply):
                self.reply(node, token, reply)
            case fx.SetHighWatermark(offset):
                self.commit(node, offset)
            case fx.LeaderChanged(leader, epoch):
                node.leader = (leader, epoch)
            case fx.SaveSnapshotChunk(_, position, data):
                node.partial = (node.partial if position else []) + [data]
            case fx.InstallSnapshot(snapshot):
                self.later_install(node, snapshot)

    def install(self, node: QuorumNode, snapshot: OffsetAndEpoch) -> tuple[rpc.Control, ...]:
        node.snapshots = {snapshot: self.all_snapshots[snapshot]}
        node.entries, node.start_offset, node.flushed = [], snapshot.offset, snapshot.offset
        return tuple(rpc.Control(snapshot.offset - 1, record) for record in node.snapshots[snapshot])

    def later_install(self, node: QuorumNode, snapshot: OffsetAndEpoch) -> None:
        incarnation = node.incarnation

        def installed() -> None:
            if node.incarnation != incarnation or not node.up:
                return
            if self._damage_random.random() < self.damage_rate:
                self.step(node, ev.SnapshotDamaged(snapshot))
            else:
                self.step(node, ev.SnapshotInstalled(snapshot, self.install(node, snapshot)))

        self.at(self.random.randint(*(node.flush_delay or self.flush_delay)), installed)

    def later_flush(self, node: QuorumNode, offset: int, generation: int) -> None:
        incarnation = node.incarnation

        def flushed() -> None:
            if node.incarnation != incarnation or node.machine is None:
                return
            if generation == node.machine.flush_generation:
                node.flushed = max(node.flushed, min(offset, node.end_offset))
            self.step(node, ev.Flushed(offset, generation))

        self.at(self.random.randint(*(node.flush_delay or self.flush_delay)), flushed)

    def send(self, node: QuorumNode, target: int, correlation: int, call: rpc.Call) -> None:
        incarnation, peer = node.incarnation, self.nodes[target]

        def on_reply(reply: rpc.Reply | None, refused: bool = False) -> None:
            if node.incarnation == incarnation:
                self.step(
                    node, ev.CallFailed(correlation, refused) if reply is None else ev.ReplyReceived(correlation, reply)
                )

        def arrive() -> None:
            if not peer.up or (node.id, target) in self.firewalls:
                refused = peer.up or self.random.random() < self.refusal_rate
                self.at(self.delay_from(target), lambda: on_reply(None, refused))
                return
            self.sequence += 1
            peer.replies[self.sequence] = (node.id, on_reply)
            self.step(peer, ev.CallReceived(self.sequence, call))

        if not self.lost(node.id, target):
            self.at(self.delay_from(node.id), arrive)
            if self.repeat_rate and self.random.random() < self.repeat_rate:
                self.at(self.delay_from(node.id), arrive)

    def lost(self, one: int, other: int) -> bool:
        if self.cut_one_way and (one, other) in self.cut_one_way:
            return True
        return frozenset((one, other)) in self.cut or self.random.random() < self.loss_rate

    def delay_from(self, node_id: int) -> int:
        return self.random.randint(*self.slow_nodes.get(node_id, self.delay))

    def reply(self, node: QuorumNode, token: Any, reply: rpc.Reply) -> None:
        caller, on_reply = node.replies.pop(token)
        if isinstance(reply, rpc.FetchReply) and reply.read_from is not None:
            first = reply.read_from - node.start_offset
            found = node.entries[first : first + self.random.randint(1, 8)]
            reply = reply._replace(records=found, batches=batches_of(reply.read_from, found))
        if isinstance(reply, rpc.SnapshotReply) and reply.snapshot in node.snapshots:
            reply = reply._replace(data=b"half" if reply.position < 4 else b"rest", size=8)
        if caller is None:
            on_reply(reply)
        elif not self.lost(node.id, caller):
            self.at(self.delay_from(node.id), lambda: on_reply(reply))

    # What a client or an operator does.

    def append(self, *values: str, by: QuorumNode | None = None) -> None:
        """As the newest leader; or as `by`, which may lead an older epoch without having received the newer one."""
        node = by or self.leader
        assert node is not None
        if node.paused or not node.leads or node.leader[0] != node.id:
            return
        self.step(node, ev.AppendRecords(node.leader[1], len(values), list(values)))

    def call(self, node_id: int, call: rpc.Call) -> list[rpc.Reply]:
        """As an administrator. The reply is appended to the list that is returned."""
        replies: list[rpc.Reply] = []
        self.sequence += 1
        node = self.nodes[node_id]
        node.replies[self.sequence] = (None, replies.append)
        self.step(node, ev.CallReceived(self.sequence, call))
        return replies

    def take_snapshot(self, node_id: int, offset: int) -> OffsetAndEpoch:
        """Take a snapshot of everything before `offset`, and delete the log before it."""
        node = self.nodes[node_id]
        assert node.machine is not None
        history = node.machine.history
        snapshot = OffsetAndEpoch(offset, node.entry(offset - 1)[0])
        controls: list[object] = []
        if history.kraft_version_at(offset - 1):
            controls = [
                KRaftVersionRecord(kraft_version=history.kraft_version_at(offset - 1)),
                history.voters_at(offset - 1).to_record(),
            ]
        dropped = tuple(node.snapshots)
        node.snapshots = {snapshot: controls}
        self.all_snapshots[snapshot] = controls
        del node.entries[: offset - node.start_offset]
        node.start_offset = offset
        self.step(node, ev.SnapshotTaken(snapshot))
        self.step(node, ev.PrefixDeleted(offset, dropped))
        return snapshot

    # What must hold.

    def commit(self, node: QuorumNode, offset: int) -> None:
        assert offset > node.high_watermark, "the high watermark advances"
        assert offset <= node.end_offset
        for at in range(max(node.high_watermark, node.start_offset), offset):
            if at not in self.committed:
                self.commit_order.append(at)
            known = self.committed.setdefault(at, node.entry(at))
            assert known == node.entry(at), f"two records are committed at {at}: {known} and {node.entry(at)}"
        node.high_watermark = offset

    def check(self, node: QuorumNode) -> None:
        machine = node.machine
        assert machine is not None
        assert machine.log.end_offset == node.end_offset
        assert machine.epoch >= machine.log.last_epoch
        assert (machine.epoch, machine.role.leader_id, machine.role.voted) == tuple(node.election)
        if isinstance(machine.role, LeaderRole):
            leader = self.leaders.setdefault(machine.epoch, node.id)
            assert leader == node.id, f"epoch {machine.epoch} has the leaders {leader} and {node.id}"
            if machine.role.has_committed_in_epoch:
                self.check_leader(node, machine.epoch)

    def check_leader(self, node: QuorumNode, epoch: int) -> None:
        """It has every committed record. Its log only grows while it leads, so that each commit is compared once."""
        done = node.checked_commits[2] if node.checked_commits[:2] == (epoch, node.incarnation) else 0
        for at in self.commit_order[done:]:
            entry = self.committed[at]
            if at >= node.start_offset and entry[0] <= epoch:
                assert at < node.end_offset, f"the leader of {epoch} lacks the committed {at}"
                assert node.entry(at) == entry, f"the leader of {epoch} has another record at {at}"
        node.checked_commits = (epoch, node.incarnation, len(self.commit_order))

    def check_logs_match(self) -> None:
        """Where two logs have records of one epoch at one offset, they are equal up to there."""
        nodes = list(self.nodes.values())
        for number, one in enumerate(nodes):
            for other in nodes[:number]:
                low, high = max(one.start_offset, other.start_offset), min(one.end_offset, other.end_offset)
                if one.part(low, high) == other.part(low, high):
                    continue
                same = [at for at in range(low, high) if one.entry(at)[0] == other.entry(at)[0]]
                for at in range(low, same[-1] + 1 if same else low):
                    assert one.entry(at) == other.entry(at), f"the logs of {one.id} and {other.id} differ at {at}"


def batches_of(first: int, entries: list[Entry]) -> tuple[rpc.FetchedBatch, ...]:
    batches = []
    for at, (epoch, value) in enumerate(entries):
        control = (rpc.Control(first + at, value),) if not isinstance(value, str) else ()
        batches.append(rpc.FetchedBatch(first + at, first + at, epoch, control))
    return tuple(batches)


def describe(effect: fx.Effect) -> str:
    """An effect as one line of a transcript."""
    match effect:
        case fx.Persist(state):
            voted = "-" if state.voted is None else state.voted.id
            return f"persist epoch={state.epoch} leader={state.leader_id} voted={voted}"
        case fx.AppendControls(first, epoch, records):
            return f"append {first}@{epoch} {' '.join(type(record).__name__ for record in records)}"
        case fx.AppendPayload(first, epoch, payload):
            return f"append {first}@{epoch} {payload}"
        case fx.AppendFetched(first, end, _):
            return f"append fetched {first}..{end - 1}"
        case fx.FlushLog(offset):
            return f"flush {offset}"
        case fx.TruncateLog(offset):
            return f"truncate {offset}"
        case fx.SendCall(_, destination, call):
            return f"send {destination.port - 9000} {describe_call(call)}"
        case fx.SendReply(_, reply):
            return f"reply {type(reply).__name__} {reply.header.error.name} epoch={reply.header.epoch}"
        case fx.SetHighWatermark(offset):
            return f"high watermark {offset}"
        case fx.LeaderChanged(leader, epoch):
            return f"leader {leader} epoch={epoch}"
    return repr(effect)


def describe_call(call: rpc.Call) -> str:
    match call:
        case rpc.VoteCall(epoch=epoch, pre_vote=pre_vote):
            return f"{'PreVote' if pre_vote else 'Vote'} epoch={epoch}"
        case rpc.FetchCall(epoch=epoch, fetch_from=end):
            return f"Fetch epoch={epoch} {end.offset}@{end.epoch}"
        case rpc.BeginEpochCall(epoch=epoch):
            return f"BeginQuorumEpoch epoch={epoch}"
        case rpc.EndEpochCall(epoch=epoch):
            return f"EndQuorumEpoch epoch={epoch}"
    return type(call).__name__


def storm(seed: int, steps: int = 60) -> SimQuorum:
    """A quorum after `steps` faults or writes. Raises `AssertionError` where a promise is broken."""
    rng = random.Random(seed)
    size = rng.choice((3, 3, 5))
    dynamic = rng.random() < 0.7
    voters = tuple(range(1, size + 1))
    joiners = (size + 1,) if dynamic and rng.random() < 0.5 else ()
    cluster = SimQuorum(voters, observers=(9,), joiners=joiners, dynamic=dynamic, seed=seed)
    cluster.delay = rng.choice(((1, 5), (1, 50), (1, 300)))
    cluster.flush_delay = rng.choice(((1, 5), (5, 100)))
    cluster.refusal_rate = rng.choice((0.0, 0.5, 1.0))
    cluster.damage_rate = random.Random(~seed).choice((0.0, 0.0, 0.7))
    cluster.start()
    written = 0
    for _ in range(steps):
        roll = rng.random()
        ids = list(cluster.nodes)
        if roll < 0.45:
            for _ in range(rng.randint(1, 5)):
                leader = cluster.leader
                if leader is not None:
                    cluster.append(*(f"{seed}.{written + at}" for at in range(rng.randint(1, 3))))
                    written += 3
        elif roll < 0.6:
            victim = rng.choice(ids)
            if rng.random() < 0.4:
                written += lose_power(cluster, rng, f"{seed}.{written}")
            elif cluster.nodes[victim].up:
                cluster.crash(victim, lose_unflushed=rng.random() < 0.7)
        elif roll < 0.75:
            for node_id in ids:
                if not cluster.nodes[node_id].up and rng.random() < 0.7:
                    cluster.start(node_id)
        elif roll < 0.8:
            side = set(rng.sample(ids, rng.randint(1, len(ids) - 1)))
            cluster.cut = {frozenset((a, b)) for a in side for b in ids if b not in side}
        elif roll < 0.84:
            add_fault(cluster, rng)
        elif roll < 0.93:
            remove_faults(cluster)
            cluster.loss_rate = rng.choice((0.0, 0.05, 0.3))
            cluster.repeat_rate = rng.choice((0.0, 0.0, 0.2))
        else:
            change_state(cluster, rng)
        cluster.run(rng.choice((5, 50, 400, 1500)))
        cluster.check_logs_match()
    return cluster


def stale_leaders(seed: int, rounds: int = 6) -> SimQuorum:
    """A quorum in which `rounds` leaders wrote after another one was elected. Raises as `storm` does."""
    rng = random.Random(seed)
    size = rng.choice((3, 3, 5))
    cluster = SimQuorum(tuple(range(1, size + 1)), observers=(9,), dynamic=rng.random() < 0.7, seed=seed)
    cluster.flush_delay = rng.choice(((1, 5), (5, 100)))
    cluster.start()
    cluster.run(5_000)
    for at in range(rounds):
        cluster.delay = rng.choice(((1, 5), (1, 50)))
        add_stale_leader(cluster, rng, f"{seed}.{at}")
        cluster.check_logs_match()
        remove_faults(cluster)
        cluster.run(rng.choice((50, 1_500, 4_000)))
        cluster.check_logs_match()
    return cluster


def add_stale_leader(cluster: SimQuorum, rng: random.Random, value: str) -> None:
    """The leader is cut off, writes, and is paused until another one is elected. Then both reach all nodes but each
    other, and both write: nodes can tell the two apart by their epochs only."""
    old = cluster.leader
    if old is None:
        return
    cluster.cut = {frozenset((old.id, other)) for other in cluster.nodes if other != old.id}
    cluster.append(f"{value}.alone", by=old)
    cluster.pause(old.id)
    until = cluster.now + 3_500
    while cluster.leader is old and cluster.now < until:
        cluster.run(100)
    new = cluster.leader
    if new is None or new is old:
        return
    cluster.slow_nodes[new.id] = (50, 200)
    cluster.cut = {frozenset((old.id, new.id))}
    cluster.wake(old.id)
    for turn in range(rng.randint(1, 4)):
        cluster.append(f"{value}.{turn}.old", by=old)
        cluster.append(f"{value}.{turn}.new", by=new)
        cluster.run(rng.choice((50, 400)))


def lose_power(cluster: SimQuorum, rng: random.Random, value: str) -> int:
    """All nodes lose their power, and what they have not flushed, during a write. How many records were written."""
    leader = cluster.leader
    if leader is not None:
        cluster.append(value)
        cluster.run(rng.randint(2, 20))
    for node in cluster.nodes.values():
        if node.up:
            cluster.crash(node.id)
    return 1 if leader is not None else 0


def add_fault(cluster: SimQuorum, rng: random.Random) -> None:
    """A fault that lasts and does not stop the node."""
    ids = list(cluster.nodes)
    node_id = rng.choice(ids)
    match rng.randrange(5):
        case 0:
            cluster.pause(node_id)
        case 1:
            others = rng.sample(ids, rng.randint(1, len(ids)))
            away = rng.random() < 0.5
            cluster.cut_one_way |= {(node_id, other) if away else (other, node_id) for other in others}
        case 2:
            cluster.slow_nodes[node_id] = rng.choice(((50, 200), (100, 2_000)))
        case 3:
            cluster.firewalls |= {(node_id, other) for other in rng.sample(ids, rng.randint(1, len(ids)))}
        case _:
            cluster.nodes[node_id].flush_delay = rng.choice(((20, 500), (500, 3_000)))


def remove_faults(cluster: SimQuorum) -> None:
    """End all faults that last. Nodes that are down stay down."""
    cluster.cut, cluster.cut_one_way = set(), set()
    cluster.loss_rate = cluster.repeat_rate = 0.0
    cluster.firewalls = set()
    cluster.slow_nodes.clear()
    for node in cluster.nodes.values():
        node.flush_delay = None
        cluster.wake(node.id)


def change_state(cluster: SimQuorum, rng: random.Random) -> None:
    """Take a snapshot, or add or remove a voter."""
    leader = cluster.leader
    if leader is None or leader.machine is None:
        return
    if rng.random() < 0.5:
        awake = [node for node in cluster.nodes.values() if node.up and not node.paused]
        node = rng.choice(awake) if awake else leader
        if awake and node.high_watermark > node.start_offset:
            cluster.take_snapshot(node.id, rng.randint(node.start_offset + 1, node.high_watermark))
    elif cluster.dynamic:
        voters = leader.machine.voters.ids
        outside = [n.id for n in cluster.nodes.values() if n.can_be_voter and n.id not in voters]
        if outside and (len(voters) < 3 or rng.random() < 0.5):
            node_id = rng.choice(outside)
            cluster.call(leader.id, rpc.AddVoterCall(CLUSTER, key_of(node_id), (endpoint_of(node_id),), 3_000))
        elif len(voters) > 2:
            cluster.call(leader.id, rpc.RemoveVoterCall(CLUSTER, key_of(rng.choice(voters))))


def recover(cluster: SimQuorum) -> None:
    """Remove all faults and start all nodes: a write must go through and reach every node."""
    remove_faults(cluster)
    cluster.delay, cluster.damage_rate = (1, 5), 0.0
    for node in cluster.nodes.values():
        if not node.up:
            cluster.start(node.id)
    cluster.run(15_000)
    assert cluster.leader is not None, "no leader without faults"
    cluster.append("the end")
    cluster.run(5_000)
    for node in cluster.nodes.values():
        assert node.entries[-1:] == cluster.leader.entries[-1:], f"node {node.id} has not caught up"
        assert node.high_watermark == cluster.leader.end_offset, f"the high watermark of node {node.id} is behind"
    cluster.check_logs_match()
