"""Groups of all types as values, and which broker requests about one go to."""

from __future__ import annotations

from typing import NamedTuple

from kalda.base.ids import TopicPartition
from kalda.clientcore.administration import Target, TargetKind


def group_target(group_id: str) -> Target:
    """The group's coordinator."""
    return Target(TargetKind.GROUP, group_id)


class ListedGroup(NamedTuple):
    """Type and state are empty where the broker's version of ListGroups does not have them."""

    group_id: str
    type: str
    protocol_type: str
    state: str
    coordinator: int


class StreamsTasks(NamedTuple):
    """Tasks of a Kafka Streams application, as `0_1`: partition 1 of subtopology 0."""

    active: tuple[str, ...]
    standby: tuple[str, ...]
    warmup: tuple[str, ...]


class Member(NamedTuple):
    """`partitions` of a member of a streams group are those that its active tasks read. `epoch` is of members of all
    types of groups but classic ones, `target` of groups of KIP-848 and streams groups, `upgraded` of the former, and
    `tasks` and `process_id` of the latter. They are None for others."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    """What the coordinator means it to have; it gets there as others give partitions back."""
    upgraded: bool | None = None
    """False for a member that uses the classic protocol in such a group; None where the broker does not say."""
    tasks: StreamsTasks | None = None
    process_id: str | None = None


class Group(NamedTuple):
    """The epochs are of all types of groups but classic ones, and None for these. The group is not stable while
    `assignment_epoch`, that of the members' targets, is less than `epoch`, or a member's epoch is less than that."""

    group_id: str
    type: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]
    epoch: int | None = None
    assignment_epoch: int | None = None
