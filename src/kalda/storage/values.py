"""Arguments and results of a log's methods."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, NamedTuple

from kalda.base.disk import Buffer
from kalda.base.errors import ApiError, ErrorCode


class AppendOrigin(Enum):
    """Where a batch comes from, which decides the checks that it must pass."""

    REPLICATION = 0
    COORDINATOR = 1
    CLIENT = 2
    RAFT_LEADER = 3


class AppendInfo(NamedTuple):
    """The result of an append. For a duplicate: that of its first append, as far as the producer's state has it."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int  # -1 where timestamps are the producer's
    log_start_offset: int
    size_bytes: int
    duplicate: bool = False


class TransactionEnd(NamedTuple):
    """The end of a producer's transaction in one partition, as its coordinator has decided it."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int
    """Of the transaction: from 2 on, its coordinator has raised the producer epoch for the marker."""


class FetchInfo:
    """What a read found: whole batches, perhaps none.

    `first_offset` is the offset that was asked for, `next_offset` the one after the last batch (equal where there is
    none). `first_entry_incomplete`: there is a batch, but `max_bytes` did not hold it.
    """

    __slots__ = ("first_entry_incomplete", "first_offset", "next_offset", "records", "size_bytes")

    EMPTY: ClassVar[FetchInfo]

    def __init__(
        self, first_offset: int, next_offset: int, records: Buffer, first_entry_incomplete: bool = False
    ) -> None:
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.records = records
        self.size_bytes = len(records)
        self.first_entry_incomplete = first_entry_incomplete


FetchInfo.EMPTY = FetchInfo(-1, -1, b"")


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    timestamp: int
    offset: int
    leader_epoch: int


class UnexpectedAppendOffset(ApiError):
    """The batches that a replica has fetched do not follow its log. It truncates, or starts anew."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)
        self.first_offset = first_offset
        self.last_offset = last_offset
