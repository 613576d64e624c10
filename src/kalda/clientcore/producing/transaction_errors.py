"""Failures of transactions by what the application has to do (KIP-1050).

A retriable error is retried by the client and is not raised before its deadline. The others are raised as one of these
types, each with Kafka's error code.
"""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode


class AbortableTransactionError(ApiError):
    """The transaction has to be aborted; then the producer can begin the next one."""


class FatalTransactionError(ApiError):
    """The producer can do nothing more; the application has to close it."""


class ProducerFencedError(FatalTransactionError):
    """Another producer has initialized this transactional id, or the coordinator has aborted the transaction after its
    timeout. A new producer can go on."""


class TransactionMisconfiguredError(FatalTransactionError):
    """Retrying cannot help before a right or a configuration is changed."""


FENCED = frozenset((ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH))
_MISCONFIGURED = frozenset(
    (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )
)


def is_of_state(error: ApiError) -> bool:
    """Whether the error says that the producer's state allows no record: no transaction is open, or it has failed."""
    return error.code is ErrorCode.INVALID_TXN_STATE or isinstance(
        error, AbortableTransactionError | FatalTransactionError
    )


def fatal(code: ErrorCode, message: str) -> FatalTransactionError:
    """The fatal error of a code."""
    if code in FENCED:
        return ProducerFencedError(code, f"{message}: a newer producer has this transactional id; close this one")
    if code in _MISCONFIGURED:
        return TransactionMisconfiguredError(code, message)
    return FatalTransactionError(code, message)
