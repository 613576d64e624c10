"""`kalda reassign`: plan, run, watch and cancel the movement of replicas between brokers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.common.completing import complete_topic
from kalda.cli.common.failures import FAILED, INTERRUPTED, Failure
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import counted, is_json, print_json, print_rows, print_table
from kalda.cli.common.session import json_option, with_cluster
from kalda.cli.common.times import Seconds

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.cli.reassignment.planner import ReplicaBroker
    from kalda.cli.reassignment.plans import ReplicaTarget
    from kalda.clientcore.connections.metadata import Partition

Targets = Mapping[TopicPartition, "ReplicaTarget"]


@click.group(cls=Noun)
def reassign() -> None:
    """Move replicas between brokers. Plans have the format of Kafka's kafka-reassign-partitions.

    \b
    Examples:
      kalda reassign plan --all-topics --brokers 1,2,3,4 --out plan.json --rollback before.json
      kalda reassign run plan.json
      kalda reassign status
    """


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    from kalda.cli.reassignment.plans import DocumentError

    try:
        yield
    except DocumentError as error:
        raise Failure(str(error)) from error


# -- plan


@reassign.command("plan")
@click.option("--topics", metavar="NAME,...", shell_complete=complete_topic, help="Plan these topics.")
@click.option("--topics-file", metavar="FILE", type=click.Path(), help='{"version": 1, "topics": [{"topic": NAME}]}')
@click.option("--all-topics", is_flag=True, help="Plan all topics, internal ones included.")
@click.option("--brokers", metavar="ID,...", help="Place replicas on these brokers. [default: all that are not fenced]")
@click.option("--without-brokers", metavar="ID,...", help="Place replicas on all brokers but these, which are emptied.")
@click.option(
    "-r", "--replication-factor", type=click.IntRange(1, 512), help="Replicas of a partition. [default: as now]"
)
@click.option("--disable-rack-aware", is_flag=True, help="Ignore racks.")
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help="Write the plan to this file.")
@click.option(
    "--rollback", metavar="FILE", type=click.Path(dir_okay=False), help="Write the current assignment to this file."
)
@json_option
@with_cluster
def plan_command(
    admin: CommandAdmin,
    topics: str | None,
    topics_file: str | None,
    all_topics: bool,
    brokers: str | None,
    without_brokers: str | None,
    replication_factor: int | None,
    disable_rack_aware: bool,
    out: str | None,
    rollback: str | None,
) -> None:
    """Plan an even placement of replicas on different racks, which moves as few of them as possible.

    Nothing is moved. The plan has only partitions that change. With --json, only the plan is printed, in the format
    for `kalda reassign run` and `kafka-reassign-partitions --execute`.

    \b
    Examples:
      kalda reassign plan --topics orders,users --brokers 1,2,3 --out plan.json
      kalda reassign plan --all-topics --without-brokers 4 --json > plan.json
      kalda reassign plan --topics orders --replication-factor 3 --out plan.json
    """
    from kalda.cli.reassignment import planner, plans
    from kalda.cli.reassignment.plans import partitions_of

    if sum((topics is not None, topics_file is not None, all_topics)) != 1:
        raise click.UsageError("choose topics with exactly one of --topics, --topics-file, --all-topics")
    everything = partitions_of(admin, admin.list_topics(internal=True))
    if all_topics:
        names = {at.topic for at in everything}
    else:
        with _failing():
            names = set(plans.read_topics(topics_file)) if topics_file is not None else set(_words(topics or ""))
    missing = sorted(names - {at.topic for at in everything})
    if missing:
        raise Failure(f"there is no topic {', '.join(missing)}; check the names")
    chosen = _brokers(admin, brokers, without_brokers)
    current = {at: partition.replicas for at, partition in everything.items() if at.topic in names}
    sizes = _sizes(admin, everything, current)
    try:
        planned = planner.plan(
            current,
            chosen,
            others=_counts(partition.replicas for at, partition in everything.items() if at.topic not in names),
            sizes=sizes,
            rack_aware=not disable_rack_aware,
            replication_factor=replication_factor,
        )
    except ValueError as error:
        raise Failure(str(error)) from error
    changed = {at: replicas for at, replicas in sorted(planned.items()) if replicas != current[at]}
    before = {at: current[at] for at in changed}
    for path, document in ((out, changed), (rollback, before)):
        if path is not None:
            Path(path).write_text(plans.to_text(plans.to_document(document)) + "\n", encoding="utf-8")
    if is_json():
        print_json(plans.to_document(changed))
    else:
        _print_plan(before, changed, sizes)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _ids(option: str, text: str) -> set[int]:
    words = _words(text)
    wrong = [word for word in words if not word.isdecimal()]
    if wrong or not words:
        raise click.UsageError(f"{option} {text}: broker ids with commas between are expected")
    return set(map(int, words))


def _brokers(admin: CommandAdmin, included: str | None, excluded: str | None) -> list[ReplicaBroker]:
    from kalda.cli.reassignment.planner import ReplicaBroker

    if included is not None and excluded is not None:
        raise click.UsageError("--brokers and --without-brokers exclude each other: give one of them")
    alive = {node.node_id: node for node in admin.describe_cluster().nodes}
    ids = set(alive)
    if included is not None:
        ids = _ids("--brokers", included)
        missing = sorted(ids - set(alive))
        if missing:
            raise Failure(
                f"broker {', '.join(map(str, missing))} is not in service; those that are: "
                f"{', '.join(map(str, sorted(alive)))}"
            )
    elif excluded is not None:
        ids -= _ids("--without-brokers", excluded)
        if not ids:
            raise Failure(f"--without-brokers {excluded}: no broker remains; name fewer")
    return [ReplicaBroker(node_id, alive[node_id].rack) for node_id in sorted(ids)]


def _counts(lists: Iterator[tuple[int, ...]] | Collection[tuple[int, ...]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for replicas in lists:
        for replica in replicas:
            counts[replica] = counts.get(replica, 0) + 1
    return counts


def _sizes(
    admin: CommandAdmin, partitions: Mapping[TopicPartition, Partition], chosen: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Size in bytes of each partition on its leader; partitions whose leader does not answer are left out."""
    from kalda.cli.reassignment.plans import sizes_on

    by_leader: dict[int, list[TopicPartition]] = {}
    for at in chosen:
        by_leader.setdefault(partitions[at].leader, []).append(at)
    return {
        at: size
        for node_id, each in by_leader.items()
        if node_id >= 0
        for at, size in sizes_on(admin, node_id, each).items()
    }


