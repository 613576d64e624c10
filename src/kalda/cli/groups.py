"""`kalda groups`: list, describe, delete, reset-offsets, delete-offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.texts import printable
from kalda.cli.common.completing import complete_group, complete_topic
from kalda.cli.common.failures import Failure
from kalda.cli.common.metrics_pages import read_all
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import (
    ProgressLine,
    confirm,
    counted,
    headings,
    is_json,
    print_json,
    print_table,
    report_option,
    say,
    yes_option,
)
from kalda.cli.common.session import json_option, with_cluster
from kalda.cli.common.times import moment_ago_ms, parse_time_ms

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.group_values import Group, Member

# Why a consumer group lags: what two samples of its offsets, some seconds apart, show.

_SKEW: Final = 2.0
"""A partition, or a member, this many times off the average is named."""
_AGES: Final = (0.5, 0.75, 0.9)
"""Shares of `retention.ms` at which the age of what was not read is looked at."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Offsets by partition at one moment. `committed` has those with a commit, the others all that exist."""

    at_s: float
    committed: Mapping[TopicPartition, int]
    first: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition. Rates are in records a second; `committed` and `lag` are None where nothing was committed."""

    partition: TopicPartition
    committed: int | None
    end: int
    lag: int | None
    produced: float
    consumed: float
    member: str | None

    @property
    def caught_up_s(self) -> float | None:
        """Seconds until the lag is 0 at these rates; None where it does not shrink."""
        if not self.lag:
            return 0.0 if self.lag == 0 else None
        return self.lag / (self.consumed - self.produced) if self.consumed > self.produced else None


def sample(admin: CommandAdmin, group: Group) -> Sample:
    """The offsets of all partitions that the group has committed or that its members own, and that have a leader."""
    from kalda.protocol.messages.partitions import OffsetSpec

    committed = {p: at.offset for p, at in admin.list_group_offsets(group.group_id).check().succeeded.items()}
    wanted = {*committed, *(partition for member in group.members for partition in member.partitions)}
    there = with_leader(admin, wanted)
    end = admin.offsets_at(there, OffsetSpec.LATEST)
    return Sample(
        time.monotonic(),
        {partition: offset for partition, offset in committed.items() if partition in end},
        admin.offsets_at(there, OffsetSpec.EARLIEST),
        admin.offsets_at(there, OffsetSpec.LATEST, read_committed=True),
        end,
    )


def with_leader(admin: CommandAdmin, partitions: set[TopicPartition]) -> list[TopicPartition]:
    """Those of topics that exist, with a leader now."""
    topics = admin.topics(sorted({partition.topic for partition in partitions})).succeeded
    led = {TopicPartition(t.name, p.partition) for t in topics.values() for p in t.partitions if p.leader >= 0}
    return sorted(partitions & led)


def measure(admin: CommandAdmin, group: Group, seconds: float) -> tuple[Sample, Sample]:
    """Two samples, `seconds` apart."""
    before = sample(admin, group)
    line = ProgressLine(lambda passed: f"measuring: {passed:.0f} of {seconds:.0f} s")
    with line.ticking():
        time.sleep(max(0.0, before.at_s + seconds - time.monotonic()))
    return before, sample(admin, group)


def lags(group: Group, before: Sample, after: Sample) -> list[PartitionLag]:
    """Every partition, in order."""
    seconds = max(after.at_s - before.at_s, 1e-3)
    owners = {partition: member.member_id for member in group.members for partition in member.partitions}
    found = []
    for partition, end in sorted(after.end.items()):
        committed = after.committed.get(partition)
        since = before.committed.get(partition, committed)
        found.append(
            PartitionLag(
                partition,
                committed,
                end,
                None if committed is None else max(0, end - committed),
                max(0, end - before.end.get(partition, end)) / seconds,
                0.0 if committed is None or since is None else max(0, committed - since) / seconds,
                owners.get(partition),
            )
        )
    return found


def unread_ages(admin: CommandAdmin, found: Collection[PartitionLag]) -> dict[TopicPartition, tuple[float, int]]:
    """Where retention comes near what was not read: the share of `retention.ms` that it is older than, and that."""
    from kalda.base.configs.resources import ConfigResourceType
    from kalda.client.admin.configs import ConfigResource

    ages: dict[TopicPartition, tuple[float, int]] = {}
    behind = {each.partition: each.committed for each in found if each.lag and each.committed is not None}
    for topic in sorted({partition.topic for partition in behind}):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        configs = admin.describe_configs([resource]).value(resource)
        retention_ms = int(configs["retention.ms"].value or -1)
        if retention_ms <= 0 or "delete" not in (configs["cleanup.policy"].value or ""):
            continue
        partitions = [partition for partition in behind if partition.topic == topic]
        now_ms = time.time_ns() // 1_000_000
        for age in _AGES:
            offsets = admin.offsets_at(partitions, now_ms - int(retention_ms * age))
            ages |= {each: (age, retention_ms) for each in partitions if behind[each] < offsets[each]}
    return ages


def findings(
    group: Group, before: Sample, after: Sample, ages: Mapping[TopicPartition, tuple[float, int]]
) -> list[str]:
    """A sentence for each cause that the samples show, the gravest first; one that says so where there is none."""
    found = lags(group, before, after)
    return [
        *_of_lost(after, ages),
        *_of_members(group, found),
        *_of_transactions(found, after),
        *_of_rates(found),
        *_of_skew(found),
    ] or ["The group keeps up: nothing that would make it lag was seen."]


def _of_lost(after: Sample, ages: Mapping[TopicPartition, tuple[float, int]]) -> Iterator[str]:
    for partition, offset in sorted(after.committed.items()):
        first, end = after.first[partition], after.end[partition]
        if offset < first:
            yield (
                f"{partition} has lost {counted(first - offset, 'record')} to retention before they were read: its log "
                f"begins at {first}, the group has committed {offset}. Its members go on where auto.offset.reset says."
            )
        elif offset > end:
            yield (
                f"{partition} ends at {end}, before the committed offset {offset}: the topic was made anew, or records "
                "were lost. Members go on where auto.offset.reset says; `kalda groups reset-offsets` sets the offset."
            )
    for partition, (age, retention_ms) in sorted(ages.items()):
        left = span(retention_ms * (1 - age) / 1000)
        yield (
            f"{partition} has records to read that are older than {age:.0%} of its retention.ms, "
            f"{span(retention_ms / 1000)}: they may be deleted in {left} or less. A larger retention.ms keeps them."
        )


def _of_members(group: Group, found: Collection[PartitionLag]) -> Iterator[str]:
    if not group.members:
        yield "The group has no members: nothing is read until a consumer of this group.id is started."
        return
    if group.state not in ("Stable", "Empty"):
        yield (
            f"The group is not stable: it is {group.state}. While it rebalances, little or nothing is read; "
            f"`kalda explain rebalance {group.group_id}` says who causes it."
        )
    idle = [member.member_id for member in group.members if not member.partitions]
    if idle and any(each.lag for each in found):
        of_all = f"{len(idle)} of {counted(len(group.members), 'member')}"
        yield f"{of_all} without a partition: more partitions would use them."
    unread = [each for each in found if each.member is None and (each.lag or each.produced)]
    if unread and group.state == "Stable":
        topics = ", ".join(sorted({each.partition.topic for each in unread}))
        yield f"No member is assigned {counted(len(unread), 'partition')} of {topics}: no one subscribes to it now."
    fresh = [each for each in found if each.committed is None and each.member is not None]
    if fresh:
        yield (
            f"{counted(len(fresh), 'partition')} that members own have no committed offset, so their lag is not known: "
            "they are new to the group, or its members do not commit."
        )


def _of_transactions(found: Collection[PartitionLag], after: Sample) -> Iterator[str]:
    for each in found:
        held = each.end - after.stable[each.partition]
        if held > 0 and each.committed is not None and each.committed >= after.stable[each.partition]:
            yield (
                f"{each.partition} has an open transaction: a consumer with isolation.level=read_committed waits at "
                f"the last stable offset {after.stable[each.partition]}, {counted(held, 'record')} before the end. "
                "`kalda transactions find-hanging` says whether it hangs."
            )


def _of_rates(found: Collection[PartitionLag]) -> Iterator[str]:
    read = [each for each in found if each.member is not None and each.lag]
    still = [each for each in read if not each.consumed]
    for member in sorted({each.member for each in still if each.member is not None}):
        mine = [each for each in still if each.member == member]
        yield (
            f"{member} committed nothing meanwhile for {_partitions(mine)}, where "
            f"{counted(sum(each.lag or 0 for each in mine), 'record')} wait: its handler is slow or stuck, it waits "
            "at the last stable offset, or it commits less often than was measured."
        )
    moving = [each for each in read if each.consumed]
    slower = [each for each in moving if each.caught_up_s is None]
    if slower:
        more = sum(each.produced - each.consumed for each in slower)
        yield f"{_partitions(slower)} get more than is read: the lag grows by {more:.1f} records/s in all."
    times = [each.caught_up_s for each in moving if each.caught_up_s is not None]
    if times and not slower and not still:
        yield f"The group catches up: at these rates the lag is gone in {span(max(times))}."


def _of_skew(found: Collection[PartitionLag]) -> Iterator[str]:
    for topic in sorted({each.partition.topic for each in found}):
        of_topic = [each for each in found if each.partition.topic == topic]
        average = sum(each.produced for each in of_topic) / len(of_topic)
        hot = [each for each in of_topic if average and each.produced > _SKEW * average and each.lag]
        if hot:
            share = sum(each.produced for each in hot) / (average * len(of_topic))
            yield (
                f"{_partitions(hot)} of {len(of_topic)} get {share:.0%} of what is produced to {topic}: keys are "
                "skewed, so more members do not help."
            )
    rates: dict[str, float] = {}
    for each in found:
        if each.member is not None and each.lag:
            rates[each.member] = rates.get(each.member, 0.0) + each.consumed
    fastest = max(rates.values(), default=0.0)
    for member, rate in sorted(rates.items()):
        if 0 < rate * _SKEW < fastest:
            yield (
                f"{member} reads {rate:.1f} records/s, another member {fastest:.1f}: its handler or its machine is "
                "slower."
            )


def _partitions(found: Collection[PartitionLag]) -> str:
    names = [str(each.partition) for each in found]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def span(seconds: float) -> str:
    """As 45 s, 12 min, 5 h, 3 d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@click.group(cls=Noun)
