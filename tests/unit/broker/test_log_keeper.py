"""The keeper of logs: what it does when a disk fails, and how it limits the bandwidth of a compaction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from by_hand import HandJobs, HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.broker.log_keeper import LogKeeper
from kalda.storage.cleaner import CleanerConfig
from kalda.storage.job import Job

FAILURES = (OSError(28, "no space"), ApiError(ErrorCode.KAFKA_STORAGE_ERROR))


class Timers:
    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later_ms(self, delay_ms: int, callback: Any) -> Any:
        self.due.append(callback)
        return SimpleNamespace(cancel=lambda: None)


@pytest.mark.parametrize("failure", FAILURES, ids=("the disk", "the log"))
def test_a_log_whose_files_cannot_be_opened_does_not_end_the_compaction_of_others(failure: Exception) -> None:
    def refuse() -> None:
        raise failure

    timers, failed = Timers(), []
    cleaning = SimpleNamespace(next_job=refuse, log=SimpleNamespace(topic_partition="t-0"))
    cleaner: Any = SimpleNamespace(
        config=SimpleNamespace(backoff_ms=1),
        choose=lambda now_ms: cleaning,
        failed=lambda _, error: failed.append(error),
    )
    logs: Any = SimpleNamespace(poll=lambda now_ms: [], next_deadline_ms=lambda now_ms: now_ms)
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    jobs: Any = None
    keeper = LogKeeper(logs, cleaner, clock, timers, jobs)
    keeper.start()
    clean = timers.due.pop()
    timers.due.clear()
    clean()
    assert failed == [failure]
    assert timers.due == [clean], "the next log is chosen later"


class Steps:
    """A cleaning of so many steps, each of which moves 1,000 bytes and takes `step_ms`."""

    def __init__(self, time: HandTime, steps: int, step_ms: int) -> None:
        self.log = SimpleNamespace(topic_partition=TopicPartition("t", 0))
        self.end_offset = self.bytes_moved = 0
        self.begun_ms: list[int] = []
        self._time = time
        self._left = steps
        self._step_ms = step_ms

    def next_job(self) -> Job[None] | None:
        if not self._left:
            return None
        self._left -= 1
        self.begun_ms.append(self._time.now_ms)
        return Job("a step", lambda: self._time.advance(self._step_ms), self._moved)

    def _moved(self, _: None) -> None:
        self.bytes_moved += 1_000


@pytest.mark.parametrize(
    ("bytes_per_second", "begun_ms"),
    [(float("inf"), [10, 15, 20]), (1_000, [10, 1_010, 2_010]), (200_000, [10, 15, 20])],
    ids=("no limit", "waits", "slow enough"),
)
def test_a_compaction_moves_no_more_than_its_bytes_a_second(bytes_per_second: float, begun_ms: list[int]) -> None:
    time = HandTime()
    steps: Any = Steps(time, 3, step_ms=5)
    cleanings = [steps]
    cleaner: Any = SimpleNamespace(
        config=CleanerConfig(backoff_ms=10, max_bytes_per_second=bytes_per_second),
        choose=lambda now_ms: cleanings.pop() if cleanings else None,
        finished=lambda cleaning: None,
    )
    logs: Any = SimpleNamespace(poll=lambda now_ms: [], next_deadline_ms=lambda now_ms: now_ms + 10_000)
    clock: Any = SimpleNamespace(wall_ms=lambda: time.now_ms, mono_ms=lambda: time.now_ms)
    keeper = LogKeeper(logs, cleaner, clock, time, HandJobs())
    keeper.start()
    time.advance(5_000)
    assert steps.begun_ms == begun_ms
    keeper.close()
    assert time.timers == 0


def test_a_keeper_that_is_closed_between_two_steps_begins_no_other() -> None:
    time = HandTime()
    steps: Any = Steps(time, 3, step_ms=5)
    cleaner: Any = SimpleNamespace(
        config=CleanerConfig(backoff_ms=10, max_bytes_per_second=0), choose=lambda now_ms: steps
    )
    logs: Any = SimpleNamespace(poll=lambda now_ms: [], next_deadline_ms=lambda now_ms: now_ms + 10_000)
    clock: Any = SimpleNamespace(wall_ms=lambda: time.now_ms, mono_ms=lambda: time.now_ms)
    keeper = LogKeeper(logs, cleaner, clock, time, HandJobs())
    keeper.start()
    time.advance(5_000)
    keeper.close()
    time.advance(100 * 3_600_000)
    assert steps.begun_ms == [10]


class Upkeep:
    """Logs whose polls raise, as long as `failure` is set."""

    def __init__(self) -> None:
        self.failure: Exception | None = ZeroDivisionError("by no one's doing")
        self.polls = 0

    def poll(self, now_ms: int) -> list[Any]:
        self.polls += 1
        if self.failure is not None:
            raise self.failure
        return []

    def next_deadline_ms(self, now_ms: int) -> int:
        return now_ms + 10_000


def test_an_unexpected_exception_does_not_end_the_polls(caplog: pytest.LogCaptureFixture) -> None:
    time, logs = HandTime(), Upkeep()
    cleaner: Any = SimpleNamespace(config=CleanerConfig(backoff_ms=10_000), choose=lambda now_ms: None)
    clock: Any = SimpleNamespace(wall_ms=lambda: time.now_ms)
    keeper = LogKeeper(logs, cleaner, clock, time, HandJobs())  # type: ignore[arg-type]
    keeper.start()
    time.advance(20_000)
    assert (logs.polls, caplog.text.count("ZeroDivisionError")) == (3, 3)
    logs.failure = None
    time.advance(20_000)
    assert logs.polls > 10


@pytest.mark.parametrize("where", ["choose", "next_job", "finish", "finished"])
def test_an_unexpected_exception_does_not_end_the_compactions(where: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by no one's doing")

    time = HandTime()
    chosen: list[int] = []
    failed: list[BaseException] = []
    has_run: list[bool] = []

    def choose(now_ms: int) -> Any:
        chosen.append(now_ms)
        if where == "choose":
            fail()
        has_run.clear()
        return SimpleNamespace(
            next_job=next_job, log=SimpleNamespace(topic_partition="t-0"), bytes_moved=0, end_offset=0
        )

    def next_job() -> Job[None] | None:
        if where == "next_job":
            fail()
        if has_run:
            return None
        has_run.append(True)
        return Job("a step", lambda: fail() if where == "finish" else None, lambda _: None)

    def finished(cleaning: Any) -> None:
        if where == "finished":
            fail()

    cleaner: Any = SimpleNamespace(
        config=CleanerConfig(backoff_ms=10, max_bytes_per_second=float("inf")),
        choose=choose,
        finished=finished,
        failed=lambda _, error: failed.append(error),
    )
    logs: Any = SimpleNamespace(poll=lambda now_ms: [], next_deadline_ms=lambda now_ms: now_ms + 10_000)
    clock: Any = SimpleNamespace(wall_ms=lambda: time.now_ms, mono_ms=lambda: time.now_ms)
    keeper = LogKeeper(logs, cleaner, clock, time, HandJobs())
    keeper.start()
    time.advance(25_000)
    keeper.close()
    assert len(chosen) >= 2
    assert "ZeroDivisionError" in caplog.text
    assert (where == "choose") == (not failed)
