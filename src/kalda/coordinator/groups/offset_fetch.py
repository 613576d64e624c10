"""The shapes of OffsetFetch: one group before version 8, several from then on.

Before version 2 a response has no error code of its own: each partition has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kalda.base.errors import ErrorCode
from kalda.coordinator.answers import write_error
from kalda.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

SEVERAL_GROUPS_FROM = 8
_TOP_LEVEL_ERROR_FROM = 2


def group_requests(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """The request's groups, in the newest shape."""
    if version >= SEVERAL_GROUPS_FROM:
        return request.groups
    topics = request.topics
    if topics is not None:
        return [
            OffsetFetchRequestGroup(
                group_id=request.group_id,
                topics=[
                    OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                    for topic in topics
                ],
            )
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=None)]


def fetch_failed(request: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponseGroup:
    """A group whose offsets cannot be read now. Consumers before 3.9 retry after NOT_COORDINATOR only."""
    translated = write_error(code)
    if translated is ErrorCode.COORDINATOR_NOT_AVAILABLE and code is not translated:
        translated = ErrorCode.NOT_COORDINATOR
    return OffsetFetchResponseGroup(group_id=request.group_id, error_code=int(translated))


def to_response(
    groups: Sequence[OffsetFetchRequestGroup], results: Sequence[OffsetFetchResponseGroup], version: int
) -> OffsetFetchResponse:
    """The response in the shape of `version`."""
    if version >= SEVERAL_GROUPS_FROM:
        return OffsetFetchResponse(groups=list(results))
    result = results[0]
    topics: Sequence[OffsetFetchResponseTopics] = result.topics
    if version < _TOP_LEVEL_ERROR_FROM and result.error_code:
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, error_code=result.error_code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in groups[0].topics or ()
        ]
    return OffsetFetchResponse(
        error_code=result.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