def groups() -> None:
    """Groups of consumers, classic and of KIP-848, of Kafka Streams, and share groups: members, offsets and lag."""


@groups.command("list")
@click.option("--state", "states", multiple=True, help="Only groups in this state: Stable, Empty, … May be repeated.")
@click.option("--type", "types", multiple=True, help="Only groups of this type: classic, consumer, … May be repeated.")
@click.option("-l", "--long", "is_long", is_flag=True, help="Show type, state and coordinator too.")
@json_option
@with_cluster
def list_command(admin: CommandAdmin, states: tuple[str, ...], types: tuple[str, ...], is_long: bool) -> None:
    """List groups, one on each line.

    \b
    Examples:
      kalda groups list
      kalda groups list --long --state Empty
    """
    found = admin.list_groups(states=states, types=types).values()
    if is_json():
        print_json([group._asdict() for group in found])
    elif is_long:
        rows = [(g.group_id, g.type, g.protocol_type, g.state, g.coordinator) for g in found]
        print_table(("GROUP", "TYPE", "PROTOCOL", "STATE", "COORDINATOR"), rows)
    else:
        for group in found:
            click.echo(printable(group.group_id))


_DESCRIBED = ("classic", "consumer", "share", "streams")
"""The types of groups that can be described."""


@groups.command("describe")
@click.argument("names", metavar="[GROUP]...", nargs=-1, shell_complete=complete_group)
@click.option("--all-groups", is_flag=True, help="Describe all groups.")
@click.option("--members", "show_members", is_flag=True, help="Show members and their partitions, instead of offsets.")
@click.option(
    "--state", "show_state", is_flag=True, help="Show only state, assignor, coordinator and number of members."
)
@click.option("--locks", "show_locks", is_flag=True, help="Of a share group, show its records in flight.")
@json_option
@with_cluster
def describe_command(
    admin: CommandAdmin,
    names: tuple[str, ...],
    all_groups: bool,
    show_members: bool,
    show_state: bool,
    show_locks: bool,
) -> None:
    """Describe groups: committed offsets, lag, members.

    Of a group of KIP-848, --members shows each member's epoch, and beside the partitions that it has those of its
    target; of a streams group, its tasks. --state shows the epochs of the group and of the targets. Of a share group
    the offset is the first one that may be handed out, and the lag counts the records that are not done with; --locks
    shows the records in flight, with state and deliveries, and who has them for how long yet. For that the brokers need
    `kalda.metrics.listener`.

    \b
    Examples:
      kalda groups describe billing
      kalda groups describe billing --members
      kalda groups describe --all-groups --state
    """
    if all_groups == bool(names):
        raise click.UsageError("name groups, or give --all-groups")
    if all_groups:
        names = tuple(each.group_id for each in admin.list_groups().values() if each.type.lower() in _DESCRIBED)
    documents = []
    for name in names:
        group = admin.describe_groups([name]).value(name)
        if show_locks:
            locks = _locks(admin, name)
            if is_json():
                documents.append({**_group_as_json(group), "in_flight": locks})
            else:
                _print_locks(name, locks)
            continue
        keys, rows_of = (_SHARE_LAG_KEYS, _share_lag_rows) if _is_share(group) else (_LAG_KEYS, _lag_rows)
        rows = [] if show_members or show_state else rows_of(admin, group)
        if is_json():
            documents.append({**_group_as_json(group), "offsets": [dict(zip(keys, row, strict=True)) for row in rows]})
        elif show_state:
            _print_state(group)
        elif show_members:
            _print_members(group)
        else:
            if not group.members:
                click.echo(f"Group {name} has no active members.", err=True)
            print_table(("GROUP", *headings(keys)), [(name, *r) for r in rows])
    if is_json():
        print_json(documents)


