"""Commands and nodes where the system starts no more threads."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from kalda.cli import server
from kalda.cli.commands import cli


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_command_says_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    result = CliRunner().invoke(cli, ["topics", "list", "-b", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("kalda: can't start new thread: raise the limit of threads: ")
    assert result.stderr.count("\n") == 1


def test_a_node_does_not_start_with_few_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """libuv, which starts its threads later, would abort the process without a line."""
    before = threading.active_count()
    left = 3
    start = threading.Thread.start

    def some(thread: threading.Thread) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            refuse(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", some)
    monkeypatch.setattr("kalda.broker.process.loggers.set_up", lambda *_: None)
    try:
        assert server.run(["--dir", str(tmp_path / "node")]) == 1
    finally:
        gc.enable()
    assert "a node needs at least 7 threads: raise the limit of threads" in caplog.text
    assert threading.active_count() == before
