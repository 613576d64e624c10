"""`kalda verify` on a real node: transactions with kills and pauses of their clients are sound."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from lone_node import LoneNode

from kalda import Admin
from waiting import wait_until

pytestmark = pytest.mark.compat

SOURCES = Path(__file__).parents[2] / "src"


def verify(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kalda.cli.main", "verify", *map(str, arguments), "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_end_by_a_signal_leaves_no_process_and_no_topic(
    node: LoneNode, tmp_path: Path, number: signal.Signals
) -> None:
    """A paused client above all."""
    command = [sys.executable, "-m", "kalda.cli.main", "verify", "--bootstrap-server", node.address]
    process = subprocess.Popen(
        [*command, "--duration", "60", "--producers", "8", "--seed", "1"],
        env={**os.environ, "PYTHONPATH": str(SOURCES), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
        text=True,
    )
    runner, clients = psutil.Process(process.pid), set[psutil.Process]()

    def has_paused_one() -> bool:
        clients.update(runner.children())
        return any(client.status() == psutil.STATUS_STOPPED for client in clients if client.is_running())

    try:
        wait_until(has_paused_one)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        wait_until(lambda: not any(is_alive(client) for client in clients))
    finally:
        for client in clients:
            with contextlib.suppress(psutil.NoSuchProcess):
                client.kill()
    if number is not signal.SIGKILL:  # nobody is left who could
        assert (process.returncode, errors.splitlines()[-1]) == (130, "Interrupted.")
        assert not list(tmp_path.glob("kalda-verify-*"))
        with Admin({"bootstrap.servers": node.address}) as admin:
            assert not [name for name in admin.list_topics() if name.startswith("verify-")]


def heed_signals() -> None:
    """The tests may run under nohup, or in the background."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_node_is_sound_and_its_history_is_judged_again(node: LoneNode, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    options = ("--duration", 4, "--producers", 2, "--transaction-timeout-ms", 2_000, "--seed", 1, "--history", history)
    result = verify("--bootstrap-server", node.address, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    assert document["sound"]
    assert document["committed"] > 0
    assert document["records_read"] > 0
    again = json.loads(verify("--judge", history).stdout)
    assert again == {**document, "seed": None}
