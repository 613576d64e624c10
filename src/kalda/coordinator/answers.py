"""The answers of coordinators to their clients: out of pending ones, at once where these are settled already; and the
error that a client gets when its write fails.

The log's errors are about partitions, leaders and batches. A client of a coordinator can act on errors that are about
coordinators: it retries, or sends FindCoordinator again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending

T = TypeVar("T")
R = TypeVar("R")


def now_or_later(pending: Pending[T]) -> T | Pending[T]:
    """The value where it is there, else the pending answer itself. For answers that never fail."""
    if pending.done and pending.error is None:
        return cast(T, pending.value)
    return pending


def answer_after(pending: Pending[Any], finish: Callable[[ApiError | None], R]) -> R | Pending[R]:
    """`finish(error)` once `pending` settles."""
    if pending.done:
        return finish(pending.error)
    answer: Pending[R] = Pending()
    pending.then(lambda _, error: answer.complete(finish(error)))
    return answer


def answer_after_all(pendings: Sequence[Pending[Any]], finish: Callable[[], R]) -> R | Pending[R]:
    """`finish()` once all of them have settled; it reads the value or error of each."""
    left = sum(not pending.done for pending in pendings)
    if not left:
        return finish()
    answer: Pending[R] = Pending()

    def settled(_: Any, __: ApiError | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            answer.complete(finish())

    for pending in [pending for pending in pendings if not pending.done]:
        pending.then(settled)
    return answer


_TRANSLATED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def write_error(code: ErrorCode) -> ErrorCode:
    """The client's error code for that of the log."""
    return _TRANSLATED.get(code, code)


_LOADING_UNDERSTOOD_FROM = 2


def txn_commit_error(code: ErrorCode, version: int) -> ErrorCode:
    """The error of a TxnOffsetCommit, for that of the log, of the verification, or of the coordinator itself.

    NETWORK_EXCEPTION is of the request to the transaction coordinator. Clients do not expect it; they retry after
    COORDINATOR_LOAD_IN_PROGRESS, which clients before version 2 do not expect either.
    """
    translated = write_error(code)
    if translated is ErrorCode.NETWORK_EXCEPTION:
        translated = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if translated is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _LOADING_UNDERSTOOD_FROM:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return translated
