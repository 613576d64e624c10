"""When the final logs are read: with the cluster replaced by what it answers, pass by pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.ids import TopicPartition
from kalda.cli.verification import run
from kalda.verify.history import FinalLog, OffsetSample, Operation

A = TopicPartition("t", 0)


def read_finally(monkeypatch: pytest.MonkeyPatch, *passes: tuple[int, int, int, int]) -> tuple[list[int], int]:
    """`passes`: last stable offset and high watermark of the last sample, then those of the log. Returns the ends of
    the final logs, and how many passes were made."""
    left = list(passes)
    recorded: list[Operation] = []

    def sample(*_: Any) -> list[OffsetSample]:
        return [OffsetSample(A, left[0][0], left[0][1], 1)]

    def final_logs(*_: Any) -> list[FinalLog]:
        _, _, stable, end = left.pop(0)
        return [FinalLog(A, 0, end, stable, (), ())]

    monkeypatch.setattr(run, "sample", sample)
    monkeypatch.setattr(run, "final_logs", final_logs)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: 0.0))
    logs = run.settled_logs(SimpleNamespace(), [A], recorded.append, 0.0)  # type: ignore[arg-type]
    assert len(recorded) == len(passes) - len(left), "every sample is in the history"
    return [log.end for log in logs], len(recorded)


def test_a_stable_log_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_finally(monkeypatch, (5, 5, 5, 5), (5, 5, 5, 5)) == ([5], 1)


def test_a_transaction_that_a_late_record_begins_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_finally(monkeypatch, (5, 5, 5, 6), (7, 7, 7, 7)) == ([7], 2)


def test_a_transaction_that_nobody_ends_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_finally(monkeypatch, (5, 5, 5, 6), (5, 6, 5, 6), (5, 6, 5, 6)) == ([6], 2)
