"""Brokers, the APIs they support, and their log directories."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kalda import __version__
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.clientcore.administration import ANY, Ask, Outcomes, Plan, Target, TargetKind, error_of, per_item, single
from kalda.clientcore.connections.errors import refused
from kalda.protocol.framing import PeerVersions, api_versions_request, peer_versions
from kalda.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from kalda.protocol.messages.brokers import UnregisterBrokerRequest, UnregisterControllerRequest
from kalda.protocol.messages.metadata import DescribeClusterRequest, EndpointType
from kalda.protocol.naming import MAX_PARTITIONS_NAMED


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class ClusterDescription(NamedTuple):
    """From brokers, `controller_id` is a live broker, which forwards requests; from controllers, the active one."""

    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]


class LogDir(NamedTuple):
    """Sizes are -1 where the broker's version of DescribeLogDirs does not have them."""

    broker_id: int
    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    is_cordoned: bool
    partitions: dict[TopicPartition, int]
    """Size in bytes by partition."""


def describe_cluster(
    *, fenced: bool = False, of_controllers: bool = False, broker_id: int | None = None
) -> Plan[ClusterDescription]:
    """DescribeCluster, by any node or by one broker."""
    kind = EndpointType.CONTROLLERS if of_controllers else EndpointType.BROKERS
    request = DescribeClusterRequest(endpoint_type=kind, include_fenced_brokers=fenced)
    target = ANY if broker_id is None else Target(TargetKind.BROKER, broker_id)
    answer = yield from single(Ask(target, request), error_of("the cluster"))
    nodes = tuple(
        Node(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
        for each in sorted(answer.brokers, key=lambda broker: int(broker.broker_id))
    )
    return ClusterDescription(answer.cluster_id, answer.controller_id, nodes)


def unregister_broker(broker_id: int) -> Plan[None]:
    """UnregisterBroker."""
    yield from single(Ask(ANY, UnregisterBrokerRequest(broker_id=broker_id)), error_of(f"broker {broker_id}"))


def unregister_controller(controller_id: int) -> Plan[None]:
    """UnregisterController (KIP-1312)."""
    request = UnregisterControllerRequest(controller_id=controller_id)
    yield from single(Ask(ANY, request), error_of(f"controller {controller_id}"))


def describe_log_dirs(
    broker_ids: Collection[int], partitions: Collection[TopicPartition] | None = None
) -> Plan[Outcomes[int, list[LogDir]]]:
    """DescribeLogDirs: each directory with those of `partitions`, or with None all, that are in it. Of very many
    partitions all are requested."""
    wanted = None if partitions is None else frozenset(partitions)
    topics: dict[str, DescribableLogDirTopic] | None = None
    if partitions is not None and len(partitions) <= MAX_PARTITIONS_NAMED:
        topics = {}
        for name, index in partitions:
            topics.setdefault(name, DescribableLogDirTopic(topic=name)).partitions.append(index)
    request = DescribeLogDirsRequest(topics=None if topics is None else list(topics.values()))

    def read(answer: Any, group: list[int]) -> Iterator[tuple[int, list[LogDir] | ApiError]]:
        (broker_id,) = group
        if answer.error_code:
            yield broker_id, refused(answer.error_code, f"broker {broker_id}")
            return
        yield (
            broker_id,
            [
                LogDir(
                    broker_id,
                    each.log_dir,
                    each.error_code,
                    each.total_bytes,
                    each.usable_bytes,
                    each.is_cordoned,
                    {
                        TopicPartition(topic.name, partition.partition_index): partition.partition_size
                        for topic in each.topics
                        for partition in topic.partitions
                        if wanted is None or (topic.name, partition.partition_index) in wanted
                    },
                )
                for each in answer.results
            ],
        )

    return per_item(
        broker_ids,
        lambda broker_id: Target(TargetKind.BROKER, broker_id),
        lambda _: request,
        read,
    )


def alter_replica_log_dirs(broker_id: int, paths: Mapping[TopicPartition, str]) -> Plan[Outcomes[TopicPartition, None]]:
    """AlterReplicaLogDirs."""

    def build(partitions: list[TopicPartition]) -> AlterReplicaLogDirsRequest:
        by_path: dict[str, dict[str, list[int]]] = {}
        for partition in partitions:
            by_path.setdefault(paths[partition], {}).setdefault(partition.topic, []).append(partition.partition)
        return AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[AlterReplicaLogDirTopic(name=n, partitions=indexes) for n, indexes in topics.items()],
                )
                for path, topics in by_path.items()
            ]
        )

    def read(answer: Any, _: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ApiError | None]]:
        for topic in answer.results:
            for each in topic.partitions:
                partition = TopicPartition(topic.topic_name, each.partition_index)
                what = f"partition {partition} on broker {broker_id}"
                yield partition, refused(each.error_code, what) if each.error_code else None

    return per_item(paths, lambda _: Target(TargetKind.BROKER, broker_id), build, read)


def supported_apis(broker_id: int) -> Plan[PeerVersions]:
    """ApiVersions of one broker. Raises `ApiError`."""
    return peer_versions(
        (yield from single(Ask(Target(TargetKind.BROKER, broker_id), api_versions_request(__version__))))
    )
