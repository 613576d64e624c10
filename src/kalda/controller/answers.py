"""The common part of requests: error fields of responses, and the limit of what one request may name or write."""

from __future__ import annotations

from typing import Any

from kalda.base.errors import ApiError, ErrorCode

MAX_RECORDS_PER_USER_OPERATION = 10_000


def error_fields(error: ApiError | None) -> dict[str, Any]:
    """Keyword arguments `error_code` and `error_message` of a response struct."""
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": error.code, "error_message": error.message or None}


def check_batch_size(count: int) -> None:
    """A user's request may write one batch at most. What it names is counted before anything is decided, the records
    while they are made: so deciding is bounded too. Raises `ApiError` POLICY_VIOLATION, as Kafka does."""
    if count > MAX_RECORDS_PER_USER_OPERATION:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
