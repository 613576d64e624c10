"""Failures that several APIs report alike; and of APIs that both kinds of listener serve, Fetch (1) and
DescribeCluster (60), a failure and a check.

Their handlers differ. What both listeners forward or take from envelopes is in `forwarded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import message_of
from kalda.protocol.access import operations_on
from kalda.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from kalda.protocol.messages.metadata import EndpointType
from kalda.protocol.messages.security import AclResourceType
from kalda.protocol.notation import Response, Struct

_LAST_FETCH_BY_NAME = 12


def error_on_top(response: type[Response]) -> Callable[[Any, int, ApiError], Response]:
    """How an API reports that the whole request failed whose response has one error, and perhaps a message to it."""
    has_message = "error_message" in response.__annotations__

    def failed(request: Any, version: int, error: ApiError) -> Response:
        if has_message:
            return response(error_code=error.code, error_message=message_of(error))
        return response(error_code=error.code)

    return failed


def error_on_partitions(
    response: type[Response], topic: type[Struct], partition: type[Struct], **values: Any
) -> Callable[[Any, int, ApiError], Response]:
    """How an API reports that the whole request failed whose response has an error a partition: topics have a `name`,
    partitions a `partition_index`, and `values`."""

    def failed(request: Any, version: int, error: ApiError) -> Response:
        topics = [
            topic(
                name=each.name,
                partitions=[
                    partition(partition_index=one.partition_index, error_code=error.code, **values)
                    for one in each.partitions
                ],
            )
            for each in request.topics
        ]
        return response(topics=topics)

    return failed


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


D = TypeVar("D", bound=Any)
R = TypeVar("R", bound=Response)


def described(
    context: RequestContext, request: Any, groups: Iterable[D], visible: Callable[[RequestContext, D], D]
) -> Steps[list[D]]:
    """The groups in steps, each with the operations that the caller may do, where the request asks for them.
    `visible(context, group)` is the group, or an error in its place."""
    found: list[D] = []
    in_step = 0
    for group in groups:
        if in_step >= ITEMS_A_STEP:
            in_step = 0
            yield
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = operations_on(context, AclResourceType.GROUP, group.group_id)
        found.append(visible(context, group))
        in_step += 1 + len(group.members)
    return found


def error_on_groups(response: type[R], group: type[Struct]) -> Callable[[Any, int, ApiError], R]:
    """How an API reports that the whole request failed that names groups by `group_ids`: the error of every group."""

    def failed(request: Any, version: int, error: ApiError) -> R:
        return response(
            groups=[
                group(group_id=group_id, error_code=int(error.code), error_message=message_of(error))
                for group_id in request.group_ids
            ]
        )

    return failed
