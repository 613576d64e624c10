"""The subscriptions and assignments that members of a classic group exchange; opaque bytes to the coordinator.

The bytes are a two-byte version, then a message of that version. Version 1 is written, since every client reads it.
Any version is read; a version above 3 is decoded as version 3, since later versions only append fields. Bytes that do
not decode are read as an empty subscription or assignment: they come from other clients, and must not raise here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kalda.base.errors import InvalidRequest
from kalda.base.ids import TopicPartition
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.client_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from kalda.protocol.notation import Buffer

_WRITTEN, _NEWEST = 1, 3
_PREFIX = _WRITTEN.to_bytes(2, "big")


class MemberSubscription(NamedTuple):
    """What a member sends to its group: topics, its assignor's bytes, what it owned in which generation (-1: none)."""

    topics: tuple[str, ...]
    user_data: bytes | None
    owned: tuple[TopicPartition, ...]
    generation: int
    rack: str | None


def write_member_subscription(
    topics: Sequence[str],
    user_data: bytes | None,
    owned: Iterable[TopicPartition],
    generation: int,
    rack: str | None,
) -> bytes:
    """A member's subscription in version 3, as Kafka 4.3 writes it."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(owned):
        by_topic.setdefault(topic, []).append(partition)
    subscription = ConsumerProtocolSubscription(
        topics=list(topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic=name, partitions=indexes)
            for name, indexes in by_topic.items()
        ],
        generation_id=generation,
        rack_id=rack,
    )
    return _NEWEST.to_bytes(2, "big") + encode(subscription, _NEWEST)


def read_member_subscription(data: Buffer) -> MemberSubscription:
    """A member's subscription of any version; what its version lacks is empty."""
    try:
        return parse_member_subscription(data)
    except InvalidRequest:
        return MemberSubscription((), None, (), -1, None)


def parse_member_subscription(data: Buffer) -> MemberSubscription:
    """As `read_member_subscription`; raises `InvalidRequest` for bytes that do not decode."""
    read = decode(ConsumerProtocolSubscription, data, version_of(data), 2)
    owned = tuple(
        TopicPartition(topic.topic, partition) for topic in read.owned_partitions for partition in topic.partitions
    )
    user_data = None if read.user_data is None else bytes(read.user_data)
    return MemberSubscription(tuple(read.topics), user_data, owned, read.generation_id, read.rack_id)


def write_subscription(topics: Sequence[str], user_data: bytes | None = None) -> bytes:
    """A member's subscription: its topics, and bytes that its assignor adds."""
    return _PREFIX + encode(ConsumerProtocolSubscription(topics=list(topics), user_data=user_data), _WRITTEN)


def write_assignment(partitions: Iterable[TopicPartition], version: int = _WRITTEN) -> bytes:
    """The partitions assigned to a member, encoded; the versions differ in their number only."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    assigned = [
        ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=indexes) for name, indexes in topics.items()
    ]
    return version.to_bytes(2, "big") + encode(ConsumerProtocolAssignment(assigned_partitions=assigned), version)


def read_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """The partitions assigned to a member, decoded."""
    try:
        return parse_assignment(data)[0]
    except InvalidRequest:
        return ()


def parse_assignment(data: Buffer) -> tuple[tuple[TopicPartition, ...], bytes]:
    """The partitions assigned to a member, and its assignor's bytes. Raises `InvalidRequest` for bytes that do not
    decode."""
    assignment = decode(ConsumerProtocolAssignment, data, version_of(data), 2)
    partitions = tuple(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )
    return partitions, bytes(assignment.user_data or b"")


def version_of(data: Buffer) -> int:
    """The version of a subscription or assignment, the newest known for a later one. Raises `InvalidRequest`."""
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise InvalidRequest(f"a subscription or assignment of {len(data)} bytes begins with version {version}")
    return min(version, _NEWEST)
