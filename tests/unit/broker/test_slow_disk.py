"""Syncs that take long are named in the log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kalda.broker.process.disk import RealDisk


def test_a_slow_sync_is_logged_with_its_file_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_ns = 0
    took_ms = iter([900, 4_000, 4_000, 7_000, 1_000])

    def sync(_: int) -> None:
        nonlocal now_ns
        now_ns += next(took_ms) * 1_000_000

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(time, "monotonic", lambda: now_ns / 1e9)
    path = str(tmp_path / "00.log")
    file = RealDisk().open(path, create=True)
    for _ in range(5):
        file.sync()
    file.close()
    assert caplog.messages == [
        f"the disk is slow: the sync of {path} took {ms} ms, and what is committed by it waited as long"
        for ms in (4_000, 7_000)
    ]
