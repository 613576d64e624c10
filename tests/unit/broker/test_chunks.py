"""Requests of many items that are handled in chunks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.handlers.groups import (
    CHUNK_ITEMS,
    Chunks,
    delete_groups_failed,
    offset_commit_failed,
    offset_fetch_failed,
)
from kalda.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

CONTEXT: Any = SimpleNamespace(api_version=9)
TOPICS = ("topics", "partitions")
COMMITS = Chunks(TOPICS, TOPICS, offset_commit_failed)


def commit(*sizes: int) -> OffsetCommitRequest:
    """A request of so many partitions of each topic."""
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=f"t{at}",
                partitions=[OffsetCommitRequestPartition(partition_index=index) for index in range(size)],
            )
            for at, size in enumerate(sizes)
        ],
    )


def answered(response: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in response.topics]


def echo(context: Any, request: OffsetCommitRequest) -> Any:
    return offset_commit_failed(request, 9, ApiError(ErrorCode.NONE))


def whole(reply: Any) -> Any:
    """The response of a reply all of which is settled."""
    while True:
        if isinstance(reply, Pending):
            assert reply.done
            reply = reply.value
        elif hasattr(reply, "send"):
            reply = run_to_end(reply)
        else:
            return reply


@pytest.mark.parametrize("sizes", [(1_000,), (3, 0, 700, 2), (1,) * 450])
def test_each_chunk_is_short_and_all_results_are_one_response(sizes: tuple[int, ...]) -> None:
    chunks: list[int] = []

    def handler(context: Any, request: OffsetCommitRequest) -> Any:
        chunks.append(sum(1 + len(topic.partitions) for topic in request.topics))
        return echo(context, request)

    steps = COMMITS.handler(handler)(CONTEXT, commit(*sizes))
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            reply = finished.value
            break
        turns += 1
        assert len(chunks) == turns, "one a step"
    assert answered(whole(reply)) == [(f"t{at}", list(range(size))) for at, size in enumerate(sizes)]
    assert max(chunks) <= 2 * CHUNK_ITEMS


def test_a_short_request_reaches_its_handler_unchanged() -> None:
    request = commit(3)
    assert COMMITS.handler(lambda context, asked: asked)(CONTEXT, request) is request


def test_a_chunk_that_fails_has_the_error_in_its_place() -> None:
    replies: list[Pending[Any]] = []

    def handler(context: Any, request: OffsetCommitRequest) -> Any:
        if request.topics[0].partitions[0].partition_index == 0:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        replies.append(Pending())
        return replies[-1].and_then(lambda _: echo(context, request))

    reply = run_to_end(COMMITS.handler(handler)(CONTEXT, commit(500)))
    assert isinstance(reply, Pending)
    assert not reply.done
    replies.pop().fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    for each in replies:
        each.complete(None)
    [topic] = whole(reply).topics
    codes = [each.error_code for each in topic.partitions]
    assert [each.partition_index for each in topic.partitions] == list(range(500))
    assert (codes[0], codes[200], codes[-1]) == (ErrorCode.NOT_COORDINATOR, 0, ErrorCode.REQUEST_TIMED_OUT)


def test_names() -> None:
    names = [f"g{number}" for number in range(450)]
    chunks = Chunks(("groups_names",), ("results",), delete_groups_failed)
    handler = chunks.handler(
        lambda _, request: DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=name) for name in request.groups_names]
        )
    )
    response = whole(handler(CONTEXT, DeleteGroupsRequest(groups_names=names)))
    assert [each.group_id for each in response.results] == names


def test_a_group_whose_topics_are_in_two_chunks_is_one_group_again() -> None:
    def handler(context: Any, request: OffsetFetchRequest) -> Any:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    topics=[
                        OffsetFetchResponseTopics(
                            name=topic.name,
                            partitions=[
                                OffsetFetchResponsePartitions(partition_index=index)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in group.topics or ()
                    ],
                )
                for group in request.groups
            ]
        )

    groups = [
        OffsetFetchRequestGroup(
            group_id=name,
            topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(150))) for topic in "abc"],
        )
        for name in ("g", "h")
    ]
    chunks = Chunks(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"), offset_fetch_failed)
    response = whole(chunks.handler(handler)(CONTEXT, OffsetFetchRequest(groups=groups)))
    assert [group.group_id for group in response.groups] == ["g", "h"]
    for group in response.groups:
        assert answered(group) == [(topic, list(range(150))) for topic in "abc"]
