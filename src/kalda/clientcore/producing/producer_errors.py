"""Errors of a producer that no broker has sent."""

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
