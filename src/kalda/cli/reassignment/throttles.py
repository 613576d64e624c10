"""The configs that limit the rate of moving replicas, set and removed as by `kafka-reassign-partitions`.

Topic configs name the throttled replicas, broker configs the rate. A cluster whose brokers do not throttle stores the
configs too, and they are removed in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.configs import Alteration, Resource, alter_configs, set_configs
from kalda.client.cluster_client import ClusterClient

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class Move(NamedTuple):
    """The replicas of a partition from which and to which records are copied."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


def throttle(
    cluster: ClusterClient,
    moves: Mapping[TopicPartition, Move],
    alive: Collection[int],
    rate: int | None,
    log_dir_rate: int | None,
) -> None:
    """Limit the copying of these moves, in bytes a second for each broker. A broker's config is set through the broker
    itself, so only brokers that are alive get one. Raises `ApiError`."""
    brokers = sorted({node_id for move in moves.values() for node_id in (*move.sources, *move.targets)} & set(alive))
    if rate is not None:
        for topic, values in throttled_replicas(moves).items():
            set_configs(cluster, Resource(ConfigResourceType.TOPIC, topic), values)
    for node_id in brokers:
        rates = {} if rate is None else {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
        if log_dir_rate is not None:
            rates[LOG_DIR_RATE] = str(log_dir_rate)
        if rates:
            set_configs(cluster, Resource(ConfigResourceType.BROKER, str(node_id)), rates)


def throttled_replicas(moves: Mapping[TopicPartition, Move]) -> dict[str, dict[str, str]]:
    """The topic configs: both lists of `partition:broker`, by topic."""
    lists: dict[str, tuple[list[str], list[str]]] = {}
    for at, move in sorted(moves.items()):
        if not move.targets:
            continue
        leaders, followers = lists.setdefault(at.topic, ([], []))
        leaders += [f"{at.partition}:{node_id}" for node_id in move.sources]
        followers += [f"{at.partition}:{node_id}" for node_id in move.targets]
    return {
        topic: {LEADER_REPLICAS: ",".join(leaders), FOLLOWER_REPLICAS: ",".join(followers)}
        for topic, (leaders, followers) in lists.items()
    }


def clear(cluster: ClusterClient, topics: Iterable[str], brokers: Iterable[int]) -> None:
    """Remove what `throttle` has set; topics that were deleted are skipped. Raises `ApiError`."""
    for node_id in sorted(set(brokers)):
        _delete(cluster, Resource(ConfigResourceType.BROKER, str(node_id)), (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE))
    for topic in sorted(set(topics)):
        try:
            _delete(cluster, Resource(ConfigResourceType.TOPIC, topic), (LEADER_REPLICAS, FOLLOWER_REPLICAS))
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise


def _delete(cluster: ClusterClient, resource: Resource, names: Iterable[str]) -> None:
    alter_configs(cluster, resource, [Alteration(name, ConfigOperation.DELETE) for name in names])
