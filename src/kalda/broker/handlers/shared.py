"""Failures of APIs that both kinds of listener serve: Fetch (1), DescribeCluster (60).

Their handlers differ. What both listeners forward or take from envelopes is in `forwarded`.
"""

from __future__ import annotations

from kalda.base.errors import ApiError
from kalda.broker.rows import message_of
from kalda.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from kalda.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse

_LAST_FETCH_BY_NAME = 12


def fetch_failed(request: FetchRequest, version: int, error: ApiError) -> FetchResponse:
    """The error on top; and, in the versions that name topics, in every partition."""
    response = FetchResponse(error_code=error.code, session_id=request.session_id)
    if version <= _LAST_FETCH_BY_NAME:
        response.responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    FetchResponsePartitionData(
                        partition_index=each.partition, error_code=error.code, high_watermark=-1, records=b""
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    return response


def describe_cluster_failed(request: DescribeClusterRequest, version: int, error: ApiError) -> DescribeClusterResponse:
    """The error on top."""
    return DescribeClusterResponse(error_code=error.code, error_message=message_of(error))
