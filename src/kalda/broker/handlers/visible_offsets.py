"""What a caller may see of offsets: OffsetFetch (9) leaves out, or refuses, the rest.

This stage is in front of the handler only where the node has an authorizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ErrorCode
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.rows import Handler, mapped
from kalda.coordinator.groups.offset_requests import group_requests, to_response
from kalda.protocol.access import DESCRIBE_GROUP, DESCRIBE_TOPIC
from kalda.protocol.messages.groups import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kalda.protocol.notation import shallow_copy

_FIRST_FETCH_OF_GROUPS = 8


def only_visible_offsets(name_of: Callable[[Any], str | None], handler: Handler) -> Handler:
    """Groups that the caller may not describe are refused; of the others, topics that the caller may not describe.
    `name_of(topic)` is the name of a topic that a request has by name or by id."""

    def handle(context: RequestContext, request: OffsetFetchRequest) -> Reply[Any]:
        version = context.api_version
        groups = group_requests(request, version)
        refused_groups = DESCRIBE_GROUP.refused(context, Counter(group.group_id for group in groups)) or ()
        refused_topics: dict[int, list[OffsetFetchRequestTopics]] = {}
        asked: list[OffsetFetchRequestGroup] = []
        for index, group in enumerate(groups):
            if group.group_id not in refused_groups:
                allowed, refused = _parted(context, group, name_of)
                asked.append(allowed)
                refused_topics[index] = refused
        if not asked:
            refusals = [_refused_group(group) for group in groups]
            return to_response(groups, refusals, version)
        if (
            len(asked) == len(groups)
            and not any(refused_topics.values())
            and all(each.topics is not None for each in groups)
        ):
            return handler(context, request)

        def add(response: OffsetFetchResponse) -> OffsetFetchResponse:
            answered = iter(_by_group(response, groups, version))
            results = []
            for index, group in enumerate(groups):
                if group.group_id in refused_groups:
                    results.append(_refused_group(group))
                    continue
                result = next(answered)
                if group.topics is None:
                    visible = DESCRIBE_TOPIC.refused(
                        context, Counter(name for each in result.topics if (name := name_of(each)))
                    )
                    result.topics = [each for each in result.topics if not visible or name_of(each) not in visible]
                elif not result.error_code:
                    result.topics = [
                        *result.topics,
                        *(_refused_topic(each, name_of(each) is not None) for each in refused_topics[index]),
                    ]
                results.append(result)
            return to_response(groups, results, version)

        return mapped(handler(context, _with_groups(request, asked, version)), add)

    return handle


def _parted(
    context: RequestContext, group: OffsetFetchRequestGroup, name_of: Callable[[Any], str | None]
) -> tuple[OffsetFetchRequestGroup, list[OffsetFetchRequestTopics]]:
    """The group with the topics that the caller may describe; and the others, where any is refused with those of
    unknown ids, so that all errors come last, in the order of the request."""
    if group.topics is None:
        return group, []
    names = Counter(name for each in group.topics if (name := name_of(each)) is not None)
    refused = DESCRIBE_TOPIC.refused(context, names)
    if refused is None:
        return group, []
    allowed = shallow_copy(group)
    allowed.topics = []
    others: list[OffsetFetchRequestTopics] = []
    for each in group.topics:
        name = name_of(each)
        (others if name is None or name in refused else allowed.topics).append(each)
    return allowed, others


def _with_groups(
    request: OffsetFetchRequest, groups: list[OffsetFetchRequestGroup], version: int
) -> OffsetFetchRequest:
    copy = shallow_copy(request)
    if version >= _FIRST_FETCH_OF_GROUPS:
        copy.groups = groups
        return copy
    wanted = groups[0].topics
    if wanted is not None and request.topics is not None:
        names = {each.name for each in wanted}
        copy.topics = [each for each in request.topics if each.name in names]
    return copy


def _by_group(
    response: OffsetFetchResponse, groups: list[OffsetFetchRequestGroup], version: int
) -> list[OffsetFetchResponseGroup]:
    """The results of a response of any version, in the newest shape."""
    if version >= _FIRST_FETCH_OF_GROUPS:
        return response.groups
    return [
        OffsetFetchResponseGroup(
            group_id=groups[0].group_id,
            error_code=response.error_code,
            topics=[
                OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartitions(
                            partition_index=each.partition_index,
                            committed_offset=each.committed_offset,
                            committed_leader_epoch=each.committed_leader_epoch,
                            metadata=each.metadata,
                            error_code=each.error_code,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in response.topics
            ],
        )
    ]


def _refused_group(group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _refused_topic(topic: OffsetFetchRequestTopics, is_known: bool) -> OffsetFetchResponseTopics:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_known else ErrorCode.UNKNOWN_TOPIC_ID
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=code)
            for index in topic.partition_indexes
        ],
    )
