"""OffsetFetch of a caller who may not see every topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.broker.handlers.visible_offsets import only_visible_offsets
from kalda.coordinator.groups.offset_requests import group_requests, to_response
from kalda.metadata.acls import StandardAcl
from kalda.protocol.messages.groups import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kalda.security.standard_authorizer import StandardAuthorizer

TOPIC, GROUP, LITERAL, DESCRIBE, ALLOW = 2, 3, 3, 8, 3
ASKED = ("denied-1", "seen-1", "denied-2", "seen-2")
IDS = {name: Uuid(bytes(15) + bytes([place + 1])) for place, name in enumerate(ASKED)}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
UNKNOWN = Uuid(b"?" * 16)


def context(version: int) -> Any:
    """Of alice, who may describe the group and two of its topics."""
    authorizer = StandardAuthorizer()
    rights = [(GROUP, "g"), (TOPIC, "seen-1"), (TOPIC, "seen-2")]
    entries = {
        bytes([place]) * 16: StandardAcl(kind, name, LITERAL, "User:alice", "*", DESCRIBE, ALLOW)
        for place, (kind, name) in enumerate(rights)
    }
    authorizer.apply(entries, 1)
    return SimpleNamespace(
        authorizer=authorizer,
        principal="User:alice",
        client_host="10.0.0.1",
        request_name="OffsetFetch",
        api_version=version,
    )


def name_of(topic: Any) -> str | None:
    return topic.name or NAMES.get(topic.topic_id)


def committed(context: Any, request: OffsetFetchRequest) -> Any:
    """The offset 5 of every partition that is asked for."""
    version = context.api_version
    groups = group_requests(request, version)
    results = [
        OffsetFetchResponseGroup(
            group_id=group.group_id,
            topics=[
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[OffsetFetchResponsePartitions(partition_index=0, committed_offset=5)],
                )
                for topic in group.topics or []
            ],
        )
        for group in groups
    ]
    return to_response(groups, results, version)


def asking(version: int) -> OffsetFetchRequest:
    if version < 8:
        topics = [OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ASKED]
        return OffsetFetchRequest(group_id="g", topics=topics)
    by_id = version >= 10
    wanted = [
        OffsetFetchRequestTopics(
            name="" if by_id else name, topic_id=IDS[name] if by_id else ZERO_UUID, partition_indexes=[0]
        )
        for name in ASKED
    ]
    if by_id:
        wanted.insert(1, OffsetFetchRequestTopics(topic_id=UNKNOWN, partition_indexes=[0]))
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])


@pytest.mark.parametrize("version", [5, 9, 10])
def test_topics_with_errors_follow_the_others(version: int) -> None:
    """As in Apache Kafka: each kind in the order of the request."""
    answer: Any = only_visible_offsets(name_of, committed)(context(version), asking(version))
    topics = answer.topics if version < 8 else answer.groups[0].topics
    shown = [
        (name_of(topic) or topic.topic_id, partition.committed_offset, ErrorCode(partition.error_code))
        for topic in topics
        for partition in topic.partitions
    ]
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert shown == [
        ("seen-1", 5, ErrorCode.NONE),
        ("seen-2", 5, ErrorCode.NONE),
        ("denied-1", -1, refused),
        *([(UNKNOWN, -1, ErrorCode.UNKNOWN_TOPIC_ID)] if version >= 10 else []),
        ("denied-2", -1, refused),
    ]
