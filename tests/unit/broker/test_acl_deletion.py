"""DeleteAcls: what many filters match, in bounded steps, and one deletion of all of it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paper_connection import CORRELATION_ID, read_answer

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.broker import acl_deletion
from kalda.broker.acl_deletion import delete_acls_in_steps
from kalda.broker.context import RequestContext
from kalda.controller.acl_matching import AclMatcher
from kalda.metadata.acl_filters import filter_matcher
from kalda.metadata.acls import StandardAcl
from kalda.protocol.messages.security import DeleteAclsFilter, DeleteAclsRequest

CONTEXT = cast(RequestContext, SimpleNamespace(api_version=3, header=SimpleNamespace(correlation_id=CORRELATION_ID)))


def entries(count: int) -> dict[Uuid, StandardAcl]:
    return {
        Uuid(number.to_bytes(16, "big")): StandardAcl(2, f"t-{number}", 3 + number % 2, f"User:{number % 7}", "*", 3, 3)
        for number in range(count)
    }


def acl_filter(
    name: str | None = None, pattern: int = 1, principal: str | None = None, **other: int
) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        **{"resource_type_filter": 1, "operation": 1, "permission_type": 1, **other},
        resource_name_filter=name, pattern_type_filter=pattern, principal_filter=principal, host_filter=None,
    )  # fmt: skip


def deleted(
    filters: list[DeleteAclsFilter], held: dict[Uuid, StandardAcl], failure: ApiError | None = None
) -> tuple[Any, list[Uuid], int]:
    """The response or the error, what was deleted, and the steps that it took."""
    gone: list[Uuid] = []

    def delete(ids: list[Uuid]) -> Pending[None]:
        gone.extend(ids)
        pending: Pending[None] = Pending()
        pending.settle(None, failure)
        return pending

    request, taken = DeleteAclsRequest(filters=filters), 0
    steps = delete_acls_in_steps(CONTEXT, request, held.items(), delete)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            answer = finished.value
            if answer.error is not None:
                return answer.error, gone, taken
            return read_answer(answer.value.buffers, request, 3), gone, taken
        taken += 1


def test_each_filter_is_answered_with_all_that_it_matches() -> None:
    held = entries(20)
    response, gone, _ = deleted(
        [acl_filter(), acl_filter("t-3"), acl_filter(resource_type_filter=99), acl_filter("t-3")], held
    )
    every, one, refused, again = response.filter_results
    assert [each.resource_name for each in every.matching_acls] == [f"t-{number}" for number in range(20)]
    assert [each.resource_name for each in one.matching_acls] == ["t-3"]
    assert again == one
    assert (refused.error_code, refused.matching_acls) == (ErrorCode.INVALID_REQUEST, [])
    assert refused.error_message
    assert (every.error_message, one.matching_acls[0].error_message) == (None, None), "null, not an empty text"
    assert gone == list(held), "each once"


def test_a_deletion_that_fails_is_answered_with_its_error() -> None:
    error, _, _ = deleted([acl_filter()], entries(3), ApiError(ErrorCode.NOT_CONTROLLER))
    assert error.code is ErrorCode.NOT_CONTROLLER


def test_filters_find_by_their_index_what_they_match() -> None:
    rng = random.Random(5)
    names = ["*", "a", "ab", "abc", "b", "t-1", "t-12"]
    held = [
        (
            Uuid(number.to_bytes(16, "big")),
            StandardAcl(2, rng.choice(names), rng.choice([3, 4]), f"User:{rng.randrange(3)}", "*", 3, 3),
        )
        for number in range(200)
    ]
    matcher = AclMatcher(held)
    for pattern in (1, 2, 3, 4):
        for name in [None, *names, "abcd", "t-123"]:
            for principal in (None, "User:1", "User:9"):
                one = acl_filter(name, pattern, principal)
                matches = filter_matcher(one)
                expected = sorted(entry for entry in held if matches(entry[1]))
                assert sorted(run_to_end(matcher.matching(one))) == expected, one


def test_filters_that_name_something_are_not_compared_with_all_entries() -> None:
    held = entries(10_000)
    by_name, _, name_steps = deleted([acl_filter(f"t-{number}", 2) for number in range(1_000)], held)
    by_principal, _, principal_steps = deleted([acl_filter("t-7", 3, f"User:{n % 7}") for n in range(1_000)], held)
    assert len(by_name.filter_results) == len(by_principal.filter_results) == 1_000
    assert name_steps < 20
    assert principal_steps < 20


def test_more_entries_than_a_batch_may_remove_are_refused() -> None:
    with pytest.raises(ApiError, match="more than 10000"):
        deleted([acl_filter(), acl_filter("t")], entries(10_001))


def test_an_answer_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_deletion, "MAX_ANSWER_BYTES", 10_000)
    with pytest.raises(ApiError, match="fewer filters"):
        deleted([acl_filter()] * 100, entries(100))