def _print_plan(
    before: Mapping[TopicPartition, tuple[int, ...]],
    changed: Mapping[TopicPartition, tuple[int, ...]],
    sizes: Mapping[TopicPartition, int],
) -> None:
    if not changed:
        click.echo("Nothing to move: the replicas are placed evenly already.")
        return
    rows = []
    copies = total = 0
    for at, replicas in changed.items():
        added = [replica for replica in replicas if replica not in before[at]]
        copies += len(added)
        total += len(added) * sizes.get(at, 0)
        rows.append((*at, before[at], replicas, len(added) * sizes.get(at, 0) if added else 0))
    print_table(("TOPIC", "PARTITION", "REPLICAS", "PLANNED", "COPIES-BYTES"), rows)
    click.echo(
        f"Changed: {counted(len(changed), 'partition')}. Copied: {counted(copies, 'replica')}, {show_bytes(total)}."
    )


def show_bytes(count: float) -> str:
    """A size with a unit, as "1.5 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


# -- run


@reassign.command("run")
@click.argument("path", metavar="FILE", type=click.Path())
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES/S",
    help="What a broker may send, and what it may fetch, of these replicas a second; from 1 MB/s on it is exact.",
)
@click.option(
    "--replica-alter-log-dirs-throttle",
    "log_dir_throttle",
    type=click.IntRange(min=1),
    metavar="BYTES/S",
    help="What a broker may copy between its own directories.",
)
@click.option(
    "--additional", is_flag=True, help="Start even while others are in progress; FILE replaces those of its partitions."
)
@click.option(
    "--disallow-replication-factor-change",
    "same_factor",
    is_flag=True,
    help="Refuse a change of the number of replicas.",
)
@click.option(
    "--rollback", metavar="FILE", type=click.Path(dir_okay=False), help="Write the current assignment to this file."
)
@click.option(
    "--no-wait", is_flag=True, help="Return when it has started. `status FILE` then removes the throttles at the end."
)
@click.option("--timeout", type=Seconds(min=0), help="Seconds to wait. [default: until it is complete]")
@json_option
@with_cluster
def run_command(
    admin: CommandAdmin,
    path: str,
    throttle: int | None,
    log_dir_throttle: int | None,
    additional: bool,
    same_factor: bool,
    rollback: str | None,
    no_wait: bool,
    timeout: float | None,
) -> None:
    """Move replicas according to the plan in FILE, and wait until this is complete.

    Ctrl-C ends the wait; the reassignment continues.

    \b
    Examples:
      kalda reassign run plan.json --throttle 50000000 --rollback before.json
      kalda reassign run plan.json --no-wait && kalda reassign status plan.json
    """
    from kalda.cli.reassignment import plans

    with _failing():
        targets = plans.read_plan(path)
        current = plans.check(admin, targets, additional=additional)
    before = plans.to_document({at: current[at].replicas for at in targets})
    if rollback is not None:
        Path(rollback).write_text(plans.to_text(before) + "\n", encoding="utf-8")
    elif not is_json():
        click.echo(f"Current partition replica assignment\n\n{plans.to_text(before)}\n")
        click.echo("Save this as a plan for the way back, for kalda reassign run.")
    refusals = plans.start(
        admin,
        targets,
        current,
        rate=throttle,
        log_dir_rate=log_dir_throttle,
        same_factor=same_factor,
        on_silent=_warn_of_missing_throttles,
    )
    begun = [at for at in targets if at not in refusals]
    for error in refusals.values():
        click.echo(f"kalda: {error.message} [{error.code.name}]", err=True)
    if not is_json() and begun:
        click.echo(f"Successfully started partition reassignments for {plans.show_partitions(begun)}")
    done = False
    throttled = throttle is not None or log_dir_throttle is not None
    if begun and not no_wait:
        done = _watch(admin, path, targets, begun, timeout)
        if done and throttled:
            _unthrottle(admin, targets)
    if is_json():
        print_json({"rollback": before, "started": _names(begun), "refused": _names(refusals), "completed": done})
    elif done:
        click.echo("Completed.")
    elif begun and throttled:
        click.echo(f"The throttle stays until `kalda reassign status {path}` is run after the reassignment's end.")
    if refusals or not (done or no_wait):
        sys.exit(FAILED)


def _warn_of_missing_throttles(brokers: list[int]) -> None:
    if brokers:
        click.echo(
            f"kalda: broker {', '.join(map(str, brokers))} does not answer, so no throttle was set on it; when it is "
            "back, it copies without one",
            err=True,
        )


def _unthrottle(admin: CommandAdmin, targets: Targets) -> None:
    from kalda.cli.reassignment import plans

    silent = plans.unthrottle(admin, targets)
    if silent:
        click.echo(
            f"kalda: broker {', '.join(map(str, silent))} does not answer; a throttle that it has stays until "
            "`kalda reassign status FILE` is run when it is back",
            err=True,
        )


def _names(partitions: Collection[TopicPartition]) -> list[dict[str, object]]:
    return [at._asdict() for at in sorted(partitions)]


def _watch(
    admin: CommandAdmin, path: str, targets: Targets, begun: Collection[TopicPartition], timeout: float | None
) -> bool:
    """Wait, with a line of progress. True when all are complete, False after the timeout."""
    from kalda.cli.reassignment.plans import wait_with_bar

    try:
        return wait_with_bar(admin, {at: targets[at].replicas for at in begun}, timeout)
    except KeyboardInterrupt:
        click.echo(
            f"kalda: the reassignment continues. `kalda reassign status {path}` shows its progress, and removes "
            f"throttles at the end; `kalda reassign cancel {path}` cancels it.",
            err=True,
        )
        sys.exit(INTERRUPTED)


# -- status


@reassign.command("status")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path())
@click.option("--preserve-throttles", is_flag=True, help="Do not remove throttles, even when all is complete.")
@json_option
@with_cluster
def status_command(admin: CommandAdmin, path: str | None, preserve_throttles: bool) -> None:
    """Show the reassignments in progress; with FILE, the state of each partition of the plan.

    When all of a plan is complete, its throttles are removed. With FILE, exits with 1 unless all is complete.

    \b
    Examples:
      kalda reassign status
      until kalda reassign status plan.json; do sleep 10; done
    """
    from kalda.cli.reassignment.plans import read_progress

    if path is None:
        progress = read_progress(admin)
        rows = [
            (*at, each.target, each.adding, each.removing, progress.remaining.get(at))
            for at, each in sorted(progress.ongoing.items())
        ]
        columns = ("topic", "partition", "replicas", "adding", "removing", "remaining_bytes")
        print_rows(columns, rows, "No reassignment is in progress.")
        return
    _status_of_plan(admin, path, preserve_throttles)


def _status_of_plan(admin: CommandAdmin, path: str, preserve_throttles: bool) -> None:
    from kalda.cli.reassignment import plans
    from kalda.cli.reassignment.plans import partitions_of, read_progress

    with _failing():
        targets = plans.read_plan(path)
    progress = read_progress(admin, targets)
    now = partitions_of(admin, (at.topic for at in targets))
    rows = []
    for at, target in sorted(targets.items()):
        replicas = now[at].replicas if at in now else ()
        if at in progress.ongoing:
            state = "in progress"
            if progress.ongoing[at].target != target.replicas:
                state = "moves elsewhere"
        elif at not in now:
            state = "no such partition"
        else:
            state = "complete" if replicas == target.replicas else "not as planned"
        remaining = progress.remaining.get(at, 0) if state == "in progress" else None
        rows.append((*at, state, target.replicas, replicas, remaining))
    if not progress.ongoing and not preserve_throttles:
        _unthrottle(admin, targets)
    print_rows(("topic", "partition", "state", "planned", "replicas", "remaining_bytes"), rows)
    if any(row[2] != "complete" for row in rows):
        sys.exit(FAILED)


# -- cancel


@reassign.command("cancel")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path())
@click.option("--all", "of_all", is_flag=True, help="Cancel all that are in progress.")
@click.option("--preserve-throttles", is_flag=True, help="Do not remove throttles.")
@json_option
@with_cluster
def cancel_command(admin: CommandAdmin, path: str | None, of_all: bool, preserve_throttles: bool) -> None:
    """Cancel reassignments in progress, those of the plan in FILE or all. Each partition gets its old replicas back.

    \b
    Examples:
      kalda reassign cancel plan.json
      kalda reassign cancel --all
    """
    from kalda.cli.reassignment import plans

    if of_all == (path is not None):
        raise click.UsageError("give either FILE or --all")
    planned = None
    if path is not None:
        with _failing():
            planned = plans.read_plan(path)
    ongoing = admin.list_reassignments(planned)
    results = plans.alter(admin, dict.fromkeys(ongoing)) if ongoing else {}
    over = {at for at, e in results.items() if e is None or e.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    failed: dict[TopicPartition, ApiError] = {at: e for at, e in results.items() if e is not None and at not in over}
    if not preserve_throttles and not failed:
        targets = planned or {at: plans.ReplicaTarget(each.replicas, ()) for at, each in ongoing.items()}
        _unthrottle(admin, targets)
    if is_json():
        print_json({"cancelled": _names(over), "failed": _names(failed)})
    elif over:
        click.echo(f"Successfully cancelled partition reassignments for {plans.show_partitions(over)}")
    elif not failed:
        click.echo(
            "None of the specified partition reassignments are active." if path else "No reassignment is in progress."
        )
    for error in failed.values():
        click.echo(f"kalda: {error.message} [{error.code.name}]", err=True)
    if failed:
        sys.exit(FAILED)
