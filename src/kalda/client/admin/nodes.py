"""Brokers and their log directories: DescribeCluster, UnregisterBroker, DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from kalda.base.ids import TopicPartition
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import refused
from kalda.protocol.messages.admin import DescribableLogDirTopic, DescribeLogDirsRequest
from kalda.protocol.messages.brokers import UnregisterBrokerRequest
from kalda.protocol.messages.metadata import DescribeClusterRequest


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


def describe_cluster(cluster: ClusterClient, *, fenced: bool = False) -> ClusterDescription:
    """The brokers that are alive, and with `fenced` those that are registered but fenced; from a client of
    controllers, the controllers. Raises `ApiError`."""

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, "the cluster", answer.error_message)

    request = DescribeClusterRequest(endpoint_type=cluster.endpoint_type, include_fenced_brokers=fenced)
    answer = cluster.any_broker(request, check=check)
    nodes = sorted(Node(b.broker_id, b.host, b.port, b.rack, b.is_fenced) for b in answer.brokers)
    return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(nodes))


def unregister_broker(cluster: ClusterClient, broker_id: int) -> None:
    """Remove the registration of a broker that will not come back (KIP-631). Where its process still runs, it leads
    and serves nothing from then on, until it is restarted. Raises `ApiError`, BROKER_ID_NOT_REGISTERED among others."""

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, f"broker {broker_id}", answer.error_message)

    cluster.any_broker(UnregisterBrokerRequest(broker_id=broker_id), check=check)


def describe_log_dirs(
    cluster: ClusterClient,
    broker_id: int,
    partitions: Collection[TopicPartition] | None = None,
    *,
    timeout_ms: int | None = None,
) -> list[LogDir]:
    """The log directories of a broker, each with those of `partitions`, or with None all, that are in it.
    Raises `ApiError`."""
    topics: dict[str, DescribableLogDirTopic] = {}
    for name, partition in partitions or ():
        topics.setdefault(name, DescribableLogDirTopic(topic=name)).partitions.append(partition)

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, f"broker {broker_id}")

    request = DescribeLogDirsRequest(topics=None if partitions is None else list(topics.values()))
    answer = cluster.broker(broker_id, request, check=check, timeout_ms=timeout_ms)
    return [
        LogDir(
            broker_id,
            result.log_dir,
            result.error_code,
            result.total_bytes,
            result.usable_bytes,
            result.is_cordoned,
            {
                TopicPartition(topic.name, partition.partition_index): partition.partition_size
                for topic in result.topics
                for partition in topic.partitions
            },
        )
        for result in answer.results
    ]
