"""What a process of Spark that runs tasks does once."""

from __future__ import annotations

import gc
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from kalda.spark import workers


def test_modules_are_exempt_from_garbage_collection_once_and_in_tasks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark collects garbage after each task, which took longer than a task with a few rows."""
    freeze = MagicMock()
    monkeypatch.setattr(gc, "freeze", freeze)
    monkeypatch.setattr(workers, "_frozen_in", None)
    workers.exempt_modules()
    freeze.assert_not_called()
    monkeypatch.setattr(workers.TaskContext, "get", lambda: object())
    workers.exempt_modules()
    workers.exempt_modules()
    freeze.assert_called_once_with()
