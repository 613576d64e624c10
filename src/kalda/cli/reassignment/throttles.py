"""The configs that limit the rate of moving replicas, set and removed as by `kafka-reassign-partitions`.

Topic configs name the throttled replicas, broker configs the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.command_admin import CommandAdmin
from kalda.client.admin.configs import Alteration, Resource

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
_BROKER_MS = 5_000
"""How long to try to reach a broker. One that does not answer copies nothing."""
_UNREACHABLE = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE)


class Move(NamedTuple):
    """The replicas of a partition from which and to which records are copied."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


def throttle(
    admin: CommandAdmin,
    moves: Mapping[TopicPartition, Move],
    alive: Collection[int],
    rate: int | None,
    log_dir_rate: int | None,
) -> list[int]:
    """Limit the copying of these moves, in bytes a second for each broker. A broker's config is set through the broker
    itself, so only brokers that are alive get one.

    Returns those of `alive` that did not answer: a broker that has died is listed until it is fenced.
    Raises `ApiError`.
    """
    brokers = sorted({node_id for move in moves.values() for node_id in (*move.sources, *move.targets)} & set(alive))
    if rate is not None:
        for topic, values in throttled_replicas(moves).items():
            admin.set_configs(Resource(ConfigResourceType.TOPIC, topic), values)
    rates = {} if rate is None else {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    if log_dir_rate is not None:
        rates[LOG_DIR_RATE] = str(log_dir_rate)
    if not rates:
        return []

    def limit(broker: Resource) -> None:
        admin.set_configs(broker, rates, _BROKER_MS)

    return [node_id for node_id in brokers if not _answers(limit, node_id)]


def _answers(alter: Callable[[Resource], None], node_id: int) -> bool:
    """Call `alter` with the broker's resource; False where the broker cannot be reached."""
    try:
        alter(Resource(ConfigResourceType.BROKER, str(node_id)))
    except ApiError as error:
        if error.code not in _UNREACHABLE:
            raise
        return False
    return True


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


def clear(admin: CommandAdmin, topics: Iterable[str], brokers: Iterable[int]) -> list[int]:
    """Remove what `throttle` has set; topics that were deleted are skipped. Returns the brokers that did not answer.
    Raises `ApiError`."""
    rates = (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE)
    silent = [
        node_id
        for node_id in sorted(set(brokers))
        if not _answers(lambda at: _delete(admin, at, rates, _BROKER_MS), node_id)
    ]
    for topic in sorted(set(topics)):
        try:
            _delete(admin, Resource(ConfigResourceType.TOPIC, topic), (LEADER_REPLICAS, FOLLOWER_REPLICAS))
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return silent


def _delete(admin: CommandAdmin, resource: Resource, names: Iterable[str], timeout_ms: int | None = None) -> None:
    changes = [Alteration(name, ConfigOperation.DELETE) for name in names]
    admin.alter_configs({resource: changes}, timeout=None if timeout_ms is None else timeout_ms / 1000).check()
