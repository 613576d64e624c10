"""Transactions in a cluster of Kalda and Apache Kafka: coordinators and leaders of both kinds, killed in the middle.

Brokers of both kinds share `__transaction_state`, `__consumer_offsets` and the partitions that transactions write to.
A broker of one kind is killed while transactions are open, so that the other one finishes what it finds in the logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_kafka import KafkaTools
from confluent_kafka import KafkaException, Producer
from mixed_clients import (
    INTERNAL_PARTITIONS,
    TOPIC,
    WAIT_S,
    Worker,
    commit_offsets,
    committed_offset,
    committed_values,
    names_for,
    producer_of,
    send,
    settle,
    settle_cluster,
    stop_and_judge,
    wait_decided,
    wait_progress,
)
from mixed_nodes import KAFKA, KALDA, MixedCluster
from mixed_requests import ROUNDS, create, elect_preferred

from kalda.base.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

pytestmark = pytest.mark.compat


@pytest.fixture
def mixed(tmp_path: Path, jars: Path) -> Iterator[MixedCluster]:
    """A Kalda controller, and a broker of each kind."""
    kinds = {0: (KALDA, "controller"), 1: (KALDA, "broker"), 2: (KAFKA, "broker")}
    settings = {
        "transaction.state.log.replication.factor": 2,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
        "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
        "broker.session.timeout.ms": 4_000,
    }
    with MixedCluster(tmp_path, jars, kinds, **{key.replace(".", "_"): value for key, value in settings.items()}) as it:
        it.start()
        create(it, TOPIC, [1, 2], [2, 1], min_insync_replicas="1")
        yield it


def leaders(cluster: MixedCluster, topic: str) -> dict[int, int]:
    """The leader of each partition of an internal topic, by index."""
    return {index: cluster.wait_placed(topic, index, isr=[1, 2])[0] for index in range(INTERNAL_PARTITIONS)}


def test_transactions_over_both_kinds(mixed: MixedCluster, kafka_tools: KafkaTools) -> None:
    """Every combination of coordinators, ended in both ways; clients of transaction version 2 too."""
    wanted: list[bytes] = []
    offsets: dict[str, int] = {}
    for of_transactions in range(INTERNAL_PARTITIONS):
        names = names_for(of_transactions)
        for of_group in range(INTERNAL_PARTITIONS):
            name = f"{next(names)}"
            producer = producer_of(mixed, name)
            groups = names_for(of_group)
            group, aborted = next(groups), next(groups)
            for number, (commits, at) in enumerate([(True, group), (False, aborted), (True, group)]):
                producer.begin_transaction()
                values = send(producer, f"{name} {of_group} {number}")
                commit_offsets(producer, at, 10 * number + 1)
                if commits:
                    settle(producer.commit_transaction)
                    wanted += values
                    offsets[at] = 10 * number + 1
                else:
                    settle(producer.abort_transaction)
    wait_decided(mixed)
    assert committed_values(mixed) == sorted(wanted)
    assert {group: committed_offset(mixed, group) for group in offsets} == offsets
    assert set(leaders(mixed, TRANSACTIONS_TOPIC).values()) == {1, 2}, "each kind coordinates some"
    before = len(wanted)
    for partition in range(INTERNAL_PARTITIONS):
        names = names_for(partition)
        done = kafka_tools.run(
            "producer-perf-test",
            *("--topic", TOPIC, "--num-records", 300, "--record-size", 20, "--throughput", -1),
            *("--transactional-id", f"{next(names)}", "--transaction-duration-ms", 20),
            *("--bootstrap-server", mixed.addresses),
        )
        assert "300 records sent" in done
    wait_decided(mixed)
    assert len(committed_values(mixed)) == before + 600
    settle_cluster(mixed)
    mixed.check_quiet()


def test_a_broker_of_either_kind_is_killed_while_transactions_are_open(mixed: MixedCluster) -> None:
    wanted: list[bytes] = []
    offsets: dict[str, int] = {}
    committed_offset(mixed, "first")  # creates the topic of offsets
    for round_, killed in enumerate((1, 2)):
        producers = [producer_of(mixed, next(names_for(partition))) for partition in range(INTERNAL_PARTITIONS)]
        places = [leaders(mixed, topic) for topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)]
        values = []
        for number, producer in enumerate(producers):
            producer.begin_transaction()
            values.append(send(producer, f"round {round_} of {number}"))
            for partition in range(INTERNAL_PARTITIONS):
                group = next(names_for(partition)) + f"-{number}"
                commit_offsets(producer, group, 100 * round_ + 1)
                offsets[group] = 100 * round_ + 1 if number != round_ else offsets.get(group, -1001)
        survivor = mixed.nodes[3 - killed]
        mixed.nodes[killed].kill()
        for topic in (TOPIC, TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
            for index in range(2):
                mixed.wait_placed(topic, index, survivor.node_id)
        for number, producer in enumerate(producers):
            values[number] += send(producer, f"later in round {round_} of {number}", 1)
            if number == round_:
                settle(producer.abort_transaction)
            else:
                settle(producer.commit_transaction)
                wanted += values[number]
        wait_decided(mixed)
        assert committed_values(mixed) == sorted(wanted), f"{places}, {mixed.nodes[killed]} killed"
        mixed.nodes[killed].start()
        settle_cluster(mixed)
        assert committed_values(mixed) == sorted(wanted), f"{places}, {mixed.nodes[killed]} is back"
        assert {group: committed_offset(mixed, group) for group in offsets} == offsets
    mixed.check_quiet()


def test_killed_brokers_of_either_kind_tear_no_transaction(mixed: MixedCluster) -> None:
    """Wherever a coordinator or a leader is when it is killed: a transaction is visible as a whole or not at all."""
    names = [next(names_for(partition)) for partition in range(INTERNAL_PARTITIONS)]
    workers = [Worker(mixed, f"{name}{suffix}") for name in names for suffix in ("", "-a", "-b")]
    for worker in workers:
        worker.start()

    wait_progress(workers, 3)
    for round_ in range(2 * ROUNDS):
        node = mixed.nodes[round_ % 2 + 1]
        node.kill()
        wait_progress(workers, 3)
        node.start()
        for topic in (TOPIC, TRANSACTIONS_TOPIC):
            for index in range(2):
                mixed.wait_placed(topic, index, isr=[1, 2])
            elect_preferred(mixed, topic, 0, 1)
        wait_progress(workers, 3)
    stop_and_judge(mixed, workers)
    settle_cluster(mixed)
    mixed.check_quiet()


def commit_late(zombie: Producer) -> None:
    """Records to leaders of both kinds, and a commit. It raises at the second record already, where the first was
    refused by then."""
    for index in (0, 1):
        zombie.produce(TOPIC, b"too late", partition=index)
    zombie.commit_transaction(WAIT_S)


def test_a_zombie_is_fenced_by_leaders_of_both_kinds(mixed: MixedCluster) -> None:
    """Its coordinator is of one kind, and moves to the other with the next one."""
    for partition in range(INTERNAL_PARTITIONS):
        name = next(names_for(partition))
        zombie = producer_of(mixed, name)
        zombie.begin_transaction()
        send(zombie, f"zombie {partition}")
        successor = producer_of(mixed, name)
        with pytest.raises(KafkaException):
            commit_late(zombie)
        successor.begin_transaction()
        send(successor, f"successor {partition}")
        settle(successor.commit_transaction)
    wait_decided(mixed)
    assert {value.split(b" ")[0] for value in committed_values(mixed)} == {b"successor"}
    settle_cluster(mixed)
    mixed.check_quiet()


@pytest.fixture
def mixed_quorum(tmp_path: Path, jars: Path) -> Iterator[MixedCluster]:
    """Three voters of both kinds; two of them are brokers too."""
    kinds = {0: (KALDA, "controller"), 1: (KALDA, "broker,controller"), 2: (KAFKA, "broker,controller")}
    settings: dict[str, object] = {
        "transaction_state_log_replication_factor": 2,
        "transaction_state_log_min_isr": 1,
        "transaction_state_log_num_partitions": INTERNAL_PARTITIONS,
        "offsets_topic_num_partitions": INTERNAL_PARTITIONS,
        "broker_session_timeout_ms": 4_000,
    }
    with MixedCluster(tmp_path, jars, kinds, **settings) as it:
        it.start()
        create(it, TOPIC, [1, 2], [2, 1], min_insync_replicas="1")
        yield it


def test_active_controllers_of_either_kind_are_killed_during_transactions(mixed_quorum: MixedCluster) -> None:
    """With it, twice, the coordinators and leaders of one kind."""
    names = [next(names_for(partition)) for partition in range(INTERNAL_PARTITIONS)]
    workers = [Worker(mixed_quorum, f"{name}{suffix}") for name in names for suffix in ("", "-a")]
    for worker in workers:
        worker.start()
    wait_progress(workers, 3)
    killed: list[str] = []
    for _ in range(3 + 2 * (ROUNDS - 1)):
        node, _quorum = mixed_quorum.leader()
        node.kill()
        killed.append(node.kind)
        wait_progress(workers, 2)
        node.start()
        for topic in (TOPIC, TRANSACTIONS_TOPIC):
            for index in range(2):
                mixed_quorum.wait_placed(topic, index, isr=[1, 2])
        wait_progress(workers, 2)
        if {KALDA, KAFKA} <= set(killed):
            break
    stop_and_judge(mixed_quorum, workers)
    mixed_quorum.check_quiet()
