"""Why a consumer group lags: what two samples of its offsets, some seconds apart, show."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kalda.base.ids import TopicPartition
from kalda.cli.common.output import ProgressLine, counted

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.group_values import Group

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
