"""What the describe APIs of all kinds of groups have in common: steps, authorized operations, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import message_of
from kalda.protocol.access import operations_on
from kalda.protocol.messages.security import AclResourceType
from kalda.protocol.notation import Response, Struct

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
