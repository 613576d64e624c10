"""Errors of all kinds, in a module that the workers of a pool can import."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import kalda
from kalda.base.errors import ApiError, CallTimeout, ErrorCode, KafkaError
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.consumer_errors import (
    CommitFailed,
    LogTruncated,
    NoOffset,
    OffsetOutOfRange,
    UndecodableRecord,
)
from kalda.clientcore.producing.producer_errors import ProducerClosed, RecordTooLarge
from kalda.records.validation import RecordsRefused

P = TopicPartition("t", 3)
EXAMPLES: list[KafkaError] = [
    ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"),
    ApiError(ErrorCode.NETWORK_EXCEPTION),
    CommitFailed(ErrorCode.REBALANCE_IN_PROGRESS),
    NoOffset([P, TopicPartition("u", 0)]),
    OffsetOutOfRange({P: 17}),
    LogTruncated({P: 17}, {P: 12}),
    UndecodableRecord(P, 17, ValueError("no JSON")),
    RecordTooLarge("5,000 bytes"),
    CallTimeout("the record was not acknowledged within 5 s"),
    ProducerClosed("the producer is closed"),
    RecordsRefused(ErrorCode.INVALID_RECORD, "no key", record_errors=[]),
]


def raised_by_kalda() -> Iterator[type[BaseException]]:
    """Every class of exceptions, of all modules."""
    for module in pkgutil.walk_packages(kalda.__path__, "kalda."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    left: list[type[BaseException]] = [BaseException]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith("kalda."):
            yield kind


def fail_in_a_worker(index: int) -> None:
    raise EXAMPLES[index]