def _print_state(group: Group) -> None:
    columns = ["GROUP", "TYPE", "STATE", "ASSIGNOR", "COORDINATOR", "MEMBERS"]
    row: list[object] = [
        group.group_id, group.type, group.state, group.assignor, group.coordinator, len(group.members)
    ]  # fmt: skip
    if group.epoch is not None:
        columns += ["EPOCH", "TARGET-EPOCH"]
        row += [group.epoch, group.assignment_epoch]
    print_table(columns, [row])


def _locks(admin: CommandAdmin, name: str) -> list[dict[str, Any]]:
    """The records in flight of a group, from all brokers that say so."""
    found = read_all(admin, "/explain/locks", group=name)
    rows: list[dict[str, Any]] = [row for node in found for row in node["in_flight"]]
    left_out = sum(node["all"] for node in found) - len(rows)
    if left_out:
        click.echo(f"{counted(left_out, 'range')} more of group {name} are in flight.", err=True)
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["first_offset"]))


def _print_locks(name: str, rows: list[dict[str, Any]]) -> None:
    keys = ("topic", "partition", "first_offset", "last_offset", "state", "deliveries", "member")
    columns = ("GROUP", *headings(keys), "LOCK-LEFT-SECONDS")
    left = [None if row["lock_left_ms"] is None else f"{row['lock_left_ms'] / 1000:.1f}" for row in rows]
    print_table(columns, [(name, *(row[key] for key in keys), each) for row, each in zip(rows, left, strict=True)])


