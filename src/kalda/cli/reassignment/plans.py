"""Plans of reassignments: Kafka's JSON format, carrying them out, and how far they are.

Plans in the JSON format of Kafka's `kafka-reassign-partitions`, version 1: each tool reads the other's plans.

A replica's directory is `any` where the broker chooses, else an absolute path on that broker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.texts import decode_text
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.common.output import ProgressLine, counted
from kalda.client.admin.configs import Alteration, ConfigResource
from kalda.client.admin.nodes import supported_apis
from kalda.client.admin.reassignments import Reassignment
from kalda.clientcore.connections.metadata import Partition
from kalda.protocol.apis import ApiKey

ANY = "any"
_VERSION = 1


class DocumentError(Exception):
    """A plan, or a file of topics, is invalid; the message is for the user."""


class ReplicaTarget(NamedTuple):
    """The planned replicas of a partition, and the log directory of each."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]


def to_document(targets: Mapping[TopicPartition, Sequence[int]]) -> dict[str, object]:
    """A plan with `any` for all directories."""
    return {
        "version": _VERSION,
        "partitions": [
            {
                "topic": at.topic,
                "partition": at.partition,
                "replicas": list(replicas),
                "log_dirs": [ANY] * len(replicas),
            }
            for at, replicas in sorted(targets.items())
        ],
    }


def to_text(document: Mapping[str, object]) -> str:
    """The document on one line without blanks, as Kafka's tool prints it."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def read_plan(path: str) -> dict[TopicPartition, ReplicaTarget]:
    """A plan's targets. Raises `DocumentError`, `OSError`."""
    document = _load(path)
    found: dict[TopicPartition, ReplicaTarget] = {}
    try:
        for each in document["partitions"]:
            at = partition_of(each)
            replicas = tuple(_number(replica) for replica in each["replicas"])
            log_dirs = tuple(_text(path) for path in each.get("log_dirs") or [ANY] * len(replicas))
            if at in found:
                raise ValueError(f"partition {at} is there twice")
            if not replicas:
                raise ValueError(f"partition {at} has no replicas")
            if len(set(replicas)) < len(replicas):
                raise ValueError(f"partition {at} has a broker twice in {list(replicas)}")
            if len(log_dirs) != len(replicas):
                raise ValueError(f"partition {at} has {len(log_dirs)} log_dirs for replicas: {len(replicas)}")
            wrong = [path for path in log_dirs if path != ANY and not path.startswith("/")]
            if wrong:
                raise ValueError(f"partition {at}: log_dirs {wrong} are neither absolute paths nor {ANY!r}")
            found[at] = ReplicaTarget(replicas, log_dirs)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _wrong(path, error) from error
    if not found:
        raise DocumentError(f"{path} moves nothing: its list of partitions is empty")
    return found


