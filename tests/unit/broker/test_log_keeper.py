"""What the keeper of logs does when a disk fails under it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.log_keeper import LogKeeper

FAILURES = (OSError(28, "no space"), ApiError(ErrorCode.KAFKA_STORAGE_ERROR))


class Timers:
    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later_ms(self, delay_ms: int, callback: Any) -> Any:
        self.due.append(callback)
        return SimpleNamespace(cancel=lambda: None)


@pytest.mark.parametrize("failure", FAILURES, ids=("the disk", "the log"))
def test_a_log_whose_files_cannot_be_opened_does_not_end_the_cleaning_of_others(failure: Exception) -> None:
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
    assert timers.due == [clean], "it is tried again"
