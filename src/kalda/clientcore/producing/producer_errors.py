"""Errors of a producer that no broker has sent; failures of transactions by what the application has to do (KIP-1050).

A retriable error of a transaction is retried by the client and is not raised before its deadline. The others are raised
as one of these types, each with Kafka's error code.
"""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode, KafkaError


class RecordTooLarge(ApiError):
    """The record is larger than `max.request.size`, or than `buffer.memory`."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


class BufferExhausted(ApiError):
    """`buffer.memory` was full for `max.block.ms`."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class MetadataTimeout(ApiError):
    """The topic, or the partition, was unknown for `max.block.ms`."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class DeliveryTimeout(ApiError):
    """The record was not acknowledged within `delivery.timeout.ms`. It may be in the log."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class DeliveryAborted(ApiError):
    """The producer was closed, or its transaction aborted, before the record was acknowledged. It may be in the log."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OPERATION_NOT_ATTEMPTED, message)


class SerializationError(KafkaError, ValueError):
    """A key or a value is not what its serializer takes."""


class ProducerClosed(KafkaError, RuntimeError):
    """The producer has been closed."""


def made_by_parent() -> ProducerClosed:
    """A forked child uses the producer, and the futures, of its parent."""
    return ProducerClosed("the producer was made in the parent process: make one in this process")


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
