"""DeleteAcls (31) at the active controller, in steps.

The filters are compared with the entries, and the answer is encoded, before the entries are deleted: all of them at
once, in one event of the controller and one batch of the metadata log, as in Kafka. So an entry that several filters
match is in the results of each. Of the entries that were found, those that another request has deleted meanwhile are
left out of the batch.

Filters that are named again share their result. Kafka answers whatever it has found; here an answer has at most
`MAX_ANSWER_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.broker.context import MAX_ANSWER_BYTES, Encoded, RequestContext
from kalda.controller.acl_matching import AclMatcher, Entry
from kalda.controller.acls import check_removals
from kalda.metadata.acls import StandardAcl
from kalda.protocol.framing import response_header
from kalda.protocol.list_encoder import ListEncoder
from kalda.protocol.messages.security import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kalda.protocol.notation import maker

_matching_acl = maker(DeleteAclsMatchingAcl, "error_message", *StandardAcl._fields)


def delete_acls_in_steps(
    context: RequestContext,
    request: DeleteAclsRequest,
    entries: Iterable[Entry],
    delete: Callable[[list[Uuid]], Pending[None]],
) -> Steps[Pending[Encoded]]:
    """Find what the filters match among `entries`, and `delete` it. Raises `ApiError` INVALID_REQUEST where that is too
    much."""
    matcher = AclMatcher(entries)
    encoder = ListEncoder(DeleteAclsResponse, context.api_version, "filter_results")
    removed: dict[Uuid, None] = {}
    known: dict[tuple[object, ...], DeleteAclsFilterResult] = {}
    for entry_filter in request.filters:
        key = tuple(getattr(entry_filter, name) for name in DeleteAclsFilter.declared)
        result = known.get(key)
        if result is None:
            try:
                found = yield from matcher.matching(entry_filter)
            except ApiError as error:
                result = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
            else:
                removed.update(dict.fromkeys(acl_id for acl_id, _ in found))
                check_removals(len(removed))
                result = DeleteAclsFilterResult(
                    error_message=None, matching_acls=[_matching_acl(None, *acl) for _, acl in found]
                )
            known[key] = result
        yield from encoder.add([result])
        if encoder.size > MAX_ANSWER_BYTES:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"The answer would have more than {MAX_ANSWER_BYTES} bytes: delete by fewer filters in one request",
            )
    head = response_header(DeleteAclsResponse, context.api_version)(context.header.correlation_id)
    buffers = encoder.message(DeleteAclsResponse(), head)
    answer: Pending[Encoded] = Pending()
    deletion = delete(list(removed))
    deletion.then(lambda _, error: answer.settle(None if error is not None else Encoded(buffers), error))
    return answer
