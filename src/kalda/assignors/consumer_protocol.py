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
    """What a member tells its group: topics, its assignor's bytes, and what it owned in which generation (-1: none)."""

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
    nothing = MemberSubscription((), None, (), -1, None)
    if len(data) < 2:
        return nothing
    try:
        read = decode(ConsumerProtocolSubscription, data, _version(data), 2)
    except InvalidRequest:
        return nothing
    owned = tuple(
        TopicPartition(topic.topic, partition) for topic in read.owned_partitions for partition in topic.partitions
    )
    user_data = None if read.user_data is None else bytes(read.user_data)
    return MemberSubscription(tuple(read.topics), user_data, owned, read.generation_id, read.rack_id)


def write_subscription(topics: Sequence[str], user_data: bytes | None = None) -> bytes:
    """A member's subscription: its topics, and bytes that its assignor adds."""
    return _PREFIX + encode(ConsumerProtocolSubscription(topics=list(topics), user_data=user_data), _WRITTEN)


def read_subscription(data: Buffer) -> tuple[str, ...]:
    """The topics to which a member subscribes."""
    if len(data) < 2:
        return ()
    try:
        return tuple(decode(ConsumerProtocolSubscription, data, _version(data), 2).topics)
    except InvalidRequest:
        return ()


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The partitions assigned to a member, encoded."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    assigned = [
        ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=indexes) for name, indexes in topics.items()
    ]
    return _PREFIX + encode(ConsumerProtocolAssignment(assigned_partitions=assigned), _WRITTEN)


def read_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """The partitions assigned to a member, decoded."""
    if len(data) < 2:
        return ()
    try:
        assignment = decode(ConsumerProtocolAssignment, data, _version(data), 2)
    except InvalidRequest:
        return ()
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )


def _version(data: Buffer) -> int:
    return min(int.from_bytes(data[:2], "big"), _NEWEST)