def _print_members(group: Group) -> None:
    columns = ["GROUP", "MEMBER", "INSTANCE", "HOST", "CLIENT", "PARTITIONS"]
    has_epochs = group.epoch is not None
    if _is_share(group):
        columns[-1:] = ["EPOCH", "PARTITIONS"]
    elif group.type == "streams":
        columns[-1:] = ["PROCESS", "EPOCH", "ACTIVE", "STANDBY", "WARMUP"]
    elif has_epochs:
        columns[-1:] = ["PROTOCOL", "EPOCH", "PARTITIONS", "TARGET"]
    rows: list[list[object]] = []
    for member in group.members:
        row: list[object] = [
            group.group_id, member.member_id, member.instance_id, member.host, member.client_id, member.partitions
        ]  # fmt: skip
        if _is_share(group):
            row[-1:] = [member.epoch, member.partitions]
        elif member.tasks is not None:
            row[-1:] = [member.process_id, member.epoch, *(", ".join(tasks) for tasks in member.tasks)]
        elif has_epochs:
            protocol = None if member.upgraded is None else "consumer" if member.upgraded else "classic"
            row[-1:] = [protocol, member.epoch, member.partitions, member.target]
        rows.append(row)
    print_table(columns, rows)


_LAG_KEYS = ("topic", "partition", "current_offset", "log_end_offset", "lag", "member", "host", "client")


def _lag_rows(admin: CommandAdmin, group: Group) -> list[tuple[object, ...]]:
    """A row for each partition with a committed offset or a member. The lag is None where the topic was deleted."""
    committed = admin.list_group_offsets(group.group_id).check().succeeded
    readers: dict[TopicPartition, Member] = {p: member for member in group.members for p in member.partitions}
    ends = _ends(admin, {*committed, *readers})
    rows: list[tuple[object, ...]] = []
    for partition in sorted({*committed, *readers}):
        member, end = readers.get(partition), ends.get(partition)
        at = committed[partition].offset if partition in committed else None
        lag = max(0, end - at) if at is not None and end is not None else None
        reader = (member.member_id, member.host, member.client_id) if member else (None, None, None)
        rows.append((*partition, at, end, lag, *reader))
    return rows


