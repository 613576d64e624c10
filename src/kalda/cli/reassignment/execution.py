"""Carrying out a plan: all of it is checked before anything changes, and throttles are set before copying starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.cli.command_admin import CommandAdmin
from kalda.cli.reassignment import throttles
from kalda.cli.reassignment.documents import ANY, DocumentError, Target
from kalda.cli.reassignment.progress import partitions_of
from kalda.client.admin.nodes import supported_apis
from kalda.client.core.cluster_values import Partition
from kalda.protocol.apis import ApiKey

Targets = Mapping[TopicPartition, Target]
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
                f"{len(ongoing)} partitions are being reassigned already: wait for their end, cancel them, or give "
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
        on_silent(throttles.throttle(admin, _moves(targets, current), alive, rate, log_dir_rate))
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
    return throttles.clear(admin, {at.topic for at in targets}, admin.live_brokers())


def _tidy(admin: CommandAdmin, targets: Targets, rate: int | None, log_dir_rate: int | None) -> None:
    if rate is not None or log_dir_rate is not None:
        unthrottle(admin, targets)


def _moves(targets: Targets, current: Partitions) -> dict[TopicPartition, throttles.Move]:
    return {
        at: throttles.Move(current[at].replicas, tuple(r for r in target.replicas if r not in current[at].replicas))
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
