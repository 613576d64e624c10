"""`kalda topics`: list, describe, create, alter, delete; their offsets and records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, uuid_to_text
from kalda.base.texts import printable
from kalda.cli.common.completing import complete_topic
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import (
    confirm,
    counted,
    headings,
    is_json,
    print_json,
    print_rows,
    print_table,
    report_option,
    say,
    yes_option,
)
from kalda.cli.common.session import MAX_INT32, json_option, parse_pairs, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.topics import EligibleReplicas
    from kalda.clientcore.connections.metadata import Partition, Topic


@click.group(cls=Noun)
def topics() -> None:
    """List, describe, create, alter and delete topics."""


@topics.command("list")
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@click.option("-l", "--long", "is_long", is_flag=True, help="Show partitions, replication factor and id too.")
@json_option
@with_cluster
def list_command(admin: CommandAdmin, exclude_internal: bool, is_long: bool) -> None:
    """List topics, one on each line.

    \b
    Examples:
      kalda topics list
      kalda topics list --long --exclude-internal
    """
    found = list(admin.list_topics(internal=not exclude_internal).values())
    if is_json():
        print_json([_summary(topic) for topic in found])
    elif is_long:
        rows = [(t.name, len(t.partitions), _replication(t), uuid_to_text(t.topic_id), t.is_internal) for t in found]
        print_table(("TOPIC", "PARTITIONS", "REPLICATION", "ID", "INTERNAL"), rows)
    else:
        for topic in found:
            click.echo(topic.name)


@topics.command("describe")
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@click.option("--under-replicated-partitions", is_flag=True, help="Show only partitions with replicas out of sync.")
@click.option("--unavailable-partitions", is_flag=True, help="Show only partitions without a leader.")
@click.option("--topics-with-overrides", is_flag=True, help="Show only topics with configs that are set, and these.")
@json_option
@with_cluster
def describe_command(
    admin: CommandAdmin,
    names: tuple[str, ...],
    under_replicated_partitions: bool,
    unavailable_partitions: bool,
    topics_with_overrides: bool,
) -> None:
    """Describe topics and their partitions; all topics where none is named.

    \b
    Examples:
      kalda topics describe orders
      kalda topics describe --under-replicated-partitions
    """
    from kalda.client.admin.configs import topic_overrides
    from kalda.client.admin.topics import eligible_replicas

    if names:
        described = admin.topics(names)
        found = [described.value(name) for name in names]
    else:
        found = list(admin.list_topics(internal=True).values())
    shown_names = [topic.name for topic in found]
    eligible = admin.run("describing topics", eligible_replicas(shown_names)) if found else {}
    overrides = admin.run("describing configs", topic_overrides(shown_names))

    def is_shown(partition: Partition) -> bool:
        if unavailable_partitions and partition.leader >= 0:
            return False
        return not (under_replicated_partitions and len(partition.isr) >= len(partition.replicas))

    shown = [topic._replace(partitions=tuple(filter(is_shown, topic.partitions))) for topic in found]
    is_filtered = under_replicated_partitions or unavailable_partitions
    if is_filtered:
        shown = [topic for topic in shown if topic.partitions]
    if topics_with_overrides:
        shown = [topic for topic in shown if overrides[topic.name]]
    if is_json():
        print_json(
            [
                {
                    **_summary(topic),
                    "configs": overrides[topic.name],
                    "partition_details": [_partition(p, topic.name, eligible) for p in topic.partitions],
                }
                for topic in shown
            ]
        )
        return
    for index, topic in enumerate(shown):
        if index and not topics_with_overrides:
            click.echo()
        if not is_filtered:
            click.echo(printable(_headline(topic, overrides[topic.name])))
        if not topics_with_overrides:
            _print_partitions(topic, eligible)


def _headline(topic: Topic, configs: dict[str, str | None]) -> str:
    text = ",".join(f"{name}={value}" for name, value in configs.items()) or "-"
    return (
        f"Topic: {topic.name}  TopicId: {uuid_to_text(topic.topic_id)}  PartitionCount: {len(topic.partitions)}  "
        f"ReplicationFactor: {_replication(topic)}  Configs: {text}"
    )


def _print_partitions(topic: Topic, eligible: dict[TopicPartition, EligibleReplicas]) -> None:
    columns = ["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR"]
    if eligible:
        columns += ["ELR", "LAST-KNOWN-ELR"]
    rows = []
    for p in topic.partitions:
        leader = p.leader if p.leader >= 0 else "none"
        row = [topic.name, p.partition, leader, p.leader_epoch, p.replicas, p.isr]
        if eligible:
            elr = eligible.get(TopicPartition(topic.name, p.partition))
            row += [elr.eligible if elr else None, elr.last_known if elr else None]
        rows.append(row)
    print_table(columns, rows)


def _summary(topic: Topic) -> dict[str, object]:
    return {
        "name": topic.name,
        "id": uuid_to_text(topic.topic_id),
        "partitions": len(topic.partitions),
        "replication_factor": _replication(topic),
        "internal": topic.is_internal,
    }


def _replication(topic: Topic) -> int:
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


def _partition(p: Partition, topic: str, eligible: dict[TopicPartition, EligibleReplicas]) -> dict[str, object]:
    elr = eligible.get(TopicPartition(topic, p.partition))
    return {
        "partition": p.partition,
        "leader": p.leader if p.leader >= 0 else None,
        "leader_epoch": p.leader_epoch,
        "replicas": p.replicas,
        "isr": p.isr,
        "offline_replicas": p.offline_replicas,
        "elr": elr.eligible if elr else None,
        "last_known_elr": elr.last_known if elr else None,
    }


def _read_assignment(text: str | None) -> Sequence[Sequence[int]]:
    """The broker ids in `1:2,2:3`: of partition 0 brokers 1 and 2, of partition 1 brokers 2 and 3."""
    if text is None:
        return ()
    try:
        return [[int(broker_id) for broker_id in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise click.UsageError(
            f"--replica-assignment {text}: broker ids are expected, with : between those of a partition and , between "
            "partitions"
        ) from None


@topics.command("create")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", type=click.IntRange(1, MAX_INT32), help="Number of partitions. [default: the cluster's]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="Replicas of each partition. [default: the cluster's]",
)
@click.option("-c", "--config", "configs", metavar="KEY=VALUE", multiple=True, help="A config of the topic.")
@click.option("--replica-assignment", metavar="ID:ID,...", help="The broker ids of each partition's replicas.")
@click.option("--if-not-exists", is_flag=True, help="Ignore a topic that exists.")
@click.option("--dry-run", "validate_only", is_flag=True, help="Check whether it can be created, and do not create it.")
@json_option
@with_cluster
def create_command(
    admin: CommandAdmin,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    replica_assignment: str | None,
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    """Create topics.

    \b
    Examples:
      kalda topics create orders --partitions 6 --replication-factor 3
      kalda topics create users -p 12 -c cleanup.policy=compact -c min.insync.replicas=2
      kalda topics create audit --replica-assignment 1:2,2:3,3:1
    """
    from kalda.client.admin.topics import BROKER_DEFAULT, NewTopic

    if replica_assignment is not None and (partitions is not None or replication_factor is not None):
        raise click.UsageError(
            "--replica-assignment sets both numbers: leave out --partitions and --replication-factor"
        )
    settings = parse_pairs("--config", configs)
    assignment = _read_assignment(replica_assignment)
    done = []
    for name in names:
        topic = NewTopic(name, partitions or BROKER_DEFAULT, replication_factor or BROKER_DEFAULT, settings, assignment)
        try:
            done.append(admin.create_topics([topic], validate_only=validate_only).value(name))
        except ApiError as error:
            if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise
    if is_json():
        print_json(
            [
                {
                    "name": topic.name,
                    "id": uuid_to_text(topic.topic_id),
                    "partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                }
                for topic in done
            ]
        )
        return
    for created in done:
        click.echo(f"{'Could create' if validate_only else 'Created'} topic {created.name}.")


@topics.command("alter")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@click.option(
    "-p", "--partitions", type=click.IntRange(1, MAX_INT32), required=True, help="Number of partitions in all."
)
@click.option("--replica-assignment", metavar="ID:ID,...", help="The broker ids of each new partition's replicas.")
@click.option("--dry-run", "validate_only", is_flag=True, help="Check the change, and do not make it.")
@report_option
@with_cluster
def alter_command(
    admin: CommandAdmin, name: str, partitions: int, replica_assignment: str | None, validate_only: bool
) -> None:
    """Add partitions to a topic. Keys are mapped to other partitions from then on. Partitions cannot be removed.

    \b
    Examples:
      kalda topics alter orders --partitions 12
      kalda configs alter --topic orders --add-config retention.ms=86400000   (for configs)
    """
    assignment = _read_assignment(replica_assignment)
    assignments = {name: assignment} if assignment else None
    admin.create_partitions({name: partitions}, assignments=assignments, validate_only=validate_only).check()
    say(
        f"Topic {name} {'could have' if validate_only else 'has'} {counted(partitions, 'partition')}.",
        topic=name,
        partitions=partitions,
    )


@topics.command("delete")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option("--if-exists", is_flag=True, help="Ignore a topic that does not exist.")
@yes_option
@report_option
@with_cluster
def delete_command(admin: CommandAdmin, names: tuple[str, ...], if_exists: bool, yes: bool) -> None:
    """Delete topics, with all their records.

    \b
    Example:
      kalda topics delete orders-test --if-exists --yes
    """
    confirm(f"Delete {', '.join(names)}, with all records?", yes)
    for name in names:
        try:
            admin.delete_topics([name]).check()
        except ApiError as error:
            if not (if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise
        else:
            say(f"Deleted topic {name}.", topic=name)


@topics.command("offsets")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option(
    "--at", "place", metavar="WHERE", help="Only this place: beginning, latest, a time (2026-01-31T12:00:00Z, UTC "
    "without a zone), a time ago (-1h), or records before the end (-100). [default: beginning and latest]",
)  # fmt: skip
@json_option
@with_cluster
def offsets_command(admin: CommandAdmin, names: tuple[str, ...], place: str | None) -> None:
    """Show the first offset, the end, and the number of offsets between them, of each partition.

    \b
    Examples:
      kalda topics offsets orders
      kalda topics offsets orders --at -1h
    """
    from kalda.cli.records.places import PlaceKind, ReadPlace, offsets_of, parse_place

    partitions = [partition for name in dict.fromkeys(names) for partition in admin.partitions(name)]
    if place is not None:
        found = offsets_of(admin, partitions, parse_place("--at", place, time.time_ns() // 1_000_000))
        columns: tuple[str, ...] = ("topic", "partition", "offset")
        rows: list[tuple[object, ...]] = [(*partition, found[partition]) for partition in partitions]
    else:
        first = offsets_of(admin, partitions, ReadPlace(PlaceKind.BEGINNING))
        ends = offsets_of(admin, partitions, ReadPlace(PlaceKind.END))
        columns = ("topic", "partition", "beginning", "end", "offsets")
        rows = [(*each, first[each], ends[each], ends[each] - first[each]) for each in partitions]
    print_rows(columns, rows)


@topics.command("delete-records")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "--before", "place", metavar="WHERE", required=True,
    help="Records before this place are deleted: an offset, latest (all records), a time, a time ago (-7d), or records "
    "before the end (-100).",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@json_option
@with_cluster
def delete_records_command(
    admin: CommandAdmin, name: str, partitions: tuple[int, ...], place: str, dry_run: bool, yes: bool
) -> None:
    """Delete the records of partitions that are before a place.

    \b
    Examples:
      kalda topics delete-records orders --before -7d --dry-run
      kalda topics delete-records orders --partition 0 --before 42 --yes
    """
    from kalda.cli.records.places import PlaceKind, ReadPlace, offsets_of, parse_place

    known = admin.partitions(name)
    chosen = [TopicPartition(name, partition) for partition in partitions] or known
    admin.wait_for_leaders(chosen)
    first = offsets_of(admin, chosen, ReadPlace(PlaceKind.BEGINNING))
    before = offsets_of(admin, chosen, parse_place("--before", place, time.time_ns() // 1_000_000))
    starts = {each: max(first[each], before[each]) for each in chosen}
    if not dry_run:
        count = sum(starts[each] - first[each] for each in chosen)
        confirm(f"Delete {counted(count, 'record')} of {name}?", yes)
        starts = admin.delete_records(before).check().succeeded
    columns = ("topic", "partition", "deleted", "beginning")
    rows = [(*each, max(0, starts[each] - first[each]), starts[each]) for each in chosen]
    if is_json():
        print_json({"executed": not dry_run, "partitions": [dict(zip(columns, row, strict=True)) for row in rows]})
        return
    print_table(headings(columns), rows)
    if dry_run:
        click.echo("Nothing was deleted: without --dry-run these records are.", err=True)