_SHARE_LAG_KEYS = ("topic", "partition", "start_offset", "log_end_offset", "lag", "members")


def _share_lag_rows(admin: CommandAdmin, group: Group) -> list[tuple[object, ...]]:
    """A row for each partition with which the group has begun, or which it has assigned."""
    begun = admin.list_share_group_offsets(group.group_id).check().succeeded
    partitions = sorted({*begun, *(partition for member in group.members for partition in member.partitions)})
    ends = _ends(admin, set(partitions))
    return [
        (
            *partition,
            begun[partition].start_offset if partition in begun else None,
            ends.get(partition),
            begun[partition].lag if partition in begun else None,
            sum(partition in member.partitions for member in group.members),
        )
        for partition in partitions
    ]


def _ends(admin: CommandAdmin, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    from kalda.protocol.messages.partitions import OffsetSpec

    return admin.offsets_at(with_leader(admin, partitions), OffsetSpec.LATEST)


def _group_as_json(group: Group) -> dict[str, object]:
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "members": [
            {
                **member._asdict(),
                "partitions": [partition._asdict() for partition in member.partitions],
                "target": None if member.target is None else [partition._asdict() for partition in member.target],
                "tasks": None if member.tasks is None else member.tasks._asdict(),
            }
            for member in group.members
        ],
    }


@groups.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_group)
@click.option("--if-exists", is_flag=True, help="Ignore a group that does not exist.")
@yes_option
@report_option
@with_cluster
def delete_command(admin: CommandAdmin, names: tuple[str, ...], if_exists: bool, yes: bool) -> None:
    """Delete groups without members, with their offsets.

    \b
    Example:
      kalda groups delete billing-test --yes
    """
    confirm(f"Delete {', '.join(names)}, with all offsets?", yes)
    for name in names:
        try:
            admin.delete_groups([name]).check()
        except ApiError as error:
            if not (if_exists and error.code is ErrorCode.GROUP_ID_NOT_FOUND):
                raise
        else:
            say(f"Deleted group {name}.", group=name)


def _read_partitions(admin: CommandAdmin, texts: tuple[str, ...]) -> list[TopicPartition]:
    """The partitions of `orders` (all of the topic) or `orders:0,3` (these two)."""
    found: list[TopicPartition] = []
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not colon:
            found += admin.partitions(topic)
            continue
        try:
            found += [TopicPartition(topic, int(number)) for number in numbers.split(",")]
        except ValueError:
            raise click.UsageError(f"--topic {text}: TOPIC or TOPIC:PARTITION,PARTITION,... is expected") from None
    return list(dict.fromkeys(found))


@groups.command("reset-offsets")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.option(
    "--topic", "topics", metavar="TOPIC[:P,P]", multiple=True, shell_complete=complete_topic,
    help="This topic, or these partitions of it. May be repeated.",
)  # fmt: skip
@click.option("--all-topics", is_flag=True, help="All topics of which the group has offsets.")
@click.option("--to-earliest", is_flag=True, help="To the first offset of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log: records written so far are not read.")
@click.option("--to-current", is_flag=True, help="To the group's offset, moved into the log where it is outside.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="By N records, forward or (negative) backward.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record at or after a time: 2026-01-31T12:00:00Z, UTC without a zone.",
)
@click.option(
    "--by-duration", metavar="DURATION", help="To the first record that is not older than this: PT1H30M, P2D."
)
@click.option("--execute", is_flag=True, help="Commit the new offsets; else they are only shown.")
@json_option
@with_cluster
def reset_command(
    admin: CommandAdmin,
    /,
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    **where: object,
) -> None:
    """Set the committed offsets of a group without members.

    Shows the new offsets; with --execute they are committed. Of a share group it is the offset at which it begins: what
    it has acknowledged behind that is forgotten.

    \b
    Examples:
      kalda groups reset-offsets billing --topic orders --to-earliest
      kalda groups reset-offsets billing --topic orders:0,1 --shift-by -100 --execute
      kalda groups reset-offsets billing --all-topics --by-duration PT1H --execute
    """
    chosen = {key: value for key, value in where.items() if value is not None and value is not False}
    if len(chosen) != 1:
        options = ", ".join(f"--{key.replace('_', '-')}" for key in where)
        raise click.UsageError(f"give exactly one of {options}; {len(chosen)} are given")
    if bool(topics) == all_topics:
        raise click.UsageError("give either --topic TOPIC[:PARTITION,...] or --all-topics")
    how, value = next(iter(chosen.items()))
    group = _group_or_none(admin, name)
    committed = _offsets_of(admin, name, group)
    partitions = sorted(committed) if all_topics else _read_partitions(admin, topics)
    if not partitions:
        raise Failure(f"group {name!r} has no offsets; name topics with --topic")
    new = _new_offsets(admin, partitions, committed, how, value)
    if execute:
        if group is not None and group.members:
            raise Failure(
                f"group {name!r} has {counted(len(group.members), 'member')} and is {group.state}; stop them first"
            )
        if _is_share(group):
            admin.alter_share_group_offsets(name, new).check()
        else:
            admin.alter_group_offsets(name, new).check()
    rows = [(*partition, committed.get(partition), offset) for partition, offset in new.items()]
    if is_json():
        keys = ("topic", "partition", "old_offset", "new_offset")
        print_json({"group": name, "executed": execute, "offsets": [dict(zip(keys, r, strict=True)) for r in rows]})
        return
    print_table(("GROUP", "TOPIC", "PARTITION", "OLD-OFFSET", "NEW-OFFSET"), [(name, *row) for row in rows])
    if not execute:
        click.echo("Nothing was changed; add --execute to commit these offsets.", err=True)