def read_topics(path: str) -> list[str]:
    """The names in `{"version": 1, "topics": [{"topic": NAME}]}`. Raises `DocumentError`, `OSError`."""
    document = _load(path)
    try:
        names = [_text(each["topic"]) for each in document["topics"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(path, error) from error
    if not names:
        raise DocumentError(f"{path} names no topic")
    return list(dict.fromkeys(names))


def partition_of(entry: Any) -> TopicPartition:
    """The partition in an object with `topic` and `partition`. Raises `ValueError`, `KeyError`, `TypeError`."""
    return TopicPartition(_text(entry["topic"]), _number(entry["partition"]))


def _load(path: str) -> Any:
    text = decode_text(Path(path).read_bytes())
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _wrong(path, error) from error
    if not isinstance(document, dict):
        raise DocumentError(f"{path}: an object with the version and a list is expected")
    version = document.get("version", _VERSION)
    if version != _VERSION:
        raise DocumentError(f"{path} has version {version!r}; only {_VERSION} is supported")
    return document


def _wrong(path: str, error: Exception) -> DocumentError:
    missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return DocumentError(f"{path}: {missing}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} where a text is expected")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} where a number from 0 is expected")
    return value


def show_partitions(partitions: Iterable[TopicPartition]) -> str:
    """The partitions' names separated by commas, as Kafka's tool prints them."""
    return ",".join(map(str, sorted(partitions)))


# Reassignments in progress, and the bytes that remain to be copied.
#
# For an added replica the remainder is the size of the leader's log minus the size of its own log. Both grow while
# records are written, so both are requested each time.

_TIMEOUT_MS = 2_000


class ReassignmentProgress(NamedTuple):
    """Reassignments in progress; `remaining` has the bytes to copy by partition, None where unknown."""

    ongoing: dict[TopicPartition, Reassignment]
    remaining: dict[TopicPartition, int | None]

    @property
    def remaining_bytes(self) -> int:
        return sum(filter(None, self.remaining.values()))


def partitions_of(admin: CommandAdmin, topics: Iterable[str]) -> dict[TopicPartition, Partition]:
    """All current partitions of these topics; topics that do not exist are left out."""
    names = sorted(set(topics))
    if not names:
        return {}
    return {
        TopicPartition(topic.name, partition.partition): partition
        for topic in admin.topics(names).succeeded.values()
        for partition in topic.partitions
    }


def read_progress(admin: CommandAdmin, partitions: Iterable[TopicPartition] | None = None) -> ReassignmentProgress:
    """The progress of these partitions' reassignments, or with None of all. Raises `ApiError`."""
    ongoing = admin.list_reassignments(partitions)
    now = partitions_of(admin, (at.topic for at in ongoing))
    leaders = {at: now[at].leader for at in ongoing if at in now}
    by_node: dict[int, set[TopicPartition]] = {}
    for at, reassignment in ongoing.items():
        if reassignment.adding:
            for node_id in (leaders.get(at, -1), *reassignment.adding):
                by_node.setdefault(node_id, set()).add(at)
    sizes = {node_id: sizes_on(admin, node_id, on_node) for node_id, on_node in by_node.items() if node_id >= 0}
    remaining = {at: _remaining(at, each.adding, leaders.get(at, -1), sizes) for at, each in ongoing.items()}
    return ReassignmentProgress(ongoing, remaining)


def _remaining(
    at: TopicPartition, adding: tuple[int, ...], leader: int, sizes: Mapping[int, Mapping[TopicPartition, int]]
) -> int | None:
    if not adding:
        return 0
    whole = sizes.get(leader, {}).get(at)
    if whole is None:
        return None
    return sum(max(0, whole - sizes.get(node_id, {}).get(at, 0)) for node_id in adding)


def sizes_on(admin: CommandAdmin, node_id: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Sizes in bytes of these partitions on a broker; empty where it does not answer."""
    try:
        found = admin.describe_log_dirs([node_id], partitions=partitions, timeout=_TIMEOUT_MS / 1000)
        log_dirs = found.value(node_id)
    except ApiError:
        return {}
    return {at: size for log_dir in log_dirs for at, size in log_dir.partitions.items()}


_FIRST_POLL_S = 0.1
_POLL_S = 1.0
_MB = 1_000_000


def wait_with_bar(
    admin: CommandAdmin, targets: Mapping[TopicPartition, Sequence[int]], timeout_s: float | None
) -> bool:
    """Wait until none of them is in progress, and return True; or False after the timeout. Raises `ApiError`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    copied = _Copied(len(targets))
    line = ProgressLine(copied.describe)
    pause_s = _FIRST_POLL_S
    try:
        while True:
            progress = read_progress(admin, targets)
            copied.update(progress)
            line.step()
            if not progress.ongoing:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(_POLL_S, pause_s * 1.5)
    finally:
        line.clear()


class _Copied:
    """The bytes copied: the difference between the largest remainder so far and the current one."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._done = 0
        self._remaining = self._most_remaining = 0

    def update(self, progress: ReassignmentProgress) -> None:
        self._remaining = progress.remaining_bytes
        self._most_remaining = max(self._most_remaining, self._remaining)
        self._done = self._partitions - len(progress.ongoing)

    def describe(self, seconds: float) -> str:
        """`2 of 6 partitions are moved, 120 of 400 MB copied, 12.0 MB/s, 23 s to go`."""
        copied = self._most_remaining - self._remaining
        text = f"{self._done} of {counted(self._partitions, 'partition')} moved"
        if self._most_remaining:
            rate = copied / seconds
            left = f", {self._remaining / rate:.0f} s to go" if rate else ""
            text += f", {copied / _MB:,.0f} of {self._most_remaining / _MB:,.0f} MB copied, {rate / _MB:.1f} MB/s{left}"
        return text


# Carrying out a plan: all of it is checked before anything changes, and throttles are set before copying starts.

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
