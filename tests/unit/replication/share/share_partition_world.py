"""A share partition over a log of whole batches, with a persister that a test lets succeed, fail or wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import (
    NO_OFFSET,
    AcknowledgeType,
    AcquireMode,
    RecordState,
    SharePartitionKey,
    StateBatch,
    StateRead,
    StateWrite,
)
from kalda.replication.share.dead_letters import DeadRecords
from kalda.replication.share.share_partition import Acknowledgement, Acquired, SharePartition, ShareSettings

KEY = SharePartitionKey("g", Uuid(b"orders".ljust(16, b".")), 0)
A, C, K, D, X = (int(each) for each in RecordState)
"""Available, acquired, acknowledged, archiving, archived."""


class HandPersister:
    """What was written, and writes that wait while `holds` is set."""

    def __init__(self, read: StateRead) -> None:
        self.state = read
        self.writes: list[StateWrite] = []
        self.holds = False
        self.failure: ErrorCode | None = None
        self.waiting: list[Pending[None]] = []

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[StateRead]:
        answer: Pending[StateRead] = Pending()
        if self.failure is not None:
            answer.fail(ApiError(self.failure))
        else:
            answer.complete(self.state)
        return answer

    def write(self, key: SharePartitionKey, write: StateWrite) -> Pending[None]:
        self.writes.append(write)
        answer: Pending[None] = Pending()
        self.waiting.append(answer)
        if not self.holds:
            self.settle()
        return answer

    def settle(self, failure: ErrorCode | None = None) -> None:
        """Answer all writes."""
        waiting, self.waiting = self.waiting, []
        failure = failure or self.failure
        for each in waiting:
            if failure is None:
                each.complete(None)
            else:
                each.fail(ApiError(failure))


class HandDeadLetters:
    """Letters that wait until a test says that they are written."""

    def __init__(self, time: HandTime) -> None:
        self._time = time
        self.begun: list[DeadRecords] = []
        self.waiting: list[tuple[Callable[[], bool], Pending[None]]] = []

    def write(self, key: SharePartitionKey, records: DeadRecords, is_wanted: Callable[[], bool]) -> Pending[None]:
        self.begun.append(records)
        answer: Pending[None] = Pending()
        self.waiting.append((is_wanted, answer))
        return answer

    def acknowledge(self) -> None:
        """All are written, and what follows has happened."""
        waiting, self.waiting = self.waiting, []
        for _, answer in waiting:
            answer.complete(None)
        self._time.advance(0)


class PartitionWorld:
    """The log has batches of `batch` records from 0 on, up to `end`."""

    def __init__(
        self,
        *,
        start: int = 0,
        batches: tuple[StateBatch, ...] = (),
        batch: int = 10,
        end: int = 1_000,
        **settings: Any,
    ) -> None:
        self.time = HandTime(1_000)
        self.batch = batch
        self.end = end
        self.settings = ShareSettings(**settings)
        self.persister = HandPersister(StateRead(1, start, list(batches)))
        self.dead_letters = HandDeadLetters(self.time)
        self.share = self.made()

    def made(self) -> SharePartition:
        share = SharePartition(
            KEY, 7, lambda: self.settings, self.persister, self.dead_letters, self.time, lambda: self.time.now_ms
        )
        share.initialize(self._first_offset)
        return share

    def _first_offset(self) -> Pending[int]:
        found: Pending[int] = Pending()
        found.complete(500)
        return found

    def fetch(
        self,
        member: str = "m",
        records: int = 10,
        *,
        size: int = 500,
        portion: int = 500,
        strict: bool = False,
        aborted: tuple[tuple[int, int], ...] = (),
        missing: range = range(0),
    ) -> list[tuple[int, int, int]]:
        """Read up to `size` records, without those that compaction has removed, and acquire."""
        offset = self.share.in_flight.next_fetch_offset
        first = offset - offset % self.batch
        read = [
            (base, base + self.batch - 1)
            for base in range(first, min(self.end, offset + size), self.batch)
            if base not in missing
        ]
        mode = AcquireMode.RECORD_LIMIT if strict else AcquireMode.BATCH_OPTIMIZED
        found: list[Acquired] = self.share.acquire(member, read, offset, records, portion, mode, aborted)
        return [tuple(each) for each in found]  # type: ignore[misc]

    def acknowledge(self, first: int, last: int, *types: AcknowledgeType, member: str = "m") -> str | None:
        """The error's name; "waiting" while there is none."""
        acknowledgement = Acknowledgement(first, last, types or (AcknowledgeType.ACCEPT,))
        return self.outcome(self.share.acknowledge(member, [acknowledgement]))

    def outcome(self, pending: Pending[None]) -> str | None:
        if not pending.done:
            return "waiting"
        return None if pending.error is None else pending.error.code.name

    @property
    def runs(self) -> list[tuple[int, int, int, int]]:
        """First and last offset, state, deliveries."""
        return [(run.first, run.last, int(run.state), run.count) for run in self.share.in_flight.runs]

    @property
    def written(self) -> list[tuple[int, int, int, int]]:
        """The batches of the latest write."""
        return [tuple(each) for each in self.persister.writes[-1].batches]  # type: ignore[misc]


NEVER_READ = NO_OFFSET
