"""`kalda verify` on a real node: transactions with kills and pauses of their clients are sound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lone_node import LoneNode

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
