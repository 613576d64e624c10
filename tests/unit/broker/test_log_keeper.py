"""The keeper of logs: that no error ends its work, how many logs it compacts at a time, and how it limits their
bandwidth."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from by_hand import HandJobs, HandTime, inline_background

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.broker.replicas.log_keeper import LogKeeper, cleaner_config
from kalda.storage.compaction.cleaner import SLICE_BYTES, CleanerConfig
from kalda.storage.job import Job

FAILURES = (OSError(28, "no space"), ApiError(ErrorCode.KAFKA_STORAGE_ERROR), ValueError("a defect"))
DAY = 86_400_000
NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}


class Steps:
    """A cleaning of so many steps, each of which moves 1,000 bytes and takes `step_ms`."""

    is_preparing = False

    def __init__(self, time: HandTime, steps: int = 3, step_ms: int = 5) -> None:
        self.log = SimpleNamespace(topic_partition=TopicPartition("t", 0))
        self.end_offset = self.bytes_moved = 0
        self.begun_ms: list[int] = []
        self.slices: list[int] = []
        self._time = time
        self._left = steps
        self._step_ms = step_ms

    def next_job(self, most_bytes: int) -> Job[None] | None:
        if not self._left:
            return None
        self._left -= 1
        self.begun_ms.append(self._time.now_ms)
        self.slices.append(most_bytes)
        return Job("a step", lambda: self._time.advance(self._step_ms), self._moved)

    def _moved(self, _: None) -> None:
        self.bytes_moved += 1_000


class Cleaner:
    """Chooses the given cleanings, one after the other."""

    def __init__(self, *cleanings: Any, **config: Any) -> None:
        self.config = CleanerConfig(**{"backoff_ms": 10, **config})
        self.left = list(cleanings)
        self.failed_with: list[Exception] = []
        self.discarded = 0

    def choose(self, now_ms: int) -> Any:
        return self.left.pop(0) if self.left else None

    def finished(self, cleaning: Any, now_ms: int) -> Job[None] | None:
        return Job("checkpoint", lambda: None, lambda _: None)

    def failed(self, cleaning: Any, error: Exception, now_ms: int) -> Job[None] | None:
        self.failed_with.append(error)
        return Job("discard", self._discard, lambda _: None)

    def _discard(self) -> None:
        self.discarded += 1


class Keeper:
    """A keeper on a clock and with jobs that the test moves by hand."""

    def __init__(self, time: HandTime, cleaner: Any, maintenance: Any = None, hold_jobs: bool = False) -> None:
        idle: Any = SimpleNamespace(poll=lambda now_ms: [], next_deadline_ms=lambda now_ms: now_ms + 10_000)
        clock: Any = SimpleNamespace(wall_ms=lambda: time.now_ms, mono_ms=lambda: time.now_ms)
        self.jobs = HandJobs(hold_jobs)
        self.keeper = LogKeeper(maintenance or idle, cleaner, clock, time, self.jobs, inline_background())
        self.keeper.start()


@pytest.mark.parametrize("failure", FAILURES, ids=("the disk", "the log", "a defect"))
@pytest.mark.parametrize("where", ["next_job", "run", "finish"])
def test_a_step_that_fails_ends_one_compaction_and_no_other(failure: Exception, where: str) -> None:
    time = HandTime()
    broken: Any = Steps(time)

    def refuse(*_: object) -> Any:
        raise failure

    if where == "next_job":
        broken.next_job = refuse
    elif where == "run":
        broken.next_job = lambda most_bytes: Job("a step", refuse, lambda _: None)
    else:
        broken.next_job = lambda most_bytes: Job("a step", lambda: None, refuse)
    sound = Steps(time)
    cleaner = Cleaner(broken, sound)
    Keeper(time, cleaner)
    time.advance(10)
    assert cleaner.failed_with == [failure]
    assert cleaner.discarded == 1
    assert sound.begun_ms == []
    time.advance(10)
    assert len(sound.begun_ms) == 3, "the next log is chosen after the backoff"


@pytest.mark.parametrize("where", ["choose", "finished", "failed"])
def test_a_cleaner_that_raises_is_called_again(where: str, caplog: pytest.LogCaptureFixture) -> None:
    time = HandTime()
    first: Any = Steps(time)
    if where == "failed":
        first.next_job = None
    cleaner: Any = Cleaner(first, Steps(time), Steps(time))
    sound = getattr(cleaner, where)

    def once(*arguments: Any) -> Any:
        setattr(cleaner, where, sound)
        raise ValueError("a defect")

    setattr(cleaner, where, once)
    Keeper(time, cleaner)
    with caplog.at_level(logging.ERROR):
        time.advance(1_000)
    assert "ValueError: a defect" in caplog.text, "with its cause"
    assert not cleaner.left, "all logs were compacted all the same"


@pytest.mark.parametrize("where", ["poll", "next_deadline_ms", "finish"])
def test_maintenance_that_raises_is_polled_again(where: str, caplog: pytest.LogCaptureFixture) -> None:
    time = HandTime()
    polls: list[int] = []

    def refuse(*_: object) -> Any:
        raise ValueError("a defect")

    def poll(now_ms: int) -> list[Job[None]]:
        polls.append(now_ms)
        if where == "poll":
            refuse()
        return [Job("flush", lambda: None, refuse)] if where == "finish" else []

    maintenance = SimpleNamespace(
        poll=poll, next_deadline_ms=refuse if where == "next_deadline_ms" else lambda now_ms: now_ms + 500
    )
    with caplog.at_level(logging.ERROR):
        Keeper(time, Cleaner(), maintenance)
        time.advance(2_000)
    assert len(polls) > 2
    assert "ValueError: a defect" in caplog.text


@pytest.mark.parametrize(
    ("bytes_per_second", "begun_ms"),
    [(float("inf"), [10, 15, 20]), (1_000, [10, 1_010, 2_010]), (200_000, [10, 15, 20])],
    ids=("no limit", "waits", "slow enough"),
)
def test_a_compaction_moves_no_more_than_its_bytes_a_second(bytes_per_second: float, begun_ms: list[int]) -> None:
    time = HandTime()
    steps = Steps(time)
    keeper = Keeper(time, Cleaner(steps, max_bytes_per_second=bytes_per_second)).keeper
    time.advance(5_000)
    assert steps.begun_ms == begun_ms
    keeper.close()
    assert time.timers == 0


def test_compactions_share_the_bytes_a_second() -> None:
    time = HandTime()
    cleanings = [Steps(time, 10, 0), Steps(time, 10, 0)]
    Keeper(time, Cleaner(*cleanings, max_bytes_per_second=1_000, threads=2))
    time.advance(10_010)
    begun = sorted(at for each in cleanings for at in each.begun_ms)
    assert 10 <= len(begun) <= 12, "10,000 bytes in 10 s"
    assert all(len(each.begun_ms) >= 5 for each in cleanings)


@pytest.mark.parametrize(
    ("bytes_per_second", "most_bytes"), [(float("inf"), SLICE_BYTES), (5_000_000, 500_000), (0, 65_536)], ids=str
)
def test_a_low_bandwidth_is_spread_over_small_steps(bytes_per_second: float, most_bytes: int) -> None:
    time = HandTime()
    steps = Steps(time)
    Keeper(time, Cleaner(steps, max_bytes_per_second=bytes_per_second))
    time.advance(10)
    assert steps.slices[0] == most_bytes


def test_an_altered_bandwidth_holds_for_a_compaction_that_waits() -> None:
    time = HandTime()
    steps = Steps(time)
    cleaner = Cleaner(steps, max_bytes_per_second=0)
    keeper = Keeper(time, cleaner).keeper
    time.advance(500)
    assert steps.begun_ms == [10], "the second step waits for 1,000 s"
    keeper.configure(CleanerConfig(backoff_ms=10, max_bytes_per_second=1_000))
    time.advance(10_000)
    assert 500 < steps.begun_ms[1] <= 1_500
    assert len(steps.begun_ms) == 3


def test_an_altered_backoff_holds_at_once() -> None:
    time = HandTime()
    steps = Steps(time)
    keeper = Keeper(time, Cleaner(steps, backoff_ms=DAY)).keeper
    time.advance(500)
    keeper.configure(CleanerConfig(backoff_ms=10))
    time.advance(10)
    assert steps.begun_ms[0] == 510


def test_each_thread_compacts_another_log() -> None:
    time = HandTime()
    cleanings = [Steps(time) for _ in range(4)]
    cleaner = Cleaner(*cleanings, threads=2)
    by_hand = Keeper(time, cleaner, hold_jobs=True)
    time.advance(100)
    assert [len(each.begun_ms) for each in cleanings] == [1, 1, 0, 0]
    by_hand.keeper.configure(CleanerConfig(backoff_ms=10, threads=3))
    assert [len(each.begun_ms) for each in cleanings] == [1, 1, 1, 0]
    by_hand.keeper.configure(CleanerConfig(backoff_ms=10, threads=1))
    by_hand.jobs.let_jobs_run()
    assert [len(each.begun_ms) for each in cleanings] == [3, 3, 3, 3], "all are completed"


def test_the_next_compaction_begins_once_the_one_before_has_written_its_checkpoints() -> None:
    time = HandTime()
    first, second = Steps(time), Steps(time)
    first.is_preparing = True
    cleaner: Any = Cleaner(first, second, threads=2)
    chosen = cleaner.choose
    cleaner.choose = lambda now_ms: None if first.is_preparing and first.begun_ms else chosen(now_ms)
    by_hand = Keeper(time, cleaner, hold_jobs=True)
    time.advance(10)
    assert second.begun_ms == []
    sound = first.next_job

    def prepared(most_bytes: int) -> Job[None] | None:
        first.is_preparing = False
        return sound(most_bytes)

    first.next_job = prepared  # type: ignore[method-assign]
    by_hand.jobs.waiting.pop(0)()
    assert (len(first.begun_ms), len(second.begun_ms)) == (2, 1)


def test_a_keeper_that_is_closed_between_two_steps_begins_no_other() -> None:
    time = HandTime()
    steps = Steps(time)
    keeper = Keeper(time, Cleaner(steps, max_bytes_per_second=0)).keeper
    time.advance(500)
    keeper.close()
    keeper.configure(CleanerConfig())
    time.advance(100 * 3_600_000)
    assert steps.begun_ms == [10]
    assert time.timers == 0


def test_cleaners_leave_half_of_the_background_threads_to_others() -> None:
    def config(**properties: str) -> CleanerConfig:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        return cleaner_config(ServerConfig({**NODE, **named}))

    assert config().threads == 1
    assert config(log_cleaner_threads="4").threads == 4
    assert config(log_cleaner_threads="64").threads == 5
    assert config(log_cleaner_threads="4", background_threads="1").threads == 1
    assert config(log_cleaner_threads="2").memory_of_one == config().memory_bytes // 2
