"""Failures, and a check, of APIs that both kinds of listener serve: Fetch (1), DescribeCluster (60).

Their handlers differ. What both listeners forward or take from envelopes is in `forwarded`.
"""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.requests.rows import message_of
from kalda.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from kalda.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse, EndpointType

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


def check_endpoint_type(wanted: int, served: EndpointType, version: int) -> None:
    """Raises `ApiError`, in Kafka's words, where DescribeCluster asks a listener for nodes of the other kind."""
    if wanted not in EndpointType.__members__.values():
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {wanted}")
    if wanted != served:
        names = {EndpointType.BROKERS: "BROKER", EndpointType.CONTROLLERS: "CONTROLLER"}
        raise ApiError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if version else ErrorCode.INVALID_REQUEST,
            f"The request was sent to an endpoint of type {names[served]}, but we wanted an endpoint of type "
            f"{names[EndpointType(wanted)]}",
        )


def describe_cluster_failed(request: DescribeClusterRequest, version: int, error: ApiError) -> DescribeClusterResponse:
    """The error on top."""
    return DescribeClusterResponse(error_code=error.code, error_message=message_of(error))
