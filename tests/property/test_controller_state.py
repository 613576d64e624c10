"""Random histories: the state of a controller equals a replay of its log, and keeps its invariants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from controller_world import World, creatable, state
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.quorum_controller import QuorumController
from kalda.protocol.messages import topics as t
from kalda.protocol.messages.brokers import AllocateProducerIdsRequest, BrokerHeartbeatRequest, UnregisterBrokerRequest

BROKERS = st.integers(0, 4)
NAMES = st.sampled_from(["a", "b", "c.d", "c_d"])
LEGITIMATE = {
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.NOT_CONTROLLER,
}


class Histories(RuleBasedStateMachine):
    """Two controllers; brokers that start and stop; requests whose records are committed, or lost with the leader."""

    world: World

    @initialize(elr=st.booleans(), seed=st.integers(0, 3))
    def start(self, elr: bool, seed: int) -> None:
        levels = {"eligible.leader.replicas.version": 1} if elr else {}
        self.world = World(
            2,
            levels=levels,
            seed=seed,
            leader_imbalance_check_interval_ms=3_000,
            unclean_leader_election_interval_ms=4_000,
        )
        self.world.start_brokers(0, 1, 2)
        self.world.create_topic("first", {0: [0, 1, 2], 1: [1, 2]}, configs={"min.insync.replicas": "2"})
        self.world.auto_commit = False
        self.incarnation = 1

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Requests inside are committed at once. They may fail with an error of `LEGITIMATE`."""
        self.world.auto_commit = True
        try:
            yield
        except ApiError as error:
            if error.code not in LEGITIMATE:
                raise
        finally:
            self.world.auto_commit = False

    def attempt(self, api: str, request: Any) -> None:
        error = self.world.send(api, request).error
        assert error is None or error.code in LEGITIMATE, error

    @rule(broker=BROKERS, clean=st.booleans())
    def restart(self, broker: int, clean: bool) -> None:
        self.incarnation += 1
        previous = self.world.epochs.get(broker, -1) if clean else -1
        with self.committing():
            self.world.register(
                broker, incarnation=self.incarnation % 250, previous_epoch=previous, rack=str(broker % 2)
            )

    @rule(broker=BROKERS, fence=st.booleans(), stop=st.booleans(), lag=st.sampled_from([0, 0, 3]))
    def heartbeat(self, broker: int, fence: bool, stop: bool, lag: int) -> None:
        if broker in self.world.epochs:
            request = BrokerHeartbeatRequest(
                broker_id=broker,
                broker_epoch=self.world.epochs[broker],
                current_metadata_offset=self.world.log.log_end_offset - lag,
                want_fence=fence,
                want_shut_down=stop,
            )
            self.attempt("broker_heartbeat", request)

    @rule(broker=BROKERS)
    def unregister(self, broker: int) -> None:
        self.attempt("unregister_broker", UnregisterBrokerRequest(broker_id=broker))

    @rule(broker=BROKERS)
    def allocate(self, broker: int) -> None:
        epoch = self.world.epochs.get(broker, 0)
        self.attempt("allocate_producer_ids", AllocateProducerIdsRequest(broker_id=broker, broker_epoch=epoch))

    @rule(
        name=NAMES,
        partitions=st.integers(1, 3),
        factor=st.integers(1, 3),
        minimum=st.sampled_from([None, "1", "2"]),
        lossy=st.booleans(),
    )
    def create(self, name: str, partitions: int, factor: int, minimum: str | None, lossy: bool) -> None:
        configs = {"unclean.leader.election.enable": str(lossy).lower()}
        if minimum is not None:
            configs["min.insync.replicas"] = minimum
        topic = creatable(name, partitions=partitions, factor=factor, configs=configs)
        self.attempt("create_topics", t.CreateTopicsRequest(topics=[topic]))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.attempt("delete_topics", t.DeleteTopicsRequest(topics=[t.DeleteTopicState(name=name)]))

    @rule(name=NAMES, count=st.integers(1, 5))
    def grow(self, name: str, count: int) -> None:
        topic = t.CreatePartitionsTopic(name=name, count=count, assignments=None)
        self.attempt("create_partitions", t.CreatePartitionsRequest(topics=[topic]))

    def pick(self, at: int) -> tuple[str, int] | None:
        """An existing partition; None where there is none."""
        partitions = self.world.active.partitions
        existing = [(partitions.topic_names[topic_id], number) for topic_id, number in partitions.partitions]
        return existing[at % len(existing)] if existing else None

    @rule(at=st.integers(0, 50), new_replicas=st.none() | st.lists(BROKERS, min_size=1, max_size=3, unique=True))
    def reassign(self, at: int, new_replicas: list[int] | None) -> None:
        picked = self.pick(at)
        if picked is None:
            return
        name, partition = picked
        if new_replicas is not None:
            new_replicas = [broker for broker in new_replicas if broker in self.world.active.cluster.brokers]
        one = t.ReassignablePartition(partition_index=partition, replicas=new_replicas)
        topic = t.ReassignableTopic(name=name, partitions=[one])
        self.attempt("alter_partition_reassignments", t.AlterPartitionReassignmentsRequest(topics=[topic]))

    @rule(kind=st.integers(0, 1))
    def elect(self, kind: int) -> None:
        self.attempt("elect_leaders", t.ElectLeadersRequest(election_type=kind, topic_partitions=None))

    @rule(at=st.integers(0, 50), proposed=st.sets(BROKERS))
    def propose_isr(self, at: int, proposed: set[int]) -> None:
        picked = self.pick(at)
        if picked is None:
            return
        name, partition = picked
        registered = self.world.partition(name, partition)
        if registered.leader not in self.world.epochs:
            return
        isr = sorted({*(proposed & set(registered.replicas)), registered.leader})
        with self.committing():
            self.world.alter_partition(name, partition, isr)

    @rule(wait_ms=st.integers(100, 6_000))
    def wait(self, wait_ms: int) -> None:
        self.world.poll_until(self.world.now_ms + wait_ms, step_ms=2_000)

    @rule()
    def commit(self) -> None:
        self.world.commit()
        assert state(self.world.controllers[1]) == state(self.world.controllers[2])

    @rule(leader=st.integers(1, 2))
    def fail_over(self, leader: int) -> None:
        self.world.elect(leader)
        self.world.commit()
        replayed = state(self.world.replayed())
        assert state(self.world.controllers[1]) == replayed
        assert state(self.world.controllers[2]) == replayed

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def partitions_keep_their_invariants(self) -> None:
        check_partitions(self.world.active)


