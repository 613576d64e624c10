"""What a consumer raises besides the errors of brokers. All but `Wakeup` are `ApiError`s with Kafka's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kalda.base.errors import ApiError, ErrorCode, KafkaError
from kalda.base.ids import TopicPartition


class Wakeup(KafkaError):
    """`wakeup` was called: the blocking call that was running, or the next one, ends with this."""


class CommitFailed(ApiError):
    """A commit was refused, and must not be repeated as it is: a rebalance is under way (`REBALANCE_IN_PROGRESS`), or
    the partitions belong to other members by now."""

    def __init__(self, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            why = "the group is rebalancing. Poll, which completes that, and commit for the partitions that are left"
        else:
            why = (
                "the group has rebalanced, and other members own the partitions. The time between two polls was longer "
                "than max.poll.interval.ms, or the member was fenced. Raise max.poll.interval.ms, or take fewer "
                "records at once (max.poll.records)"
            )
        super().__init__(code, f"the offsets were not committed: {why}")


class NoOffset(ApiError):
    """Partitions have no committed offset, and `auto.offset.reset` is `none`."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        self.partitions = partitions
        names = ", ".join(map(str, partitions))
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"no offset is committed for {names}, and auto.offset.reset=none: seek, or choose a policy",
        )


class OffsetOutOfRange(ApiError):
    """The leader does not have the position's offset, and `auto.offset.reset` is `none`."""

    def __init__(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)
        named = ", ".join(f"{partition} at {offset}" for partition, offset in positions.items())
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log does not have the offset of {named}, and auto.offset.reset=none: seek to one that it has",
        )


class LogTruncated(ApiError):
    """Records before the position were lost in an election, and `auto.offset.reset` is `none` (KIP-320).

    `divergent` has the end of what the position's log and the new leader's have in common, -1 where that is unknown.
    """

    def __init__(self, positions: Mapping[TopicPartition, int], divergent: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)
        self.divergent = dict(divergent)
        named = ", ".join(
            f"{partition} at {offset}, shared up to {divergent.get(partition, -1)}"
            for partition, offset in positions.items()
        )
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"the log was truncated below the position: {named}; seek to go on"
        )


class UndecodableRecord(ApiError):
    """A deserializer failed, or the record is corrupt. The position is that of the record: seek past it to go on. In a
    share group the record was released or rejected, and the next poll goes on behind it."""

    def __init__(
        self, partition: TopicPartition, offset: int, cause: BaseException, outcome: str = "seek past it to go on"
    ) -> None:
        self.partition = partition
        self.offset = offset
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE,
            f"the record at offset {offset} of {partition} cannot be decoded: {cause}; {outcome}",
        )


class Operation:
    """A request of the application that takes several steps: its result or its error, once it is done."""

    __slots__ = ("deadline_ms", "error", "is_done", "is_late", "on_done", "result", "what")

    def __init__(self, what: str, deadline_ms: int) -> None:
        self.what = what
        self.deadline_ms = deadline_ms
        self.is_done = False
        self.is_late = False
        """The deadline has passed before it was done."""
        self.result: Any = None
        self.error: Exception | None = None
        self.on_done: Any = None
        """Called with this object when it is done, where it is set."""

    def succeed(self, result: Any = None) -> None:
        """The operation is done. Later calls have no effect."""
        self._finish(result, None)

    def fail(self, error: Exception) -> None:
        """The operation has failed. Later calls have no effect."""
        self._finish(None, error)

    def expire(self, now_ms: int) -> None:
        """Fail where the deadline has passed."""
        if not self.is_done and now_ms >= self.deadline_ms:
            self.is_late = True
            self.fail(self.late())

    def late(self, failure: str = "") -> ApiError:
        """The error where the deadline has passed; `failure`: why the last connection failed, where none was made
        since."""
        why = f"{self.what} was not done in time"
        return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{why}: {failure}" if failure else why)

    def _finish(self, result: Any, error: Exception | None) -> None:
        if self.is_done:
            return
        self.is_done = True
        self.result = result
        self.error = error
        if self.on_done is not None:
            self.on_done(self)