def _group_or_none(admin: CommandAdmin, name: str) -> Group | None:
    try:
        return admin.describe_groups([name]).value(name)
    except ApiError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None


def _is_share(group: Group | None) -> bool:
    return group is not None and group.type == "share"


def _offsets_of(admin: CommandAdmin, name: str, group: Group | None) -> dict[TopicPartition, int]:
    """Where the group goes on, or a share group begins."""
    if _is_share(group):
        return {p: at.start_offset for p, at in admin.list_share_group_offsets(name).check().succeeded.items()}
    return {p: at.offset for p, at in admin.list_group_offsets(name).check().succeeded.items()}


def _new_offsets(
    admin: CommandAdmin,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
    how: str,
    value: object,
) -> dict[TopicPartition, int]:
    """The new offset of each partition, within its log. `how` is the option's name, `value` its value."""
    from kalda.protocol.messages.partitions import OffsetSpec

    first = admin.offsets_at(partitions, OffsetSpec.EARLIEST)
    last = admin.offsets_at(partitions, OffsetSpec.LATEST)
    if how == "to_earliest":
        return first
    if how == "to_latest":
        return last
    if how == "to_datetime":
        return admin.offsets_at(partitions, parse_time_ms("--to-datetime", str(value)))
    if how == "by_duration":
        moment_ms = moment_ago_ms("--by-duration", str(value), time.time_ns() // 1_000_000)
        return admin.offsets_at(partitions, moment_ms)
    if how == "to_offset":
        assert isinstance(value, int)
        offsets = dict.fromkeys(partitions, value)
    else:
        missing = [str(partition) for partition in partitions if partition not in committed]
        if missing:
            raise Failure(
                f"the group has no offset of {', '.join(missing)} to start from; use --to-offset or --to-earliest"
            )
        shift = value if how == "shift_by" and isinstance(value, int) else 0
        offsets = {partition: committed[partition] + shift for partition in partitions}
    return {p: min(max(offset, first[p]), last[p]) for p, offset in offsets.items()}


@groups.command("delete-offsets")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.option(
    "--topic", "topics", metavar="TOPIC[:P,P]", multiple=True, required=True, shell_complete=complete_topic,
    help="This topic, or these partitions of it. May be repeated.",
)  # fmt: skip
@yes_option
@report_option
@with_cluster
def delete_offsets_command(admin: CommandAdmin, name: str, topics: tuple[str, ...], yes: bool) -> None:
    """Delete a group's offsets of topics to which none of its members subscribes.

    \b
    Example:
      kalda groups delete-offsets billing --topic orders:0 --yes
    """
    is_share = _is_share(_group_or_none(admin, name))
    if is_share and any(":" in topic for topic in topics):
        raise click.UsageError("a share group's offsets are deleted for whole topics: name them without partitions")
    partitions = [] if is_share else _read_partitions(admin, topics)
    where = counted(len(topics), "topic") if is_share else counted(len(partitions), "partition")
    confirm(f"Delete the offsets of {where} from group {name}?", yes)
    if is_share:
        admin.delete_share_group_offsets(name, topics).check()
    else:
        admin.delete_group_offsets(name, partitions).check()
    say(f"Deleted the offsets of {where} from group {name}.")
