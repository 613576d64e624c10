"""What members of a classic group tell each other, opaque to the coordinator: a version, then a message of it.

Written in version 1, which every client reads. What others wrote is read in any version, newer ones as the newest
known; bytes that no consumer wrote are nothing, for they may come from anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kalda.base.errors import InvalidRequest
from kalda.base.ids import TopicPartition
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.client_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from kalda.protocol.notation import Buffer

_WRITTEN, _NEWEST = 1, 3
_PREFIX = _WRITTEN.to_bytes(2, "big")


def write_subscription(topics: Sequence[str], user_data: bytes | None = None) -> bytes:
    """The topics that a member wants, and what its assignor adds."""
    return _PREFIX + encode(ConsumerProtocolSubscription(topics=list(topics), user_data=user_data), _WRITTEN)


def read_subscription(data: Buffer) -> tuple[str, ...]:
    """The topics that a member wants."""
    if len(data) < 2:
        return ()
    try:
        return tuple(decode(ConsumerProtocolSubscription, data, _version(data), 2).topics)
    except InvalidRequest:
        return ()


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The partitions that a member gets."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    assigned = [
        ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=indexes) for name, indexes in topics.items()
    ]
    return _PREFIX + encode(ConsumerProtocolAssignment(assigned_partitions=assigned), _WRITTEN)


def read_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """The partitions that a member got."""
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
