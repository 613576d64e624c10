"""Carrying out a plan: all of it is checked before anything changes, and throttles are set before copying starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.common.output import counted
from kalda.cli.reassignment.documents import ANY, DocumentError, ReplicaTarget
from kalda.cli.reassignment.progress import partitions_of
from kalda.client.admin.configs import Alteration, ConfigResource
from kalda.client.admin.nodes import supported_apis
from kalda.clientcore.connections.cluster_values import Partition
from kalda.protocol.apis import ApiKey

Targets = Mapping[TopicPartition, ReplicaTarget]
Partitions = Mapping[TopicPartition, Partition]


def check(admin: CommandAdmin, targets: Targets, *, additional: bool) -> dict[TopicPartition, Partition]:
    """The current state of the plan's partitions. Raises `DocumentError` where the plan does not fit the cluster."""
    now = partitions_of(admin, (at.topic for at in targets))
    missing = sorted(at for at in targets if at not in now)
    if missing:
        raise DocumentError(f"the plan moves partitions that do not exist: {', '.join(map(str, missing))}")
    registered = {node.node_id for node in admin.describe_cluster(fenced=True).nodes}
    unknown = sorted({replica for target in targets.values() for replica in target.replicas} - registered)
    if unknown:
        raise DocumentError(f"the plan names brokers that do not exist: {', '.join(map(str, unknown))}")
    for node_id, paths in sorted(_dirs_by_broker(targets).items()):
        if ApiKey.ALTER_REPLICA_LOG_DIRS not in admin.run("the versions of a broker", supported_apis(node_id)):
            raise DocumentError(
                f"the plan names directories on broker {node_id}, which does not support AlterReplicaLogDirs: write "
                f"{ANY!r} in log_dirs"
            )
        known_dirs = {each.path for each in admin.describe_log_dirs([node_id], partitions=[]).value(node_id)}
        for at, path in paths.items():
            if path not in known_dirs:
                raise DocumentError(
                    f"the plan moves {at} into {path} on broker {node_id}, which has only "
                    f"{', '.join(sorted(known_dirs))}"
                )
    if not additional:
        ongoing = admin.list_reassignments()
        if ongoing:
            raise DocumentError(
                f"being reassigned already: {counted(len(ongoing), 'partition')}. Wait for the end, cancel it, or give "
                f"--additional to let the plan replace those of its partitions"
            )
    return {at: now[at] for at in targets}


def start(
    admin: CommandAdmin,
    targets: Targets,
    current: Partitions,
    *,
    rate: int | None,
    log_dir_rate: int | None,
    same_factor: bool,
    on_silent: Callable[[list[int]], None] = lambda _: None,
) -> dict[TopicPartition, ApiError]:
    """Start the plan. `on_silent` is called with the brokers on which no throttle was set, as they did not answer.

    Returns the partitions that were refused, with their errors. Raises `ApiError` where the whole request was refused.
    """
    if rate is not None or log_dir_rate is not None:
        alive = admin.live_brokers()
        on_silent(throttle(admin, _moves(targets, current), alive, rate, log_dir_rate))
    try:
        replicas = {at: target.replicas for at, target in targets.items()}
        results = alter(admin, replicas, allow_replication_factor_change=not same_factor)
    except ApiError:
        _tidy(admin, targets, rate, log_dir_rate)
        raise
    refused = {at: error for at, error in results.items() if error is not None}
    if len(refused) == len(targets):
        _tidy(admin, targets, rate, log_dir_rate)
    for node_id, paths in _dirs_by_broker(targets).items():
        accepted = {at: path for at, path in paths.items() if at not in refused}
        admin.alter_replica_log_dirs(node_id, accepted).check()
    return refused


def alter(
    admin: CommandAdmin,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
) -> Mapping[TopicPartition, ApiError | None]:
    """Each partition's error, None where it was accepted. Raises `ApiError` where the whole request was refused."""
    results = admin.alter_reassignments(targets, allow_replication_factor_change=allow_replication_factor_change)
    errors = list(results.values())
    if len(errors) > 1 and errors[0] is not None and all(each is errors[0] for each in errors):
        raise errors[0]
    return results


def unthrottle(admin: CommandAdmin, targets: Targets) -> list[int]:
    """Remove the throttles of a plan, on every broker, as Kafka's tool does. Returns the brokers that did not answer.
    Raises `ApiError`."""
    return clear(admin, {at.topic for at in targets}, admin.live_brokers())


def _tidy(admin: CommandAdmin, targets: Targets, rate: int | None, log_dir_rate: int | None) -> None:
    if rate is not None or log_dir_rate is not None:
        unthrottle(admin, targets)


def _moves(targets: Targets, current: Partitions) -> dict[TopicPartition, Move]:
    return {
        at: Move(current[at].replicas, tuple(r for r in target.replicas if r not in current[at].replicas))
        for at, target in targets.items()
    }


def _dirs_by_broker(targets: Targets) -> dict[int, dict[TopicPartition, str]]:
    """The directories that the plan names, by broker and partition."""
    found: dict[int, dict[TopicPartition, str]] = {}
    for at, target in targets.items():
        for node_id, path in zip(target.replicas, target.log_dirs, strict=True):
            if path != ANY:
                found.setdefault(node_id, {})[at] = path
    return found


# The configs that limit the rate of moving replicas, set and removed as by `kafka-reassign-partitions`.
#
# Topic configs name the throttled replicas, broker configs the rate.

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
            admin.set_configs(ConfigResource(ConfigResourceType.TOPIC, topic), values)
    rates = {} if rate is None else {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    if log_dir_rate is not None:
        rates[LOG_DIR_RATE] = str(log_dir_rate)
    if not rates:
        return []

    def limit(broker: ConfigResource) -> None:
        admin.set_configs(broker, rates, _BROKER_MS)

    return [node_id for node_id in brokers if not _answers(limit, node_id)]


def _answers(alter: Callable[[ConfigResource], None], node_id: int) -> bool:
    """Call `alter` with the broker's resource; False where the broker cannot be reached."""
    try:
        alter(ConfigResource(ConfigResourceType.BROKER, str(node_id)))
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
            _delete(admin, ConfigResource(ConfigResourceType.TOPIC, topic), (LEADER_REPLICAS, FOLLOWER_REPLICAS))
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return silent


def _delete(admin: CommandAdmin, resource: ConfigResource, names: Iterable[str], timeout_ms: int | None = None) -> None:
    changes = [Alteration(name, ConfigOperation.DELETE) for name in names]
    admin.alter_configs({resource: changes}, timeout=None if timeout_ms is None else timeout_ms / 1000).check()