def check_partitions(controller: QuorumController) -> None:
    partitions = controller.partitions
    index = partitions.index
    elr_enabled = controller.features.is_elr_enabled
    leads: dict[int, int] = {}
    for at, partition in partitions.partitions.items():
        assert at.topic_id in partitions.topic_names
        assert at.partition_id < partitions.partition_counts[at.topic_id]
        assert len(partition.directories) == len(partition.replicas) == len(set(partition.replicas)) > 0
        assert set(partition.isr) <= set(partition.replicas)
        assert set(partition.elr) <= set(partition.replicas)
        assert not set(partition.elr) & set(partition.isr)
        assert set(partition.adding_replicas) | set(partition.removing_replicas) <= set(partition.replicas)
        assert partition.leader == -1 or partition.leader in partition.isr
        assert elr_enabled or partition.isr, "without eligible replicas an ISR keeps its last member"
        assert elr_enabled or not partition.elr
        if partition.leader != -1:
            assert controller.cluster.is_active(partition.leader), "a leader is active"
            leads[partition.leader] = leads.get(partition.leader, 0) + 1
        for broker_id in range(5):
            assert (at in set(index.with_in_isr(broker_id))) == (broker_id in partition.isr)
            assert (at in set(index.with_in_elr(broker_id))) == (broker_id in partition.elr)
        assert (at in index.leaderless) == (partition.leader == -1)
        assert (at in index.imbalanced) == (not partition.has_preferred_leader)
        assert (at in index.reassigning) == partition.is_reassigning
    for broker_id in range(5):
        assert index.leads_any(broker_id) == (broker_id in leads)
    assert set(index.leaderless) <= set(partitions.partitions)
    names = dict(partitions.topic_ids.items())
    assert {topic_id: name for name, topic_id in names.items()} == dict(partitions.topic_names.items())
    assert not {"c.d", "c_d"} <= set(names)


TestHistories = Histories.TestCase
