"""Failures that several APIs report alike; and of APIs that both kinds of listener serve, Fetch (1) and
DescribeCluster (60), a failure and a check.

Their handlers differ. What both listeners forward or take from envelopes is in `forwarded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import message_of
from kalda.protocol.access import operations_on
from kalda.protocol.apis import response_class
from kalda.protocol.messages.metadata import EndpointType
from kalda.protocol.messages.partitions import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from kalda.protocol.messages.security import AclResourceType
from kalda.protocol.notation import Request, Struct
from kalda.protocol.schema import WireField, wire_struct

_LAST_FETCH_BY_NAME = 12


def error_on_top(request: Request, version: int, error: ApiError) -> Any:
    """How an API reports that the whole request failed whose response has one error, and perhaps a message to it."""
    response = response_class(type(request).API_KEY)
    return response(**_error_fields(response, version, error))


_KEYS: Final = frozenset(
    (
        "name", "topic", "topic_id", "partition", "partition_index", "index", "group_id", "producer_id",
        "resource_type", "resource_name", "entity_type", "entity_name",
    )
)  # fmt: skip
"""Fields by which requests name things, and responses those of the request."""


def error_on_items(
    answered: str, asked: str = "", *, on_top: bool = False, **values: Any
) -> Callable[[Any, int, ApiError], Any]:
    """How an API reports that the whole request failed whose response has an error for each item, with a message where
    there is a field for it, and perhaps one on top.

    `answered` is the path of the lists down to these items, `asked` that of the lists in the request where they differ:
    `"topics.partitions", "topics.partition_indexes"`. An element of the response has the `_KEYS` of the one in the
    request, or that itself as its first field if it is a number or a text; the innermost ones have `values` too.
    """
    path = list(zip(answered.split("."), (asked or answered).split("."), strict=True))

    def failed(request: Request, version: int, error: ApiError) -> Any:
        response = response_class(type(request).API_KEY)
        given = _error_fields(response, version, error) if on_top else {}
        return response(**given, **_items(response, request, path, version, error, values))

    return failed


def _items(
    cls: type[Struct], asked: Any, path: list[tuple[str, str]], version: int, error: ApiError, values: dict[str, Any]
) -> dict[str, Any]:
    """The list with which the path begins, as an argument of `cls`, for that of `asked`."""
    (name, of_request), *further = path
    item = _wire_fields(cls, version)[name].struct
    assert item is not None, f"{name} is no list of structs"
    errors = _error_fields(item, version, error)
    fields = [each for each in _wire_fields(item, version) if each not in errors]
    found = []
    for each in getattr(asked, of_request) or ():
        given = dict(errors)
        if isinstance(each, Struct):
            given |= {key: getattr(each, key) for key in fields if key in _KEYS and key in type(each).declared}
        else:
            given[fields[0]] = each
        given |= _items(item, each, further, version, error, values) if further else values
        found.append(item(**given))
    return {name: found}


@cache
def _wire_fields(cls: type[Struct], version: int) -> dict[str, WireField]:
    layout = wire_struct(cls, version, False)
    return {each.name: each for each in layout.fields + layout.tagged}


def _error_fields(cls: type[Struct], version: int, error: ApiError) -> dict[str, Any]:
    both = {"error_code": error.code, "error_message": message_of(error)}
    return {name: value for name, value in both.items() if name in _wire_fields(cls, version)}


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
