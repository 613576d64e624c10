"""Requests to a cluster of both kinds of nodes: topics, records, groups, leaders, configs."""

from __future__ import annotations

import os
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from mixed_nodes import MixedCluster, MixedNode

from kalda.base.errors import ErrorCode
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.partitions import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from waiting import wait_until

ROUNDS = int(os.environ.get("KALDA_MIXED_ROUNDS", "1"))
TIMEOUT_MS = 60_000
OFFSETS = "__consumer_offsets"
OFFSETS_PARTITIONS = 4
_EARLIEST = -2
_TOPIC = 2
_SET = 0


def create(cluster: MixedCluster, topic: str, *assignments: list[int], **configs: str) -> None:
    """Create a topic with these replicas, the first of each preferred; wait until all brokers have it.

    Where the controller ends before it has answered, the broker repeats the request, so the topic may exist already."""
    wanted = CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
            for index, replicas in enumerate(assignments)
        ],
        configs=[CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()],
    )
    with cluster.up[0].client() as client:
        made = client.request(CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS), timeout_ms=TIMEOUT_MS)
        assert made.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), made
    for index, replicas in enumerate(assignments):
        cluster.wait_placed(topic, index, replicas[0], sorted(replicas))


def produce(
    cluster: MixedCluster, topic: str, index: int, values: Iterable[bytes], via: MixedNode | None = None, acks: int = -1
) -> None:
    """Through an idempotent producer with acks=all, or one that waits for the leader only."""
    failures: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.addresses if via is None else via.address,
            "acks": acks,
            "enable.idempotence": acks == -1,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 100,
            "message.timeout.ms": TIMEOUT_MS,
            "log_level": 0,
        }
    )

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for value in values:
        producer.produce(topic, value, partition=index, on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_MS / 1000) == 0
    assert not failures, failures[:3]


def values_of(cluster: MixedCluster, topic: str, index: int) -> list[bytes]:
    """All records of a partition that a consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0)])
    values: list[bytes] = []
    at_end = False

    def is_read() -> bool:
        nonlocal at_end
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                values.append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end = True
        return at_end

    wait_until(is_read, f"{topic}-{index} is read", 90)
    consumer.close()
    return values


def numbered(kind: str, count: int) -> list[bytes]:
    return [b"%s %d" % (kind.encode(), number) for number in range(count)]


GROUPS = [
    next(f"group-{n}" for n in range(100) if coordinator_partition(f"group-{n}", OFFSETS_PARTITIONS) == partition)
    for partition in range(OFFSETS_PARTITIONS)
]


def _group_consumer(cluster: MixedCluster, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def read_as_group(cluster: MixedCluster, group: str, topic: str, offset: int) -> None:
    """Join, read something, commit an offset, leave."""
    consumer = _group_consumer(cluster, group)
    consumer.subscribe([topic])
    wait_until(lambda: any(message.error() is None for message in consumer.consume(10, 0.2)), f"{group} reads", 90)
    for each in consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False):
        assert each.error is None
    consumer.close()


def check_committed(cluster: MixedCluster, topic: str, offsets: dict[str, int]) -> None:
    """The coordinators have the groups' committed offsets, on whichever node they are now."""
    for group, offset in offsets.items():
        consumer = _group_consumer(cluster, group)
        [found] = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_MS / 1000)
        consumer.close()
        assert found.offset == offset, f"{group} has committed {offset}, not {found.offset}"


def elect_preferred(cluster: MixedCluster, topic: str, *indexes: int) -> None:
    asked = ElectLeadersRequestTopicPartitions(topic=topic, partitions=list(indexes))
    with cluster.up[0].client() as client:
        client.request(ElectLeadersRequest(topic_partitions=[asked], timeout_ms=TIMEOUT_MS), timeout_ms=TIMEOUT_MS)


def reassign(cluster: MixedCluster, topic: str, index: int, replicas: list[int]) -> None:
    wanted = ReassignableTopic(name=topic, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)])
    with cluster.up[0].client() as client:
        answer = client.request(AlterPartitionReassignmentsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
        assert answer.responses[0].partitions[0].error_code == 0, answer
        wait_until(
            lambda: not client.request(ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS)).topics,
            f"{topic}-{index} has moved",
            90,
        )


def set_config(via: MixedNode, topic: str, value: str) -> None:
    change = IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=_SET, value=value)
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configs=[change]
    )
    with via.client() as client:
        assert client.request(IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code == 0


def wait_config(cluster: MixedCluster, topic: str, value: str) -> None:
    """Wait until every broker has it."""
    asked = DescribeConfigsResource(resource_type=_TOPIC, resource_name=topic, configuration_keys=["retention.ms"])
    for node in cluster.up:

        def has_config(node: MixedNode = node) -> bool:
            with node.client() as client:
                [result] = client.request(DescribeConfigsRequest(resources=[asked])).results
                return [each.value for each in result.configs] == [value]

        wait_until(has_config, f"{node} has the config of {topic}", 60)


def earliest(node: MixedNode, topic: str, index: int) -> int:
    """A partition's log start offset, from its leader."""
    asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=_EARLIEST)])
    with node.client() as client:
        found = client.request(ListOffsetsRequest(topics=[asked])).topics[0].partitions[0]
    assert found.error_code == 0
    return int(found.offset)


def change_metadata(cluster: MixedCluster, number: int) -> None:
    """Create a topic on all running brokers, and set configs through each of them."""
    topic = f"topic-{number}"
    create(cluster, topic, *([node.node_id] for node in cluster.up))
    for at, node in enumerate(cluster.up):
        produce(cluster, topic, at, numbered("record", 10))
        set_config(node, topic, str(1_000_000 + 10 * number + at))
        wait_config(cluster, topic, str(1_000_000 + 10 * number + at))
