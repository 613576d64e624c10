"""The error that a client of a coordinator gets when its write fails.

The log's errors are about partitions, leaders and batches. A client of a coordinator can act on errors that are about
coordinators: it retries, or sends FindCoordinator again.
"""

from __future__ import annotations

from kalda.base.errors import ErrorCode

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
